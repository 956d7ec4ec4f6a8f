"""How a receiver waits without using CPU: its own process wakes it at once, and it polls cheaply for changes by others."""

from __future__ import annotations

import time
from collections.abc import Generator
from threading import Lock, RLock

from penstock.forking import watch
from penstock.guarded import guarded
from penstock.stores.ports import Store

LOOK_EVERY = 0.035
"""Seconds between two polls for changes by other processes; we promise 50 ms."""


class Waiting:
    """Where receivers wait; shared by all queues of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = RLock()  # a signal handler may send while its thread holds it
        self._events = 0
        self._bells: list[Lock] = []
        """One for each waiting thread, to wake it. A `Condition` does not survive an interrupt at every point."""
        self._version = store.version()
        self._looked = time.monotonic()
        watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._bells.clear()  # the waiting threads are the parent's
        self._lock.release()

    def events(self) -> int:
        """A counter of events. Read it before you look for messages; `rest` returns if it has changed since."""
        return self._events

    def notify(self) -> None:
        with self._lock:
            self._events += 1
            while self._bells:
                self._bells.pop().release()

    @guarded
    def told(self) -> Generator[None]:
        """Around a batch: wake waiting receivers when it is committed."""
        yield
        self.notify()

    def rest(self, events: int, until: float) -> None:
        """Return when something has happened since ``events`` was read, or at ``until`` (monotonic clock)."""
        while self._events == events and (left := until - time.monotonic()) > 0:
            bell = Lock()
            bell.acquire()
            try:
                with self._lock:
                    if self._events == events:
                        self._bells.append(bell)
                if self._events == events:
                    bell.acquire(timeout=min(left, LOOK_EVERY))
            finally:
                with self._lock:
                    if bell in self._bells:
                        self._bells.remove(bell)
            self._look()

    def _look(self) -> None:
        """Check whether other processes changed the store. One check per period serves all waiting threads."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY / 2:
            return
        self._looked = now
        version = self._store.version()
        if version != self._version:
            self._version = version
            self.notify()
