"""The messages that a process holds of one queue, and their leases, which are renewed for as long as it holds them.

No thread is here: who owns the leases calls `renew` at least every third of a lease.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from threading import Lock

from penstock import policy
from penstock.message import SECOND, Message, micros
from penstock.queue.protocol import Queue

logger = logging.getLogger("penstock")


class Leases:
    def __init__(self, queue: Queue, clock: Callable[[], int], visibility: float) -> None:
        self._queue = queue
        self._clock = clock
        self._visibility = visibility
        self._held: dict[int, Message] = {}
        self._lock = Lock()

    @property
    def renew_every(self) -> float:
        return max(0.05, self._visibility / 3)

    def hold(self, messages: Iterable[Message]) -> None:
        with self._lock:
            self._held.update((id(message), message) for message in messages)

    def let_go(self, *messages: Message) -> None:
        with self._lock:
            for message in messages:
                self._held.pop(id(message), None)

    def renew(self) -> None:
        """Extend the leases of all held messages, in one commit: a handler may take longer than one lease."""
        with self._lock:
            held = list(self._held.values())
        if not held:
            return
        now = self._clock()
        whole, due_by = now + micros(self._visibility), now + micros(self._visibility * 5 / 6)
        due: list[tuple[Message, int]] = []
        for message in held:
            until = policy.renewal(message, whole, now)
            if until is None:
                self.let_go(message)
            elif (
                message.visible_at < until and message.visible_at <= due_by
            ):  # otherwise it lasts long enough, or ends with the deadline
                due.append((message, until))
        if not due:
            return
        answers = self._queue.extend_many([message for message, _ in due], [(until - now) / SECOND for _, until in due])
        for (message, until), ours in zip(due, answers, strict=True):
            self._renewed(message, until if ours else None)

    def _renewed(self, message: Message, until: int | None) -> None:
        if until is not None:
            message.visible_at = until
            return
        with self._lock:
            lost = self._held.pop(id(message), None) is not None
        if lost:
            logger.warning("message %s of queue %r is no longer ours: its lease had lapsed", message.id, message.queue)
