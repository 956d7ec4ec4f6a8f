"""Archives: each message once, in plain Parquet, whatever is replayed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import BadInput, QueueNotFound
from penstock.message import Draft
from penstock.spark.pipelines.archive import CONFIG, ArchivePlace, archive, merge
from penstock.spark.pipelines.failures import readable
from penstock.spark.pipelines.folders import DataFolder
from penstock.spark.pipelines.load import load


def rows(lake: Path, *columns: str) -> list[dict[str, object]]:
    """Read it with a tool that knows nothing of Spark."""
    found: list[dict[str, object]] = (
        pyarrow.dataset.dataset(lake, format="parquet", partitioning="hive").to_table([*columns]).to_pylist()
    )
    return found


def files(lake: Path) -> list[str]:
    return sorted(str(path.relative_to(lake)) for path in lake.rglob("queue=*/**/*.parquet"))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


def test_queues_become_plain_parquet_by_queue_and_day_and_are_empty_then(spark: SparkSession, url: str, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with penstock.open(url) as broker:
        for name in ("a-1", "a-2"):
            draft = Draft(b'{"n": 1}', "x/y", {"text": "t", "whole": 7, "half": 0.5, "raw": b"\0\xff"}, group="g")
            broker.create(name).send_many([draft, Draft(b"\xff no JSON")])
        broker.create("b").send(b"stays")
        done = archive(spark, url, "a-*", str(lake), once=True, columns="infer", maxMessagesPerTrigger="3")
        assert (done.rows, done.stopped) == (4, False)
        assert [broker[name].stats().messages for name in ("a-1", "a-2", "b")] == [0, 0, 1]

        found = rows(lake, "queue", "body", "content_type", "attributes", "attribute_types", "group", "data")
        assert Counter((row["queue"], row["body"]) for row in found) == Counter(
            (name, body) for name in ("a-1", "a-2") for body in (b'{"n": 1}', b"\xff no JSON")
        )
        row = next(row for row in found if row["body"] == b'{"n": 1}')
        assert dict(row["attributes"]) == {"text": "t", "whole": "7", "half": "0.5", "raw": "AP8="}  # type: ignore[call-overload]
        assert dict(row["attribute_types"]) == {"whole": "integer", "half": "number", "raw": "bytes"}  # type: ignore[call-overload]
        assert (row["content_type"], row["group"], row["data"]) == ("x/y", "g", {"n": 1})
        assert len(files(lake)) == 2, "what is small is made one for each queue and day"
        assert (lake / "_penstock/columns.ddl").read_text() == "struct<n:bigint>"

        # the second run continues with the same columns
        broker["a-1"].send(b'{"n": 2, "more": true}')
        assert archive(spark, url, "a-*", str(lake), once=True).rows == 1
        assert Counter(str(row["data"]) for row in rows(lake, "data")) == Counter({"{'n': 1}": 2, "None": 2, "{'n': 2}": 1})
    with pytest.raises(BadInput, match="are fixed in"):
        archive(spark, url, "a-*", str(lake), once=True, columns="other string")


def test_a_folder_that_looks_like_a_pattern_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"/lake\[1\]' for a pattern: rename it"):
        archive(spark, "memory:", "a", f"{tmp_path}/lake[1]", once=True)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_that_gets_columns_later_keeps_them_when_files_are_made_one(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("a")
        for number, columns in enumerate((None, "n int")):
            queue.send(b'{"n": %d}' % number)
            archive(spark, url, "a", str(tmp_path / "lake"), once=True, columns=columns)
    assert len(files(tmp_path / "lake")) == 1
    found = {row["body"]: row["data"] for row in rows(tmp_path / "lake", "body", "data")}
    assert found == {b'{"n": 0}': None, b'{"n": 1}': {"n": 1}}


def frame_of(spark: SparkSession, count: int, partitions: int) -> object:
    return spark.range(0, count, 1, partitions).selectExpr(
        "cast(id as string) id", "'q' queue", "cast(cast(id as string) as binary) body", "'x' content_type",
        "cast(map() as map<string,string>) attributes", "cast(map() as map<string,string>) attribute_types",
        "cast(null as string) `group`", "cast(null as binary) key", "timestamp '2026-01-31 23:59:59Z' sent_at",
        "cast(null as timestamp) deadline", "0 receives", "cast(null as timestamp) first_received_at",
        "cast(null as timestamp) received_at",
        "cast(null as struct<queue:string,reason:string,receives:int,died_at:timestamp>) death",
    )  # fmt: skip


def test_a_batch_that_is_played_again_in_other_pieces_takes_the_place_of_what_was_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = {name: spark.conf.get(name) for name in CONFIG}
    try:
        ArchivePlace(str(tmp_path), "abc", "zstd", infer=False)(frame_of(spark, 10, 3), 4)  # type: ignore[arg-type]
        assert len(files(tmp_path)) == 3
        ArchivePlace(str(tmp_path), "other", "zstd", infer=False)(frame_of(spark, 10, 1), 4)  # type: ignore[arg-type]
        ArchivePlace(str(tmp_path), "abc", "zstd", infer=False)(frame_of(spark, 10, 2), 4)  # type: ignore[arg-type]
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))
    folder = "queue=q/day=2026-01-31"
    names = ["abc-00000004-0000", "abc-00000004-0001", "other-00000004-0000"]
    assert files(tmp_path) == [f"{folder}/{name}.parquet" for name in names]
    assert Counter(str(row["id"]) for row in rows(tmp_path, "id")) == Counter({str(number): 2 for number in range(10)})


def test_files_are_made_one_and_a_run_that_died_at_it_is_taken_to_its_end(spark: SparkSession, tmp_path: Path) -> None:
    home = DataFolder(str(tmp_path))
    day = tmp_path / "queue=q/day=2026-01-31"
    for batch in range(3):
        part = spark.range(batch * 5, batch * 5 + 5).coalesce(1)
        part.write.parquet(str(tmp_path / f"_penstock/part-{batch}"))
        (written,) = (tmp_path / f"_penstock/part-{batch}").glob("*.parquet")
        home.move({str(written.relative_to(tmp_path)): f"queue=q/day=2026-01-31/abc-{batch:08}-0000.parquet"})
    # left by a run that merged 1 and 2, but did not get to remove 2
    merged = {
        "staged": "_penstock/staged/abc-merged/gone.parquet",
        "old": [f"{day.relative_to(tmp_path)}/abc-{n:08}-0000.parquet" for n in (0, 2)],
    }
    (tmp_path / "_penstock/merging-abc.json").write_text(json.dumps(merged))
    assert merge(spark, home, "abc", "zstd", below=2) == 1
    assert files(tmp_path) == ["queue=q/day=2026-01-31/abc-00000000-0000.parquet"]
    assert sorted(row["id"] for row in rows(tmp_path, "id")) == list(range(10))  # type: ignore[type-var]
    assert not (tmp_path / "_penstock/merging-abc.json").exists()


def test_a_queue_that_is_not_there_is_told_by_its_name(spark: SparkSession, url: str, tmp_path: Path) -> None:
    penstock.open(url).close()
    with pytest.raises(Exception) as caught:
        archive(spark, url, ["jobs"], str(tmp_path / "lake"), once=True)
    error = readable(caught.value)
    assert isinstance(error, QueueNotFound)
    assert str(error) == "there is no queue 'jobs'"


def test_a_checkpoint_of_something_else_is_refused(spark: SparkSession, url: str, tmp_path: Path) -> None:
    with penstock.open(url) as broker:
        broker.create("a")
    check = str(tmp_path / "check")
    archive(spark, url, "a", str(tmp_path / "lake"), once=True, checkpoint=check)
    with pytest.raises(BadInput, match=r"belongs to another pipeline: archive, store sqlite.*queues a, folder"):
        archive(spark, url, "a", str(tmp_path / "elsewhere"), once=True, checkpoint=check)


def test_who_was_killed_while_spark_wrote_its_first_offsets_goes_on(spark: SparkSession, url: str, tmp_path: Path) -> None:
    half = tmp_path / "notes/offsets/.0.6b3f1f0e.tmp"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"v1\n")
    with penstock.open(url) as broker:
        broker.create("orders").send(b"x")
        archive(spark, url, "orders", str(tmp_path / "lake"), once=True, checkpoint=str(tmp_path / "notes"))
        assert broker["orders"].stats().messages == 0
    assert rows(tmp_path / "lake", "body") == [{"body": b"x"}]


def test_a_queue_of_any_name_is_archived_and_loaded_under_its_name(spark: SparkSession, url: str, tmp_path: Path) -> None:
    names = ["a}b", "{x}", "__HIVE_DEFAULT_PARTITION__", "plain"]
    with penstock.open(url) as broker:
        for name in names:
            broker.create(name)
        for _ in range(2):  # the second run merges the files of the first
            for name in names:
                broker[name].send(name.encode())
            archive(spark, url, names, str(tmp_path / "lake"), once=True)
        found = spark.read.parquet(str(tmp_path / "lake")).selectExpr("queue", "cast(body AS string) body").collect()
        assert Counter(map(tuple, found)) == {(name, name): 2 for name in names}
        load(spark, str(tmp_path / "lake"), url, "plain", checkpoint=str(tmp_path / "check"), columns={"queue": "queue"})
        assert {name: [message.text for message in broker[name].peek(9)] for name in names} == {
            name: [name] * 2 for name in names
        }
