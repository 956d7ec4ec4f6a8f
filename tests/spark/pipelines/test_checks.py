"""The checks of a declared pipeline: counted, dropped, rejected or stopped at, and nothing is lost when one stops it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.cli import main
from penstock.cli.frame import Frame
from penstock.errors import BadInput
from penstock.spark.pipelines import declared
from penstock.spark.pipelines.checks import CheckFigures
from penstock.spark.pipelines.progress import Watch

SHOP = """
[source.orders]
queue = "orders"
json = "n int, item string"

[source.prices]
csv = "prices.csv"
schema = "item string, price int"
options = { header = true }

[[check.orders]]
name = "body"
action = "drop"

[[check.orders]]
name = "odd"
where = "n % 2 = 1"
action = "count"

[[check.orders]]
name = "small"
where = "n < 90"
reason = "too big"

[step.priced]
sql = "SELECT o.n, o.item, p.price FROM orders o LEFT JOIN prices p ON o.item = p.item WHERE o.n <> 3"

[check.priced]
name = "price"
where = "price IS NOT NULL"
action = "drop"

[sink.lake]
from = "priced"
parquet = "lake"

[sink.onward]
from = "priced"
queue = "onward"

[dead_letters]
queue = "dead"
"""
STOP = """
[source.orders]
queue = "orders"
json = "n int, item string"

[[check.orders]]
name = "body"
action = "drop"

[[check.orders]]
name = "small"
where = "n < 90"
action = "ACTION"
LIMIT

[step.rows]
sql = "SELECT n, message.id AS id FROM orders"

[sink.lake]
from = "rows"
parquet = "lake"

