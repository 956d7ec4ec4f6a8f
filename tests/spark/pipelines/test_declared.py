"""A declared pipeline on real Spark and real queues: every message ends in exactly the declared places."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import BadInput
from penstock.message import Draft
from penstock.spark.pipelines import declared, running
from penstock.spark.pipelines.progress import Watch
from penstock.testing.servers import PostgresqlServer

SHOP = """
[source.orders]
queue = "orders"
json = "n int, item string, at timestamp"
watermark = ["at", "1 minute"]

[source.prices]
csv = "prices.csv"
schema = "item string, price int"
options = { header = true }

[check.orders]
where = "n >= 0"
reason = "n is negative"

[step.priced]
sql = "SELECT o.*, p.price FROM orders o LEFT JOIN prices p ON o.item = p.item"

[check.priced]
where = "price IS NOT NULL"
reason = "no price"

[step.sales]
sql = "SELECT n, item, price FROM priced"

[step.totals]
sql = "SELECT window.start AS minute, sum(price) AS total FROM priced GROUP BY window(at, '1 minute')"

[sink.sales]
from = "sales"
parquet = "lake"
partition = ["item"]

[sink.onward]
from = "sales"
queue = "onward"

[sink.totals]
from = "totals"
queue = "totals"

[dead_letters]
queue = "dead"
"""


def order(n: int, item: str, at: str) -> Draft:
    return Draft(json.dumps({"n": n, "item": item, "at": at}).encode(), "application/json", {"by": "web", "level": n})


def declare(folder: Path, text: str) -> Path:
    (folder / "shop.toml").write_text(text)
    (folder / "prices.csv").write_text("item,price\nbolt,2\nnut,3\n")
    return folder / "shop.toml"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_one_queue_feeds_several_sinks_each_whole(
    spark: SparkSession, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    if kind == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql")
        url = server.new_url()
    file = declare(tmp_path, SHOP)
    with penstock.open(url) as broker:
        for name in ("orders", "onward", "totals", "dead"):
            broker.create(name)
        broker["orders"].send_many(order(n, ("bolt", "nut")[n % 2], f"2026-01-01 10:0{n}:00") for n in range(6))
        broker["orders"].send_many([order(-1, "bolt", "2026-01-01 10:00:00"), order(7, "gear", "2026-01-01 10:00:00")])
        broker["orders"].send(b"no json")
        ran = declared.run(spark, file, store=url)
        assert (ran.taken, ran.stopped, ran.late) == (9, False, 0)

        sales = {(n, "bolt" if n % 2 == 0 else "nut", 2 if n % 2 == 0 else 3) for n in range(6)}
        assert {tuple(row) for row in spark.read.parquet(f"{tmp_path}/lake").select("n", "item", "price").collect()} == sales
        onward = [json.loads(message.body) for message in broker["onward"].peek(99)]
        assert len(onward) == 6
        assert {(row["n"], row["item"], row["price"]) for row in onward} == sales
        totals = [json.loads(message.body) for message in broker["totals"].peek(99)]
        assert sorted(row["total"] for row in totals) == [2, 2, 3, 3]  # the windows closed by the watermark
        letters = {message.attributes["reason"]: message for message in broker["dead"].peek(9)}
        assert letters.keys() == {
            "n is negative",
            "no price",
            "the body is not JSON of the form n int, item string, at timestamp",
        }
        letter = letters["no price"]
        assert json.loads(letter.body) == {"n": 7, "item": "gear", "at": "2026-01-01 10:00:00"}
        assert (letter.content_type, letter.attributes["queue"], letter.attributes["table"]) == (
            "application/json",
            "orders",
            "priced",
        )
        assert (letter.attributes["by"], letter.attributes["level"]) == ("web", 7)
        assert broker["orders"].stats().messages == 0
        assert list((tmp_path / "shop-checkpoint" / "landed" / "orders").rglob("*.parquet")) == []  # all queries have read it

        if kind == "postgresql":
            return
        broker["orders"].send_many([order(8, "nut", "2026-01-01 10:30:00"), order(9, "nut", "2026-01-01 09:00:00")])
        ran = declared.run(spark, file, store=url)  # continues where it stopped
        assert (ran.taken, ran.late) == (2, 1)
        assert spark.read.parquet(f"{tmp_path}/lake").count() == 8
        assert broker["onward"].stats().messages == 8
        assert broker["totals"].stats().messages == 6
        assert broker["dead"].stats().messages == 3


def test_files_are_streams_too_and_streams_join(spark: SparkSession, tmp_path: Path) -> None:
    """Lake to queue, with a check on rows that are no messages, and a join of two streams."""
    url = f"sqlite:///{tmp_path}/shop.db"
    spark.createDataFrame([(1, "a"), (2, "b"), (3, "c")], "n int, name string").write.parquet(f"{tmp_path}/left")
    spark.createDataFrame([(1, "x"), (2, "y")], "n int, name string").write.json(f"{tmp_path}/right")
    (tmp_path / "join.toml").write_text(f"""
