"""The clock of a server (a database or a Penstock service), as its clients read it: their own steady clock, regularly
synchronised with the server's.

Machines disagree about the time of day, and one reads a lease that another wrote. So clients do not use their wall clocks: each
measures the offset of its steady clock (which nobody sets) from the server's clock, to within half a round trip. If the
server's wall clock is set, all clients follow within `ASK_EVERY`, and log it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import RLock

from penstock.clock import SHARE, STEP, steady, system_clock
from penstock.errors import StoreError

logger = logging.getLogger("penstock")

ASK_EVERY = 10_000_000
ASK_AGAIN = 1_000_000
TRIES = 3


class ServerClock:
    def __init__(self, ask: Callable[[], int]) -> None:
        self.steps = 0
        """How often this process has noticed that the server's clock was set."""
        self._ask = ask
        self._lock = RLock()  # a signal handler may send while its thread holds it
        self._offset: int | None = None
        self._ask_at = self._asked_at = 0

    def __call__(self) -> int:
        now = steady()
        offset = self._offset
        if offset is None or now >= self._ask_at:
            offset = self._measure(now)
        return steady() + offset

    def _measure(self, now: int) -> int:
        with self._lock:
            if self._offset is not None and now < self._ask_at:
                return self._offset  # another thread was first
            try:
                noise, offset = self._nearest()
                self._tell(offset, noise, now - self._asked_at)
                self._offset, self._asked_at = offset, now
                self._ask_at = now + ASK_EVERY
            except StoreError:
                if self._offset is None:
                    raise
                self._ask_at = now + ASK_AGAIN  # our offset stays accurate to some microseconds a second
            return self._offset

    def difference(self) -> int:
        """How many microseconds this machine's wall clock is ahead of the server's."""
        return system_clock() - self()

    def _tell(self, offset: int, noise: int, elapsed: int) -> None:
        """A server's clock that is only being slewed was not set."""
        moved = 0 if self._offset is None else offset - self._offset
        if abs(moved) > STEP + noise + elapsed // SHARE:
            self.steps += 1
            how = "forward" if moved > 0 else "back"
            logger.warning("the clock of the server was set %s by %.3f s", how, abs(moved) / 1_000_000)

    def _nearest(self) -> tuple[int, int]:
        """The fastest of several answers: how long it took, and the offset. The fastest leaves the least room for error."""
        answers = []
        for _ in range(TRIES):
            asked = steady()
            theirs = self._ask()
            answered = steady()
            answers.append((answered - asked, theirs - (asked + answered) // 2))
        return min(answers)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002
        self._lock.release()
