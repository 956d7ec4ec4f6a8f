"""Retention: messages that have outlived it are settled, and what no longer counts is cleared away, beside the callers' path.

    send, receive ──every TEND_EVERY──┐
    settle (of a named claim) ────────┴► Tender ──► a slice ──► a rest, as long as the slice took ──► the next slice

A caller only asks. The work is done by a thread that lives as long as there is something to do. A send or a receive that comes
meanwhile waits for one slice at most, and a slice takes a few milliseconds.
"""

from __future__ import annotations

import logging
import time
from threading import Event, RLock, Thread

from penstock import policy
from penstock.clock import Clock
from penstock.errors import QueueNotFound, StoreClosed, StoreError
from penstock.forking import watch
from penstock.message import SECOND, State
from penstock.queue.waiting import Waiting
from penstock.stores.ports import Store, StoredQueue

logger = logging.getLogger("penstock")
TEND_EVERY = 30 * SECOND
SLICE = 100
"""Messages that expire in one commit."""
SLICES = 10
"""Slices for a caller that counts the messages."""
REST = 0.002
"""Seconds between two slices, at least."""
PURGE_BATCH = 10_000
LAST_SLICE = 10
"""Seconds to wait for the thread when a broker is closed."""


class Retention:
    """Clears one queue. Owns when it is due, and what it last told of foreign files."""

    def __init__(self, queue: str, store: Store, stored: StoredQueue, waiting: Waiting, clock: Clock) -> None:
        self.queue = queue
        self.due_at = 0
        self._store = store
        self._stored = stored
        self._waiting = waiting
        self._clock = clock
        self._foreign: list[str] = []

    def slice(self) -> bool:
        """Do a part of what there is to do; whether there is more."""
        now = self._clock()
        try:
            more = self._expire_some(now)
            swept = self._stored.sweep(now)
            self.tell_foreign(swept.foreign)
        except (QueueNotFound, StoreClosed):
            return False
        except StoreError as error:  # it can wait
            logger.warning("could not clear queue %r, and will try again later: %s", self.queue, error)
            return False
        return more or swept.more

    def expire(self, now: int) -> bool:
        """Settle some of what has outlived its retention at the head of the queue, where nobody may ever receive it. Returns
        whether there may be more."""
        return all(self._expire_some(now) for _ in range(SLICES))

    def _expire_some(self, now: int) -> bool:
        """Whether there may be more."""
        if not any(message.expires_at <= now for message in self._stored.browse(1, now=now)):
            return False
        with self._store.batch():
            settings = self._store.load(self.queue)
            if settings is None:
                raise QueueNotFound(self.queue)
            head = self._stored.browse(SLICE, now=now)
            old = [message for message in head if message.expires_at <= now and message.intact]
            how = policy.settlement(settings, State.FAILED, "retention", now)
            settled = self._stored.delete(old, how) or []
        self._waiting.notify(self.queue)  # the next of a group may be free
        return any(settled)

    def tell_foreign(self, names: list[str]) -> None:
        """Log what cannot be delivered, once for as long as it stays the same."""
        if names != self._foreign:
            self._foreign = names
            if names:
                shown = ", ".join(map(repr, names[:10]))
                logger.warning("queue %r contains files that are not messages; they are left alone: %s", self.queue, shown)


class Tender:
    """Clears the queues of one broker, one slice after another. Owns the thread that does it.

    A broker with a clock of its own (a test) has no thread: it does the work at once, so that what happens depends on its calls
    and its clock alone."""

    def __init__(self, *, beside: bool) -> None:
        self._beside = beside
        self._asked: dict[str, Retention] = {}
        self._lock = RLock()  # a signal may come while it is held, and its handler send
        self._thread: Thread | None = None
        self._end = Event()
        watch(self)

    def ask(self, retention: Retention, now: int) -> None:
        """Clear this queue soon, and not again for a while."""
        retention.due_at = now + TEND_EVERY
        if not self._beside:
            while retention.slice():
                pass
            return
        with self._lock:
            self._asked[retention.queue] = retention
            if not self._end.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._thread = Thread(target=self._run, name="penstock tender", daemon=True)
                self._thread.start()

    def ask_after_settling(self, retention: Retention, now: int) -> None:
        """Clear this queue soon, because a whole named claim was settled, and a store may have left its messages where they
        are. Without a thread, wait until the queue is due: this caller should not have to clear them."""
        if self._beside or now >= retention.due_at:
            self.ask(retention, now)

    def stop(self) -> None:
        """Finish the slice that was begun; what is left waits for the next process that uses the queue."""
        self._end.set()
        with self._lock:
            self._asked.clear()
            thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(LAST_SLICE)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._thread = None
        self._lock.release()

    def _run(self) -> None:
        while (retention := self._next()) is not None:
            began = time.monotonic()
            try:
                if retention.slice():
                    with self._lock:
                        self._asked.setdefault(retention.queue, retention)
            except Exception:  # whatever it is, the other queues go on
                logger.exception("could not clear queue %r, and will try again later", retention.queue)
            self._end.wait(max(REST, time.monotonic() - began))

    def _next(self) -> Retention | None:
        """The queue that has waited longest; with None the thread ends."""
        with self._lock:
            for queue in self._asked:
                return self._asked.pop(queue)
            self._thread = None
            return None


def purge(stored: StoredQueue) -> int:
    """Purge in batches, so that others can write in between."""
    purged = part = stored.purge(PURGE_BATCH)
    while part == PURGE_BATCH:
        part = stored.purge(PURGE_BATCH)
        purged += part
    return purged
