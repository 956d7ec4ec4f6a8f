"""A batch read of a queue and of its history: it consumes nothing, and the store evaluates the filters."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan, In, InputPartition, IsNotNull, LessThanOrEqual

import penstock
from penstock import Queue, StoreBusy, arrow
from penstock.spark import arrow_reader, columns, reading
from penstock.spark.browse import Browse, FilteringBrowse
from penstock.spark.options import PARALLELISM, ReadOptions
from penstock.stores.sqlite.file import lend

STORES = ["sqlite", "postgresql", "spool", "http"]


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with penstock.open(url) as broker:
        yield broker.create("orders", history=1000)


def reader(url: str, schema: str | None = None, **options: Any) -> FilteringBrowse:
    chosen = ReadOptions.parse({"url": url, "queue": "orders"} | {name: str(value) for name, value in options.items()})
    names = schema.split() if schema else columns.schema(chosen).names
    return FilteringBrowse(chosen, columns.chosen(columns.from_arrow_schema(arrow.schema_of(names))))


def rows(browse: Browse) -> list[dict[str, Any]]:
    return [row for part in browse.partitions() for batch in browse.read(part) for row in batch.to_pylist()]


def fill(queue: Queue) -> None:
    """One of each kind: plain, rich, delayed, received, released, in a group, with a key."""
    queue.send(b"plain")
    queue.send(bytes(range(256)), content_type="image/png", attributes={"a": "é", "n": 1, "f": 0.5, "b": b"\0"})
    queue.send(b"delayed", delay=1000, deadline=2000)
    queue.send(b"grouped", group="g")
    queue.receive(2, visibility=500)
    queue.release(queue.receive(1)[0])


# in this process


def test_rows_are_what_the_queue_shows_and_nothing_is_consumed(url: str, queue: Queue) -> None:
    fill(queue)
    before = sorted(queue.peek(99), key=lambda message: message.number)
    expected = arrow.to_batch(before, arrow.MESSAGE).to_pylist()
    with penstock.open(url) as broker:
        broker.create("other").send(b"not this")
    if url.startswith("sqlite:"):
        queue._opened.store.close()  # two copies of SQLite must not have the file open
    found = rows(reader(url))
    assert sorted(found, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])


def test_the_history_is_a_view(url: str, queue: Queue) -> None:
    fill(queue)
    for message in queue.receive(1):
        message.delete()
    queue.fail(queue.peek(1)[0].id, "")
    queue.fail(queue.peek(1)[0].id, "no luck")
    expected = arrow.to_batch(queue.settled(99), arrow.SETTLED).to_pylist()
    if url.startswith("sqlite:"):
        queue._opened.store.close()
    found = rows(reader(url, view="settled"))
    assert sorted(row["reason"] or "" for row in found) == ["", "", "no luck"]
    assert sorted(found, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])


def test_filters_are_done_where_the_messages_are(url: str, queue: Queue) -> None:
    ids = [sent.id for sent in queue.send_many([b"1", b"2", b"3"])]
    queue.send(b"later", delay=1000)
    now = datetime.now(UTC)
    if url.startswith("sqlite:"):
        queue._opened.store.close()

    def bodies(*filters: Any) -> list[bytes]:
        browse = reader(url, "body")
        left = list(browse.pushFilters(list(filters)))
        assert left == [given for given in filters if isinstance(given, IsNotNull)]
        return sorted(row["body"] for row in rows(browse))

    assert bodies(EqualTo(("id",), ids[1]), IsNotNull(("id",))) == [b"2"]
    assert bodies(In(("id",), (ids[0], ids[2], "nonsense"))) == [b"1", b"3"]
    assert bodies(EqualTo(("id",), "nonsense")) == []
    assert bodies(EqualTo(("queue",), "orders"), In(("queue",), ("orders", "x"))) == [b"1", b"2", b"3", b"later"]
    assert bodies(EqualTo(("queue",), "other")) == []
    assert bodies(GreaterThan(("visible_at",), now + timedelta(seconds=500))) == [b"later"]
    assert bodies(LessThanOrEqual(("visible_at",), now + timedelta(seconds=500))) == [b"1", b"2", b"3"]
    assert bodies(GreaterThan(("sent_at",), now + timedelta(seconds=500))) == []


def test_an_instant_that_never_comes_is_null_and_passes_no_filter(url: str, queue: Queue) -> None:
    queue.send(b"held")
    queue.claim("reader", 1, 1)
    queue.confirm("reader", 1)
    if url.startswith("sqlite:"):
        queue._opened.store.close()
    browse = reader(url, "visible_at")
    assert rows(browse) == [{"visible_at": None}]
    assert list(browse.pushFilters([GreaterThan(("visible_at",), datetime.now(UTC))])) == []
    assert rows(browse) == []


def test_partitions_are_ranges_that_meet(url: str, queue: Queue) -> None:
    queue.send_many([b"%d" % number for number in range(50)])
    queue.send_many([b"gone"] * 10)
    for message in queue.peek(60)[50:]:
        queue.delete(message.id)
    if url.startswith("sqlite:"):
        queue._opened.store.close()
    browse = reader(url, "body", minPartitions=4)
    parts = browse.partitions()
    assert len(parts) == (1 if url.startswith("spool:") else 4)
    assert all(len(part.pieces) == 1 for part in parts)
    assert sorted((row["body"] for row in rows(browse)), key=int) == [b"%d" % number for number in range(50)]


def test_few_of_many_numbers_are_found_by_the_index_and_many_by_the_table(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(url) as broker:
        for name, count in (("orders", 1), ("many", 200), ("orders2", 1), ("orders", 3)):
            broker.create(name, exist_ok=True).send_many([name.encode()] * count)
    ((few,),) = (part.pieces for part in reader(url, "body").partitions())
    ((many,),) = (part.pieces for part in reader(url, "body", queue="many").partitions())
    assert (few.dense, many.dense) == (False, True)
    assert len(rows(reader(url, "body"))) == 4
    assert len(rows(reader(url, "body", queue="many"))) == 200


def test_a_file_that_is_open_here_is_read_by_the_copy_of_sqlite_that_has_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(url) as broker:
        broker.create("orders").send(b"x", attributes={"a": 1})
        with arrow_reader.opened(url) as direct:
            assert direct is None
        assert [row["body"] for row in rows(reader(url))] == [b"x"]
    with arrow_reader.opened(url) as direct:
        assert direct is not None
        with pytest.raises(StoreBusy, match="read by ADBC in this process"):
            penstock.open(url)
        with lend(tmp_path / "queue.db") as free:
            assert free
    with penstock.open(url) as broker:
        assert broker["orders"].stats().messages == 1


def test_both_ways_of_reading_give_the_same_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(url) as broker:
        dead = broker.create("dead", groups=True)
        queue = broker.create("orders", redrive=("dead", 1), deduplicate=True)
        queue.send(b"dies", group="g", key="k", attributes={"a": "b"})
        queue.receive()[0].release()
        queue.receive()
        dead.send_many([penstock.Draft(b"%d" % number, group="g") for number in range(3)])
        queue.send(b"keyed", key=b"\0key")
        queue.send(b"content")
        slow = {name: arrow.to_batch(broker[name].scan(), arrow.MESSAGE) for name in ("orders", "dead")}
    with arrow_reader.opened(url) as direct:
        assert direct is not None
        for name, expected in slow.items():
            found = direct.scan(name, 0, 2**62, arrow.MESSAGE, settled=False, dense=True, conditions=[])
            assert pa.Table.from_batches(found).to_pylist() == expected.to_pylist()
            assert expected.schema == arrow.MESSAGE
    assert slow["dead"].column("death")[0].as_py()["queue"] == "orders"
    assert slow["orders"].column("key").to_pylist() == [b"\0key", None]


def test_values_that_come_late_do_not_surprise_the_driver(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b""] * (arrow_reader.SQLITE_ROWS + 1))
        queue.send(b"x", content_type="text/plain", attributes={"a": 1}, deadline=100)
    found = rows(reader(url))
    assert len(found) == arrow_reader.SQLITE_ROWS + 2
    assert [row["content_type"] for row in found if row["body"]] == ["text/plain"]
    assert [row["content_type"] for row in found].count("application/octet-stream") == arrow_reader.SQLITE_ROWS + 1


def test_an_empty_queue_has_no_rows(url: str, queue: Queue) -> None:
    browse = reader(url)
    assert browse.partitions() == []
    assert list(browse.read(InputPartition(None))) == []  # type: ignore[arg-type]


def test_heavy_messages_come_in_small_pages() -> None:
    assert reading._rows(1_000_000 * 500, 500) == 16
    assert reading._rows(500, 500) == reading.ROWS
    assert reading._rows(0, 0) == 1


def test_the_parts_of_a_batch_are_few() -> None:
    assert reading.parts(0, 8) == []
    assert reading.parts(10, None) == [(0, 10)]
    assert reading.parts(3, 8) == [(0, 1), (1, 2), (2, 3)]
    assert len(reading.parts(2_000_000, None, 2)) == 4
    assert len(reading.parts(100_000, None, 2)) == 2
    assert len(reading.parts(100_000, None, 64)) == 5


def test_the_parts_do_not_depend_on_the_drivers_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PARALLELISM, raising=False)
    given = {"url": "sqlite:////x.db", "queue": "orders"}
    assert ReadOptions.parse(given).parallelism is None
    assert len(reading.parts(1_000_000, None)) == 20
    monkeypatch.setenv(PARALLELISM, "48")
    assert ReadOptions.parse(given).parallelism == 48
    assert ReadOptions.parse(given | {"parallelism": "3"}).parallelism == 3


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_the_queues_are_cut_into_parts_that_meet(count: int) -> None:
    sizes = [("a", 0), ("b", 1), ("c", 20), ("d", 3), ("e", 0), ("f", 16)]
    places = [(name, place) for name, size in sizes for place in range(size)]
    for whole in (False, True):
        cut = reading.cut(sizes, reading.parts(40, count), whole=whole)
        pieces = [piece for part in cut for piece in part]
        assert [(piece.queue, place) for piece in pieces for place in range(piece.start, piece.stop)] == places
        if whole:
            assert [(piece.queue, piece.start, piece.stop) for piece in pieces] == [(n, 0, s) for n, s in sizes if s]
        else:
            assert len(cut) == count
            assert {sum(piece.stop - piece.start for piece in part) for part in cut} <= {40 // count, -(-40 // count)}
    assert reading.cut([("a", 0)], reading.parts(0, 4)) == []


def test_many_queues_are_read_by_few_tasks(url: str) -> None:
    with penstock.open(url) as broker:
        for number in range(12):
            broker.create(f"small-{number}").send_many([b"%d" % number] * 2)
    browse = reader(url, "queue body", queue="small-*", minPartitions=3)
    assert len(browse.partitions()) == 3
    assert sorted(row["queue"] for row in rows(browse)) == sorted(f"small-{number}" for number in range(12) for _ in "ab")


def test_the_columns_are_sparks() -> None:
    assert columns.arrow_schema(columns.from_arrow_schema(arrow.SETTLED)) == arrow.SETTLED


# through Spark


def load(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(**{"url": url, "queue": "orders"} | options).load()


@pytest.mark.parametrize("pushed", ["true", "false"])  # false is Spark's default
def test_spark_reads_a_queue_and_its_history(spark: SparkSession, tmp_path: Path, pushed: str) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    with penstock.open(url) as broker:
        queue = broker.create("orders", history=1000)
        ids = [sent.id for sent in queue.send_many([b"1", b"2", b"3"])]
        queue.receive()[0].delete()
        frame = load(spark, url)
        assert frame.count() == 2
        chosen = frame.where(f"id = '{ids[1]}' and queue = 'orders' and sent_at > '2000-01-01' and body is not null")
        assert [row.body for row in chosen.collect()] == [b"2"]
        plan = chosen._jdf.queryExecution().executedPlan().toString()
        assert (ids[1] in plan.partition("BatchScan")[0]) == (pushed == "false")  # Spark filters the rest after the scan
        assert [row.body for row in load(spark, url, view="settled").collect()] == [b"1"]
        assert queue.stats().visible == 2
        queue.purge()
        assert load(spark, url).collect() == []
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_spark_says_what_is_wrong(spark: SparkSession, tmp_path: Path) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        broker.create("orders")
        with pytest.raises(PySparkException, match="there is no queue 'none'"):
            load(spark, f"sqlite:///{tmp_path}/queue.db", queue="none").collect()
