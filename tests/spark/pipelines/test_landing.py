"""Landed batches: whole or not there, on the disk before Spark commits them, and settled only when every query has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import ReaderSetBack
from penstock.spark.pipelines import landing
from penstock.spark.pipelines.declaration import Source
from penstock.spark.pipelines.landing import Landing
from penstock.spark.pipelines.taking import Take

READER = "run-shop-orders-1"


class Home:
    """A checkpoint, with logs as Spark writes them."""

    def __init__(self, home: Path) -> None:
        self.home, self.landed, self.take = home, home / "landed/orders", home / "take/orders"
        for folder in (self.landed, home / "staged", self.take / "offsets", self.take / "commits"):
            folder.mkdir(parents=True)
        self.place = Landing(str(self.landed), str(home / "staged/orders"), str(self.take))

    def log(self, batch: int, epoch: int) -> None:
        offset = json.dumps({"reader": READER, "epoch": epoch, "claims": {"orders": 1}})
        (self.take / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{offset}")

    def commit(self, batch: int) -> None:
        (self.take / "commits" / str(batch)).write_text("v1\n{}")

    def read(self, sink: str, batch: int, *files: Path) -> Path:
        """As if a query had read these files as its batch, and committed it."""
        checkpoint = self.home / "sink" / sink
        for name in ("offsets", "commits", "sources/0"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"path": file.as_uri(), "timestamp": 1, "batchId": batch}) for file in files]
        (checkpoint / "sources/0" / str(batch)).write_text("\n".join(["v1", *lines]))
        (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"logOffset":{batch}}}')
        (checkpoint / "commits" / str(batch)).write_text("v1\n{}")
        return checkpoint

    def put(self, batch: int, epoch: int, *files: str) -> list[Path]:
        """A landed batch, without Spark."""
        self.log(batch, epoch)
        folder = self.landed / f"{batch:08}"
        folder.mkdir()
        (folder / landing.OFFSET).write_text(json.dumps(landing._logged(self.take, batch)))
        for name in files:
            (folder / name).touch()
        return [folder / name for name in files]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[penstock.Queue]:
    with penstock.open(f"sqlite:///{tmp_path}/shop.db") as broker:
        yield broker.create("orders")


def take(tmp_path: Path, home: Home) -> Take:
    source = Source("orders", "orders", None, None, None, None, True, None, None, {})
    return Take("shop", source, f"sqlite:///{tmp_path}/shop.db", home.home)


def test_a_batch_is_synced_before_it_is_in_its_place(spark: SparkSession, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def sync(path: Path | str) -> None:
        synced.append(Path(path).name)
        assert Path(path).exists()
        if Path(path).suffix == ".parquet":
            assert list(home.landed.iterdir()) == []

    monkeypatch.setattr(landing, "sync", sync)
    home.log(0, 1)
    home.place(spark.range(3), 0)
    (batch,) = home.landed.iterdir()
    parts = [file.name for file in batch.glob("*.parquet")]
    assert set(parts) < set(synced)
    assert {landing.OFFSET, "orders", "staged"} < set(synced)
    assert (batch.name, landing.offset_of(batch)) == ("00000000", {"reader": READER, "epoch": 1, "claims": {"orders": 1}})


def test_a_replay_lands_nothing_and_other_messages_under_its_number_are_refused(spark: SparkSession, home: Home) -> None:
    for batch in range(2):
        home.log(batch, batch + 1)
        home.place(spark.range(3), batch)
    home.place(spark.range(3), 1)
    assert spark.read.option("recursiveFileLookup", "true").parquet(str(home.landed)).count() == 6
    for batch, epoch in ((0, 1), (1, 7)):
        home.log(batch, epoch)
        with pytest.raises(ReaderSetBack, match=f"batch {batch} of .*take/orders was landed before, with other messages"):
            home.place(spark.range(3), batch)


def test_a_batch_is_finished_when_all_have_committed_it_and_those_before(home: Home) -> None:
    first, second, third = (home.put(batch, batch + 1, "a.parquet", "b.parquet") for batch in range(3))
    one, two = home.read("one", 0, *first), home.read("two", 0, *first)
    assert landing.finished(home.landed, home.take, [one, two]) == []  # the query that takes them may still replay it
    home.commit(0)
    assert landing.finished(home.landed, home.take, [one, two]) == [first[0].parent]
    assert landing.finished(home.landed, home.take, []) == []
    home.commit(2)
    home.read("one", 1, *second, *third)
    home.read("two", 1, second[0], *third)
    assert landing.finished(home.landed, home.take, [one, two]) == [first[0].parent]
    home.read("two", 2, second[1])
    assert landing.finished(home.landed, home.take, [one, two]) == [files[0].parent for files in (first, second, third)]


def test_messages_are_settled_after_what_the_sinks_wrote_is_synced(tmp_path: Path, home: Home, orders: penstock.Queue) -> None:
    for epoch in (1, 2, 3):
        orders.send(b"%d" % epoch)
        orders.claim(READER, epoch, 9)
        orders.confirm(READER, epoch)
        home.put(epoch - 1, epoch, "a.parquet")
    home.commit(2)
    checkpoint = home.read("one", 0, *home.landed.glob("0000000[01]/*.parquet"))

    def fail() -> None:
        raise OSError("the disk is broken")

    with pytest.raises(OSError, match="broken"):
        take(tmp_path, home).tidy([checkpoint], fail)
    assert orders.stats().messages == 3
    assert len(list(home.landed.rglob("*.parquet"))) == 3

    seen: list[Any] = []
    take(tmp_path, home).tidy([checkpoint], lambda: seen.append(orders.stats().messages))
    assert (seen, orders.stats().messages) == ([3], 1)
    assert [folder.name for folder in home.landed.iterdir()] == ["00000002"]


def test_the_newest_batch_is_recognised_after_it_was_removed(
    spark: SparkSession, tmp_path: Path, home: Home, orders: penstock.Queue
) -> None:
    home.put(0, 1, "a.parquet")
    home.commit(0)
    checkpoint = home.read("one", 0, *home.landed.rglob("*.parquet"))
    seen: list[int] = []
    for _ in range(2):
        take(tmp_path, home).tidy([checkpoint], lambda: seen.append(1))
    assert seen == [1]
    home.place(spark.range(3), 0)  # a replay
    assert list(home.landed.rglob("*.parquet")) == []


def test_a_removal_that_was_cut_short_is_continued(tmp_path: Path, home: Home, orders: penstock.Queue) -> None:
    for batch in range(3):
        home.put(batch, batch + 1, "a.parquet")
    home.commit(2)
    checkpoint = home.read("one", 0, *home.landed.glob("0000000[01]/*.parquet"))
    (home.landed / "00000001" / landing.OFFSET).unlink()
    take(tmp_path, home).tidy([checkpoint], lambda: None)
    assert [folder.name for folder in home.landed.iterdir()] == ["00000002"]
