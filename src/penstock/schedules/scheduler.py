"""Runs the schedules of a store, in a thread.

    look ──none is due──► rest until the first one is, or until something changes there ──► look
      └──some are──► run each ──► look

Any number of processes may do this for one store. It costs nothing while nothing is due: a scheduler rests where receivers of
the queue of schedules rest, and a message that becomes visible, or a change by another process, ends the rest.
"""

from __future__ import annotations

import logging
import time
from threading import Event, Thread
from typing import Self

from penstock.clock import Clock
from penstock.errors import PenstockError, QueueNotFound, StoreClosed
from penstock.message import SECOND, Message
from penstock.queue.waiting import Waiting
from penstock.schedules.book import SCHEDULES, ScheduleBook

logger = logging.getLogger("penstock")

LOOK_EVERY = 5.0
"""Seconds between two looks in a store that has never had a schedule."""
CLOCK_EVERY = 30.0
"""Seconds between two looks at the wall clock. It asks the store only if that differs from the store's clock."""
ERROR_PAUSE = 1.0
LEAST_PAUSE = 0.001
LAST_RUN = 10.0
"""Seconds to wait for the thread when it is to end."""


class Scheduler:
    """Made by `Broker.scheduler`. ``with broker.scheduler():`` runs the schedules meanwhile."""

    def __init__(self, book: ScheduleBook, waiting: Waiting, clock: Clock) -> None:
        self._book = book
        self._waiting = waiting
        self._clock = clock
        self._end = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._work, name="penstock scheduler", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the thread, for good. What has begun is finished."""
        self._end.set()
        self._book.begun.set()
        self._waiting.notify(SCHEDULES)
        if self._thread is not None:
            self._thread.join(LAST_RUN)

    def run_due(self) -> int:
        """Run the schedules that are due now, in this thread; how many those were."""
        count = 0
        while self._book.exists and (messages := self._book.claim()):
            for message in messages:
                self._book.run(message)
            count += len(messages)
        return count

    def _work(self) -> None:
        look_at = 0.0
        while not self._end.is_set():
            try:
                if not self._book.exists:
                    self._book.begun.wait(LOOK_EVERY)
                    self._book.begun.clear()
                    continue
                if time.monotonic() >= look_at:
                    if not look_at or self._book.ahead():
                        self._book.rearrange()
                    look_at = time.monotonic() + CLOCK_EVERY
                self._look(look_at)
            except QueueNotFound:  # somebody has deleted all schedules
                continue
            except StoreClosed:
                return
            except PenstockError as error:
                logger.warning("schedules cannot be run for now: %s", error)
                self._end.wait(ERROR_PAUSE)
            except Exception:  # a bug of ours
                logger.exception("a defect in Penstock, in a look for schedules")
                self._end.wait(ERROR_PAUSE)

    def _look(self, look_at: float) -> None:
        """Run what is due; if nothing is, rest."""
        events = self._waiting.events(SCHEDULES)
        messages = self._book.claim()
        for message in messages:
            if self._end.is_set():
                message.release()
            else:
                self._run(message)
        if messages or self._end.is_set():
            return
        due_at = self._book.due_at()
        pause = CLOCK_EVERY if due_at is None else max(LEAST_PAUSE, (due_at - self._clock()) / SECOND)
        self._waiting.rest(SCHEDULES, events, min(time.monotonic() + pause, look_at))

    def _run(self, message: Message) -> None:
        """Whatever is wrong with one schedule, the others have their turns. Its claim lapses, and it is tried again."""
        try:
            self._book.run(message)
        except StoreClosed:
            raise
        except PenstockError as error:
            logger.warning("schedule %s is tried again soon: %s", message.id, error)
        except Exception:  # a bug of ours
            logger.exception("a defect in Penstock, in schedule %s", message.id)