store = "{url}"
[source.left]
parquet = "left"
stream = true
schema = "n int, name string"
[source.right]
json = "right"
stream = true
schema = "n int, name string"
[check.left]
where = "n < 3"
[step.both]
sql = "SELECT l.n, concat(l.name, r.name) AS body FROM left l JOIN right r ON l.n = r.n"
[sink.out]
from = "both"
queue = "out"
[sink.seen]
from = "both"
console = true
[dead_letters]
queue = "dead"
""")
    with penstock.open(url) as broker:
        out, dead = broker.create("out"), broker.create("dead")
        for _ in range(2):  # the second run finds nothing new
            declared.run(spark, tmp_path / "join.toml")
            assert sorted(message.text for message in out.peek(9)) == ["ax", "by"]
            (letter,) = dead.peek(9)
            assert (json.loads(letter.body), letter.attributes["reason"]) == ({"n": 3, "name": "c"}, "not so: n < 3")


def test_a_pipeline_runs_on_until_it_is_told_to_stop(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/on.db"
    (tmp_path / "on.toml").write_text("""
trigger = "100 milliseconds"
[source.orders]
queue = "orders"
[sink.onward]
from = "orders"
queue = "onward"
""")
    monkeypatch.setattr(running, "TIDY_EVERY", 0.2)
    watch = Watch("on")
    landed = tmp_path / "on-checkpoint" / "landed" / "orders"
    with penstock.open(url) as broker, ThreadPoolExecutor() as pool:
        orders, onward = broker.create("orders"), broker.create("onward")
        run = pool.submit(declared.run, spark, tmp_path / "on.toml", store=url, watch=watch)
        try:
            for round in range(1, 3):
                orders.send_many([b"x"] * 10)
                give_up_at = time.monotonic() + 200
                while onward.stats().messages < 10 * round or orders.stats().messages or list(landed.rglob("*.parquet")):
                    assert time.monotonic() < give_up_at
                    assert not run.done() or run.result() is None
                    time.sleep(0.05)
        finally:
            watch.stop()
        ran = run.result()
        assert (ran.stopped, ran.taken, onward.stats().messages) == (True, 20, 20)


def test_a_mistake_in_sql_is_told_with_its_line_in_the_file(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with penstock.open(url) as broker:
        for name in ("orders", "onward", "totals", "dead"):
            broker.create(name)
        broker["orders"].send(b"x")
        wrong = SHOP.replace('"SELECT n, item, price FROM priced"', '"""\nSELECT n,\n  prize\nFROM priced"""')
        for text, told in (
            (wrong, r"shop.toml, line 26, \[step.sales\]: there is no column 'prize'"),
            (SHOP.replace("n >= 0", "m >= 0"), r"shop.toml, line 13, \[check.orders\]: there is no column 'm'"),
            (SHOP.replace("FROM priced GROUP", "FROM prized GROUP"), r"line 27, \[step.totals\]: .*prized"),
            (SHOP.replace('["at", ', '["it", '), r"line 5, \[source.orders\]: there is no column 'it'; there are n, item"),
            (SHOP.replace("prices.csv", "prizes.csv"), r"line 7, \[source.prices\]: there is no file .*prizes.csv"),
            (SHOP + "\n[check.prices]\nwhere = 'price > 0'", r"line 45, \[check.prices\]: 'prices' is a table, not a stream"),
            (
                SHOP + "\n[sink.p]\nfrom = 'prices'\nqueue = 'onward'",
                r"line 45, \[sink.p\]: 'prices' is a table, not a stream",
            ),
            (SHOP.replace("n int, item", "n itn, item"), r"line 2, \[source.orders\]: .*ITN"),
        ):
            with pytest.raises(BadInput, match=f"^(shop.toml, )?{told}"):
                declared.run(spark, declare(tmp_path, text), store=url)
        assert broker["orders"].stats().visible == 1


def test_a_checkpoint_serves_one_run_at_a_time(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with penstock.open(url) as broker:
        for name in ("orders", "onward", "totals", "dead"):
            broker.create(name)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match=r"shop.toml is running already, with the checkpoint .*elsewhere"):
            declared.run(spark, declare(tmp_path, SHOP), store=url, checkpoint=str(folder))


def test_what_was_taken_is_written_after_a_crash_though_the_checkpoint_is_spelled_with_dots(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.toml").write_text(
        f'store = "sqlite:///{tmp_path}/shop.db"\n[source.orders]\nqueue = "orders"\n'
        '[sink.lake]\nfrom = "orders"\nparquet = "lake"'
    )
    (tmp_path / "x").mkdir()
    with penstock.open(f"sqlite:///{tmp_path}/shop.db") as broker:
        orders = broker.create("orders")
        orders.send_many([b"1", b"2", b"3"])
        with monkeypatch.context() as crash:
            crash.setattr(running.PipelineRun, "once", lambda run: run._follow(run._takers))
            declared.run(spark, tmp_path / "plain.toml", checkpoint=f"{tmp_path}/x/../check")
        assert (orders.stats().messages, orders.stats().visible) == (3, 0)  # claimed until they are in the sink
        declared.run(spark, tmp_path / "plain.toml", checkpoint=f"{tmp_path}/x/../check")
        assert orders.stats().messages == 0
    assert spark.read.parquet(f"{tmp_path}/lake").count() == 3
    assert list((tmp_path / "check" / "landed" / "orders").rglob("*.parquet")) == []  # recognised as read, too


LATER = """
[source.orders]
queue = "orders"
json = "n int, text string"
[step.rows]
sql = "SELECT n, text FROM orders"
[sink.lake]
from = "rows"
parquet = "lake"
[sink.onward]
from = "rows"
queue = "onward"
[dead_letters]
queue = "dead"
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[penstock.Broker]:
    with penstock.open(f"sqlite:///{tmp_path}/shop.db") as broker:
        for name in ("orders", "onward", "dead"):
            broker.create(name)
        broker["orders"].send_many([b'{"n": 1, "text": "7"}', b'{"n": 2, "text": "no number"}'])
        yield broker


