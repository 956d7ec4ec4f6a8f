"""Cancelling: a message that nobody holds is taken out of the queue, found by its id or by its key.

    id, key ──find──► the message ──► nobody holds it? ──► deleted, by the delivery that was seen

A receiver that claims the message in between has another delivery. The deletion is then stale, and changes nothing.
"""

from __future__ import annotations

from penstock import policy
from penstock.message import Receipt, State
from penstock.queue.finding import find
from penstock.queue.opened import OpenQueue
from penstock.queue.settling import settle


def cancel(queue: OpenQueue, id: str | None, key: bytes | None) -> bool:
    """By the id or the key, whichever is given. False, and nothing has changed, if there is no such message or somebody holds
    it."""
    message = find(queue, id, key)
    now = queue.clock()
    if message is None or not policy.is_free(message, now):
        return False
    seen = [Receipt(queue.name, message.id, message.delivery)]
    (gone,) = settle(queue, seen, State.FAILED, policy.CANCELLED)
    return gone
