"""Settling: a receiver deletes, fails, extends or gives back the messages that it holds."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import Held, Message, State, micros
from penstock.policy import settlement
from penstock.queue.opened import OpenQueue


class Settling:
    """Settles messages of one queue."""

    def __init__(self, queue: OpenQueue) -> None:
        self._queue = queue

    def delete(self, message: Message) -> bool | None:
        """Settle one message as processed. Returns None, and does nothing, if the settings are not known or have changed."""
        queue = self._queue
        known = queue.known
        if known is None or known.groups or known.max_in_flight is not None:
            return None
        settled = queue.stored.delete((message,), settlement(known, State.PROCESSED, None, queue.clock()), known)
        return None if settled is None else settled[0]

    def settle(self, held: Sequence[Held], state: State, reason: str | None, connection: object = None) -> list[bool]:
        if connection is None:
            return settle(self._queue, held, state, reason)
        with self._queue.joining(connection) as joined:
            return settle(joined, held, state, reason)

    def extend(self, held: Sequence[Held], visibilities: Sequence[float]) -> list[bool]:
        """Hide each message for so many seconds from now."""
        queue = self._queue
        until: dict[int, list[Held]] = {}
        now = queue.clock()
        for message, seconds in zip(held, visibilities, strict=True):
            until.setdefault(now + micros(seconds), []).append(message)
        if len(until) == 1:
            extended = queue.stored.extend(held, *until)
        else:
            ours: dict[int, bool] = {}
            with queue.store.batch():
                for hidden_until, group in until.items():
                    ours.update(zip(map(id, group), queue.stored.extend(group, hidden_until), strict=True))
            extended = [ours[id(message)] for message in held]
        queue.tell()
        return extended

    def release(self, held: Sequence[Held], delay: float, error: str | None = None) -> list[bool]:
        released = self._queue.stored.extend(held, self._queue.clock() + micros(delay), release=True, error=error)
        self._queue.tell()
        return released


def settle(queue: OpenQueue, held: Sequence[Held], state: State, reason: str | None) -> list[bool]:
    if not held:
        return []
    now = queue.clock()
    settled, settings = queue.decide(lambda known: queue.stored.delete(held, settlement(known, state, reason, now), known))
    if settings.groups or settings.max_in_flight is not None:
        queue.tell()  # the next message of a group may be available now, or there is room
    return settled
