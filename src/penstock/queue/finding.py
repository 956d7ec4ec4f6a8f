"""Finding: one message, by its id or its key, without receiving it.

    key ──► mark ──► id ──► number ──► the message

A key is found as long as it makes other messages duplicates: that of a unique message while it is in the queue, any other
in a queue that deduplicates, and within its window.
"""

from __future__ import annotations

from penstock import marks
from penstock.message import FOREVER, Message
from penstock.queue.opened import OpenQueue


def find(queue: OpenQueue, id: str | None, key: bytes | None) -> Message | None:
    """By the id or the key, whichever is given."""
    if key is not None:
        id = queue.stored.marked(marks.of_unique(key)).id or queue.stored.marked(marks.of_key(key)).id
    message = None if id is None else _look(queue, id)
    if message is not None and message.visible_at == FOREVER:  # a store may learn only now that its named claim has lapsed
        queue.stored.browse(1, now=queue.clock())
        message = _look(queue, message.id)
    return None if message is None or (key is not None and message.key != key) else message


def _look(queue: OpenQueue, id: str) -> Message | None:
    number = queue.store.uuids.number(queue.name, id)
    found = [] if number is None else queue.stored.scan(number, number + 1, 1)
    return next((message for message in found if message.id == id), None)
