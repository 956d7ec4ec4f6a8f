"""Tables of Delta and Iceberg: a batch is in a table once, whoever is killed, and readers that are not ours see the same."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import BucketTransform
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import BadInput, Unsupported, WriterSetBack
from penstock.spark.lakes import batches, reading, tables, writing
from penstock.spark.lakes.batches import prepare, put
from penstock.spark.lakes.tables import LakeBatch, TableAddress, table_address

KINDS = ["delta", "iceberg"]


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> TableAddress:
    return table_address({"delta": "delta:lake", "iceberg": "iceberg:./lake/shop.orders"}[request.param], tmp_path)


def foreign(address: TableAddress) -> pa.Table:
    """Read by the library, which knows nothing of us."""
    if address.kind == "delta":
        return DeltaTable(address.place).to_pyarrow_table()
    folder, _, name = address.place.rpartition("/")
    return SqlCatalog("penstock", uri=f"sqlite:///{folder}/catalog.db").load_table(name).scan().to_arrow()


def numbers(address: TableAddress) -> Counter[int]:
    return Counter(foreign(address)["n"].to_pylist())


def rows(spark: SparkSession, *values: int, more: str = "") -> DataFrame:
    frame = spark.createDataFrame([(value,) for value in values], "n int")
    return frame.selectExpr("n", "cast(n AS string) AS text", *([more] if more else []))


def test_a_batch_that_is_played_again_is_there_once(spark: SparkSession, address: TableAddress) -> None:
    for batch, values in enumerate([(1, 2), (3,)]):
        for _ in range(2):
            put(address.open(), rows(spark, *values).repartition(2), "app", batch)
    put(address.open(), rows(spark, 1, 2), "another", 0)
    assert numbers(address) == Counter({1: 2, 2: 2, 3: 1})


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
def test_a_driver_that_dies_around_the_commit_and_comes_back_leaves_the_batch_once(
    spark: SparkSession, address: TableAddress, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    put(address.open(), rows(spark, 0), "app", 0)
    table = address.open()
    commit = table.commit

    def die(*given: Any) -> None:
        if moment == "after the commit":
            commit(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(table, "commit", die)
    with pytest.raises(KeyboardInterrupt):
        put(table, rows(spark, 1, 2), "app", 1)
    assert numbers(address) == Counter([0] if moment == "before the commit" else [0, 1, 2]), "files without a commit are unseen"
    put(address.open(), rows(spark, 2, 1), "app", 1)
    assert numbers(address) == Counter([0, 1, 2])


def test_other_rows_under_a_number_and_older_numbers_are_refused(spark: SparkSession, address: TableAddress) -> None:
    for batch in (3, 4):
        put(address.open(), rows(spark, batch), "app", batch)
    with pytest.raises(WriterSetBack, match=r"batch 4 of app is in .*lake.* already, with other rows"):
        put(address.open(), rows(spark, 5), "app", 4)
    with pytest.raises(WriterSetBack, match=r"batch 3 of app is in .*, and the last one is 4"):
        put(address.open(), rows(spark, 4), "app", 3)
    put(address.open(), rows(spark, 4, more="current_timestamp() AS at").drop("at"), "app", 4)
    assert numbers(address) == Counter([3, 4])


def test_what_is_committed_is_synced_also_by_a_replay(
    spark: SparkSession, address: TableAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, int]] = []
    monkeypatch.setattr(batches, "sync_file_system", lambda folder: synced.append((str(folder), foreign(address).num_rows)))
    for _ in range(2):
        put(address.open(), rows(spark, 1, 2), "app", 0)
    assert synced == [(address.folder, 2)] * 2


def test_of_two_drivers_with_one_name_only_one_commits(spark: SparkSession, address: TableAddress) -> None:
    put(address.open(), rows(spark, 0), "app", 0)
    one, two = address.open(), address.open()
    files = [
        writing.write(rows(spark, 1), t.output(), t.schema(), (), name="x", compression="zstd", varying=()) for t in (one, two)
    ]
    one.commit(LakeBatch("app", 1, files[0].content), files[0].files)
    with pytest.raises(tables.CommitConflict):
        two.commit(LakeBatch("app", 1, files[1].content), files[1].files)
    assert numbers(address) == Counter([0, 1])


def test_drivers_with_different_names_wait_for_nobody(
    spark: SparkSession, address: TableAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(address.open(), rows(spark, 0), "app", 0)
    table = address.open()
    commit, passed = table.commit, []

    def late(*given: Any) -> None:
        if not passed:
            passed.append(1)
            put(address.open(), rows(spark, 7), "other", 0)
        commit(*given)

    monkeypatch.setattr(table, "commit", late)
    put(table, rows(spark, 1), "app", 1)
    assert passed
    assert numbers(address) == Counter([0, 1, 7])


def contents(address: TableAddress) -> list[dict[str, Any]]:
    return sorted(foreign(address).to_pylist(), key=str)


def test_new_columns_are_added_and_those_that_are_missing_are_null(spark: SparkSession, address: TableAddress) -> None:
    put(address.open(), rows(spark, 1), "app", 0)
    put(address.open(), rows(spark, 2, more="struct(n AS x, 'y' AS y) AS inner"), "app", 1)
    put(address.open(), rows(spark, 3).drop("text"), "app", 2)
    assert contents(address) == sorted(
        [
            {"n": 1, "text": "1", "inner": None},
            {"n": 2, "text": "2", "inner": {"x": 2, "y": "y"}},
            {"n": 3, "text": None, "inner": None},
        ],
        key=str,
    )
    read = reading.read(spark, address).selectExpr("n", "text", "inner.x").collect()
    assert Counter(map(tuple, read)) == Counter([(1, "1", None), (2, "2", 2), (3, None, None)])


def test_a_table_that_fits_not_is_told_and_stays_as_it_is(spark: SparkSession, address: TableAddress) -> None:
    frame = rows(spark, 1)
    for wrong, partition, error in (
        (frame.selectExpr("n", "NULL AS nothing"), (), "the column nothing has no type: cast it to one"),
        (frame, ("day",), r"there is no column 'day'; there are n, text"),
        (frame.selectExpr("n", "n / 2.0D AS part"), ("part",), "a table is partitioned by texts, .* and part is double"),
        (frame, ("n", "text"), "a table needs a column beside those of its partitions"),
        (frame.selectExpr("n", "make_interval(1) AS span"), (), "cannot have such columns"),
    ):
        with pytest.raises(BadInput, match=error):
            put(address.open(), wrong, "app", 0, partition)
        assert address.open().schema() is None
    put(address.open(), frame, "app", 0, ("text",))
    for wrong, partition, error in (
        (frame, ("n",), r"is partitioned by text, and cannot be written by n"),
        (frame, (), r"is partitioned by text, and cannot be written by nothing"),
        (frame.selectExpr("cast(n AS string) n", "text"), ("text",), "has a column n int32, and cannot be given n string"),
        (frame.selectExpr("n AS N", "text"), ("text",), "has a column n int32, and cannot be given N int32"),
    ):
        with pytest.raises(BadInput, match=error):
            put(address.open(), wrong, "app", 1, partition)
    assert contents(address) == [{"n": 1, "text": "1"}]


def test_partitions_are_found_by_their_values_whatever_these_are(spark: SparkSession, address: TableAddress) -> None:
    values = ["a/b=c", "x%20y}", "ä'\"", None, "__HIVE_DEFAULT_PARTITION__", *(f"many {n}" for n in range(20))]
    day = dt.date(2026, 1, 31)
    frame = spark.createDataFrame(
        [(n, value, day, n % 2 == 0) for n, value in enumerate(values)], "n int, p string, day date, b boolean"
    )
    put(address.open(), frame.coalesce(1), "app", 0, ("p", "day", "b"))
    expected = {(n, value, day, n % 2 == 0) for n, value in enumerate(values)}
    assert {tuple(row[name] for name in ("n", "p", "day", "b")) for row in contents(address)} == expected
    assert {tuple(row) for row in reading.read(spark, address).select("n", "p", "day", "b").collect()} == expected
    later, same = ((day + dt.timedelta(days=days)).isoformat() for days in (1, 0))
    assert reading.read(spark, address, since=later).count() == 0, "whole files are left out"
    assert reading.read(spark, address, since=same, until=same).count() == len(values)
    assert reading.read(spark, address, until="2026-01-30").count() == 0


def test_values_of_all_kinds_come_back(spark: SparkSession, address: TableAddress) -> None:
    frame = spark.sql("""
        SELECT 7 AS n, 2L AS long, 1.5D AS double, 1.25 AS decimal, true AS bool, X'00FF' AS bytes, date'2026-01-31' AS day,
               timestamp'2026-01-31 23:59:59.123456Z' AS at, array(1, NULL) AS list, map('k', struct(1L AS a)) AS map,
               array(struct('x' AS y)) AS deep, cast(NULL AS string) AS none
    """)
    for batch in (0, 0, 1):
        put(address.open(), frame, "app", batch)
    (one, two) = reading.read(spark, address).collect()
    assert one == two == frame.collect()[0]
    (first, _) = foreign(address).to_pylist()
    assert first["at"] == dt.datetime(2026, 1, 31, 23, 59, 59, 123456, tzinfo=dt.UTC)


def test_statistics_leave_no_row_out(spark: SparkSession, tmp_path: Path) -> None:
    address = table_address("delta:lake", tmp_path)
    frame = spark.range(0, 1000, 1, 2).selectExpr(
        "cast(id AS int) n",
        "timestamp_micros(id * 1001) at",
        "cast(id AS string) text",
        "date_from_unix_date(cast(id AS int)) day",
    )
    put(address.open(), frame, "app", 0)
    stats = [json.loads(entry) for entry in _adds(tmp_path / "lake", "stats")]
    assert sorted((each["numRecords"], each["minValues"]["n"], each["maxValues"]["n"]) for each in stats) == [
        (500, 0, 499),
        (500, 500, 999),
    ]
    table = DeltaTable(address.place)
    for wanted, count in (("n = 499", 1), ("day = '1970-01-05'", 1), ("text = '77'", 1), ("n >= 500", 500)):
        found = table.to_pyarrow_dataset(file_pruning_predicate=wanted).to_table().to_pylist()
        assert len(found) >= count
    at = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=999 * 1001)
    assert table.to_pyarrow_dataset().to_table(filter=pc.field("at") == pa.scalar(at, pa.timestamp("us", "UTC"))).num_rows == 1


def _adds(folder: Path, what: str) -> list[str]:
    logs = sorted((folder / "_delta_log").glob("*.json"))
    entries = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    return [entry["add"][what] for entry in entries if "add" in entry]


def test_small_files_become_few_and_the_batches_stay_known(spark: SparkSession, tmp_path: Path) -> None:
    address = table_address("delta:lake", tmp_path)
    for batch in range(4):
        put(address.open(), rows(spark, batch), "app", batch)
    done = address.open().compact(None)
    assert (done["made"], done["merged"]) == (1, 4)
    assert numbers(address) == Counter(range(4))
    put(address.open(), rows(spark, 3), "app", 3)
    assert numbers(address) == Counter(range(4)), "batch 3 is a replay still"
    with pytest.raises(BadInput, match=r"cannot be compacted: .*retention"):
        address.open().compact(0)
    DeltaTable(address.place).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    orphan = tmp_path / "lake/part-app-00000009-0.parquet"
    orphan.write_bytes(b"of a driver that died")
    checkpoint = tmp_path / "lake/_penstock/checkpoints/1/offsets/0"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("v1")
    assert address.open().compact(0)["removed"] == 5
    assert (orphan.exists(), checkpoint.exists()) == (False, True)
    assert numbers(address) == Counter(range(4))
    with pytest.raises(Unsupported, match="PyIceberg cannot compact"):
        table_address("iceberg:./lake/a.b", tmp_path).open().compact(None)


def test_a_table_that_asks_for_more_is_told_and_stays_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Before anything is taken: `prepare` is what pipelines call first."""
    schema = pa.schema([("n", pa.int32()), ("text", pa.string())])
    checked, marked, mapped = (table_address(f"delta:{name}", tmp_path) for name in ("checked", "marked", "mapped"))
    for address in (checked, marked):
        Path(address.place).mkdir()
    DeltaTable.create(checked.place, schema).alter.add_constraint({"positive": "n > 0"})
    DeltaTable.create(marked.place, schema, configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(Unsupported, match=r"checked cannot be written without Spark's own connector: it has "):
        prepare(checked.open(), schema, ())
    put(marked.open(), rows(spark, 1), "app", 0)
    with pytest.raises(Unsupported, match=r"marked cannot be read without Spark's own connector: .*deletionVectors"):
        reading.read(spark, marked)
    with pytest.raises(BadInput, match="there is no table delta:"):
        reading.read(spark, mapped)
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=str(tmp_path))
    catalog.create_namespace("shop")
    with catalog.create_table("shop.bucketed", schema).update_spec() as spec:
        spec.add_field("n", BucketTransform(8))
    with pytest.raises(Unsupported, match="bucketed is partitioned by more than the values of columns"):
        prepare(table_address(f"iceberg:{tmp_path}/shop.bucketed").open(), schema, ("n",))


