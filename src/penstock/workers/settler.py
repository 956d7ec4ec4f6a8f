"""Settles what a consumer has finished, within a few milliseconds.

    handler returns ──add──► waiting ──take──► settled with the consumer's next receive, in one commit (quick handlers)
                                └─ LINGER passes ──► settled by our own thread, while a slow handler runs

Quick handlers thus share a commit, and a killed process leaves at most LINGER of finished work unsettled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition, Thread

from penstock.message import Message

LINGER = 0.005
"""Seconds for which a finished message may wait for others to share its commit."""


class Settler:
    def __init__(self, settle: Callable[[list[Message]], None]) -> None:
        self._settle = settle
        self._waiting: list[Message] = []
        self._oldest = 0.0
        self._condition = Condition()
        self._asleep = False
        self._end = False
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread. Without it, finished messages wait for `take`, which is enough for a consumer that is always
        free."""
        self._end = False
        self._thread = Thread(target=self._run, name="penstock settler", daemon=True)
        self._thread.start()

    def stop(self) -> list[Message]:
        """End the thread; the caller settles what is left."""
        with self._condition:
            self._end = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self.take()

    def add(self, message: Message, took: float = 0.0) -> None:
        """Settle the message soon, or at once if its handler took so long that no other is likely to finish soon."""
        with self._condition:
            self._waiting.append(message)
            if len(self._waiting) == 1 or took >= LINGER:
                self._oldest = time.monotonic() - took
                if self._asleep or took >= LINGER:
                    self._condition.notify()

    def take(self) -> list[Message]:
        """All waiting messages, for the caller to settle."""
        with self._condition:
            taken, self._waiting = self._waiting, []
        return taken

    def _run(self) -> None:
        while not self._end:
            if messages := self._overdue():
                self._settle(messages)

    def _overdue(self) -> list[Message]:
        """Sleep until the oldest message has waited for LINGER, and return all that wait by then."""
        with self._condition:
            if not self._waiting:
                self._asleep = True
                self._condition.wait_for(lambda: self._waiting or self._end)
                self._asleep = False
            while self._waiting and not self._end:
                left = self._oldest + LINGER - time.monotonic()
                if left <= 0:
                    taken, self._waiting = self._waiting, []
                    return taken
                self._condition.wait(left)
            return []
