"""The life of a consumer: its heartbeats, its place among the living, and the leases of what it holds.

One thread does both. A beat says that the consumer lives and asks who else does; with every ``check_every``-th one, the
consumer strikes off those who have missed more than ``max_missed``. One that was struck off itself, because it was frozen,
registers anew, as the last born.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from threading import Event, Lock, Thread

from penstock import policy
from penstock.errors import PenstockError
from penstock.message import Message
from penstock.queue import Queue
from penstock.stores.base import Store
from penstock.stores.roster import Roster

logger = logging.getLogger("penstock")


class Heartbeat:
    def __init__(
        self,
        queue: Queue,
        store: Store | Roster,
        clock: Callable[[], int],
        *,
        interval: float,
        check_every: int,
        max_missed: int,
        visibility: float | None,
    ) -> None:
        self.name = uuid.uuid4().hex
        self.share = (0, 1)
        self._queue = queue
        self._store = store
        self._clock = clock
        self._interval = interval
        self._check_every = check_every
        self._max_missed = max_missed
        self._visibility = visibility
        self._beats = 0
        self._held: dict[int, Message] = {}
        self._lock = Lock()
        self._end = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        self.beat()
        self._end.clear()
        self._thread = Thread(target=self._run, name="penstock heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self._store.leave(self._queue.name, self.name)
        except PenstockError as error:
            logger.warning("consumer %s could not take its leave: %s", self.name, error)

    def beat(self) -> None:
        """Say that we live, and learn our place among the living."""
        queue, now = self._queue.name, self._clock()
        with self._store.batch(durable=False):
            if not self._store.beat(queue, self.name, now):
                self._store.enroll(queue, self.name, now)
            if self._beats % self._check_every == 0:
                self._store.strike(queue, now - policy.micros(self._interval * (self._max_missed + 1)))
        self._beats += 1
        living = self._store.living(queue)
        if self.name in living:
            self.share = (living.index(self.name), len(living))

    def hold(self, messages: Iterable[Message]) -> None:
        with self._lock:
            self._held.update((id(message), message) for message in messages)

    def let_go(self, *messages: Message) -> None:
        with self._lock:
            for message in messages:
                self._held.pop(id(message), None)

    def _run(self) -> None:
        visibility = self._visibility or 0.0
        renew_every = max(0.05, visibility / 3)
        pause = min(self._interval, renew_every) if self._visibility is not None else self._interval
        waited = 0.0
        while not self._end.wait(pause):
            waited += pause
            try:
                if waited >= self._interval:
                    waited = 0.0
                    self.beat()
                self._renew()
            except PenstockError as error:
                logger.warning("consumer %s missed a heartbeat: %s", self.name, error)

    def _renew(self) -> None:
        """Extend the leases of what is held: a handler may take longer than one."""
        if self._visibility is None:
            return
        with self._lock:
            held = list(self._held.values())
        for message in held:
            now = self._clock()
            left = policy.renewal(message, self._visibility, now)
            if left is None or not self._queue.extend(message, left):
                self.let_go(message)
