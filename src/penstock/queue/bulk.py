"""Changing many messages of a queue in parts, each a commit: those that a caller wants are deleted or released.

The messages are looked at in the order of sending, which does not change when somebody receives one of them. So each that was
there when the work began is looked at once, and work that was interrupted goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.message import FOREVER, Message, State, weigh
from penstock.policy import came_at
from penstock.queue.opened import OpenQueue
from penstock.queue.settling import Settling

IsWanted = Callable[[Message, int], bool]
"""Whether a caller wants a message, given the instant."""


class ChangedPart(NamedTuple):
    """What one part has done."""

    changed: int
    looked: int
    next: int | None
    """The number with which the next part begins; None: there was nothing any more."""
    weight: int
    """Bytes of the messages that it has looked at."""


class Bulk:
    """Changes messages of one queue that nobody has received, or whoever holds them; not those of named claims, which can be
    read again until their reader settles them."""

    def __init__(self, queue: OpenQueue, settling: Settling) -> None:
        self._queue = queue
        self._settling = settling

    def delete_part(self, limit: int, start: int, came_by: int, wanted: IsWanted) -> ChangedPart:
        """Of the first ``limit`` messages from a number on, delete those that came by an instant and are wanted."""
        page, chosen, _ = self._look(limit, start, came_by, wanted)
        return _tell(page, self._settling.settle(chosen, State.PROCESSED, None))

    def release_part(self, limit: int, start: int, came_by: int, wanted: IsWanted) -> ChangedPart:
        """The same, and give those back to the queue that a receiver holds."""
        page, chosen, now = self._look(limit, start, came_by, wanted)
        held = [message for message in chosen if message.state is State.CONSUMED and message.visible_at > now]
        return _tell(page, self._settling.release(held, 0) if held else [])

    def _look(self, limit: int, start: int, came_by: int, wanted: IsWanted) -> tuple[list[Message], list[Message], int]:
        """The page, what is wanted of it, and the instant. (A message that is received now has another delivery when it is to
        be changed, and stays.)"""
        queue = self._queue
        page = queue.stored.scan(start, FOREVER, limit)
        now = queue.clock()
        readers = set(queue.stored.readers.names()) if any(message.holder is not None for message in page) else set()
        chosen = [
            message
            for message in page
            if came_at(message) <= came_by
            and wanted(message, now)
            and not (message.state is State.CONSUMED and message.visible_at > now and message.holder in readers)
        ]
        return page, chosen, now


def _tell(page: list[Message], changed: list[bool]) -> ChangedPart:
    return ChangedPart(sum(changed), len(page), page[-1].number + 1 if page else None, sum(map(weigh, page)))
