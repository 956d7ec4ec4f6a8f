"""The clock of a database, as its clients read it: their own steady clock, set by the database's from time to time.

Machines disagree about the time of day, and a lease that one of them writes is read by another. So none of them is asked: a
client measures how far its steady clock (which nobody sets) is from the database's, to half a round trip, and counts on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import RLock

from penstock.errors import StoreError

ASK_EVERY = 10_000_000
ASK_AGAIN = 1_000_000
TRIES = 3


def steady() -> int:
    """Microseconds that go on through a suspend, where the system can tell."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


class DatabaseClock:
    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._lock = RLock()  # a signal may come while it is held, and its handler send
        self._offset: int | None = None
        self._ask_at = 0

    def __call__(self) -> int:
        now = steady()
        offset = self._offset
        if offset is None or now >= self._ask_at:
            offset = self._measure(now)
        return steady() + offset

    def _measure(self, now: int) -> int:
        with self._lock:
            if self._offset is not None and now < self._ask_at:
                return self._offset  # someone else was first
            try:
                self._offset = self._nearest()
                self._ask_at = now + ASK_EVERY
            except StoreError:
                if self._offset is None:
                    raise
                self._ask_at = now + ASK_AGAIN  # what we know is still good to some microseconds a second
            return self._offset

    def _nearest(self) -> int:
        """By the quickest of some answers: it leaves the least room for error."""
        answers = []
        for _ in range(TRIES):
            asked = steady()
            told = self._ask()
            answered = steady()
            answers.append((answered - asked, told - (asked + answered) // 2))
        return min(answers)[1]

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002
        self._lock.release()
