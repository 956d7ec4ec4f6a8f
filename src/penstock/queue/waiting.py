"""How a receiver waits without burning a core: woken at once by its own process, and by a cheap look for all others."""

from __future__ import annotations

import time
from collections.abc import Generator
from threading import Lock, RLock

from penstock.forking import watch
from penstock.guarded import guarded
from penstock.stores.ports import Store

LOOK_EVERY = 0.035
"""Seconds between two looks at what other processes did; the promise is 50 ms."""


class Waiting:
    """The waiting room of one store, shared by all its queues."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = RLock()  # a signal may come while it is held, and its handler send
        self._events = 0
        self._bells: list[Lock] = []
        """One for each thread that rests, to wake it: a `Condition` does not survive an interrupt at every instant."""
        self._version = store.version()
        self._looked = time.monotonic()
        watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._bells.clear()  # those who rest are the parent's
        self._lock.release()

    def events(self) -> int:
        """How much has happened; take it before you look, and `rest` returns if more has happened since."""
        return self._events

    def notify(self) -> None:
        with self._lock:
            self._events += 1
            while self._bells:
                self._bells.pop().release()

    @guarded
    def told(self) -> Generator[None]:
        """Around a batch: whoever waits is told when it is committed."""
        yield
        self.notify()

    def rest(self, events: int, until: float) -> None:
        """Return when something has happened since ``events`` was taken, or at ``until`` (of the monotonic clock)."""
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
        """See whether other processes changed the store; of many who wait, one look in a period serves all."""
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY / 2:
            return
        self._looked = now
        version = self._store.version()
        if version != self._version:
            self._version = version
            self.notify()
