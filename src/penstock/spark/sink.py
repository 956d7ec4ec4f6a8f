"""Rows to messages, exactly once: executors stage segments, the driver publishes them, once a batch.

    write    on executors: check the rows, stage them as segments of some MB, tell the driver their names and counts
    commit   on the driver: publish the batch of these segments; a batch that was published before changes nothing. If it had
             other rows, the query's checkpoint was set back or copied: an error, because these rows would be lost
    abort    on the driver: remove what was staged

The writer is the query, which Spark recognises after a restart by its checkpoint; each batch write is a new writer, unless its
options txnAppId and txnVersion name the writer, for each queue, and the batch. Each
attempt of a task stages under its own names, and only the attempt that Spark chose is published.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.broker import open_desk
from penstock.errors import BadInput, StoreError, Unsupported, WriterSetBack
from penstock.publishing import segments
from penstock.spark.digests import WRAP, digest_of
from penstock.spark.insisting import insist
from penstock.spark.options import WriteOptions, check_shared
from penstock.spark.rows import Rows

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:  # Spark 4.0 has none, and is refused: see versions.py
    DataSourceStreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", object)

logger = logging.getLogger("penstock.spark")

HEADROOM = 256 * 1024
"""Bytes that a segment may take beyond those of its columns."""


@dataclass
class StagedByTask(WriterCommitMessage):
    """The segments that one task has staged."""

    writer: str
    batch: int
    segments: dict[str, int] = field(default_factory=dict)
    digest: int = 0

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.digest = (self.digest + digest_of(batch)) % WRAP
            yield batch


class _Sink:
    _advice: str
    """What to do if other rows were published under the number of a batch."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._rows = Rows(schema, options.queue, options.bad_rows)

    def _stage(self, batches: Iterator[pa.RecordBatch], writer: str, batch: int) -> StagedByTask:
        context = TaskContext.get()
        attempt = f"{context.partitionId()}-{context.taskAttemptId()}" if context else "0"
        staged = StagedByTask(writer, batch)
        check_shared(self._options.url)
        with ExitStack() as opened:
            desk = insist(lambda: opened.enter_context(open_desk(self._options.url, **self._options.access())))
            most = insist(lambda: desk.max_segment) - HEADROOM
            for pieces in _gather(staged.counted(self._rows.convert(batches)), most):
                name = f"{attempt}-{uuid.uuid4().hex}"
                segment = segments.pack(pieces)
                insist(partial(desk.stage, writer, batch, name, segment))
                staged.segments[name] = sum(piece.num_rows for piece in pieces)
        return staged

    def _publish(self, messages: Sequence[StagedByTask], *, once: bool) -> None:
        for staged in _by_batch(messages):
            whole = None if once else f"{sum(staged.segments.values())}-{staged.digest:016x}"
            how: dict[str, Any] = {"bad_rows": self._options.bad_rows, "once": once, "digest": whole}
            try:
                insist(partial(self._publish_batch, staged, how))
            except WriterSetBack as error:
                self._lost(str(error))
                self._discard([staged])

    def _publish_batch(self, staged: StagedByTask, how: dict[str, Any]) -> None:
        with self._options.open() as broker:
            broker.publish(staged.writer, staged.batch, staged.segments, **how)

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise WriterSetBack(f"{what}. {self._advice} With failOnDataLoss=false such rows are left out")
        logger.warning("%s; its rows are left out, as failOnDataLoss is false", what)

    def _discard(self, messages: Sequence[StagedByTask]) -> None:
        for staged in _by_batch(messages):
            with self._options.open() as broker:
                broker.unstage(staged.writer, staged.batch, list(staged.segments))


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Spark makes one for each batch's plan and one for each commit; the messages name the writer."""

    _advice = (
        "The query's checkpoint was set back or copied, or the query gives other rows each time (rand, uuid): restore its "
        "newest checkpoint, or start with a new one."
    )

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:  # noqa: ARG002
        """``overwrite`` means the mode complete: each batch is the whole result, and is sent as a whole."""
        super().__init__(options, schema)
        if options.txn_app_id is not None:
            raise BadInput("the options txnAppId and txnVersion are for batch writes; a stream numbers its batches by itself")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        writer = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert writer is not None
        assert batch is not None
        return self._stage(iterator, writer, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _only(messages)
        for message in staged:
            if message.batch != batchId:
                raise StoreError(f"batch {batchId} was requested, but batch {message.batch} was staged")
        self._publish(staged, once=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002 (Spark's name)
        self._discard(_only(messages))


class BatchSink(_Sink, DataSourceArrowWriter):
    """Spark makes one for each write, and pickles it to the tasks and to the commit."""

    _advice = "Each write of a txnAppId to a queue has a txnVersion of its own, higher than the last one."

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema)
        if overwrite:
            raise Unsupported('a queue cannot be overwritten: say .mode("append"); to empty it first, purge it')
        app, version = options.txn_app_id, options.txn_version
        self._once = app is None or version is None
        self._writer, self._batch = str(uuid.uuid4()), 0
        if app is not None and version is not None:
            self._writer, self._batch = _writer_of(app, options.queue), version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(iterator, self._writer, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publish(_only(messages), once=self._once)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._discard(_only(messages))


def _writer_of(app: str, queue: str | None) -> str:
    """The writer of an application. For each queue it is another, so that one version can be written to several."""
    whole = hashlib.sha256(json.dumps([app, queue]).encode()).hexdigest()
    return f"txn-{re.sub('[^A-Za-z0-9_.-]', '_', app)[:40]}-{whole[:16]}"


def _only(messages: Sequence[WriterCommitMessage | None]) -> list[StagedByTask]:
    """Skip failed tasks, which have no message."""
    return [message for message in messages if isinstance(message, StagedByTask)]


def _by_batch(messages: Sequence[StagedByTask]) -> list[StagedByTask]:
    found: dict[tuple[str, int], StagedByTask] = {}
    for message in messages:
        whole = found.setdefault((message.writer, message.batch), StagedByTask(message.writer, message.batch))
        whole.segments |= message.segments
        whole.digest = (whole.digest + message.digest) % WRAP
    return list(found.values())


def _gather(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[list[pa.RecordBatch]]:
    """Group batches into at most ``most`` bytes, and as many rows as a segment has; split those that are too big."""
    gathered: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        for part in _parts(batch, most):
            if gathered and (size + part.nbytes > most or rows + part.num_rows > segments.MAX_ROWS):
                yield gathered
                gathered, size, rows = [], 0, 0
            gathered.append(part)
            size += part.nbytes
            rows += part.num_rows
    if gathered:
        yield gathered


def _parts(batch: pa.RecordBatch, most: int) -> Iterator[pa.RecordBatch]:
    if batch.num_rows and ((batch.nbytes <= most and batch.num_rows <= segments.MAX_ROWS) or batch.num_rows == 1):
        yield batch
    elif batch.num_rows:
        rows = math.ceil(batch.num_rows / max(2, math.ceil(batch.nbytes / most)))
        for start in range(0, batch.num_rows, rows):
            yield from _parts(batch.slice(start, rows), most)
