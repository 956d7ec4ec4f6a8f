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

    def __init__(self, takes: Sequence[Take], takers: Sequence[SinkQuery], writers: Sequence[SinkQuery], watch: Watch) -> None:
        self._takes = takes
        self._takers = takers
        self._writers = writers
        self._watch = watch

    def once(self) -> Ran:
        """Write what an earlier run has taken; then take everything, and write it."""
        ran = Ran()
        for queries in (self._writers, self._takers, self._writers) if self._takers else (self._writers,):
            if not ran.stopped:
                ran = self._follow(ran, queries)
        if not ran.stopped:
            self._tidy()
        return ran

    def on(self) -> Ran:
        over = threading.Event()

        def tidy() -> None:
            while not over.wait(TIDY_EVERY):
                try:
                    self._tidy()
                except (PenstockError, OSError) as error:  # nothing is lost: it is tried again, at the latest by the next run
                    logger.warning("cannot settle yet what all sinks have: %s", error)

        tidying = threading.Thread(target=tidy, daemon=True)
        tidying.start()
        try:
            ran = self._follow(Ran(), self._writers, self._takers)
        finally:
            over.set()
            tidying.join()
        self._tidy()
        return ran

    def _follow(self, ran: Ran, *stages: Sequence[SinkQuery]) -> Ran:
        """Follow all queries to their end. The queries of a stage start when those of the stage before are running."""
        planned = [query for stage in stages for query in stage]
        started: list[StreamingQuery] = []
        try:
            for stage in stages:
                _await_first_trigger(started)
                for query in stage:
                    started.append(query.start())  # noqa: PERF401 (one that fails must not hide those before it)
            totals = self._watch.follow(*started)
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
        ran.rows, ran.batches, ran.seconds = ran.rows + totals.rows, ran.batches + totals.batches, ran.seconds + totals.seconds
        ran.stopped = totals.stopped
        ran.taken += sum(rows for query, rows in zip(planned, totals.by_query, strict=True) if query in self._takers)
        ran.late += totals.late
        ran.checks = self._watch.checks.figures()
        return ran

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