def test_a_mistake_in_a_sink_is_found_before_anything_is_taken(
    spark: SparkSession, tmp_path: Path, shop: penstock.Broker
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "file").write_text("x")
    select, lake = '"SELECT n, text FROM orders"', 'parquet = "lake"'
    for text, told in (
        (LATER.replace(select, '"SELECT n, count(*) c FROM orders GROUP BY n"'), r"line 7, \[sink.lake\]: .*watermark"),
        (LATER.replace(select, '"SELECT n, make_interval(n) AS time FROM orders"'), r"line 7, \[sink.lake\]: .*(?i:interval)"),
        (LATER.replace(select, '"SELECT n AS body FROM orders"'), r"line 10, \[sink.onward\]: the column body is int"),
        (
            LATER.replace(lake, lake + '\npartition = ["m"]'),
            r"line 7, \[sink.lake\]: there is no column 'm'; there are n, text",
        ),
        (LATER.replace(lake, 'parquet = "file"'), r"line 7, \[sink.lake\]: .*file is a file; Parquet is written to a folder"),
    ):
        for trigger in ("once", "1 second") if "watermark" in told else ("once",):
            file = declare(tmp_path, f'trigger = "{trigger}"{text}')
            with pytest.raises(BadInput, match=f"^shop.toml, {told}"):
                declared.run(spark, file, store=url)
    assert shop["orders"].stats().visible == 2
    assert shop["orders"].readers() == {}


def test_what_a_failed_run_has_taken_stays_in_its_queue_even_without_its_checkpoint(
    spark: SparkSession, tmp_path: Path, shop: penstock.Broker
) -> None:
    url, home, orders = f"sqlite:///{tmp_path}/shop.db", tmp_path / "shop-checkpoint", shop["orders"]
    file = declare(tmp_path, LATER.replace("n, text", "n, cast(text AS int) AS text"))
    with pytest.raises(BadInput, match=r"\[sink.lake\].*no number"):
        declared.run(spark, file, store=url)
    assert (orders.stats().messages, orders.stats().visible) == (2, 0)
    assert "`penstock readers QUEUE --give-up READER`" in (home / "README.txt").read_text()

    declare(tmp_path, LATER)
    for checkpoint in (tmp_path / "other", home):
        if checkpoint == home:
            shutil.rmtree(home)  # to start over
        with pytest.raises(BadInput, match=r"line 2, \[source.orders\]: queue 'orders' holds 2 messages for another checkp"):
            declared.run(spark, file, store=url, checkpoint=str(checkpoint))
    (reader,) = orders.readers()
    assert reader.startswith("run-shop-orders-")
    assert orders.give_up(reader) == 2
    assert declared.run(spark, file, store=url).taken == 2
    assert (orders.stats().messages, shop["onward"].stats().messages) == (0, 2)
    assert spark.read.parquet(f"{tmp_path}/lake").count() == 2


def test_a_mended_pipeline_continues_with_what_it_had_taken(spark: SparkSession, tmp_path: Path, shop: penstock.Broker) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    file = declare(tmp_path, LATER.replace("n, text", "n, cast(text AS int) AS text"))
    with pytest.raises(BadInput, match="no number"):
        declared.run(spark, file, store=url)
    ran = declared.run(spark, declare(tmp_path, LATER), store=url)
    assert ran.taken == 0
    assert (shop["orders"].stats().messages, shop["onward"].stats().messages) == (0, 2)
    assert spark.read.parquet(f"{tmp_path}/lake").count() == 2


def test_a_queue_with_groups_is_drained_in_one_run(spark: SparkSession, tmp_path: Path, shop: penstock.Broker) -> None:
    grouped = shop.create("grouped", groups=True)
    grouped.send_many([Draft(b"%d" % number, group="g") for number in range(3)])
    file = declare(tmp_path, '[source.orders]\nqueue = "grouped"\n[sink.onward]\nfrom = "orders"\nqueue = "onward"')
    assert declared.run(spark, file, store=f"sqlite:///{tmp_path}/shop.db").taken == 3
    assert sorted(message.text for message in shop["onward"].peek(9)) == ["0", "1", "2"]  # Spark keeps no order between files
    assert grouped.stats().messages == 0
