"""Announces new messages to other processes: in a background thread, and seldom enough to cost nothing.

The first announcement goes out at once. Those within the pause after it are combined into one at its end, so that a busy sender
announces at most a hundred times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import RLock, Thread

from penstock.errors import StoreError

PAUSE = 0.01


class Announcer:
    def __init__(self, tell: Callable[[], None], pause: Callable[[float], object]) -> None:
        self._tell = tell
        self._pause = pause
        self._news: SimpleQueue[None] = SimpleQueue()  # not an Event: an interrupt can leave its lock held
        self._lock = RLock()
        self._thread: Thread | None = None
        self._closed = False

    def announce(self) -> None:
        if self._news.empty():
            self._news.put(None)
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    thread = Thread(target=self._run, name="penstock announcer", daemon=True)
                    thread.start()
                    self._thread = thread  # only now: one that an interrupt kept from starting can be neither used nor joined

    def _run(self) -> None:
        while True:
            self._news.get()
            if self._closed:
                self._news.put(None)  # for another thread, if an interrupt came while the first was being started
                return
            with suppress(StoreError):  # waiting receivers also poll now and then
                self._tell()
            self._pause(PAUSE)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            thread = self._thread
        self._news.put(None)
        if thread is not None:
            thread.join()

    def forked(self) -> None:
        """In a child, which does not have its parent's thread."""
        self._news, self._lock, self._thread = SimpleQueue(), RLock(), None
