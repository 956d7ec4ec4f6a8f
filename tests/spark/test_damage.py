"""Damage in a queue's file, found by a stream: only the damaged message is skipped, and it stays in the queue.

Each kind of damage is read by the reader as Spark calls it, in a separate process like an executor: only there does Arrow read
a SQLite file. One kind, on each store, is read through Spark itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import apsw
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

import penstock
from penstock.broker import open_local
from penstock.spark import columns
from penstock.spark.options import ReadOptions
from penstock.spark.stream import Offset, QueueStream, Slice

STORES = ["sqlite", "http"]


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def read(reader: QueueStream, parts: list[Slice]) -> list[bytes]:
    return [body for part in parts for batch in reader.read(part) for body in batch["body"].to_pylist()]


@pytest.mark.parametrize(
    "damage",
    ["body = x'00' || body", "body = 'text'", "sent_at = sent_at + 1", "sent_at = 'x'", "head = x'7b7d'", "checksum = 1"],
)
def test_a_damaged_message_is_left_out_and_stays(executor: Executor, url: str, tmp_path: Path, damage: str) -> None:
    options = ReadOptions.parse({"url": url, "queue": "orders"})
    first, second = (QueueStream(options, columns.schema(options)) for _ in range(2))

    def bodies(reader: QueueStream, start: Offset, end: Offset) -> list[bytes]:
        return executor.submit(read, reader, reader.partitions(start, end)).result(120)

    with penstock.open(url) as broker:
        queue = send_and_damage(broker, tmp_path, damage)
        start = first.initialOffset()
        end = first.latestOffset(start, ReadAllAvailable())
        assert bodies(first, start, end) == [b"0", b"2", b""]
        first.stop()  # the batch fails, and is replayed
        assert bodies(second, start, end) == [b"0", b"2", b""]
        assert second.latestOffset(end, ReadAllAvailable()) == end
        second.stop()
        stats = queue.stats()
        assert (stats.messages, stats.damaged) == (1, 1)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
@pytest.mark.parametrize("damage", ["checksum = checksum + 1", "body = 'other'", "sent_at = sent_at + 1", "grp = 'other'"])
def test_a_damaged_message_on_a_server_is_left_out_and_stays(request: pytest.FixtureRequest, kind: str, damage: str) -> None:
    """The claim has not looked at it."""
    url = request.getfixturevalue(kind).new_url()
    options = ReadOptions.parse({"url": url, "queue": "orders"})
    reader = QueueStream(options, columns.schema(options))
    with open_local(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"0", b"1", b"2"])
        database: Any = broker.store.database  # type: ignore[attr-defined]
        text = f"UPDATE penstock_message SET {damage} WHERE number = {queue.peek(2)[1].number}"
        database.side.do(lambda side: database.driver.ask(side, text))
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end["claims"] == {"orders": 3}
        for _ in range(2):
            assert read(reader, reader.partitions(start, end)) == [b"0", b"2"]
        assert reader.latestOffset(end, ReadAllAvailable()) == end
        reader.stop()
        stats = queue.stats()
        assert (stats.messages, stats.damaged) == (1, 1)


def test_a_damaged_message_is_left_out_by_spark_and_stays(spark: SparkSession, url: str, tmp_path: Path) -> None:
    seen: list[list[bytes]] = []

    def take(frame: DataFrame, _: int) -> None:
        seen.append([row.body for row in frame.collect()])
        if len(seen) == 1:
            raise RuntimeError("the sink fails")

    def run() -> None:
        stream = spark.readStream.format("penstock").options(url=url, queue="orders").load()
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(take)
        writer.trigger(availableNow=True).start().awaitTermination()

    with penstock.open(url) as broker:
        queue = send_and_damage(broker, tmp_path, "body = x'00' || body")
        with pytest.raises(PySparkException, match="the sink fails"):
            run()
        run()
        assert seen == [[b"0", b"2", b""]] * 2
        stats = queue.stats()
        assert (stats.messages, stats.damaged) == (1, 1)


def send_and_damage(broker: penstock.Broker, folder: Path, damage: str) -> penstock.Queue:
    queue = broker.create("orders")
    queue.send_many([b"0", b"1", b"2"])
    queue.send(b"", attributes={"a": 1}, deadline=1000)
    (file,) = [path for path in folder.iterdir() if path.name in ("queue", "behind.db")]
    apsw.Connection(str(file)).execute(f"UPDATE penstock_message SET {damage} WHERE number = 2")
    return queue
