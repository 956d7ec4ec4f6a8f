"""A stream from queues: each message in exactly one committed batch, whatever is replayed, lost, set back or given up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import penstock
from penstock import Broker
from penstock.spark import columns
from penstock.spark.options import ReadOptions
from penstock.spark.stream import QueueStream

Batches = list[tuple[int, list[Row]]]


class Stream:
    """A query over one checkpoint, run again and again; what it has committed."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark, self.url = spark, url
        self.checkpoint = folder / "checkpoint"
        self.batches: Batches = []
        self.seen: Batches = []
        self.fail = 0
        """How many batches fail after they were read."""

    def run(self, schema: str | None = None, **options: Any) -> list[bytes]:
        """All that is available, then stop; the bodies of what was committed."""
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

    def reader(self) -> str:
        return str(json.loads(self.offsets()[-1].read_text().splitlines()[-1])["reader"])

    def offsets(self) -> list[Path]:
        return sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))

    def roll_back(self, to: int) -> None:
        """Set the checkpoint back to the batch ``to``."""
        for folder in ("offsets", "commits"):
            for path in (self.checkpoint / folder).iterdir():
                if int(path.name.strip(".").split(".")[0]) > to:
                    path.unlink()


@pytest.fixture(params=["sqlite", "postgresql", "vsqs", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgresql":
        yield request.getfixturevalue("postgresql").new_url()
    elif request.param == "http":
        from penstock.server import BackgroundServer, ServerSettings

        with (
            penstock.open(f"sqlite:///{tmp_path}/behind.db") as behind,
            BackgroundServer(behind, ServerSettings(port=0)) as server,
        ):
            yield server.url
    else:
        yield f"{request.param}:///{tmp_path}/queue"


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with penstock.open(url) as broker:
        broker.create("orders")
        yield broker


@pytest.fixture
def stream(spark: SparkSession, url: str, tmp_path: Path) -> Stream:
    return Stream(spark, url, tmp_path)


@pytest.fixture
def embedded(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Broker, Stream]]:
    """On SQLite alone, for what does not depend on the store."""
    with penstock.open(f"sqlite:///{tmp_path}/one.db") as broker:
        broker.create("orders")
        yield broker, Stream(spark, f"sqlite:///{tmp_path}/one.db", tmp_path)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def reader_of(url: str, **options: Any) -> QueueStream:
    chosen = ReadOptions.parse({"url": url, "queue": "orders"} | {name: str(value) for name, value in options.items()})
    return QueueStream(chosen, columns.schema(chosen))


# the life of a batch, on each kind of store


def test_each_message_is_read_once_and_nothing_stays_claimed(broker: Broker, stream: Stream) -> None:
    orders = broker["orders"]
    orders.send_many(numbered(25))
    assert sorted(stream.run(maxMessagesPerTrigger="10"), key=int) == numbered(25)
    assert [len(rows) for _, rows in stream.batches] == [10, 10, 5]
    assert orders.stats().messages == 0
    assert [claims for claims in orders.readers().values() if claims] == []
    orders.send_many(numbered(5, 25))
    assert stream.run() == numbered(5, 25)
    assert stream.run() == []


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


def test_a_message_is_a_row_with_all_that_it_has(broker: Broker, stream: Stream) -> None:
    body = bytes(range(256))
    attributes = {"text": "é", "count": 7, "share": 0.5, "raw": b"\0\xff"}
    sent = broker["orders"].send(body, content_type="image/png", attributes=attributes, deadline=1000)
    broker["orders"].send(b"plain")
    stream.run()
    rich, plain = stream.batches[0][1]
    assert (rich.id, rich.queue, rich.body, rich.content_type) == (sent.id, "orders", body, "image/png")
    assert rich.attributes == {"text": "é", "count": "7", "share": "0.5", "raw": "AP8="}
    assert rich.attribute_types == {"count": "integer", "share": "number", "raw": "bytes"}
    assert (rich.deadline - rich.sent_at).total_seconds() == 1000
    assert (rich.receives, rich.state) == (1, "consumed")
    assert (rich.visible_at, rich.group, rich.key, rich.death) == (None, None, None, None)
    assert rich.received_at == rich.first_received_at >= rich.sent_at
    assert (plain.content_type, plain.attributes, plain.attribute_types) == ("application/octet-stream", {}, {})
    assert plain.deadline is None


# many queues, many readers


def test_two_queries_and_a_consumer_share_a_queue_and_never_meet(embedded: tuple[Broker, Stream], tmp_path: Path) -> None:
    broker, one = embedded
    other = Stream(one.spark, one.url, tmp_path / "other")
    orders = broker["orders"]
    orders.send_many(numbered(60))
    queries = [
        stream.write(stream.load(maxMessagesPerTrigger="7")).trigger(processingTime="0 seconds").start()
        for stream in (one, other)
    ]
    taken: list[bytes] = []
    try:
        while orders.stats().visible:
            for message in orders.receive(3):
                taken.append(message.body)
                message.delete()
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    read = [row.body for stream in (one, other) for _, rows in stream.batches for row in rows]
    assert sorted(read + taken, key=int) == numbered(60)
    assert one.reader() != other.reader()


def test_a_pattern_reads_many_queues_in_one_batch(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    for name in ("eu-1", "eu-2", "us-1"):
        broker.create(name).send_many([name.encode()] * 3)
    assert sorted(stream.run(queue="eu-*, us-1")) == [b"eu-1"] * 3 + [b"eu-2"] * 3 + [b"us-1"] * 3
    assert len(stream.batches) == 1
    assert {row.queue for row in stream.batches[0][1]} == {"eu-1", "eu-2", "us-1"}
    broker.create("eu-3").send(b"new")
    assert stream.run(queue="eu-*, us-1") == [b"new"]
    assert [broker[name].stats().messages for name in ("eu-1", "eu-2", "eu-3", "us-1")] == [0, 0, 0, 0]


def test_dead_letters_and_deadlines_go_on_holding(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    dead = broker.create("dead")
    queue = broker.create("strict", redrive=("dead", 1))
    queue.send(b"poison")
    queue.receive()[0].release()
    queue.send(b"late", deadline=0)
    queue.send(b"good")
    assert stream.run(queue="strict") == [b"good"]
    assert dead.stats().messages == 1
    assert queue.stats().messages == 0


def test_a_stream_keeps_the_history(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    kept = broker.create("kept", history=1000)
    kept.send(b"x")
    stream.run(queue="kept")
    assert [(message.body, message.state.name) for message in kept.settled()] == [(b"x", "PROCESSED")]


# limits


def test_available_now_ends_though_senders_go_on(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    orders = broker["orders"]
    orders.send_many(numbered(4))
    take = stream._take

    def send_one_more(frame: DataFrame, number: int) -> None:
        orders.send(b"late")
        take(frame, number)

    stream._take = send_one_more  # type: ignore[method-assign]
    assert stream.run(maxMessagesPerTrigger="2") == numbered(4)
    assert orders.stats().visible == 2


def test_limits_of_messages_and_bytes_hold(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    orders = broker["orders"]
    orders.send_many([b"x" * 100] * 20)
    reader = reader_of(stream.url)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadMaxRows(3))["claims"] == {"orders": 3}
    other = reader_of(stream.url, maxBytesPerTrigger=1000)
    assert other.getDefaultReadLimit() == ReadMaxBytes(1000)
    assert other.latestOffset(other.initialOffset(), ReadMaxBytes(1000))["claims"] == {"orders": 10}
    assert [message.receives for message in orders.peek(99, state="queued")] == [0] * 7
    third = reader_of(stream.url, maxMessagesPerTrigger=5)
    assert third.getDefaultReadLimit() == ReadMaxRows(5)
    assert third.latestOffset(third.initialOffset(), ReadAllAvailable())["claims"] == {"orders": 5}


def test_partitions_are_few_unless_more_are_asked_for(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    broker["orders"].send_many(numbered(10))
    reader = reader_of(stream.url)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(9))
    assert [(part.start, part.stop) for part in reader.partitions(start, end)] == [(0, 9)]
    many = reader_of(stream.url, minPartitions=4)
    assert [(part.start, part.stop) for part in many.partitions(start, end)] == [(0, 2), (2, 4), (4, 6), (6, 9)]


def test_fewer_columns_can_be_asked_for(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    broker["orders"].send(b"x", attributes={"a": 1})
    assert "attributes" not in stream.load(includeAttributes="false").columns
    assert stream.run("body binary, queue string") == [b"x"]
    assert stream.batches[0][1] == [Row(body=b"x", queue="orders")]


# what an idle or repeated question does


def test_asked_again_before_the_offset_is_logged_the_claim_is_the_same(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    broker["orders"].send_many(numbered(3))
    reader = reader_of(stream.url)
    start = reader.initialOffset()
    assert start == reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(2))
    broker["orders"].send(b"more")
    assert reader.latestOffset(start, ReadMaxRows(9)) == end
    assert reader_of(stream.url).latestOffset(start, ReadMaxRows(9)) == end


def test_an_idle_poll_takes_no_write_lock(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    broker["orders"].send(b"x")
    reader = reader_of(stream.url + "?timeout=0")
    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(9))
    reader.partitions(reader.initialOffset(), end)
    assert reader.latestOffset(end, ReadMaxRows(9)) == end
    with broker.store.batch():  # nobody else can write now
        assert reader.latestOffset(end, ReadMaxRows(9)) == end
        assert reader.reportLatestOffset() == {"visible": 0, "oldest_age": 0}


def test_lag_is_told(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    broker["orders"].send_many(numbered(3))
    lag = reader_of(stream.url).reportLatestOffset()
    assert lag is not None
    assert lag["visible"] == 3
    assert lag["oldest_age"] > 0
    stream.run()


# what is lost, set back, given up


def both(stream: Stream, message: str) -> list[bytes]:
    """The stream fails and says why; with failOnDataLoss=false it goes on: what it reads then."""
    with pytest.raises(PySparkException, match=message):
        stream.run()
    return stream.run(failOnDataLoss="false")


def test_a_checkpoint_that_was_set_back_is_an_error_or_skipped(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    for number in range(4):
        broker["orders"].send(b"%d" % number)
        stream.run()
    broker["orders"].send(b"new")
    stream.roll_back(1)
    assert both(stream, "the checkpoint was set back.*failOnDataLoss=false") == [b"new"]
    assert stream.run() == []


def test_a_settled_batch_that_is_replayed_is_an_error_or_skipped(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    for number in range(3):
        broker["orders"].send(b"%d" % number)
        stream.run()
    broker["orders"].send(b"new")
    stream.roll_back(1)
    (stream.checkpoint / "commits" / "1").unlink()
    (stream.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    assert both(stream, "the checkpoint was set back") == [b"new"]


def test_a_reader_that_was_given_up_is_an_error_or_skipped(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    broker["orders"].send_many(numbered(3))
    stream.fail = 1
    with pytest.raises(PySparkException, match="the sink fails"):
        stream.run()
    assert broker["orders"].give_up(stream.reader()) == 3
    assert both(stream, "knows no reader.*given up") == numbered(3)


def test_a_queue_that_was_made_anew_is_an_error_or_skipped(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    broker["orders"].send(b"old")
    stream.run()
    broker.delete("orders")
    broker.create("orders").send(b"new")
    assert both(stream, "knows no reader.*made anew") == [b"new"]


def test_messages_that_vanish_from_a_claim_are_an_error_or_skipped(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    broker["orders"].send_many(numbered(3))
    stream.fail = 1
    with pytest.raises(PySparkException, match="the sink fails"):
        stream.run()
    assert broker["orders"].delete(broker["orders"].peek()[0].id)
    assert both(stream, "has 2 of the 3 messages.*deleted") == numbered(2, 1)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_claim_that_lapsed_before_it_was_logged_is_an_empty_batch(
    spark: SparkSession, tmp_path: Path, forgets: bool, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{'vsqs' if forgets else 'sqlite'}:///{tmp_path}/queue"
    now = [0]
    with penstock.open(url, clock=lambda: now[0]) as broker:
        broker.create("orders").send_many(numbered(3))
        reader = reader_of(url)
        reader._broker = broker
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(2))
        now[0] += 61_000_000
        assert reader.partitions(start, end) == []
        assert "lapsed before Spark had logged it" in caplog.text
        assert reader.partitions(start, end) == []  # and so is its replay
        reader.commit(end)
        after = reader.latestOffset(end, ReadMaxRows(9))
        assert after["claims"] == {"orders": 3}
        (part,) = reader.partitions(end, after)
        assert (part.start, part.stop) == (0, 3)
        reader.commit(after)
        assert broker["orders"].stats().messages == 0


def test_a_new_checkpoint_leaves_what_the_old_one_held_until_it_is_given_up(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    broker["orders"].send_many(numbered(3))
    stream.fail = 1
    with pytest.raises(PySparkException, match="the sink fails"):
        stream.run()
    old = stream.reader()
    shutil.rmtree(stream.checkpoint)
    assert stream.run() == []
    assert broker["orders"].stats().in_flight == 3
    broker["orders"].give_up(old)
    assert stream.run() == numbered(3)


def test_a_claim_of_a_driver_that_died_comes_back(embedded: tuple[Broker, Stream]) -> None:
    broker, stream = embedded
    broker["orders"].send(b"x")
    reader = reader_of(stream.url, claimTimeout=1)
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(9))
    assert broker["orders"].receive(1, wait=5)[0].body == b"x"


# what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "none"}, "there is no queue 'none'"),
        ({"queue": ""}, "the option 'queue' is missing"),
        ({"view": "settled"}, "the view 'settled' is for batches"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger is '0'"),
        ({"minPartitions": "many"}, "minPartitions is 'many'"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss is 'perhaps'"),
        ({"startingOffsets": "latest"}, "there is no option 'startingoffsets'"),
        ({"url": "memory:"}, "a memory store lives in one process"),
        ({"url": "sqlite:///relative.db"}, "is relative"),
    ],
)
def test_a_wrong_option_is_named(embedded: tuple[Broker, Stream], options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        embedded[1].run(**options)


def test_a_column_that_is_none_is_refused(embedded: tuple[Broker, Stream]) -> None:
    with pytest.raises(PySparkException, match="there is no column price double; there are id string"):
        embedded[1].run("body binary, price double")
