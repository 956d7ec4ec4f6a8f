"""A stream from queues: each message is in exactly one committed batch, whatever is replayed, lost, set back or given up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import DoubleType, StructField, StructType

import penstock
from penstock import Broker, Claim, PenstockError, Queue, QueueNotFound, StoreError
from penstock.spark import columns
from penstock.spark.datasource import PenstockDataSource
from penstock.spark.options import ReadOptions
from penstock.spark.stream import DataLost, Offset, QueueStream, Slice
from penstock.testing import FakeClock

STORES = ["sqlite", "postgresql", "vsqs", "http"]
CLOCKS_AGREE = 0.2
"""Seconds by which two clients' views of a database's clock may differ: half a round trip."""

Batches = list[tuple[int, list[Row]]]


class Stream:
    """A query over one checkpoint, run repeatedly, and what it has committed."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.url = spark, url
        self.checkpoint = folder / "checkpoint"
        self.batches: Batches = []
        self.seen: Batches = []
        self.fail = 0
        """How many batches fail after they are read."""

    def run(self, schema: str | None = None, **options: Any) -> list[bytes]:
        """Read all that is available, then stop; returns the committed bodies."""
        before = len(self.batches)
        query = self.write(self.load(schema, **options)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [row.body for _, rows in self.batches[before:] for row in rows]

    def load(self, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.readStream.format("penstock").options(**{"url": self.url, "queue": "orders"} | options)
        return (reader.schema(schema) if schema else reader).load()

    def write(self, frame: DataFrame) -> Any:
        return frame.writeStream.option("checkpointLocation", str(self.checkpoint)).foreachBatch(self._take)

    def _take(self, frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        self.seen.append((number, rows))
        if self.fail:
            self.fail -= 1
            raise RuntimeError("the sink fails")
        self.batches.append((number, rows))

    def roll_back(self, to: int) -> None:
        """Set the checkpoint back to the batch ``to``."""
        for folder in ("offsets", "commits"):
            for path in (self.checkpoint / folder).iterdir():
                if int(path.name.strip(".").split(".")[0]) > to:
                    path.unlink()


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with penstock.open(url) as broker:
        broker.create("orders")
        yield broker


@pytest.fixture
def stream(spark: SparkSession, url: str, tmp_path: Path) -> Stream:
    return Stream(spark, url, tmp_path)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[tuple[Broker, str]]:
    """On SQLite only and without Spark, for tests that depend on neither."""
    with penstock.open(f"sqlite:///{tmp_path}/one.db") as broker:
        broker.create("orders")
        yield broker, f"sqlite:///{tmp_path}/one.db"


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def read(reader: QueueStream, start: Offset, end: Offset) -> list[dict[str, Any]]:
    """Read as Spark does once the offset is logged."""
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def read_bodies(reader: QueueStream, start: Offset, end: Offset) -> list[bytes]:
    return [row["body"] for row in read(reader, start, end)]


def reader_of(url: str, **options: Any) -> QueueStream:
    chosen = ReadOptions.parse({"url": url, "queue": "orders"} | {name: str(value) for name, value in options.items()})
    return QueueStream(chosen, columns.schema(chosen))


# through Spark: the life of a batch, on each kind of store


def test_each_message_is_read_once_and_nothing_stays_claimed(broker: Broker, stream: Stream) -> None:
    orders = broker["orders"]
    orders.send_many(numbered(25))
    assert sorted(stream.run(maxMessagesPerTrigger="10"), key=int) == numbered(25)
    assert [len(rows) for _, rows in stream.batches] == [10, 10, 5]
    assert orders.stats().messages == 0
    assert [claims for claims in orders.readers().values() if claims] == []
    orders.send_many(numbered(5, 25))
    assert stream.run() == numbered(5, 25)


def test_a_failed_batch_is_read_again_the_same_set_in_the_same_order(broker: Broker, stream: Stream) -> None:
    orders = broker["orders"]
    orders.send_many(numbered(10))
    stream.fail = 1
    with pytest.raises(PySparkException, match="the sink fails"):
        stream.run(maxMessagesPerTrigger="6", minPartitions="3")
    assert orders.stats().in_flight == 6
    orders.send_many(numbered(3, 10))
    taken = [message.body for message in orders.receive(2)]
    again = stream.run(maxMessagesPerTrigger="6")
    (_, first), (_, second) = stream.seen[:2]
    assert first == second
    assert sorted(again + taken, key=int) == numbered(13)
    assert orders.stats().messages == 2


def test_two_queries_and_a_consumer_share_a_queue_and_never_meet(
    spark: SparkSession, embedded: tuple[Broker, str], tmp_path: Path
) -> None:
    broker, url = embedded
    streams = [Stream(spark, url, tmp_path / name) for name in ("one", "other")]
    orders = broker["orders"]
    orders.send_many(numbered(60))
    queries = [
        stream.write(stream.load(maxMessagesPerTrigger="7")).trigger(processingTime="0 seconds").start() for stream in streams
    ]
    taken: list[bytes] = []
    try:
        while orders.stats().visible:
            for message in orders.receive(1):
                taken.append(message.body)
                message.delete()
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    read = [row.body for stream in streams for _, rows in stream.batches for row in rows]
    assert sorted(read + taken, key=int) == numbered(60)


def test_available_now_ends_though_senders_go_on_and_lag_is_told(
    spark: SparkSession, embedded: tuple[Broker, str], tmp_path: Path
) -> None:
    broker, url = embedded
    stream, orders = Stream(spark, url, tmp_path), broker["orders"]
    orders.send_many(numbered(4))

    def send_one_more(frame: DataFrame, number: int) -> None:
        orders.send(b"late")
        stream._take(frame, number)

    writer = stream.load(maxMessagesPerTrigger="2").writeStream.option("checkpointLocation", str(stream.checkpoint))
    query = writer.foreachBatch(send_one_more).trigger(availableNow=True).start()
    query.awaitTermination()
    assert [row.body for _, rows in stream.batches for row in rows] == numbered(4)
    assert orders.stats().visible == 2
    told = [json.loads(source["latestOffset"]) for progress in query.recentProgress for source in progress["sources"]]
    assert all({"visible", "oldest_age"} == lag.keys() for lag in told)


def test_a_checkpoint_that_was_set_back_stops_the_query_or_is_skipped(
    spark: SparkSession, embedded: tuple[Broker, str], tmp_path: Path
) -> None:
    broker, url = embedded
    stream = Stream(spark, url, tmp_path)
    broker["orders"].send_many(numbered(4))
    stream.run(maxMessagesPerTrigger="1")
    broker["orders"].send(b"new")
    stream.roll_back(1)
    with pytest.raises(PySparkException, match=r"the checkpoint was set back.*failOnDataLoss=false"):
        stream.run()
    assert stream.run(failOnDataLoss="false") == [b"new"]


def test_fewer_columns_can_be_asked_for(spark: SparkSession, embedded: tuple[Broker, str], tmp_path: Path) -> None:
    broker, url = embedded
    stream = Stream(spark, url, tmp_path)
    broker["orders"].send(b"x", attributes={"a": 1})
    assert "attributes" not in stream.load(includeAttributes="false").columns
    assert stream.run("body binary, queue string") == [b"x"]
    assert stream.batches[0][1] == [Row(body=b"x", queue="orders")]


def test_a_wrong_option_is_an_error_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="there is no option 'startingoffsets'"):
        Stream(spark, f"sqlite:///{tmp_path}/one.db", tmp_path).load(startingOffsets="latest")


# called as by Spark, in this process


def test_a_message_is_a_row_with_all_that_it_has(broker: Broker, url: str) -> None:
    body = bytes(range(256))
    attributes = {"text": "é", "count": 7, "share": 0.5, "raw": b"\0\xff"}
    sent = broker["orders"].send(body, content_type="image/png", attributes=attributes, deadline=1000)
    broker["orders"].send(b"plain")
    reader = reader_of(url)
    start = reader.initialOffset()
    rich, plain = read(reader, start, reader.latestOffset(start, ReadAllAvailable()))
    assert (rich["id"], rich["queue"], rich["body"], rich["content_type"]) == (sent.id, "orders", body, "image/png")
    assert dict(rich["attributes"]) == {"text": "é", "count": "7", "share": "0.5", "raw": "AP8="}
    assert dict(rich["attribute_types"]) == {"count": "integer", "share": "number", "raw": "bytes"}
    assert (rich["deadline"] - rich["sent_at"]).total_seconds() == 1000
    assert (rich["receives"], rich["state"]) == (1, "consumed")
    assert (rich["visible_at"], rich["group"], rich["key"], rich["death"]) == (None, None, None, None)
    assert rich["received_at"] == rich["first_received_at"] >= rich["sent_at"]
    assert (plain["content_type"], plain["attributes"], plain["attribute_types"]) == ("application/octet-stream", [], [])
    assert plain["deadline"] is None
    reader.stop()


def test_a_pattern_reads_many_queues_in_one_batch(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    for name in ("eu-1", "eu-2", "us-1"):
        broker.create(name).send_many([name.encode()] * 3)
    reader = reader_of(url, queue="eu-*, us-1")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert end["claims"] == {"eu-1": 3, "eu-2": 3, "us-1": 3}
    assert {(row["queue"], row["body"]) for row in read(reader, start, end)} == {
        (name, name.encode()) for name in end["claims"]
    }
    broker.create("eu-3").send(b"new")
    after = reader.latestOffset(end, ReadMaxRows(100))
    assert read_bodies(reader, end, after) == [b"new"]
    reader.commit(after)
    assert [broker[name].stats().messages for name in ("eu-1", "eu-2", "eu-3", "us-1")] == [0, 0, 0, 0]


def test_a_queue_of_that_very_name_comes_before_a_list_and_a_pattern(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    for name in ("a", "b", "ab", "a,b", "a*"):
        broker.create(name)

    def queues(**options: str) -> list[str]:
        return ReadOptions.parse({"url": url, **options}).queues(broker)

    assert (queues(queue="a,b"), queues(queue="a*"), queues(queue="b,a")) == (["a,b"], ["a*"], ["a", "b"])
    broker.delete("a,b")
    broker.delete("a*")
    assert (queues(queue="a,b"), queues(queue="a*")) == (["a", "b"], ["a", "ab"])
    for name in ("a,b", "a*"):
        with pytest.raises(QueueNotFound):
            queues(queue=name, exact="true")


def test_the_queue_that_waits_longest_comes_first(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    for name in ("c", "a", "b"):
        broker.create(name).send_many([name.encode()] * 3)
    reader = reader_of(url, queue="?")
    assert reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))["claims"] == {"c": 3, "a": 1}


def test_dead_letters_deadlines_and_history_go_on_holding(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    dead = broker.create("dead")
    queue = broker.create("strict", redrive=("dead", 1), history=1000)
    queue.send(b"poison")
    queue.receive()[0].release()
    queue.send(b"late", deadline=0)
    queue.send(b"good")
    reader = reader_of(url, queue="strict")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(9))
    assert read_bodies(reader, start, end) == [b"good"]
    reader.commit(end)
    assert dead.stats().messages == 1
    assert queue.stats().messages == 0
    assert {(message.body, message.state.name) for message in queue.settled()} == {(b"good", "PROCESSED"), (b"late", "FAILED")}


def test_what_is_judged_holds_up_nothing(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    broker["orders"].send(b"late", deadline=0)
    reader = reader_of(url)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(9)) == start
    broker["orders"].send(b"next")
    end = reader.latestOffset(start, ReadMaxRows(9))
    assert read_bodies(reader, start, end) == [b"next"]


def test_limits_of_messages_and_bytes_hold(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    orders = broker["orders"]
    orders.send_many([b"x" * 100] * 20)
    reader = reader_of(url)
    assert reader.latestOffset(reader.initialOffset(), ReadMaxRows(3))["claims"] == {"orders": 3}
    other = reader_of(url, maxBytesPerTrigger=1000)
    assert other.getDefaultReadLimit() == ReadMaxBytes(1000)
    assert other.latestOffset(other.initialOffset(), ReadMaxBytes(1000))["claims"] == {"orders": 10}
    assert [message.receives for message in orders.peek(99, state="queued")] == [0] * 7
    third = reader_of(url, maxMessagesPerTrigger=5)
    assert third.getDefaultReadLimit() == ReadMaxRows(5)
    assert third.latestOffset(third.initialOffset(), ReadAllAvailable())["claims"] == {"orders": 5}


def test_partitions_are_few_unless_more_are_asked_for(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    broker["orders"].send_many(numbered(10))
    reader = reader_of(url)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(9))
    assert [places(part) for part in reader.partitions(start, end)] == [[(0, 9)]]
    many = reader_of(url, minPartitions=4)
    assert [places(part) for part in many.partitions(start, end)] == [[(0, 2)], [(2, 4)], [(4, 6)], [(6, 9)]]
    assert read_bodies(many, start, end) == numbered(9)


def places(part: Slice) -> list[tuple[int, int]]:
    return [(piece.start, piece.stop) for piece in part.pieces]


def test_a_partition_has_several_small_queues(broker: Broker, url: str) -> None:
    names = [f"small-{number:02}" for number in range(30)]
    for name in names:
        broker.create(name).send_many([f"{name} {number}".encode() for number in range(3)])
    reader = reader_of(url, queue="small-*", minPartitions=4)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(1000))
    parts = reader.partitions(start, end)
    assert [sum(stop - low for low, stop in places(part)) for part in parts] == [22, 23, 22, 23]
    wanted = [f"{name} {number}".encode() for name in names for number in range(3)]
    assert sorted(read_bodies(reader, start, end)) == wanted
    replay = reader_of(url, queue="small-*")
    (whole,) = replay.partitions(start, end)
    assert [piece.queue for piece in whole.pieces] == names
    assert sorted(read_bodies(replay, start, end)) == wanted
    for each in (reader, replay):
        each.stop()


def test_with_available_now_what_comes_later_stays(broker: Broker, url: str) -> None:
    orders = broker["orders"]
    orders.send_many(numbered(2))
    held = orders.receive(1)
    reader = reader_of(url)
    time.sleep(CLOCKS_AGREE)
    reader.prepareForTriggerAvailableNow()
    time.sleep(CLOCKS_AGREE)
    orders.release(held[0])
    orders.send(b"later")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(9))
    assert read_bodies(reader, start, end) == [b"1"]
    assert reader.latestOffset(end, ReadMaxRows(9)) == end
    assert orders.stats().visible == 2
    assert all(message.receives < 2 for message in orders.peek(9))
    reader.stop()


def test_asked_again_before_the_offset_is_logged_the_claim_is_the_same(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    broker["orders"].send_many(numbered(3))
    reader = reader_of(url)
    start = reader.initialOffset()
    assert start == reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(2))
    broker["orders"].send(b"more")
    assert reader.latestOffset(start, ReadMaxRows(9)) == end
    assert reader_of(url).latestOffset(start, ReadMaxRows(9)) == end


def test_a_driver_that_starts_again_finds_what_it_had_claimed(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    offsets = history(broker, url, 1)
    broker["orders"].send_many(numbered(3, 1))
    end = reader_of(url).latestOffset(offsets[1], ReadMaxRows(9))  # everything there is
    again = reader_of(url)
    assert again.latestOffset(offsets[1], ReadMaxRows(9)) == end
    assert again.latestOffset(offsets[1], ReadMaxRows(9)) == end
    assert read_bodies(again, offsets[1], end) == numbered(3, 1)
    assert again.latestOffset(end, ReadMaxRows(9)) == end


def test_when_one_of_two_claims_fails_the_other_is_not_forgotten(
    broker: Broker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        broker.create(name).send(b"1")
    reader = reader_of(url, queue="first,second")
    kind = type(broker["orders"])
    claim, failures = kind.claim, [StoreError("it broke")]  # which is not tried again

    def fail(queue: Queue, *arguments: Any, **how: Any) -> Claim:
        if queue.name == "second" and failures:
            raise failures.pop()
        return claim(queue, *arguments, **how)

    monkeypatch.setattr(kind, "claim", fail)
    start = reader.initialOffset()
    with pytest.raises(StoreError, match="it broke"):
        reader.latestOffset(start, ReadMaxRows(10))
    read_so_far = []
    for _ in range(2):
        end = reader.latestOffset(start, ReadMaxRows(10))
        read_so_far += read_bodies(reader, start, end)
        reader.commit(end)
        broker["first"].send(b"2")
        start = end
    assert sorted(read_so_far) == [b"1", b"1", b"2"]
    reader.stop()


def test_an_idle_poll_takes_no_write_lock(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    broker["orders"].send(b"x")
    reader = reader_of(url + "?timeout=0")
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(9))
    reader.partitions(reader.initialOffset(), end)
    assert reader.latestOffset(end, ReadMaxRows(9)) == end
    with broker.store.batch():  # no other process can write now
        assert reader.latestOffset(end, ReadMaxRows(9)) == end
        assert reader.reportLatestOffset() == {"visible": 0, "oldest_age": 0}


def test_lag_is_how_many_wait_and_for_how_long(broker: Broker, url: str) -> None:
    broker["orders"].send_many(numbered(3))
    reader = reader_of(url)
    lag = reader.reportLatestOffset()
    assert lag is not None
    assert lag["visible"] == 3
    assert -1 < lag["oldest_age"] < 3600
    reader.stop()


# data that is lost, set back or given up: an error, or skipped


def history(broker: Broker, url: str, batches: int) -> list[Offset]:
    """A stream's offsets after some batches of one message each, all settled except the last."""
    reader = reader_of(url)
    offsets = [reader.initialOffset()]
    for number in range(batches):
        broker["orders"].send(b"%d" % number)
        end = reader.latestOffset(offsets[-1], ReadMaxRows(9))
        assert read_bodies(reader, offsets[-1], end) == [b"%d" % number]
        offsets.append(end)
    return offsets


def test_a_checkpoint_that_was_set_back_is_noticed(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    offsets = history(broker, url, 4)
    broker["orders"].send(b"new")
    with pytest.raises(DataLost, match=r"come to epoch 1.*settled all up to 3.*set back.*failOnDataLoss=false"):
        reader_of(url).latestOffset(offsets[1], ReadMaxRows(9))
    with pytest.raises(DataLost, match="set back"):
        reader_of(url).partitions(offsets[1], offsets[2])
    careless = reader_of(url, failOnDataLoss=False)
    assert careless.partitions(offsets[1], offsets[2]) == []
    end = careless.latestOffset(offsets[2], ReadMaxRows(9))
    assert end["epoch"] == 4  # still held, so it is read again
    assert read_bodies(careless, offsets[2], end) == [b"3"]
    after = careless.latestOffset(end, ReadMaxRows(9))
    assert read_bodies(careless, end, after) == [b"new"]


def test_a_checkpoint_that_was_set_back_to_its_first_batch_is_noticed(embedded: tuple[Broker, str]) -> None:
    """Spark replays it from an initial offset that it asks of this process, which has another reader's name."""
    broker, url = embedded
    offsets = history(broker, url, 4)
    reader = reader_of(url)
    with pytest.raises(DataLost, match=r"come to epoch 0.*settled all up to 3.*set back"):
        reader.partitions(reader.initialOffset(), offsets[1])
    careless = reader_of(url, failOnDataLoss=False)
    assert careless.partitions(careless.initialOffset(), offsets[1]) == []
    end = careless.latestOffset(offsets[1], ReadMaxRows(9))
    assert end["epoch"] == 4
    assert read_bodies(careless, offsets[1], end) == [b"3"]


def test_a_reader_that_was_given_up_is_noticed(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    offsets = history(broker, url, 1)
    assert broker["orders"].give_up(offsets[0]["reader"]) == 1
    with pytest.raises(DataLost, match=r"knows no reader.*given up"):
        reader_of(url).partitions(*offsets)
    with pytest.raises(DataLost, match=r"knows no reader.*given up"):
        reader_of(url).latestOffset(offsets[1], ReadMaxRows(9))
    careless = reader_of(url, failOnDataLoss=False)
    assert careless.partitions(*offsets) == []
    again = careless.latestOffset(offsets[1], ReadMaxRows(9))
    assert read_bodies(careless, offsets[1], again) == [b"0"]


def test_a_queue_that_was_made_anew_or_is_gone_is_noticed(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    offsets = history(broker, url, 1)
    broker.delete("orders")
    gone = reader_of(url, queue="o*")
    with pytest.raises(DataLost, match="queue 'orders' is gone"):
        gone.partitions(*offsets)
    broker.create("orders").send(b"new")
    with pytest.raises(DataLost, match=r"knows no reader.*made anew"):
        reader_of(url).latestOffset(offsets[1], ReadMaxRows(9))


def test_messages_that_vanish_from_a_claim_are_noticed(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    broker["orders"].send_many(numbered(3))
    reader = reader_of(url)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(9))
    assert broker["orders"].delete(broker["orders"].peek()[0].id)
    with pytest.raises(DataLost, match=r"has 2 of the 3 messages.*deleted"):
        read_bodies(reader, start, end)
    assert read_bodies(reader_of(url, failOnDataLoss=False), start, end) == numbered(2, 1)


@pytest.mark.parametrize("kind", ["sqlite", "vsqs"])  # the first remembers a lapsed claim, the second does not
def test_a_claim_that_lapsed_before_it_was_logged_is_an_empty_batch(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    with penstock.open(f"{kind}:///{tmp_path}/queue", clock=clock) as broker:
        broker.create("orders").send_many(numbered(3))
        reader = reader_of(f"{kind}:///{tmp_path}/queue")
        reader._broker = broker
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(2))
        clock.advance(61)
        assert reader.partitions(start, end) == []
        assert "lapsed before Spark had logged it" in caplog.text
        assert reader.partitions(start, end) == []  # and so is its replay
        assert list(reader.read(InputPartition(None))) == []  # type: ignore[arg-type]
        reader.commit(end)
        after = reader.latestOffset(end, ReadMaxRows(9))
        assert after["claims"] == {"orders": 3}
        (part,) = reader.partitions(end, after)
        assert places(part) == [(0, 3)]
        reader.commit(after)
        assert broker["orders"].stats().messages == 0


def test_what_lapses_during_an_available_now_run_is_read_by_it(tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open(f"sqlite:///{tmp_path}/queue", clock=clock) as broker:
        broker.create("orders").send_many(numbered(2))
        reader = reader_of(f"sqlite:///{tmp_path}/queue")
        reader._broker = broker
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(9))
        clock.advance(61)  # Spark is too slow
        assert reader.partitions(start, end) == []
        after = reader.latestOffset(end, ReadMaxRows(9))
        assert after["claims"] == {"orders": 2}
        reader.partitions(end, after)
        assert reader.latestOffset(after, ReadMaxRows(9)) == after
        assert broker["orders"].stats().messages == 0


def test_a_new_checkpoint_leaves_what_the_old_one_held_until_it_is_given_up(embedded: tuple[Broker, str]) -> None:
    broker, url = embedded
    offsets = history(broker, url, 1)
    reader = reader_of(url)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(9)) == start
    broker["orders"].give_up(offsets[0]["reader"])
    assert read_bodies(reader, start, reader.latestOffset(start, ReadMaxRows(9))) == [b"0"]


# refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": ""}, "the option 'queue' is missing"),
        ({"view": "settled"}, "the view 'settled' is for batches"),
        ({"view": "all"}, "view is 'all'; it must be one of messages, settled"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger is '0'"),
        ({"maxBytesPerTrigger": "-1"}, "maxBytesPerTrigger is '-1'"),
        ({"minPartitions": "many"}, "minPartitions is 'many'"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss is 'perhaps'"),
        ({"includeAttributes": "2"}, "includeAttributes is '2'"),
        ({"exact": "yes"}, "exact is 'yes'"),
        ({"claimTimeout": "0"}, "claimTimeout is '0'"),
        ({"startingOffsets": "latest"}, "there is no option 'startingoffsets'"),
        ({"url": "memory:"}, "a memory store lives in one process"),
        ({"url": "sqlite:///relative.db"}, "is relative"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    source = PenstockDataSource({"url": "sqlite:////nowhere/queue.db", "queue": "orders"} | options)
    with pytest.raises(PenstockError, match=message):
        source.streamReader(source.schema())


def test_a_queue_or_column_that_is_none_is_named(embedded: tuple[Broker, str]) -> None:
    reader = reader_of(embedded[1], queue="orders, none")
    with pytest.raises(PenstockError, match="there is no queue 'none'"):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(9))
    with pytest.raises(PenstockError, match="there is no column price double; there are id string"):
        columns.chosen(StructType([StructField("price", DoubleType())]))


def test_a_stream_that_pauses_claims_nothing_more_and_settles_what_is_done(
    embedded: tuple[Broker, str], tmp_path: Path
) -> None:
    broker, url = embedded
    orders, pause = broker["orders"], tmp_path / "pause"
    orders.send_many(numbered(4))
    reader = reader_of(url, pauseFile=pause)
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    assert read_bodies(reader, reader.initialOffset(), first) == numbered(2)
    pause.touch()
    assert reader.latestOffset(first, ReadMaxRows(2)) == first
    assert (orders.stats().messages, orders.stats().visible) == (2, 2)
    pause.unlink()
    assert reader.latestOffset(first, ReadMaxRows(2))["claims"] == {"orders": 2}
    reader.stop()
