"""The watcher: a thread that looks for changes by other processes, as long as somebody waits.

It asks the store for its version, which is cheap. If that has changed, it asks each queue at which somebody waits when its
first message is due. Nobody else looks, however many wait.
"""

from __future__ import annotations

import time
from threading import Lock, RLock, Thread, current_thread
from typing import Protocol

from penstock.clock import Clock
from penstock.errors import PenstockError, QueueNotFound
from penstock.stores.ports import Store

LOOK_EVERY = 0.035
"""Seconds between two looks for changes by other processes; we promise 50 ms."""
LOOK_SHARE = 4
"""After a look, the watcher rests for so many times as long as it took."""
LOOK_AGAIN = 1.0
"""Seconds until the next look after the store has failed."""
LINGER = 1.0
"""Seconds after which the thread ends if nobody waits any more."""
LAST_LOOK = 10
"""Seconds to wait for the thread when a broker is closed."""


class Lines(Protocol):
    """The queues at which somebody waits."""

    def is_empty(self) -> bool: ...

    def hear(self) -> list[str]:
        """Another process has changed something: returns the queues at which somebody waits. Whoever comes later, after a look
        before this, must look again."""

    def notify(self, *queues: str) -> None: ...


class Watcher:
    """Looks on behalf of all who wait at one store. Owns the thread, and when messages of other processes become visible."""

    def __init__(self, store: Store, clock: Clock, lines: Lines) -> None:
        self._store = store
        self._clock = clock
        self._lines = lines
        self._version = store.version()
        self._due: dict[str, int] = {}
        """When messages that other processes have hidden or delayed become visible."""
        self._lock = RLock()
        self._thread: Thread | None = None
        self._closed = False
        self._end = Lock()
        self._end.acquire()

    def begin(self) -> None:
        """Somebody waits: see to it that the thread runs."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closed:
                    thread = Thread(target=self._run, name="penstock watcher", daemon=True)
                    thread.start()
                    self._thread = thread  # only now: one that an interrupt kept from starting can be neither used nor joined

    def close(self) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
            thread = self._thread
        if not closed:
            self._end.release()
        if thread is not None:
            thread.join(LAST_LOOK)

    def forked(self) -> None:
        """In a child, which does not have its parent's thread."""
        self._lock, self._thread, self._end = RLock(), None, Lock()
        self._end.acquire()

    def _run(self) -> None:
        left_at = time.monotonic()
        pause = LOOK_EVERY
        while not self._end.acquire(timeout=pause):
            began = time.monotonic()
            if not self._lines.is_empty():
                left_at = began
                pause = self._look() or max(LOOK_EVERY, LOOK_SHARE * (time.monotonic() - began))
            elif began - left_at > LINGER and self._leave():
                return
        self._end.release()  # for another thread, if an interrupt came while the first was being started

    def _leave(self) -> bool:
        """Whether the thread may end. Somebody who comes now is seen here, or starts another."""
        with self._lock:
            self._thread = None
        if self._lines.is_empty():
            return True
        with self._lock:
            if self._thread is None:
                self._thread = current_thread()
                return False
        return True

    def _look(self) -> float | None:
        """Tell of queues with something to receive. Returns how long to rest if the store has failed."""
        try:
            version = self._store.version()
            if version != self._version:
                self._version = version
                self._due = {queue: due for queue in self._lines.hear() if (due := self._ask(queue)) is not None}
            if visible := self._visible():
                self._lines.notify(*visible)
        except PenstockError:  # those who wait see the error when they look
            self._lines.notify()
            return LOOK_AGAIN
        return None

    def _ask(self, queue: str) -> int | None:
        try:
            return self._store.queue(queue).due()
        except QueueNotFound:  # whoever waits there must hear of it
            return 0

    def _visible(self) -> list[str]:
        now = self._clock()
        visible = [queue for queue, due in self._due.items() if due <= now]
        for queue in visible:
            del self._due[queue]
        return visible
