"""A clock that only moves when it is told to, so that tests don't sleep."""

from penstock.message import micros

START = 1_800_000_000_000_000


class FakeClock:
    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += micros(seconds)
