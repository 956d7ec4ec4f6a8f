"""The end of a declared pipeline that is told to stop: it takes nothing more, writes what it has taken, and settles it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PAUSE = "pause"
"""While this file is in the checkpoint folder, nothing is taken from queues."""


class Draining:
    """``drained``: whether nothing is left to do. What is not done after ``grace`` seconds is left to the next run."""

    def __init__(self, home: Path, grace: float) -> None:
        self.pause = home / PAUSE
        self.drained: Callable[[], bool] = lambda: False
        self._grace = grace
        self._until: float | None = None
        self.pause.unlink(missing_ok=True)  # of a run that was killed

    @property
    def begun(self) -> bool:
        return self._until is not None

    @property
    def over(self) -> bool:
        """There is no more time."""
        return self._until is not None and time.monotonic() > self._until

    def begin(self) -> None:
        if self._until is None:
            self.pause.touch()
            self._until = time.monotonic() + self._grace

    def done(self) -> bool:
        return self.over or self.drained()

    def end(self) -> None:
        self.pause.unlink(missing_ok=True)
