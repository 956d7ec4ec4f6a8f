"""How a receiver waits without burning a core: woken at once by its own process, and by a cheap look for all others."""

from __future__ import annotations

import time
from threading import Condition, RLock

from penstock.forking import watch
from penstock.stores.base import Store

LOOK_EVERY = 0.035
"""Seconds between two looks at what other processes did; the promise is 50 ms."""


class Waiting:
    """The waiting room of one store, shared by all its queues."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = RLock()  # a signal may come while it is held, and its handler send
        self._condition = Condition(self._lock)
        self._events = 0
        self._resting = 0
        self._version = store.version()
        self._looked = time.monotonic()
        watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002
        self._lock.release()

    def events(self) -> int:
        """How much has happened; take it before you look, and `rest` returns if more has happened since."""
        return self._events

    def notify(self) -> None:
        with self._lock:
            self._events += 1
            if self._resting:
                self._condition.notify_all()

    def rest(self, events: int, until: float) -> None:
        """Return when something has happened since ``events`` was taken, or at ``until`` (of the monotonic clock)."""
        while self._events == events and (left := until - time.monotonic()) > 0:
            with self._lock:
                if self._events == events:
                    self._resting += 1
                    try:
                        self._condition.wait(min(left, LOOK_EVERY))
                    finally:
                        self._resting -= 1
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
