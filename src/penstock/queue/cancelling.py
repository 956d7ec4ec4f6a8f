"""Cancelling: a message that nobody holds is taken out of the queue, found by its id or by its key.

    id ──► number ──► the message ──► nobody holds it? ──► deleted, by the delivery that was seen
    key ──► mark ──► id

A receiver that claims the message in between has another delivery. The deletion is then stale, and changes nothing.
"""

from __future__ import annotations

from penstock import marks, policy
from penstock.message import FOREVER, Message, Receipt, State
from penstock.queue.opened import OpenQueue
from penstock.queue.settling import settle


def cancel(queue: OpenQueue, id: str | None, key: bytes | None) -> bool:
    """By the id or the key, whichever is given. False, and nothing has changed, if there is no such message or somebody holds
    it."""
    if key is not None:
        id = queue.stored.marked(marks.of_key(key)).id
    message = None if id is None else _find(queue, id)
    if message is not None and message.visible_at == FOREVER:  # a store may learn only now that its named claim has lapsed
        queue.stored.browse(1, now=queue.clock())
        message = _find(queue, message.id)
    now = queue.clock()
    if message is None or not policy.is_free(message, now) or (key is not None and message.key != key):
        return False
    seen = [Receipt(queue.name, message.id, message.delivery)]
    (gone,) = settle(queue, seen, State.FAILED, policy.CANCELLED)
    return gone


def _find(queue: OpenQueue, id: str) -> Message | None:
    number = queue.store.uuids.number(queue.name, id)
    found = [] if number is None else queue.stored.scan(number, number + 1, 1)
    return next((message for message in found if message.id == id), None)
