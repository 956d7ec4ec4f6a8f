"""Reports of a pipeline to the page of a Penstock server: over HTTP, or through a store that a server looks after.

A report is a courtesy: it never holds up or ends a pipeline, whatever becomes of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import penstock
from penstock.broker import LocalBroker
from penstock.client.broker import RemoteBroker
from penstock.pipeline_reports import PIPELINES, PipelineBook, read_report

logger = logging.getLogger("penstock")

REPORT_EVERY = 5.0
"""Seconds, at least, between two reports."""
LAST_REPORT = 5.0
"""Seconds that the end of a pipeline waits for its last report."""
HISTORY = "penstock.history"
"""A store with this queue has a server that shows its pipelines."""


@dataclass(frozen=True, slots=True)
class ReportPlace:
    """Where a pipeline reports, and which of the queues there it uses."""

    url: str
    reads: Sequence[str] = ()
    writes: Sequence[str] = ()
    token: str | None = None


class Reporter:
    """Owns the thread that reports, and the last figures that it has not reported."""

    def __init__(self, name: str, place: ReportPlace) -> None:
        self._name = name
        self._place = place
        self._figures: dict[str, Any] = {}
        self._news = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock reports", daemon=True)
        self._thread.start()

    def tell(self, **figures: Any) -> None:
        """Returns at once."""
        self._figures = figures
        self._news.set()

    def close(self) -> None:
        self._end.set()
        self._news.set()
        self._thread.join(LAST_REPORT)

    def _run(self) -> None:
        ended = False
        try:
            with open_place(self._place) as broker:
                while not ended:
                    self._news.wait()
                    self._news.clear()
                    ended = self._end.is_set()
                    self._report(broker)
                    self._end.wait(REPORT_EVERY)
        except Exception as error:  # whatever it is: the pipeline goes on
            logger.debug("pipeline %s does not report to %s: %s", self._name, self._place.url.partition(":")[0], error)

    def _report(self, broker: penstock.Broker) -> None:
        figures = self._figures
        if not figures:
            return
        told = {"reads": list(self._place.reads), "writes": list(self._place.writes), **figures}
        with suppress(penstock.StoreError):  # the next one may get through
            if isinstance(broker, RemoteBroker):
                broker.report(self._name, **told)
            elif isinstance(broker, LocalBroker) and (HISTORY in broker or PIPELINES in broker):
                PipelineBook(broker).put(read_report(self._name, told))


def open_place(place: ReportPlace) -> penstock.Broker:
    return penstock.open(place.url) if place.token is None else penstock.open(place.url, token=place.token)
