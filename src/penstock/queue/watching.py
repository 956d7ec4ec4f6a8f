"""The watcher: a thread that looks for changes by other processes, as long as somebody waits.

It asks the store for its version, which is cheap: when a file that others write has changed (inotify), when the store has heard
of a change, and now and then in any case. If the version has changed, it asks each queue at which somebody waits when its first
message is due. Nobody else looks, however many wait.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from threading import Lock, RLock, Thread, current_thread
from typing import Protocol

from penstock.clock import Clock
from penstock.errors import PenstockError, QueueNotFound
from penstock.queue.inotify import FileWatch
from penstock.stores.ports import Store

LOOK_EVERY = 0.035
"""Seconds between two looks if nothing can be watched, or nothing has happened there; we promise 50 ms."""
SETTLING = (0.001, 0.001, 0.002, 0.002, 0.003, 0.004, 0.006, 0.01)
"""Seconds between the looks after a file has changed: its change is committed when the disk has it."""
MOST_IN_VAIN = 45
"""Looks in vain, while the files change, after which it is this process that changes them."""
LOOK_PAUSE = 0.002
"""Seconds, at least, from a look that has found something to the next, and between two events while nobody waits."""
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

    def queues(self) -> list[str]: ...

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
        self._watch: FileWatch | None = None
        """The thread's own."""
        self._traces: list[str] = []
        self._end = Lock()
        self._end.acquire()
        self._bell = Lock()
        """Free once the store has heard of a change."""
        self._bell.acquire()
        store.listen(self._ring)

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
        self._ring()
        if self._watch is not None:
            self._watch.wake()
        if thread is not None:
            thread.join(LAST_LOOK)

    def forked(self) -> None:
        """In a child, which does not have its parent's thread."""
        self._lock, self._thread, self._end, self._bell = RLock(), None, Lock(), Lock()
        self._end.acquire()
        self._bell.acquire()
        if self._watch is not None:
            self._watch.disown()
            self._watch = None

    def _ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._bell.release()

    def _run(self) -> None:
        with closing(FileWatch()) as watch:
            self._watch = watch
            self._look_until_nobody_waits(watch)

    def _look_until_nobody_waits(self, watch: FileWatch) -> None:
        left_at, pause, pauses, in_vain = time.monotonic(), 0.0, iter(SETTLING), 0
        while not self._closed:
            heard = self._rest(watch, pause, deaf=in_vain >= MOST_IN_VAIN)
            if heard:
                pauses = iter(SETTLING)  # also if nobody waits now: somebody may, before the change is committed
            elif pause >= LOOK_EVERY:
                in_vain = 0
            pause = next(pauses, LOOK_EVERY) if in_vain < MOST_IN_VAIN else LOOK_EVERY
            began = time.monotonic()
            if self._lines.is_empty():
                if began - left_at > LINGER and self._leave():
                    return
                if heard:
                    self._end.acquire(timeout=LOOK_PAUSE)
                continue
            left_at = began
            found = self._look()
            in_vain = 0 if found else in_vain + 1
            if found is None:
                pause = LOOK_AGAIN
            elif found:
                self._end.acquire(timeout=max(LOOK_PAUSE, LOOK_SHARE * (time.monotonic() - began)))

    def _rest(self, watch: FileWatch, seconds: float, *, deaf: bool) -> bool:
        """Rest for so long, or until another process may have changed something; whether it may. If it is this process that
        changes the store, be deaf: rest the whole time."""
        queues = self._lines.queues()
        if queues:  # otherwise somebody will soon wait there again
            self._traces = self._store.traces(queues)
        if not watch.follow(self._traces):
            return self._bell.acquire(timeout=seconds)
        if not deaf:
            return watch.wait(seconds)
        self._end.acquire(timeout=seconds)
        return watch.wait(0)

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

    def _look(self) -> bool | None:
        """Tell of queues with something to receive. Returns whether another process has changed something; None if the store
        has failed."""
        try:
            version = self._store.version()
            changed = version != self._version
            if changed:
                self._version = version
                self._due = {queue: due for queue in self._lines.hear() if (due := self._ask(queue)) is not None}
            if visible := self._visible():
                self._lines.notify(*visible)
        except PenstockError:  # those who wait see the error when they look
            self._lines.notify()
            return None
        return changed

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
