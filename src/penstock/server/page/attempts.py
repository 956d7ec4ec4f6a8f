"""Wrong tokens: each address may try a few in a minute, so that nobody finds a weak one by trying."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.server.http.request_response import Refused

MOST = 10
"""Wrong tokens from one address in a `PERIOD`."""
PERIOD = 60.0
MOST_ADDRESSES = 1000


class WrongTokens:
    """Owns the counts, of so many addresses; beyond that, those that came first are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: dict[str, tuple[int, float]] = {}
        """How many, and until when they count."""

    def check(self, address: str) -> None:
        """Raises `Refused` if there were too many."""
        count, until = self._wrong.get(address, (0, 0.0))
        left = until - self._clock()
        if left > 0 and count >= MOST:
            text = f"{count} wrong tokens came from this address within {PERIOD:g} seconds, the limit; wait"
            raise Refused(429, text, {"Retry-After": str(int(left) + 1)})

    def count(self, address: str) -> None:
        count, until = self._wrong.pop(address, (0, 0.0))
        now = self._clock()
        if until <= now:
            count, until = 0, now + PERIOD
        if len(self._wrong) >= MOST_ADDRESSES:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[address] = (count + 1, until)
