"""The file of a declared pipeline: an error names its table and line, before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadInput, QueueNotFound
from penstock.spark.pipelines import declaration
from penstock.spark.pipelines.declared_checks import DeclaredCheck

GOOD = """\
store = "sqlite:///shop.db"

[source.orders]
queue = "orders"
json = "item string, n int"

[source.prices]
parquet = "prices"

[[check.orders]]
where = "n > 0"

[[check.orders]]
where = "n < 9"
reason = "too many"

[step.priced]
sql = \"\"\"
SELECT *
FROM orders JOIN prices USING (item)\"\"\"
watermark = ["at", "1 hour"]

[sink.lake]
from = "priced"
parquet = "lake"

[dead_letters]
queue = "dead"
"""


def load(folder: Path, text: str) -> declaration.Pipeline:
    file = folder / "shop.toml"
    file.write_text(text)
    return declaration.load(file)


def test_a_pipeline_is_what_its_file_says(tmp_path: Path) -> None:
    pipeline = load(tmp_path, GOOD)
    assert (pipeline.name, pipeline.trigger) == ("shop", "once")
    assert pipeline.store == f"sqlite:///{tmp_path}/shop.db"
    assert pipeline.checkpoint == f"{tmp_path}/shop-checkpoint"
    assert [(source.name, source.stream, source.path) for source in pipeline.sources] == [
        ("orders", True, None),
        ("prices", False, f"{tmp_path}/prices"),
    ]
    assert [(check.where, check.reason) for check in pipeline.checks] == [("n > 0", "not so: n > 0"), ("n < 9", "too many")]
    assert pipeline.steps[0].watermark == ("at", "1 hour")
    assert pipeline.reads("priced") == {"orders", "prices"}
    assert pipeline.where("check", "orders", key="where", place=1) == "shop.toml, line 14, [check.orders]"
    assert pipeline.first_line("step", "priced", key="sql") == 19


def test_a_check_of_bodies_can_be_changed_and_comes_first(tmp_path: Path) -> None:
    plain = load(tmp_path, GOOD).checks_of("orders")
    form = "the body is not JSON of the form item string, n int"
    assert [(check.full_name, check.action, check.reason) for check in plain] == [
        ("orders.body", "reject", form),
        ("orders.check_1", "reject", "not so: n > 0"),
        ("orders.check_2", "reject", "too many"),
    ]
    changed = GOOD.replace("[step.priced]", "[[check.orders]]\nname = 'body'\naction = 'drop'\nstop_above = 3\n[step.priced]")
    first, *others = load(tmp_path, changed).checks_of("orders")
    assert (first.full_name, first.action, first.reason, first.stop_above) == ("orders.body", "drop", form, 3)
    assert others == plain[1:]


@pytest.mark.parametrize(
    ("above", "share", "allowed", "refused"),
    [
        (None, None, (10, 10), None),
        (2, None, (10, 2), (10, 3)),
        (0, None, (10, 0), (10, 1)),
        (None, 0.2, (10, 2), (10, 3)),
        (2, 0.5, (100, 50), (100, 51)),
        (2, 0.5, (2, 2), (3, 3)),
    ],
)
def test_a_limit_is_a_number_a_share_or_both(
    above: int | None, share: float | None, allowed: tuple[int, int], refused: tuple[int, int] | None
) -> None:
    check = DeclaredCheck("t", 0, "n", "x", "", stop_above=above, stop_share=share)
    assert check.allows(*allowed)
    assert check.allows(0, 0)
    assert refused is None or not check.allows(*refused)


def test_sql_names_tables_in_any_case(tmp_path: Path) -> None:
    pipeline = load(tmp_path, GOOD.replace("FROM orders JOIN prices", "FROM Orders JOIN PRICES"))
    assert pipeline.reads("priced") == {"orders", "prices"}


def test_paths_are_spelled_as_spark_does_without_dots(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    pipeline = load(tmp_path / "x" / "..", 'checkpoint = "y/../../check"\n' + GOOD)
    assert pipeline.checkpoint == f"{tmp_path.parent}/check"
    assert pipeline.sinks[0].path == f"{tmp_path}/lake"


def test_tables_and_buckets_are_named_as_everywhere(tmp_path: Path) -> None:
    text = GOOD.replace('parquet = "lake"', 'delta = "../lake/sales"\npartition = ["day"]')
    pipeline = load(tmp_path, text.replace('parquet = "prices"', 'iceberg = "./ware/shop.prices"'))
    (sink,) = pipeline.sinks
    assert (str(sink.lake), sink.path, sink.partition) == (f"delta:{tmp_path.parent}/lake/sales", None, ("day",))
    assert str(pipeline.sources[1].lake) == f"iceberg:{tmp_path}/ware/shop.prices"
    for bucket in ("s3", "s3a"):
        named = load(
            tmp_path, GOOD.replace('"lake"', f'"{bucket}://b/lake"').replace('parquet = "prices"', 'delta = "s3a://b/p"')
        )
        assert (named.sinks[0].path, str(named.sources[1].lake)) == ("s3a://b/lake", "delta:s3://b/p")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            'parquet = "lake"',
            'delta = "a"\niceberg = "b/c.d"',
            "line 23, [sink.lake]: say where it goes: one of queue, parquet, delta",
        ),
        (
            'parquet = "lake"',
            'iceberg = "orders"',
            "line 25, [sink.lake]: 'iceberg:orders' names no table: write iceberg:CATALOG",
        ),
        ('parquet = "lake"', 'delta = "a"\nmode = "complete"', "line 26, [sink.lake]: files can only be appended to"),
        ('parquet = "prices"', 'delta = "p"\nstream = true', "line 9, [source.prices]: a table of a lake is read as it is"),
        ('queue = "orders"', 'queue = "orders"\ndelta = "x"', "line 5, [source.orders]: a queue is a stream, and has no delta"),
        ('parquet = "lake"', 'parket = "lake"', "line 25, [sink.lake]: there is no key 'parket'; there are from, queue"),
        ('parquet = "lake"', "", "line 23, [sink.lake]: say where it goes"),
        ('from = "priced"', 'from = "prised"', "line 24, [sink.lake]: there is no source or step 'prised'; there are orders"),
        ('from = "priced"', "", "[sink.lake]: the key 'from' is missing"),
        ("store =", "stroe =", "line 1: there is no key 'stroe'; there are name, store"),
        ('queue = "orders"', 'queue = "orders"\nstream = true', "line 5, [source.orders]: a queue is a stream"),
        ('parquet = "prices"', "", "line 7, [source.prices]: say where it comes from"),
        (
            'parquet = "prices"',
            'parquet = "prices"\nstream = true',
            "line 7, [source.prices]: a stream of files needs a schema",
        ),
        ("[[check.orders]]", "[[check.order]]", "line 10, [check.order]: there is no source or step 'order'"),
        ('where = "n < 9"', "were = 1", "line 14, [check.orders]: there is no key 'were'"),
        ('["at", "1 hour"]', '["at"]', "line 21, [step.priced]: write a column and how late"),
        ('["at", "1 hour"]', "5", "line 21, [step.priced]: watermark must be a list, not 5"),
        ("[step.priced]", "[step.orders]", "[step.orders]: there is a source 'orders' too"),
        ("[step.priced]", "[step.Orders]", "line 17, [step.Orders]: there is a source 'orders' too"),
        ("[source.prices]", "[source.ORDERS]", "line 7, [source.ORDERS]: there is a source 'orders' too"),
        ('[dead_letters]\nqueue = "dead"', "", "line 5, [source.orders]: bodies that are not so need [dead_letters]"),
        ('[source.prices]\nparquet = "prices"', "[source", "is not TOML.*line 7"),
        ("store =", 'trigger = "now and then"\nstore =', "line 1: it is 'now and then', and must be once or a time"),
        ("FROM orders JOIN prices USING (item)", "FROM prices", "line 3, [source.orders]: no sink is made of it"),
        ("[step.priced]", '[step."a b"]', "'a b' cannot name a table"),
        ('where = "n < 9"', 'action = "drop"', "line 13, [check.orders]: the key 'where' is missing"),
        (
            'where = "n < 9"',
            'where = "n < 9"\naction = "warn"',
            "line 15, [check.orders]: it is 'warn', and must be one of reject",
        ),
        ('where = "n < 9"', 'where = "n < 9"\nname = "a b"', "line 15, [check.orders]: 'a b' cannot name a check"),
        ('where = "n < 9"', 'where = "n < 9"\nname = "check_1"', "line 15, [check.orders]: another check of 'orders' has"),
        ('where = "n < 9"', 'where = "n < 9"\nname = "body"', "line 15, [check.orders]: body is the check that the bodies"),
        ('where = "n < 9"', 'where = "n < 9"\nstop_above = -1', "line 15, [check.orders]: it is -1, and must be 0 or more"),
        ('where = "n < 9"', 'where = "n < 9"\nstop_share = 1.5', "line 15, [check.orders]: it is 1.5, and must be from 0 to"),
        ('where = "n < 9"', 'where = "n < 9"\nstop_share = "5 %"', "line 15, [check.orders]: stop_share must be a number such"),
        (
            "[step.priced]",
            "[source.more]\nparquet = 'more'\n[check.more]\nwhere = 'p > 0'\naction = 'count'\n[step.priced]",
            "line 19, [check.more]: no sink is made of it: nothing would be checked",
        ),
    ],
)
def test_a_mistake_is_told_with_its_table_and_line(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in GOOD
    with pytest.raises(BadInput) as error:
        load(tmp_path, GOOD.replace(old, new))
    words = str(error.value)
    assert words.startswith("shop.toml")
    if ".*" in told:
        first, second = told.split(".*")
        assert first in words
        assert second in words
    else:
        assert told in words


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        declaration.load(tmp_path / "nothing.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(BadInput, match="UTF-8"):
        declaration.load(tmp_path / "bytes.toml")


def test_a_checkpoint_that_looks_like_a_pattern_is_refused(tmp_path: Path) -> None:
    from penstock.spark.pipelines import declared

    load(tmp_path, GOOD)
    with pytest.raises(BadInput, match=r"/check\[1\]' for a pattern: rename it"):
        declared.run(None, tmp_path / "shop.toml", checkpoint=f"{tmp_path}/check[1]")  # type: ignore[arg-type]


def test_a_queue_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    from penstock.spark.pipelines.declared import check_queues

    with pytest.raises(QueueNotFound) as error:
        check_queues(load(tmp_path, GOOD))
    assert error.value.__notes__ == ["shop.toml, line 4, [source.orders]"]
    with pytest.raises(BadInput, match=r"line 3, \[source.orders\]: there is no store"):
        check_queues(load(tmp_path, GOOD.replace('store = "sqlite:///shop.db"', "")))
