"""How a store waits for others. Stores read no clock and do not sleep: the opener of a store hands it a `Patience`."""

from __future__ import annotations

import time
from collections.abc import Iterator

TIMEOUT = 10.0
"""Seconds to wait for others by default."""


class Patience:
    __slots__ = ("timeout",)

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout

    now = staticmethod(time.monotonic)
    """Seconds on a clock that nobody sets, to measure how long something takes."""
    date = staticmethod(time.time)
    """Seconds since 1970, for a server that wants to be told a date."""
    pause = staticmethod(time.sleep)

    def tries(self, pause: float, longest: float | None = None, *, timeout: float | None = None) -> Iterator[None]:
        """Yields for each try: at once, and then after each pause, until the timeout has passed. With ``longest``, the pauses
        become longer up to that."""
        longest = pause if longest is None else longest
        begun = self.now()
        give_up_at = begun + (self.timeout if timeout is None else timeout)
        while True:
            yield
            now = self.now()
            if now >= give_up_at:
                return
            self.pause(min(pause + (now - begun) / 4, longest))
