"""A declared pipeline (the file of `declaration`), run: `penstock pipeline run FILE`. docs/decisions/0085 explains the design.

queue ──► landed ──┬──► view ──► steps ──► sink           each path from a queue to landed, and from landed or files to
                   ├──► view ──► steps ──► sink           an end, is one streaming query with its own checkpoint, and so
files ─────────────┴──► view ──► checks ─► dead letters   exactly once

CHECKPOINT/landed/SOURCE         messages in Parquet, until every query that reads them has done so (see `landing`)
CHECKPOINT/take/SOURCE           the checkpoint of the query that takes them; they stay claimed in the queue meanwhile
CHECKPOINT/staged/SOURCE         a batch of messages that is being written; CHECKPOINT/trial: rows of no sink
CHECKPOINT/sink/SINK             of a sink; CHECKPOINT/dead/TABLE: of a table's dead letters
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import BadInput, QueueNotFound
from penstock.spark import columns
from penstock.spark.datasource import PenstockDataSource
from penstock.spark.options import ReadOptions
from penstock.spark.pipelines import declaration
from penstock.spark.pipelines.access import store_options
from penstock.spark.pipelines.bodies import dead_letters, messages
from penstock.spark.pipelines.declaration import Pipeline, Sink, Source
from penstock.spark.pipelines.draining import Draining
from penstock.spark.pipelines.failures import at_line, readable
from penstock.spark.pipelines.folders import DataFolder, check_no_pattern, checkpoint_id, held
from penstock.spark.pipelines.lake_sinks import TableSink, check_s3
from penstock.spark.pipelines.limits import limits
from penstock.spark.pipelines.progress import Watch
from penstock.spark.pipelines.reporting import ReportPlace
from penstock.spark.pipelines.restarts import is_alive, is_final
from penstock.spark.pipelines.running import PipelineRun, Ran, SinkQuery
from penstock.spark.pipelines.tables import PipelineTables
from penstock.spark.pipelines.taking import README, Take
from penstock.spark.rows import Rows
from penstock.stores.disk import sync

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

logger = logging.getLogger("penstock.spark")

GRACE = 30.0
LANDED = {"ignoreMissingFiles": "true", "recursiveFileLookup": "true", "maxFileAge": "36500d"}


def run(
    spark: SparkSession,
    file: str | Path,
    *,
    store: str | None = None,
    checkpoint: str | None = None,
    once: bool | None = None,
    watch: Watch | None = None,
    grace: float = GRACE,
) -> Ran:
    """Run a pipeline, once (all that is there now) or until it is told to stop, as the file or ``once`` says.

    When it is told to stop, it takes no more messages, and has ``grace`` seconds to write and settle those it has."""
    pipeline = declaration.load(file)
    # Without '..', which Spark drops too: its logs must name the files as we do.
    home = Path(os.path.abspath(pipeline.checkpoint if checkpoint is None else checkpoint))  # noqa: PTH100
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", pipeline.checkpoint if checkpoint is None else checkpoint):
        raise BadInput(f"{pipeline.where(key='checkpoint')}: it must be a folder, which all of Spark's processes share")
    check_no_pattern(str(home))  # messages are landed there, and read again
    check_queues(pipeline, store)
    taken = f"{pipeline.file.name} is running already, with the checkpoint {home}"
    at_once = pipeline.trigger == "once" if once is None else once
    watched = (watch or Watch(pipeline.name)).report_to(*_report_places(pipeline, store))
    ran = Ran()
    with held(home / "lock", taken), watched.at_work():
        draining, failures, batches = Draining(home, grace), 0, 0
        try:
            while not watched.stopping:
                try:
                    _run_once(spark, pipeline, home, store, at_once, watched, ran, draining)
                    break
                except Exception as error:
                    failed = readable(error)
                    failures = 1 if watched.figures.batches > batches else failures + 1
                    batches = watched.figures.batches
                    seconds = None if is_final(failed) or not is_alive(spark) else pipeline.restarts.wait(failures)
                    if watched.stopping or seconds is None:
                        raise
                    logger.warning("%s has failed, and starts again in %g s: %s", pipeline.name, seconds, failed)
                    watched.await_restart(failed, seconds)
        finally:
            draining.end()
    ran.stopped = watched.stopping
    return ran


def _run_once(
    spark: SparkSession,
    pipeline: Pipeline,
    home: Path,
    store: str | None,
    at_once: bool,
    watch: Watch,
    ran: Ran,
    draining: Draining,
) -> None:
    """Until all is done, or somebody stops it, or something fails."""
    with _session_of(spark) as own:
        plan = _Plan(own, pipeline, home, store)
        plan.define()
        (home / "README.txt").write_text(README.format(name=pipeline.name))
        every = "1 second" if pipeline.trigger == "once" else pipeline.trigger
        takers, writers = plan.takers(), plan.writers()
        for query in (*takers, *writers):
            query.writer = query.writer.trigger(availableNow=True) if at_once else query.writer.trigger(processingTime=every)
        watch.checks.expect(plan.checks())
        running = PipelineRun(plan.takes, takers, writers, watch, ran, draining)
        running.once() if at_once else running.on()


def check_queues(pipeline: Pipeline, store: str | None = None) -> None:
    """Check that every queue exists, before any work is done."""
    wanted: list[tuple[str | None, str | None, tuple[str, ...]]] = [
        (source.queue, source.store, ("source", source.name)) for source in pipeline.sources
    ]
    wanted += [(sink.queue, sink.store, ("sink", sink.name)) for sink in pipeline.sinks]
    if pipeline.dead_letters:
        wanted.append((pipeline.dead_letters.queue, pipeline.dead_letters.store, ("dead_letters",)))
    for queue, own, table in wanted:
        if queue is not None:
            with penstock.open(_store_of(pipeline, own, store, table)) as broker:
                try:
                    broker.queue(queue)
                except (QueueNotFound, BadInput) as error:
                    error.add_note(pipeline.where(*table, key="queue"))
                    raise


def _report_places(pipeline: Pipeline, store: str | None) -> list[ReportPlace]:
    """Each of its stores, with the queues there."""
    reads: dict[str, list[str]] = {}
    writes: dict[str, list[str]] = {}
    for source in pipeline.sources:
        if source.queue is not None:
            reads.setdefault(_store_of(pipeline, source.store, store, ("source", source.name)), []).append(source.queue)
    for sink in pipeline.sinks:
        if sink.queue is not None:
            writes.setdefault(_store_of(pipeline, sink.store, store, ("sink", sink.name)), []).append(sink.queue)
    return [ReportPlace(url, reads.get(url, []), writes.get(url, [])) for url in dict.fromkeys([*reads, *writes])]


def _store_of(pipeline: Pipeline, own: str | None, given: str | None, table: tuple[str, ...]) -> str:
    url = own or pipeline.store or given
    if not url:
        raise BadInput(f"{pipeline.where(*table)}: there is no store: write store = 'sqlite:////data/shop.db'")
    return url


class _Plan:
    """The tables of a pipeline, and the queries on them."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, home: Path, store: str | None) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._home = home
        self._store = store
        self._tables = PipelineTables(spark, pipeline, self._messages)
        self.takes: list[Take] = []

    def define(self) -> None:
        pipeline, tables = self._pipeline, self._tables
        tables.define()
        for table, found in tables.checked.items():
            if not found.judged.isStreaming:
                raise BadInput(
                    f"{pipeline.where('check', table)}: {table!r} is a table, not a stream: filter its rows in a step"
                )
        limited = limits(pipeline, tables)
        self.takes = [
            Take(pipeline.name, source, self._url(source.store, ("source", source.name)), self._home, limited.get(source.name))
            for source in pipeline.sources
            if source.queue is not None
        ]

    def checks(self) -> dict[str, str]:
        """Their full names, and what becomes of rows that fail."""
        return {check.full_name: check.action for checked in self._tables.checked.values() for check in checked.checks}

    def takers(self) -> list[SinkQuery]:
        """The queries that land the messages of each queue."""
        found = []
        for take in self.takes:
            where = self._pipeline.where("source", take.name)
            with at_line(where):
                take.check_abandoned()
                found.append(SinkQuery(where, take.stream(self._spark), take.checkpoint))
        return found

    def writers(self) -> list[SinkQuery]:
        """The queries that write to each sink, and the dead letters of each table that has a check."""
        pipeline, found = self._pipeline, []
        for sink in pipeline.sinks:
            where = pipeline.where("sink", sink.name)
            frame = self._tables.frames[sink.table]
            if not frame.isStreaming:
                raise BadInput(
                    f"{where}: {sink.table!r} is a table, not a stream; a source with a queue or with stream = true is a stream"
                )
            with at_line(where):
                writer = self._sink(sink, frame).outputMode(sink.mode)
            checkpoint = self._home / "sink" / sink.name
            path = sink.path if sink.lake is None else sink.lake.folder
            found.append(SinkQuery(where, writer, checkpoint, pipeline.reads(sink.table), path))
        for table, checked in self._tables.checked.items():
            if checked.rejected is None:
                continue
            assert pipeline.dead_letters is not None
            url = self._url(pipeline.dead_letters.store, ("dead_letters",))
            writer = dead_letters(checked.rejected, table).writeStream.format("penstock")
            writer = writer.options(**store_options(url), queue=pipeline.dead_letters.queue)
            where = f"{pipeline.where('dead_letters')}, for {table!r}"
            found.append(SinkQuery(where, writer, self._home / "dead" / table, pipeline.reads(table)))
        return found

    def _messages(self, source: Source) -> DataFrame:
        """A stream of what is landed."""
        assert source.queue is not None
        landed = self._home / "landed" / source.name
        for folder in (landed, self._home / "staged"):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in (landed, landed.parent, self._home):
            sync(folder)
        schema = columns.schema(ReadOptions(url="", queue=source.queue))
        # Files that all queries have read are deleted. A new query has not read them: it begins with what is left.
        return self._spark.readStream.schema(schema).options(**LANDED).parquet(str(landed))

    def _sink(self, sink: Sink, frame: DataFrame) -> DataStreamWriter:
        if sink.path is not None:
            check_s3(self._spark, sink.path)
            self._try_parquet(sink.path, sink.partition, frame)
            return frame.writeStream.format("parquet").option("path", sink.path).partitionBy(*sink.partition)
        if sink.lake is not None:
            app = f"sink-{checkpoint_id(DataFolder(str(self._home / 'sink' / sink.name)), 'sink', {})}"
            place = TableSink(sink.lake, app, sink.partition)
            place.prepare(frame)
            return frame.writeStream.foreachBatch(place)
        if sink.queue is None:
            return frame.writeStream.format("console").option("truncate", "false")
        rows, letters = messages(frame), self._pipeline.dead_letters
        bad_rows = letters.queue if letters and letters.store == sink.store else None
        Rows(rows.schema, sink.queue, bad_rows)  # raises what Spark would find out with the first batch
        writer = rows.writeStream.format("penstock")
        writer = writer.options(**store_options(self._url(sink.store, ("sink", sink.name))), queue=sink.queue)
        return writer if bad_rows is None else writer.option("badRows", bad_rows)

    def _try_parquet(self, path: str, partition: Sequence[str], frame: DataFrame) -> None:
        """Write no rows of this table to Parquet. Spark would find out with the first batch that it cannot."""
        if Path(path).is_file():
            raise BadInput(f"{path} is a file; Parquet is written to a folder")
        names = {name.casefold() for name in frame.columns}  # SQL ignores case
        for column in partition:
            if column.casefold() not in names:
                raise BadInput(f"there is no column {column!r:.80}; there are {', '.join(frame.columns)}")
        trial = self._home / "trial"
        self._spark.createDataFrame([], frame.schema).write.partitionBy(*partition).mode("overwrite").parquet(str(trial))
        shutil.rmtree(trial)

    def _url(self, own: str | None, table: tuple[str, ...]) -> str:
        return _store_of(self._pipeline, own, self._store, table)


@contextmanager
def _session_of(spark: SparkSession) -> Iterator[SparkSession]:
    """A session of our own, so that our views hide nobody's; through Spark Connect, the existing one."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        yield spark
        return
    own = spark.newSession()
    own.dataSource.register(PenstockDataSource)  # Spark finds it by itself, but caches a failure to find it
    if own.conf.get("spark.sql.shuffle.partitions") == "200":  # Spark's default, too many for small batches
        own.conf.set("spark.sql.shuffle.partitions", str(spark.sparkContext.defaultParallelism))
    # Spark looks for a sink in the session that is active in this thread, not in the query's.
    sessions: Any = SparkSession._get_j_spark_session_class(own._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(own._jsparkSession)
    try:
        yield own
    finally:
        with suppress(Py4JError, OSError):  # Spark's process may be gone
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()
