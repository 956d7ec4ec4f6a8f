"""Runs the queries of a declared pipeline, and settles what all of them have written."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from penstock.errors import PenstockError
from penstock.spark.pipelines.checks import CheckFigures
from penstock.spark.pipelines.draining import Draining
from penstock.spark.pipelines.failures import at_line
from penstock.spark.pipelines.progress import Watch
from penstock.spark.pipelines.taking import Take
from penstock.stores.disk import sync_file_system

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("penstock.spark")

TIDY_EVERY = 10
"""Seconds between two looks at what all sinks have."""
DRAIN_EVERY = 0.2
READY_EVERY = 0.05


@dataclass(slots=True)
class Ran:
    """The result of a run: the rows and batches of all its queries, and whether it was told to stop."""

    rows: int = 0
    batches: int = 0
    seconds: float = 0
    stopped: bool = False
    taken: int = 0
    """Messages that were taken from queues."""
    late: int = 0
    """Rows that came later than the watermark allows; Spark drops them from windows and joins."""
    checks: dict[str, CheckFigures] = field(default_factory=dict)
    """By TABLE.CHECK."""


@dataclass(slots=True)
class SinkQuery:
    """A query to start, where it is declared, and which sources it may read."""

    where: str
    writer: DataStreamWriter
    checkpoint: Path
    reads: set[str] = field(default_factory=set)
    path: str | None = None
    """The folder to which it writes, if it is a folder."""

    def start(self) -> StreamingQuery:
        with at_line(self.where):
            return self.writer.option("checkpointLocation", str(self.checkpoint)).queryName(self.where).start()


class PipelineRun:
    """Runs the taking and the writing queries, until all is done or somebody says stop.

    The writing ones start first. If one of them does not, nothing has been taken from a queue."""

    def __init__(
        self,
        takes: Sequence[Take],
        takers: Sequence[SinkQuery],
        writers: Sequence[SinkQuery],
        watch: Watch,
        ran: Ran,
        drain: Draining,
    ) -> None:
        """``ran`` is counted up, also for a run that fails."""
        self._takes = takes
        self._takers = takers
        self._writers = writers
        self._watch = watch
        self._ran = ran
        self._drain = drain

    def once(self) -> None:
        """Write what an earlier run has taken; then take everything, and write it."""
        for queries in (self._writers, self._takers, self._writers) if self._takers else (self._writers,):
            if not self._drain.over and not (self._watch.stopping and queries is self._takers):
                self._follow(queries)
        if not self._drain.over:
            self._tidy()

    def on(self) -> None:
        over = threading.Event()

        def tidy() -> None:
            while not over.wait(DRAIN_EVERY if self._drain.begun else TIDY_EVERY):
                try:
                    self._tidy()
                except (PenstockError, OSError) as error:  # nothing is lost: it is tried again, at the latest by the next run
                    logger.warning("cannot settle yet what all sinks have: %s", error)

        tidying = threading.Thread(target=tidy, daemon=True)
        tidying.start()
        try:
            self._follow(self._writers, self._takers)
        finally:
            over.set()
            tidying.join()
        self._tidy()

    def _follow(self, *stages: Sequence[SinkQuery]) -> None:
        """Follow all queries to their end. The queries of a stage start when those of the stage before are running."""
        planned = [query for stage in stages for query in stage]
        started: list[StreamingQuery] = []
        self._watch.last = None
        try:
            for stage in stages:
                _await_first_trigger(started)
                for query in stage:
                    started.append(query.start())  # noqa: PERF401 (one that fails must not hide those before it)
            self._drain.drained = lambda: self._is_drained(started)
            self._watch.follow(*started, drain=self._drain)
        except PySparkException:
            for query, active in zip(planned, started, strict=False):
                if (failed := active.exception()) is not None:
                    with at_line(query.where):
                        raise failed from None
            raise
        finally:
            for active in started:
                if active.isActive:
                    active.stop()
            self._count(planned)

    def _count(self, planned: Sequence[SinkQuery]) -> None:
        ran, totals = self._ran, self._watch.last
        ran.stopped, ran.checks = self._watch.stopping, self._watch.checks.figures()
        if totals is not None:
            ran.rows, ran.batches = ran.rows + totals.rows, ran.batches + totals.batches
            ran.seconds += totals.seconds
            ran.taken += sum(rows for query, rows in zip(planned, totals.by_query, strict=True) if query in self._takers)
            ran.late += totals.late

    def _is_drained(self, started: Sequence[StreamingQuery]) -> bool:
        """Whether no query is in the middle of a batch, and all that was taken is in the sinks, and settled."""
        return all(take.is_empty for take in self._takes) and not any(query.status["isTriggerActive"] for query in started)

    def _tidy(self) -> None:
        for take in self._takes:
            readers = [query for query in self._writers if take.name in query.reads]
            folders = [query.checkpoint for query in readers]
            written = [Path(query.path) for query in readers if query.path is not None and Path(query.path).is_dir()]

            def sync(written: Sequence[Path] = (take.checkpoint, *folders, *written)) -> None:
                """A power cut must not undo what the queue then no longer has; Spark itself syncs nothing."""
                for folder in {folder.stat().st_dev: folder for folder in written}.values():
                    sync_file_system(folder)

            take.tidy(folders, sync)


def _await_first_trigger(queries: Sequence[StreamingQuery]) -> None:
    """Wait until Spark has made their sources and sinks, and has looked for data; raises the error of one that failed."""
    for query in queries:
        while query.isActive and query.lastProgress is None and not query.status["message"].startswith("Waiting"):
            time.sleep(READY_EVERY)
        if not query.isActive:
            query.awaitTermination()
