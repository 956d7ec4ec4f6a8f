"""A consumer's heartbeats, its place among the live consumers, and the leases of the messages it holds.

One thread does all of it. A beat records that the consumer is alive and reads which others are. On every ``check_every``-th
beat, the consumer removes those that have missed more than ``max_missed``. A consumer that was removed, because it was frozen,
registers again as the youngest before it takes another message.

No error ends the thread. A lease that could not be renewed lapses, which the message's ``visible_at`` shows: a handler that has
not started by then does not start.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from threading import Event, Lock, Thread

from penstock.errors import PenstockError
from penstock.message import micros
from penstock.queue.protocol import Queue
from penstock.stores.ports import Roster
from penstock.workers.leases import Leases

logger = logging.getLogger("penstock")


class Heartbeat:
    def __init__(
        self,
        queue: Queue,
        roster: Roster,
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
        self._roster = roster
        self._clock = clock
        self._interval = interval
        self._check_every = check_every
        self._max_missed = max_missed
        self.leases = None if visibility is None else Leases(queue, clock, visibility)
        """Of the messages that the consumer holds; None at most once, when nothing is held."""
        self._beats = 0
        self._registering = Lock()
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
            self._roster.leave(self._queue.name, self.name)
        except PenstockError as error:
            logger.warning("could not remove consumer %s from the roster: %s", self.name, error)

    def beat(self) -> None:
        """Record that this consumer is alive, and learn its place among the live consumers."""
        queue, now = self._queue.name, self._clock()
        with self._registering:
            self._roster.beat(queue, self.name, now)
            if self._beats % self._check_every == 0:
                self._roster.strike(queue, now - micros(self._interval * (self._max_missed + 1)))
            self._beats += 1
            self._look()

    def confirm(self) -> None:
        """Called before messages are taken: if others have removed this consumer, register it again first (gq)."""
        if not self._look():
            self.beat()

    def _look(self) -> bool:
        """Learn this consumer's place; False if it is not registered."""
        living = self._roster.living(self._queue.name)
        if self.name in living:
            self.share = (living.index(self.name), len(living))
        return self.name in living

    def _run(self) -> None:
        leases = self.leases
        pause = self._interval if leases is None else min(self._interval, leases.renew_every)
        waited = 0.0
        while not self._end.wait(pause):
            waited += pause
            if leases is not None:
                self._survive(leases.renew, "could not renew its leases, and begins no message whose lease lapses")
            if waited >= self._interval:
                waited = 0.0
                self._survive(self.beat, "missed a heartbeat")

    def _survive(self, act: Callable[[], None], trouble: str) -> None:
        try:
            act()
        except PenstockError as error:
            logger.warning("consumer %s %s: %s", self.name, trouble, error)
        except BaseException:  # whatever the error, try again at the next beat: without this thread all leases would lapse
            logger.exception("consumer %s %s", self.name, trouble)
