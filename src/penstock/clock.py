"""The clock: only `Queue` and what is above it reads one, and it can be any callable that gives microseconds."""

import time
from collections.abc import Callable

Clock = Callable[[], int]


def system_clock() -> int:
    return time.time_ns() // 1000
