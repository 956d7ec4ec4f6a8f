"""How many messages wait in the queues that a pipeline reads: asked again and again, whatever Spark does meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import penstock
from penstock.errors import PenstockError
from penstock.queue.protocol import Queue
from penstock.spark.options import ReadOptions
from penstock.spark.pipelines.reporting import ReportPlace, open_place
from penstock.spark.waiting import oldest_wait

logger = logging.getLogger("penstock")

LOOK_EVERY = 5.0
"""Seconds between two looks."""
REST = 20
"""And at least so many times as long as the last look took: a count of a long queue costs its server something."""
STALE_AFTER = 60.0
"""Seconds after which a store that does not answer is no longer told about."""
MOST_QUEUES = 100
"""Queues that have figures of their own; the totals are of all."""


@dataclass(frozen=True, slots=True)
class QueueLag:
    messages: int
    oldest_seconds: float
    """How long the first of them has waited; 0 if there is none."""


class LagWatch:
    """Owns a thread for each store, and what it has seen last."""

    def __init__(self, places: Sequence[ReportPlace]) -> None:
        self._seen: dict[int, tuple[float, dict[str, QueueLag]]] = {}
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._look_again, args=(number, place), name="penstock lag", daemon=True)
            for number, place in enumerate(places)
            if place.reads
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._end.set()

    def by_queue(self) -> dict[str, QueueLag]:
        """Of all queues, those with the largest lag first; without the stores that have not answered for long."""
        found: dict[str, QueueLag] = {}
        for seen_at, queues in list(self._seen.values()):
            if time.monotonic() < seen_at + STALE_AFTER:
                for name, lag in queues.items():  # a queue of this name may be in two stores
                    other = found.get(name, QueueLag(0, 0))
                    oldest = max(lag.oldest_seconds, other.oldest_seconds)
                    found[name] = QueueLag(lag.messages + other.messages, oldest)
        return dict(sorted(found.items(), key=lambda each: (-each[1].messages, each[0])))

    def _look_again(self, number: int, place: ReportPlace) -> None:
        rest = 0.0
        while not self._end.wait(rest):
            rest = LOOK_EVERY
            try:
                with open_place(place) as broker:
                    while True:
                        began = time.monotonic()
                        self._seen[number] = began, _look(broker, place)
                        rest = max(LOOK_EVERY, REST * (time.monotonic() - began))
                        if self._end.wait(rest):
                            return
            except PenstockError as error:  # it may be back later; the pipeline itself tells what it needs
                logger.debug("cannot look how many messages wait: %s", error)


def _look(broker: penstock.Broker, place: ReportPlace) -> dict[str, QueueLag]:
    names = sorted({name for wanted in place.reads for name in ReadOptions(place.url, wanted).queues(broker)})
    return {name: _lag(broker.queue(name)) for name in names}


def _lag(queue: Queue) -> QueueLag:
    oldest = oldest_wait(queue)
    return QueueLag(0, 0) if oldest is None else QueueLag(queue.stats().visible, oldest)