def test_files_that_executors_wrote_elsewhere_are_not_committed(
    spark: SparkSession, address: TableAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = writing.write

    def lose(*given: Any, **more: Any) -> writing.Written:
        written = write(*given, **more)
        Path(address.open().output().local(written.files[0].path) or "").unlink()
        return written

    monkeypatch.setattr(writing, "write", lose)
    with pytest.raises(
        BadInput, match=r"an executor has written .*part-app-00000000-.*, which is not here: .* a folder that all"
    ):
        put(address.open(), rows(spark, 1), "app", 0)
    assert address.open().committed("app") is None


def test_what_names_no_table_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(table_address("delta:s3a://b/lake/")) == "delta:s3://b/lake"
    assert str(table_address("delta:lake", tmp_path)) == f"delta:{tmp_path}/lake"
    assert str(table_address("iceberg:prod/shop.orders", tmp_path)) == "iceberg:prod/shop.orders"
    assert str(table_address("iceberg:./w/a.b.c", tmp_path)) == f"iceberg:{tmp_path}/w/a.b.c"
    for text in ("delta:", "iceberg:lake", "iceberg:lake/orders", "iceberg:lake/a.b;c", "hudi:x"):
        with pytest.raises(BadInput, match="names no table: write "):
            table_address(text)
    for text in ("delta:a%20b", "iceberg:./a?b/c.d"):
        with pytest.raises(BadInput, match=r"for a URL: rename it, so that it has none of %\?"):
            table_address(text, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"there cannot be a catalog in .*file"):
        table_address("iceberg:./file/c.d", tmp_path).open()
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r"PyIceberg's catalog 'prod' cannot be opened: .*; a folder is written \./prod"):
        table_address("iceberg:prod/a.b").open()
    with pytest.raises(BadInput, match=r"SQLite needs a folder. Configure a catalog"):
        table_address("iceberg:s3://b/w/a.b").open()


def test_a_missing_library_names_its_extra() -> None:
    for kind, module, place in (("Delta", "deltalake", "delta:x"), ("Iceberg", "pyiceberg", "iceberg:./x/a.b")):
        program = (
            f"import sys; sys.modules[{module!r}] = None\nimport penstock\n"
            "from penstock.spark.lakes.tables import table_address\n"
            f"try:\n    table_address({place!r}).open()\n"
            "except penstock.MissingExtra as error:\n    print(error)"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout == f'a table of {kind} needs an optional library: pip install "penstock[lakes]"\n'
