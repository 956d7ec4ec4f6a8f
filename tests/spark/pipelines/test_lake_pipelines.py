"""Pipelines on tables of Delta and Iceberg: archived and written once, and read back."""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import penstock
from penstock.cli import main
from penstock.cli.frame import Frame
from penstock.errors import BadInput
from penstock.message import Draft
from penstock.spark.lakes.batches import put
from penstock.spark.lakes.tables import table_address
from penstock.spark.pipelines import declared
from penstock.spark.pipelines.archive import TableArchivePlace, archive
from penstock.spark.pipelines.replay import replay
from penstock.spark.pipelines.report import report


def foreign(text: str) -> pa.Table:
    """Read by the library, which knows nothing of us."""
    kind, _, place = text.partition(":")
    if kind == "delta":
        return DeltaTable(place).to_pyarrow_table()
    folder, _, name = place.rpartition("/")
    return SqlCatalog("penstock", uri=f"sqlite:///{folder}/catalog.db").load_table(name).scan().to_arrow()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture(params=["delta:{}/lake", "iceberg:{}/ware/shop.archive"], ids=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


def test_queues_are_archived_to_a_table_and_go_back_from_it(spark: SparkSession, url: str, lake: str) -> None:
    with penstock.open(url) as broker:
        draft = Draft(b'{"n": 1}', "x/y", {"text": "t", "whole": 7, "raw": b"\0\xff"}, group="g")
        for name in ("a}b", "007"):
            broker.create(name).send_many([draft, Draft(b"\xff no JSON")])
        done = archive(spark, url, "*", lake, once=True, columns="infer", maxMessagesPerTrigger="3")
        assert (done.rows, done.stopped) == (4, False)
        assert [broker[name].stats().messages for name in ("a}b", "007")] == [0, 0]

        found = foreign(lake).to_pylist()
        assert Counter((row["queue"], row["body"]) for row in found) == Counter(
            (name, body) for name in ("a}b", "007") for body in (b'{"n": 1}', b"\xff no JSON")
        )
        row = next(row for row in found if row["body"] == b'{"n": 1}')
        assert dict(row["attributes"]) == {"text": "t", "whole": "7", "raw": "AP8="}
        assert (row["content_type"], row["group"], row["data"], row["day"]) == ("x/y", "g", {"n": 1}, row["sent_at"].date())

        broker["007"].send(b'{"n": 2, "more": true}')
        assert archive(spark, url, "*", lake, once=True).rows == 1
        assert sorted(str(row["data"]) for row in foreign(lake).to_pylist()) == [
            "None",
            "None",
            "{'n': 1}",
            "{'n': 1}",
            "{'n': 2}",
        ]
        with pytest.raises(BadInput, match=r"are fixed in .* as struct<n:bigint>, and cannot become struct<other:string>"):
            archive(spark, url, "*", lake, once=True, columns="other string")

        told = report(spark, [lake])
        assert {row["queue"]: row["messages"] for row in told["queues"]} == {"007": 3, "a}b": 2}
        for time in range(2):
            assert replay(spark, lake, url, where="json:n::int >= 1", name="again").rows == (0 if time else 3)
        assert sorted(message.body for message in broker["007"].peek(9)) == [b'{"n": 1}', b'{"n": 2, "more": true}']
        (back,) = broker["a}b"].peek(9)
        assert (back.content_type, back.attributes, back.group) == ("x/y", {"text": "t", "whole": 7, "raw": b"\0\xff"}, "g")
        first = min(row["sent_at"] for row in found)
        assert replay(spark, lake, url, until=first).rows == 0


SHOP = """
[source.orders]
queue = "orders"
json = "n int, item string"

[source.prices]
{kind} = "{prices}"

[step.priced]
sql = "SELECT o.n, o.item, p.price FROM orders o LEFT JOIN prices p ON o.item = p.item"

[sink.lake]
from = "priced"
{kind} = "{sales}"
partition = ["item"]

[sink.onward]
from = "priced"
queue = "onward"

[dead_letters]
queue = "dead"
"""


def test_a_declared_pipeline_reads_a_table_and_writes_to_one(spark: SparkSession, url: str, lake: str, tmp_path: Path) -> None:
    prices = lake.replace("lake", "prices") if lake.startswith("delta") else lake.replace("archive", "prices")
    put(table_address(prices).open(), spark.createDataFrame([("bolt", 2), ("nut", 3)], "item string, price int"), "prices", 0)
    kind, _, sales = lake.partition(":")
    file = tmp_path / "shop.toml"
    file.write_text(SHOP.format(kind=kind, prices=prices.partition(":")[2], sales=sales))
    with penstock.open(url) as broker:
        orders = broker.create("orders")
        broker.create("onward"), broker.create("dead")
        for first in (0, 4):
            orders.send_many(
                json.dumps({"n": n, "item": ("bolt", "nut", "what")[n % 3]}).encode() for n in range(first, first + 4)
            )
            assert declared.run(spark, file, store=url).taken == 4
        expected = Counter((n, ("bolt", "nut", "what")[n % 3], (2, 3, None)[n % 3]) for n in range(8))
        assert Counter((row["n"], row["item"], row["price"]) for row in foreign(lake).to_pylist()) == expected
        assert broker["onward"].stats().messages == 8
        assert orders.stats().messages == 0

        # a column that the step has since then is added to the table
        file.write_text(file.read_text().replace("o.n, o.item", "o.n, o.n * 10L AS tens, o.item"))
        orders.send(b'{"n": 8, "item": "nut"}')
        declared.run(spark, file, store=url)
        assert {(row["n"], row["tens"]) for row in foreign(lake).to_pylist()} == {(n, None) for n in range(8)} | {(8, 80)}

        # what cannot be written is told before anything is taken
        orders.send(b'{"n": 9, "item": "nut"}')
        file.write_text(file.read_text().replace("o.n, ", "cast(o.n AS string) n, "))
        with pytest.raises(
            BadInput, match=r"shop.toml, line 12, \[sink.lake\]: .* has a column n int32, and cannot be given n string"
        ):
            declared.run(spark, file, store=url)
        assert orders.stats().visible == 1


def test_a_batch_of_an_archive_is_taken_for_a_replay_whatever_its_columns_are_now(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """A driver that was killed after the commit, and comes back when columns of JSON bodies are wanted."""
    lake = f"delta:{tmp_path}/lake"
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        queue.send_many([b'{"n": 1}', b'{"n": 2}'])
        frame = spark.read.format("penstock").options(url=url, queue="jobs").load()
        for columns in (None, "n int"):
            TableArchivePlace(table_address(lake), "abc", "zstd", columns)(frame, 0)
        TableArchivePlace(table_address(lake), "abc", "zstd", "n int")(frame.limit(1), 1)
    found = [(row["body"], row["data"]) for row in foreign(lake).to_pylist()]
    assert sorted(found, key=str) == [(b'{"n": 1}', None), (b'{"n": 1}', {"n": 1}), (b'{"n": 2}', None)]


def test_the_commands_take_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_STORE", "sqlite:///queue.db")
    monkeypatch.setattr(Frame, "spark", property(lambda _self: spark))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["pipeline", *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    with penstock.open("sqlite:///queue.db") as broker:
        jobs, again = broker.create("jobs"), broker.create("again")
        for body in (b"a", b"b"):
            jobs.send(body)
            assert run("archive", "jobs", "delta:lake", "--once") == (0, "archived 1 message to delta:lake\n", "")
        assert run("load", "delta:lake", "again") == (0, "sent 2 messages again, to again\n", "")
        assert sorted(message.body for message in again.peek(9)) == [b"a", b"b"]
    assert json.loads(run("report", "delta:lake", "--json")[1])["all"]["messages"] == 2
    assert run("compact", "delta:lake") == (0, f"delta:{tmp_path}/lake: 2 files are now 1\n", "")
    assert json.loads(run("compact", "delta:lake", "--vacuum", "168", "--json")[1]) == {
        "pipeline": "compact",
        "table": f"delta:{tmp_path}/lake",
        "made": 0,
        "merged": 0,
        "removed": 0,
    }
    for words, told in (
        (("compact", "delta:lake", "--vacuum", "-1"), "--vacuum -1 must be 0 or more"),
        (("compact", "delta:other"), "there is no table delta:"),
        (("compact", "lake"), "'lake' names no table: write delta:FOLDER or iceberg:CATALOG/NAMESPACE.TABLE"),
        (("archive", "jobs", "delta:lake", "--from-history"), "--from-history copies to a folder of Parquet, not to a table"),
        (("archive", "jobs", "lake", "--conf", "x"), "'x' is not NAME=VALUE"),
    ):
        code, out, err = run(*words)
        assert (code != 0, out) == (True, "")
        assert told in err
        assert err.count("\n") == 1


def test_settings_and_packages_are_passed_on_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Exception):
        pass

    def start(_master: str, **config: str) -> None:
        raise Started(config)

    monkeypatch.setattr("penstock.spark.session.session", start)
    conf = [("spark.hadoop.fs.s3a.endpoint", "http://here"), ("spark.x", "a=b")]
    args = Namespace(
        store="memory:",
        master="local[1]",
        remote=None,
        pipeline="archive",
        debug=True,
        conf=conf,
        packages="io.delta:delta-spark:4",
    )
    with pytest.raises(Started) as started:
        _ = Frame(args).spark
    assert started.value.args[0] == {
        "remote": None,
        "name": "penstock archive",
        "spark__hadoop__fs__s3a__endpoint": "http://here",
        "spark__x": "a=b",
        "spark__jars__packages": "io.delta:delta-spark:4",
    }
