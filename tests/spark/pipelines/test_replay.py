"""Replays of an archive: the chosen messages go back, once under each name; and archives of what queues have settled."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import BadInput, QueueNotFound
from penstock.message import Draft
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.replay import replay
from penstock.spark.pipelines.report import report
from penstock.spark.pipelines.settled import archive_history


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def lake(spark: SparkSession, url: str, tmp_path: Path) -> str:
    """An archive with five messages of two queues, which are empty."""
    with penstock.open(url) as broker:
        broker.create("a").send_many([Draft(f'{{"n": {n}}}'.encode(), "x/y", {"size": n}) for n in range(3)])
        broker.create("b").send_many([Draft(b"\xff\0"), Draft(b"plain", group="g")])
        broker.create("all")
        archive(spark, url, ["a", "b"], f"{tmp_path}/lake", once=True)
        broker.queue("b").purge()
    return f"{tmp_path}/lake"


def bodies(url: str) -> dict[str, list[bytes]]:
    with penstock.open(url) as broker:
        return {name: sorted(message.body for message in broker[name].peek(100)) for name in ("a", "b", "all")}


A, B = [b'{"n": 0}', b'{"n": 1}', b'{"n": 2}'], [b"plain", b"\xff\0"]


def test_an_archive_goes_back_to_the_queues_it_came_from_once_under_each_name(spark: SparkSession, url: str, lake: str) -> None:
    assert replay(spark, lake, url, name="first").rows == 5
    assert bodies(url) == {"a": A, "b": B, "all": []}
    with penstock.open(url) as broker:
        assert {(one.content_type, dict(one.attributes)["size"]) for one in broker["a"].peek(9)} == {
            ("x/y", n) for n in range(3)
        }
        assert {message.group for message in broker["b"].peek(9)} == {None, "g"}
    assert replay(spark, lake, url, name="first").rows == 0
    assert bodies(url) == {"a": A, "b": B, "all": []}
    assert not Path(lake, "_penstock/replays/first/rows").exists(), "the copy is gone when all is sent"
    assert replay(spark, lake, url, "all", where="queue = 'a'", name="second", rate=100).rows == 3
    assert bodies(url)["all"] == A
    with pytest.raises(BadInput, match=r"belongs to another pipeline: replay, archive .*give another one"):
        replay(spark, lake, url, "all", name="first")


def test_only_what_was_sent_in_a_span_of_time_and_fits_the_sql(spark: SparkSession, url: str, lake: str) -> None:
    rows = spark.read.parquet(lake).select("queue", "sent_at").orderBy("sent_at").collect()
    third = rows[2]["sent_at"].astimezone(UTC)
    before = sum(row["sent_at"].astimezone(UTC) < third for row in rows)
    assert replay(spark, lake, url, "all", until=third).rows == before
    assert replay(spark, lake, url, "all", since=third, name="rest").rows == 5 - before
    assert sum(map(len, bodies(url).values())) == 5
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert replay(spark, lake, url, "all", since=tomorrow).rows == 0
    assert replay(spark, lake, url, "all", since=third, where="json:n::int >= 1 AND text LIKE '{%'", until=tomorrow).rows <= 2
    assert replay(spark, lake, url, where="json:n::int >= 1").rows == 2
    assert bodies(url)["a"] == A[1:]


def test_a_replay_sends_what_it_chose_when_it_began_whatever_becomes_of_the_archive(
    spark: SparkSession, url: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(sys.modules["penstock.spark.pipelines.replay"], "_send", die)
        replay(spark, lake, url, name="again")
    with penstock.open(url) as broker:
        broker["a"].send(b"later")
    archive(spark, url, ["a", "b"], lake, once=True)
    shutil.rmtree(f"{lake}/queue=b")
    assert replay(spark, lake, url, name="again").rows == 5
    assert bodies(url) == {"a": A, "b": B, "all": []}


def test_a_message_that_two_files_have_for_a_moment_is_sent_once(spark: SparkSession, url: str, lake: str) -> None:
    (file,) = Path(lake, "queue=a").rglob("*.parquet")
    shutil.copy(file, file.with_name("merged.parquet"))
    assert replay(spark, lake, url).rows == 5
    assert bodies(url)["a"] == A


def test_what_cannot_be_replayed_is_told_and_sends_nothing(spark: SparkSession, url: str, lake: str, tmp_path: Path) -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    with pytest.raises(BadInput, match=r"since 2026-01-31T12:00:00\+00:00 is not before until"):
        replay(spark, lake, url, since=noon, until=noon)
    with pytest.raises(BadInput, match="--where 'wat > 1': there is no column 'wat'"):
        replay(spark, lake, url, where="wat > 1")
    with pytest.raises(BadInput, match="is not an archive: it is not a folder with files"):
        replay(spark, f"{tmp_path}/none", url)
    (tmp_path / "other").mkdir()
    pq.write_table(pq.read_table(next(Path(lake).rglob("queue=a/**/*.parquet"))).drop(["id"]), tmp_path / "other/a.parquet")
    with pytest.raises(BadInput, match="is not an archive: it has no column day; to load other files, name the QUEUE"):
        replay(spark, f"{tmp_path}/other", url)
    with pytest.raises(BadInput, match=r"replay name '\.\./x' must be 1 to 100 letters"):
        replay(spark, lake, url, name="../x")
    with pytest.raises(BadInput, match="the rate is 0"):
        replay(spark, lake, url, rate=0)
    with penstock.open(url) as broker:
        broker.delete("b")
        with pytest.raises(QueueNotFound, match="'b'"):
            replay(spark, lake, url)
        assert broker["a"].stats().messages == 0
        broker.create("b")
    assert replay(spark, lake, url).rows == 5, "and then it can be done"


def test_the_history_is_archived_once_beside_what_was_drained(spark: SparkSession, url: str, tmp_path: Path) -> None:
    lake = f"{tmp_path}/lake"
    with penstock.open(url) as broker:
        queue = broker.create("jobs", history=3600)
        broker.create("plain")
        queue.send_many([f'{{"n": {n}}}'.encode() for n in range(6)])
        for n, message in enumerate(queue.receive(limit=3)):
            queue.delete(message) if n else queue.fail(message, reason="broken")
        assert archive_history(spark, url, "jobs", lake, columns="infer").rows == 3
        assert archive_history(spark, url, "jobs", lake).rows == 0
        assert archive(spark, url, "jobs", lake, once=True).rows == 3
        assert archive_history(spark, url, "*", lake).rows == 0, "what was drained is in the history, and in the archive"
        queue.send(b'{"n": 6}')
        queue.delete(queue.receive()[0])
        assert archive_history(spark, url, ["jobs"], lake).rows == 1
        with pytest.raises(BadInput, match="queue 'plain' keeps no history"):
            archive_history(spark, url, "plain", lake)
    rows = (
        spark.read.option("mergeSchema", "true").parquet(lake).selectExpr("data.n", "state", "reason", "settled_at").collect()
    )
    assert Counter(row["n"] for row in rows) == Counter(range(7))
    assert Counter((row["state"], row["reason"]) for row in rows if row["settled_at"]) == Counter(
        {("processed", None): 3, ("failed", "broken"): 1}
    )
    told = report(spark, [lake])
    assert {name: told["all"][name] for name in ("messages", "processed", "dead", "unsettled")} == {
        "messages": 7,
        "processed": 6,
        "dead": 1,
        "unsettled": 0,
    }
