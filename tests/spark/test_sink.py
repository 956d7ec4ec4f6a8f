"""The sink: every row is in its queue exactly once, whatever happens to tasks, batches and drivers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import penstock
from penstock import BadInput, Broker, Unsupported
from penstock.spark.options import WriteOptions
from penstock.spark.sink import BatchSink, StreamSink

STORES = ["sqlite", "postgresql", "vsqs", "http"]


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with penstock.open(url) as broker:
        broker.create("orders")
        yield broker


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Broker]:
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        broker.create("orders")
        yield broker


def found(broker: Broker, queue: str = "orders") -> list[bytes]:
    return sorted(message.body for message in broker[queue].peek(10_000))


def write(df: DataFrame, url: str, queue: str | None = "orders", mode: str = "append", **options: str) -> None:
    given = {"url": url, **options} | ({} if queue is None else {"queue": queue})
    df.write.format("penstock").mode(mode).options(**given).save()


def numbers(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as body")


class Input:
    """A folder as a stream, one file a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.folder, self._spark, self._files = folder, spark, 0
        folder.mkdir()

    def add(self, *rows: str) -> None:
        (self.folder / f"{self._files:03}.txt").write_text("\n".join(rows) + "\n")
        self._files += 1

    def stream(self) -> DataFrame:
        return self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.folder)).withColumnRenamed("value", "body")


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Input:
    return Input(spark, tmp_path / "input")


@pytest.fixture
def run(source: Input, tmp_path: Path) -> Callable[..., None]:
    """Run the stream over what is there, until it ends."""

    def go(url: str, df: DataFrame | None = None, mode: str = "append", **options: str) -> None:
        writer = (source.stream() if df is None else df).writeStream.format("penstock").outputMode(mode)
        options = {"url": url, "queue": "orders", "checkpointLocation": str(tmp_path / "checkpoint"), **options}
        query = writer.options(**options).trigger(availableNow=True).start()
        query.awaitTermination()

    return go


