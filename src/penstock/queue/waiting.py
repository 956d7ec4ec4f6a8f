"""How a receiver waits without using CPU: an event of its own process wakes it, and a watcher looks for those of others.

An event names its queues, so that it costs nothing for receivers that wait elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from threading import TIMEOUT_MAX, Lock, RLock

from penstock.clock import Clock
from penstock.forking import watch
from penstock.guarded import guarded
from penstock.queue.watching import Watcher
from penstock.stores.ports import Store

Bell = Callable[[], None]
EVERY = ""
"""In the place of a name: every queue."""
MOST_QUEUES = 10_000
"""Queues whose last event is remembered. Beyond that, an event counts for every queue."""


class Here(threading.local):
    """Events of this thread's batch, which others hear of when it is committed."""

    told: set[str] | None = None


class Waiting:
    """Where receivers wait; shared by all queues of one store. Owns the bells, each of which rings once."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._lock = RLock()  # a signal handler may send while its thread holds it
        self._events = 0
        self._last: dict[str, int] = {}
        self._last_of_all = 0
        self._bells: dict[str, list[Bell]] = {}
        self._here = Here()
        self._watcher = Watcher(store, clock, self)
        watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._bells.clear()  # what waits there are the parent's threads
            self._watcher.forked()
        self._lock.release()

    def close(self) -> None:
        """Call this when the store is closed: whoever waits looks, and sees that."""
        self.notify()
        self._watcher.close()

    # those who wait

    def events(self, queue: str) -> int:
        """The number of the queue's last event. Read it before you look for messages; `rest` returns once it has changed."""
        return max(self._last.get(queue, 0), self._last_of_all)

    def since(self, events: int) -> tuple[int, list[str] | None]:
        """The number of the last event of all, and the queues with events since the one of this number; None: any of them."""
        with self._lock:
            if self._last_of_all > events:
                return self._events, None
            if self._events == events:
                return events, []
            return self._events, [queue for queue, last in self._last.items() if last > events]

    def rest(self, queue: str, events: int, until: float) -> None:
        """Return when something has happened to the queue since ``events`` was read, or at ``until`` (monotonic clock)."""
        bell = Lock()  # a `Condition` does not survive an interrupt at every point
        bell.acquire()
        try:
            if self.listen(queue, events, bell.release):
                bell.acquire(timeout=min(max(0, until - time.monotonic()), TIMEOUT_MAX))
        finally:
            self.leave(queue, bell.release)

    def listen(self, queue: str, events: int, bell: Bell) -> bool:
        """Ring this bell at the queue's next event, in whichever thread it happens. False, and no bell, if there was one since
        ``events`` was read."""
        with self._lock:
            if self.events(queue) != events:
                return False
            self._bells.setdefault(queue, []).append(bell)
        self._watcher.begin()
        return True

    def leave(self, queue: str, bell: Bell) -> None:
        with self._lock:
            bells = self._bells.get(queue, [])
            if bell in bells:
                bells.remove(bell)
            if not bells:
                self._bells.pop(queue, None)

    def is_empty(self) -> bool:
        return not self._bells

    def queues(self) -> list[str]:
        with self._lock:
            return list(self._bells)

    def hear(self) -> list[str]:
        """See `Lines`: nobody has looked on behalf of those who do not listen yet."""
        with self._lock:
            self._events += 1
            self._last_of_all = self._events
            return list(self._bells)

    # those who make something happen

    def notify(self, *queues: str) -> None:
        """Tell that there may be something to receive in these queues; without names, in any. Inside `told`, it is told when
        that ends."""
        told = self._here.told
        if told is not None:
            told.update(queues or (EVERY,))
            return
        with self._lock:
            self._events += 1
            if not queues or len(self._last) > MOST_QUEUES:
                self._last.clear()
                self._last_of_all = self._events
            for queue in queues:
                self._last[queue] = self._events
            self._ring(queues or tuple(self._bells))

    @guarded
    def told(self) -> Generator[None]:
        """Around a batch: who waits hears of what happens inside only when it is committed."""
        if self._here.told is not None:
            yield
            return
        told: set[str] = set()
        try:
            self._here.told = told
            yield
        finally:
            self._here.told = None
            if told:
                self.notify(*(() if EVERY in told else told))

    def _ring(self, queues: tuple[str, ...]) -> None:
        for queue in queues:
            bells = self._bells.get(queue)
            while bells:
                bells.pop()()
            if bells is not None:
                self._bells.pop(queue, None)
