"""The data source as "faulty", and two queries that use it: queue to Parquet, and queue to queue.

Its option ``faults`` is a folder. A process that reaches the step named in the file ``arm`` there kills each process listed in
the file ``pids``, and then itself, with SIGKILL."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from penstock.spark.datasource import PenstockDataSource
from penstock.spark.sink import StreamSink
from penstock.spark.stream import QueueStream

STEPS = (
    "after claim",
    "after offset log",
    "after confirm",
    "in read",
    "before source commit",
    "in write",
    "before sink commit",
    "after sink commit",
)


def step(name: str, faults: str) -> None:
    folder = Path(faults)
    try:
        if (folder / "arm").read_text() != name:
            return
        (folder / "arm").rename(folder / "fired")
    except FileNotFoundError:  # not armed, or another process was first
        return
    pids = folder / "pids"
    for pid in pids.read_text().split() if pids.exists() else ():
        os.kill(int(pid), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyStream(QueueStream):
    faults: str

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        if end != start:
            step("after claim", self.faults)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        step("after offset log", self.faults)
        parts = super().partitions(start, end)
        step("after confirm", self.faults)
        return parts

    def read(self, partition: Any) -> Iterator[Any]:
        for batch in super().read(partition):
            yield batch
            step("in read", self.faults)

    def commit(self, end: dict[str, Any]) -> None:
        step("before source commit", self.faults)
        super().commit(end)


class FaultySink(StreamSink):
    faults: str

    def write(self, iterator: Any) -> Any:
        written = super().write(iterator)
        step("in write", self.faults)
        return written

    def commit(self, messages: Any, batchId: int) -> None:
        if any(messages):
            step("before sink commit", self.faults)
        super().commit(messages, batchId)
        if any(messages):
            step("after sink commit", self.faults)


class DefaultSource(PenstockDataSource):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._faults = options.pop("faults")

    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamReader(self, schema: Any) -> Any:
        return self._remade(FaultyStream, super().streamReader(schema))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return self._remade(FaultySink, super().streamWriter(schema, overwrite))

    def _remade(self, kind: type, plain: Any) -> Any:
        plain.__class__ = kind
        plain.faults = self._faults
        return plain


class Queries:
    """From the queue "lake" to Parquet, and from "in" to "out", with checkpoints in one folder."""

    def __init__(self, spark: SparkSession, folder: Path, url: str, faults: Path, *, once: bool) -> None:
        spark.dataSource.register(DefaultSource)
        self._spark, self._folder, self._url, self._faults = spark, folder, url, str(faults)
        self._most = "5000" if once else "150"
        self._trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": "0 seconds"}

    def start_lake(self) -> StreamingQuery:
        writer = self._read("lake").selectExpr("id", "cast(body as string) body").writeStream.format("parquet")
        return self._start(writer.option("path", f"{self._folder}/lake"), "check-lake")

    def start_onward(self) -> StreamingQuery:
        writer = self._read("in").select("body", "content_type").writeStream.format("faulty")
        return self._start(writer.options(url=self._url, queue="out", faults=self._faults), "check-out")

    def _read(self, queue: str) -> DataFrame:
        options = {"url": self._url, "queue": queue, "faults": self._faults, "minPartitions": "2", "claimTimeout": "10"}
        return self._spark.readStream.format("faulty").options(**options, maxMessagesPerTrigger=self._most).load()

    def _start(self, writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
        return writer.option("checkpointLocation", f"{self._folder}/{checkpoint}").trigger(**self._trigger).start()