def forget_last_commit(checkpoint: Path) -> int:
    """As if the driver had died after the sink's commit, but before Spark logged it; returns the batch."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    for path in (checkpoint / "commits").glob(f"*{last}*"):
        path.unlink()
    return last


def test_a_batch_write_sends_every_row(spark: SparkSession, broker: Broker, url: str) -> None:
    write(numbers(spark, 1000), url)
    assert found(broker) == sorted(b"%d" % number for number in range(1000))
    assert broker["orders"].peek()[0].content_type == "text/plain; charset=utf-8"


def test_a_stream_sends_every_row_and_a_replayed_batch_no_row_twice(
    source: Input, run: Callable[..., None], broker: Broker, url: str, tmp_path: Path
) -> None:
    source.add("1", "2", "3")
    source.add("4")
    run(url)
    assert found(broker) == [b"1", b"2", b"3", b"4"]
    for message in broker["orders"].receive(9):
        message.delete()
    assert forget_last_commit(tmp_path / "checkpoint") == 1
    source.add("5")
    run(url)
    assert found(broker) == [b"5"]
    if isinstance(broker, penstock.Broker) and hasattr(broker.store, "staged"):
        assert broker.store.outbox.staging.staged() == []


def test_what_a_row_says_arrives(spark: SparkSession, broker: Broker, url: str) -> None:
    broker.create("other")
    deadline = datetime.now(UTC).replace(microsecond=123_000) + timedelta(days=1)
    schema = (
        "queue string, body binary, content_type string, attributes map<string,string>, "
        "attribute_types map<string,string>, delay double, deadline timestamp, key string, `group` string"
    )
    types = {"n": "integer", "r": "number", "b": "bytes"}
    rows: list[tuple[Any, ...]] = [
        ("orders", b"\x00\xff", "image/png", {"t": "x", "n": "7", "r": "0.1", "b": "AP8="}, types, None, deadline, None, "g"),
        ("other", b"", None, None, None, 3600.0, None, None, None),
    ]  # fmt: skip
    write(spark.createDataFrame(rows, schema), url, queue=None)
    (first,) = broker["orders"].peek(9)
    assert (first.body, first.content_type, first.group) == (b"\x00\xff", "image/png", "g")
    assert first.attributes == {"t": "x", "n": 7, "r": 0.1, "b": b"\x00\xff"}
    assert first.deadline_at == round(deadline.timestamp() * 1e6)
    (second,) = broker["other"].peek(9)
    assert (second.body, second.content_type) == (b"", "application/octet-stream")
    assert 0 <= second.visible_at - second.sent_at - 3600 * 10**6 <= 1000  # VSQS counts milliseconds


def test_a_bad_row_fails_the_batch_with_its_reason_and_sends_nothing(spark: SparkSession, sqlite: Broker) -> None:
    url = f"sqlite:///{sqlite.store.database.file.path}"  # type: ignore[attr-defined]
    for rows, reason in (
        ("'fine' as body, 'orders' as queue union all select null, 'orders'", "its body is null"),
        ("'fine' as body, 'orders' as queue union all select 'x', null", "its queue is null"),
        ("'fine' as body, 'orders' as queue union all select 'x', 'nowhere'", "there is no queue 'nowhere'"),
        ("'fine' as body, 'orders' as queue union all select repeat('x', 1048577), 'orders'", "1048577 bytes"),
        ("'fine' as body, 'orders' as queue, 1 as delay union all select 'x', 'orders', -1", "delay -1.0"),
        (
            "'fine' as body, 'orders' as queue, 'g' as `group` union all select 'x', 'orders', repeat('g', 129)",
            "129 characters",
        ),
    ):
        with pytest.raises(PySparkException, match=reason):
            write(spark.sql(f"select {rows}"), url, queue=None)
        assert found(sqlite) == []
    # Segments staged before another task failed stay until they are swept: Spark does not report unfinished attempts.


def test_bad_rows_go_where_the_option_says(spark: SparkSession, broker: Broker, url: str) -> None:
    broker.create("bad")
    df = spark.sql(
        "select 'fine' as body, 'orders' as queue, 0 as delay union all select null, 'orders', 0 "
        "union all select repeat('x', 1048577), 'orders', 0 union all select 'lost', 'nowhere', 0 "
        "union all select 'late', 'orders', -1"
    )
    write(df, url, queue=None, badRows="bad")
    assert found(broker) == [b"fine"]
    reasons = {
        (message.body[:9], message.attributes["queue"]): message.attributes["reason"] for message in broker["bad"].peek(9)
    }
    assert reasons == {
        (b"", "orders"): "its body is null",
        (b"x" * 9, "orders"): "the body has 1048577 bytes, the limit is 1048576",
        (b"lost", "nowhere"): "there is no queue 'nowhere'",
        (b"late", "orders"): "delay -1.0 is not between 0 and 2147483647 seconds",
    }


def test_the_schema_is_checked_on_the_driver(spark: SparkSession) -> None:  # from_ddl needs the session
    options = WriteOptions("sqlite:////nowhere.db", None)
    for ddl, words in (
        ("queue string", "no column body"),
        ("body string", "no column queue"),
        ("queue string, body int", "body is int; it must be string or binary"),
        ("queue string, body string, color string", "no column 'color'; there are body"),
        ("queue string, body string, attributes map<string,int>", r"it must be map<string,string>"),
        ("queue string, body string, delay string", "delay is string"),
        ("queue string, body string, deadline timestamp_ntz", "time zone"),
    ):
        for kind in (BatchSink, StreamSink):
            with pytest.raises(BadInput, match=words):
                kind(options, StructType.fromDDL(ddl), False)
    with pytest.raises(Unsupported, match="append"):
        BatchSink(options, StructType.fromDDL("queue string, body string"), True)


def test_a_message_of_the_source_can_be_written_as_it_is(spark: SparkSession, sqlite: Broker) -> None:
    row = "'id' as id, 'orders' as queue, binary('x') as body, now() as sent_at, 1 as receives, 'queued' as state"
    write(spark.sql(f"select {row}"), f"sqlite:///{sqlite.store.database.file.path}", queue=None)  # type: ignore[attr-defined]
    assert found(sqlite) == [b"x"]


def test_an_empty_batch_is_written(spark: SparkSession, broker: Broker, url: str) -> None:
    write(numbers(spark, 0), url)
    assert found(broker) == []


def test_rows_of_any_size_are_split_into_segments(spark: SparkSession, broker: Broker, url: str) -> None:
    df = spark.range(0, 60, 1, 2).selectExpr("concat(lpad(id, 3, '0'), repeat('x', 400000)) as body")
    write(df, url)
    assert [body[:3] for body in found(broker)] == [b"%03d" % number for number in range(60)]


def test_complete_mode_sends_the_whole_result_each_time(source: Input, run: Callable[..., None], sqlite: Broker) -> None:
    url = f"sqlite:///{sqlite.store.database.file.path}"  # type: ignore[attr-defined]
    for expected in ([b"a1"], [b"a1", b"a2"]):
        source.add("a")
        counted = source.stream().groupBy("body").count().selectExpr("concat(body, count) as body")
        run(url, counted, "complete")
        assert found(sqlite) == expected


def test_a_failed_batch_is_replayed_by_a_restart(source: Input, run: Callable[..., None], sqlite: Broker) -> None:
    url = f"sqlite:///{sqlite.store.database.file.path}"  # type: ignore[attr-defined]
    source.add("1", "2")
    with pytest.raises(PySparkException, match="there is no queue 'later'"):
        run(url, queue="later")
    sqlite.create("later")
    run(url, queue="later")
    assert found(sqlite, "later") == [b"1", b"2"]
    assert sqlite.store.outbox.staging.staged() == []


def test_a_checkpoint_that_was_set_back_loses_no_row_silently(
    source: Input, run: Callable[..., None], sqlite: Broker, tmp_path: Path
) -> None:
    url = f"sqlite:///{sqlite.store.database.file.path}"  # type: ignore[attr-defined]
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    source.add("a")
    run(url)
    shutil.copytree(checkpoint, backup)
    source.add("b")
    run(url)
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    (source.folder / "001.txt").write_text("c\n")  # the restored query reads other rows as its batch 1
    with pytest.raises(
        PySparkException, match=r"batch 1 of writer .* \(1 messages\) was published before, and it had other messages"
    ):
        run(url)
    assert found(sqlite) == [b"a", b"b"]
    assert sqlite.store.outbox.staging.staged() == []
    source.add("d")
    run(url, failOnDataLoss="false")  # leaves c out, and continues
    assert found(sqlite) == [b"a", b"b", b"d"]
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    with pytest.raises(PySparkException, match=r"WriterSetBack.* a later batch is published: the last one is batch 2"):
        run(url)


def test_a_replay_that_is_split_otherwise_is_still_the_same_batch(
    source: Input, run: Callable[..., None], sqlite: Broker, tmp_path: Path
) -> None:
    url = f"sqlite:///{sqlite.store.database.file.path}"  # type: ignore[attr-defined]
    source.add("1", "2", "3", "4", "5")
    run(url, source.stream().repartition(1))
    forget_last_commit(tmp_path / "checkpoint")
    run(url, source.stream().repartition(3))
    assert found(sqlite) == [b"1", b"2", b"3", b"4", b"5"]


def test_a_batch_write_with_a_version_is_done_once_for_each_queue(source: Input, sqlite: Broker, tmp_path: Path) -> None:
    url = f"sqlite:///{sqlite.store.database.file.path}"  # type: ignore[attr-defined]
    sqlite.create("copies")
    fail = [True]

    def both(frame: DataFrame, batch: int) -> None:
        for queue in ("orders", "copies"):
            write(frame, url, queue, txnAppId="shop/both", txnVersion=str(batch))
            if fail:
                fail.clear()
                raise RuntimeError("between the two")

    def run() -> None:
        writer = source.stream().writeStream.foreachBatch(both).option("checkpointLocation", str(tmp_path / "check"))
        writer.trigger(availableNow=True).start().awaitTermination()

    source.add("1", "2")
    with pytest.raises(PySparkException, match="between the two"):
        run()
    assert (found(sqlite), found(sqlite, "copies")) == ([b"1", b"2"], [])
    source.add("3")
    run()
    assert found(sqlite) == found(sqlite, "copies") == [b"1", b"2", b"3"]


def test_a_version_that_was_written_with_other_rows_is_told(spark: SparkSession, sqlite: Broker) -> None:
    url = f"sqlite:///{sqlite.store.database.file.path}"  # type: ignore[attr-defined]
    for _ in range(2):
        write(numbers(spark, 3), url, txnAppId="nightly", txnVersion="7")
    write(numbers(spark, 1), url, txnAppId="another", txnVersion="7")
    assert found(sqlite) == [b"0", b"0", b"1", b"2"]
    for version, told in (("7", "it had other messages"), ("6", "a later batch is published")):
        with pytest.raises(PySparkException, match=rf"batch {version} of writer 'txn-nightly-\w+' .*{told}.* a txnVersion of"):
            write(numbers(spark, 2), url, txnAppId="nightly", txnVersion=version)
        write(numbers(spark, 2), url, txnAppId="nightly", txnVersion=version, failOnDataLoss="false")
    assert len(found(sqlite)) == 4
    assert sqlite.store.outbox.staging.staged() == []
    write(numbers(spark, 2), url, txnAppId="nightly", txnVersion="8")
    assert len(found(sqlite)) == 6


def test_the_options_of_a_write_that_is_done_once_belong_together(spark: SparkSession) -> None:
    for options in ({"txnAppId": "x"}, {"txnVersion": "1"}):
        with pytest.raises(BadInput, match="belong together"):
            WriteOptions.parse({"url": "sqlite:////nowhere.db", **options})
    with pytest.raises(BadInput, match="txnVersion is '-1'"):
        WriteOptions.parse({"url": "sqlite:////nowhere.db", "txnAppId": "x", "txnVersion": "-1"})
    both = WriteOptions.parse({"url": "sqlite:////nowhere.db", "queue": "q", "txnAppId": "x", "txnVersion": "1"})
    with pytest.raises(BadInput, match="for batch writes"):
        StreamSink(both, StructType.fromDDL("body string"), False)