[sink.onward]
from = "rows"
queue = "onward"
"""


def order(n: int, item: str = "bolt") -> bytes:
    return json.dumps({"n": n, "item": item}).encode()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[penstock.Broker]:
    (tmp_path / "prices.csv").write_text("item,price\nbolt,2\n")
    with penstock.open(f"sqlite:///{tmp_path}/shop.db") as broker:
        for name in ("orders", "onward", "dead"):
            broker.create(name)
        yield broker


def run(spark: SparkSession, folder: Path, text: str, watch: Watch | None = None) -> Any:
    (folder / "shop.toml").write_text(f'store = "sqlite:///shop.db"\n{text}')
    return declared.run(spark, folder / "shop.toml", watch=watch)


def onward(shop: penstock.Broker) -> list[int]:
    return sorted(json.loads(message.body)["n"] for message in shop["onward"].peek(99))


def test_checks_count_drop_and_reject_and_every_figure_says_how_many(
    spark: SparkSession, tmp_path: Path, shop: penstock.Broker
) -> None:
    shop["orders"].send_many([*(order(n) for n in range(8)), order(99), order(5, "gear"), b"no json", b"[1]"])
    out = io.StringIO()
    watch = Watch("shop", "json", out=out)
    ran = run(spark, tmp_path, SHOP, watch)
    assert ran.checks == {
        "orders.body": CheckFigures("drop", 12, 2),
        "orders.odd": CheckFigures("count", 12, 4),  # what an earlier check has taken out is not judged: 0, 2, 4 and 6
        "orders.small": CheckFigures("reject", 12, 1),
        "priced.price": CheckFigures("drop", 8, 1),  # a step left 3 out
    }
    assert onward(shop) == [0, 1, 2, 4, 5, 6, 7]
    assert spark.read.parquet(f"{tmp_path}/lake").count() == 7
    (letter,) = shop["dead"].peek(9)
    assert (letter.body, letter.attributes["reason"], letter.attributes["table"]) == (order(99), "too big", "orders")
    assert shop["orders"].stats().messages == 0

    last = json.loads(out.getvalue().splitlines()[-1])
    assert last["checks"]["orders.small"] == {"action": "reject", "rows": 12, "failed": 1}
    assert 'penstock_pipeline_check_rows_total{pipeline="shop",check="orders.odd"} 12\n' in watch.metrics()
    assert 'penstock_pipeline_check_failed_total{pipeline="shop",check="orders.odd"} 4\n' in watch.metrics()
    assert watch.line().endswith("8 rows fail a check")


@pytest.mark.parametrize(
    ("action", "limit", "told"),
    [
        ("stop", "", r"line 11, \[check.orders\]: orders.small stops the pipeline: not so: n < 90; message "),
        (
            "drop",
            "stop_above = 1\nstop_share = 0.2",
            r"line 11, \[check.orders\]: 2 of 4 rows of a batch fail orders.small \(.*\), more than 1 and more than 20 %",
        ),
    ],
)
def test_a_check_that_stops_a_pipeline_loses_nothing_and_no_sink_gets_the_row(
    spark: SparkSession,
    tmp_path: Path,
    shop: penstock.Broker,
    action: str,
    limit: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = STOP.replace("ACTION", action).replace("LIMIT", limit)
    shop["orders"].send_many([order(1), order(2)] if action == "stop" else [order(1), order(2), order(95)])
    run(spark, tmp_path, text)  # what is allowed passes
    assert (onward(shop), shop["orders"].stats().messages) == ([1, 2], 0)

    shop["orders"].send_many([order(3), order(97), order(98), b"no json"])
    for _ in range(2 if limit else 1):  # it stops there again until somebody changes something
        with pytest.raises(BadInput, match=f"^shop.toml, {told}"):
            run(spark, tmp_path, text)
        assert (onward(shop), spark.read.parquet(f"{tmp_path}/lake").count()) == ([1, 2], 2)
        stats = shop["orders"].stats()
        assert (stats.messages, stats.visible) == (4, 0)

    monkeypatch.setattr(Frame, "spark", property(lambda _self: spark))
    file, mended = tmp_path / "shop.toml", text.replace(limit, "") if limit else text.replace("< 90", "< 99")
    file.write_text(mended)
    assert main(["pipeline", "run", str(file), "--store", f"sqlite:///{tmp_path}/shop.db"]) == 0
    assert onward(shop) == ([1, 2, 3] if limit else [1, 2, 3, 97, 98])
    assert shop["orders"].stats().messages == 0
    _, head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["check", "rows", "failed", "then"]
    assert [line.split() for line in lines] == [
        ["orders.body", "4", "1", "dropped"],
        ["orders.small", "4", *(["2", "dropped"] if limit else ["0", "stop"])],
    ]


def test_a_limit_needs_a_table_that_one_batch_decides(spark: SparkSession, tmp_path: Path, shop: penstock.Broker) -> None:
    limited = "[check.TABLE]\nwhere = 'n > 0'\naction = 'count'\nstop_above = 1\n"
    cases = [
        ('[step.sums]\nsql = "SELECT item, count(*) AS n FROM orders GROUP BY item"', "sums", r"made of several \(Aggregate\)"),
        ('[step.sums]\nsql = "SELECT DISTINCT n FROM orders"', "sums", "made of several"),
        ('[step.twice]\nsql = "SELECT a.n FROM orders a JOIN orders b ON a.n = b.n"', "twice", "joins orders with itself"),
        (
            '[source.files]\nparquet = "files"\nstream = true\nschema = "n int"\n'
            '[step.both]\nsql = "SELECT * FROM files UNION ALL SELECT n FROM orders"',
            "both",
            "made of orders and files",
        ),
        ('[source.files]\nparquet = "files"\nstream = true\nschema = "n int"', "files", "files is made of files"),
    ]
    (tmp_path / "files").mkdir()
    shop["orders"].send(order(1))
    plain = STOP.replace('action = "ACTION"', "").replace("LIMIT", "") + '[dead_letters]\nqueue = "dead"\n'
    for step, table, told in cases:
        sink = f"\n[sink.more]\nfrom = '{table}'\nqueue = 'onward'\nmode = 'complete'\n"
        with pytest.raises(BadInput, match=rf"\[check.{table}\]: stop_above and stop_share judge each batch.*{told}"):
            run(spark, tmp_path, f"{plain}{step}{sink}{limited.replace('TABLE', table)}")
    assert shop["orders"].stats().visible == 1
