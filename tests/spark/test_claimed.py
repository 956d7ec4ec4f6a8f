"""A batch read that can be repeated: under its reader and epoch it has the same rows, until they are settled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.broker import Broker
from penstock.errors import BadInput, ClaimError, ReaderSetBack, Unsupported
from penstock.spark import columns, versions
from penstock.spark.claimed import ClaimedRead
from penstock.spark.datasource import PenstockDataSource
from penstock.spark.options import ReadOptions
from penstock.spark.stream import QueueStream

STORES = ["sqlite", "postgresql", "spool", "http"]


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with penstock.open(url) as broker:
        broker.create("a").send_many([b"a1", b"a2", b"a3"])
        broker.create("b").send(b"b1")
        yield broker


def reading(url: str, **options: Any) -> ClaimedRead:
    given = {"url": url, "queue": "*", "reader": "nightly", "epoch": "7"} | {name: str(each) for name, each in options.items()}
    chosen = ReadOptions.parse(given)
    return ClaimedRead(chosen, columns.schema(chosen))


def bodies(read: ClaimedRead) -> list[bytes]:
    return sorted(row["body"] for part in read.partitions() for batch in read.read(part) for row in batch.to_pylist())


def test_a_repeated_read_has_the_same_rows_until_they_are_settled(url: str, broker: Broker) -> None:
    assert bodies(reading(url)) == [b"a1", b"a2", b"a3", b"b1"]
    broker["a"].send(b"a4")
    broker.create("c").send(b"c1")
    for _ in range(2):
        assert bodies(reading(url)) == [b"a1", b"a2", b"a3", b"b1"]
    assert [message.body for message in broker["a"].receive(9)] == [b"a4"], "nobody else gets what is claimed"
    assert (broker["a"].settle("nightly", 7), broker["b"].settle("nightly", 7)) == (3, 1)
    with pytest.raises(ReaderSetBack, match="reader 'nightly' asks for epoch 7, but has settled all up to 7"):
        reading(url).partitions()
    assert bodies(reading(url, epoch=8)) == [b"c1"]


def test_a_read_that_found_nothing_finds_nothing_again(url: str, broker: Broker) -> None:
    queue = broker.create("empty")
    assert bodies(reading(url, queue="empty")) == []
    queue.send(b"later")
    assert bodies(reading(url, queue="empty")) == []
    assert bodies(reading(url, queue="empty", epoch=8)) == [b"later"]


def test_a_read_that_died_before_all_was_confirmed_is_what_the_next_one_sees(url: str, broker: Broker) -> None:
    broker["a"].claim("nightly", 7, 2)
    broker["b"].claim("nightly", 7, 2)
    broker["a"].confirm("nightly", 7)
    broker.create("c").send(b"c1")
    assert bodies(reading(url)) == [b"a1", b"a2", b"b1"]
    assert bodies(reading(url)) == [b"a1", b"a2", b"b1"]


def test_a_limit_is_for_all_queues_and_what_is_given_up_meanwhile_is_an_error(url: str, broker: Broker) -> None:
    read = reading(url, maxMessagesPerTrigger=2)
    (part,) = read.partitions()
    assert bodies(read) == [b"a1", b"a2"]
    assert [claim.confirmed for claim in broker["a"].readers()["nightly"]] == [True]
    broker["a"].give_up("nightly")
    with pytest.raises(ClaimError):
        list(read.read(part))
    assert bodies(reading(url, epoch=8)) == [b"a1", b"a2", b"a3", b"b1"]


def test_spark_reads_it_again_and_wrong_options_are_told(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(url) as broker:
        broker.create("a").send_many([b"a1", b"a2", b"a3"])
        frame = spark.read.format("penstock").options(url=url, queue="a", reader="job", epoch=1).load()
        assert frame.count() == 3
        broker["a"].send(b"a4")
    assert sorted(row["body"] for row in frame.where("body > 'a1'").select("body").collect()) == [b"a2", b"a3"]
    for wrong, told in [
        ({"reader": "job"}, "the options reader and epoch belong together"),
        ({"reader": "job", "epoch": "-1"}, "the option epoch is '-1'; it must be a whole number between 0 and"),
        ({"reader": "a\nb", "epoch": "1"}, "reader name"),
        ({"reader": "job", "epoch": "1", "view": "settled"}, "the view 'settled' has none to claim"),
    ]:
        with pytest.raises(BadInput, match=told):
            ReadOptions.parse({"url": url, "queue": "a", **wrong})
    options = ReadOptions.parse({"url": url, "queue": "a", "reader": "job", "epoch": "1"})
    with pytest.raises(BadInput, match="are for batches"):
        QueueStream(options, columns.schema(options))


@pytest.mark.parametrize(
    ("version", "read", "written"), [("4.0.2", False, False), ("4.1.0", False, True), ("4.2.0", True, True)]
)
def test_a_version_of_spark_without_what_a_stream_needs_is_told(
    monkeypatch: pytest.MonkeyPatch, version: str, read: bool, written: bool
) -> None:
    monkeypatch.setattr(versions.pyspark, "__version__", version)  # type: ignore[attr-defined]
    source = PenstockDataSource({"url": "sqlite:////nowhere/queue.db", "queue": "a"})
    for works, make, told in [
        (
            read,
            lambda: source.streamReader(source.schema()),
            f"a stream from queues needs Spark 4.2 or newer, and this is {version}",
        ),
        (
            written,
            lambda: source.streamWriter(columns.from_arrow_schema(columns.arrow.schema_of(["body"])), False),
            "to queues",
        ),
    ]:
        if works:
            make()
        else:
            with pytest.raises(Unsupported, match=told):
                make()
