"""``penstock bench pipeline``: archive and load, compared with Spark copying the same rows, and with the sink alone.

Each round archives the queue, has Spark copy the archive from Parquet to Parquet with the same compression, has the sink write
the archive's rows to a queue, and has `load` put them back into the first. A rate is the median. All bodies differ, since
Parquet stores repeated ones only once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession

import penstock
from penstock.bench.machine import facts
from penstock.spark.pipelines import archive, load
from penstock.spark.session import session

FILL = 5_000
ARCHIVE_SHARE, LOAD_SHARE = 0.5, 0.7
CARRIED = ("body", "content_type", "attributes", "attribute_types", "group", "key")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="penstock bench pipeline", description="Measure archive and load beside Spark itself."
    )
    parser.add_argument("--rows", metavar="N", type=int, default=1_000_000, help="messages in the queue (1000000)")
    parser.add_argument("--size", metavar="BYTES", type=int, default=1000, help="of a body (1000)")
    parser.add_argument("--repeats", metavar="N", type=int, default=3, help="turns (3)")
    parser.add_argument("--master", default="local[2]", help="where Spark runs (local[2])")
    parser.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help="where the queue lies (not a tmpfs)")
    arguments = parser.parse_args(argv)
    with TemporaryDirectory(prefix=".penstock-bench-", dir=arguments.folder) as name:
        folder = Path(name).resolve()
        known = facts(folder)
        spark = session(
            arguments.master,
            spark__driver__memory="4g",
            spark__sql__shuffle__partitions="2",
            spark__sql__warehouse__dir=str(folder / "warehouse"),
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            rates = measure(spark, folder, arguments.rows, arguments.size, arguments.repeats)
        finally:
            spark.stop()
    print("\n".join(f"* {fact}: {value}" for fact, value in known.items()), end="\n\n")
    print(f"{arguments.rows:,} messages of {arguments.size} bytes\n\n{report(rates)}")
    return 0


def measure(spark: SparkSession, folder: Path, rows: int, size: int, repeats: int) -> dict[str, list[float]]:
    """Rows a second in each turn, by task; the first turn, in which Java warms up, is not counted."""
    url = f"sqlite:///{folder}/queue.db"
    rates: dict[str, list[float]] = {}

    def timed(name: str, act: Callable[[], Any]) -> None:
        started = time.perf_counter()
        act()
        rates.setdefault(name, []).append(rows / (time.perf_counter() - started))

    with penstock.open(url) as broker:
        queue = broker.create("bench")
        for start in range(0, rows, FILL):
            queue.send_many([os.urandom(size) for _ in range(min(FILL, rows - start))])
    for turn in range(repeats + 1):
        lake, copy = str(folder / f"lake-{turn}"), str(folder / f"copy-{turn}")
        timed("archive", lambda: archive(spark, url, "bench", lake, once=True))  # noqa: B023
        timed("copy Parquet", lambda: spark.read.parquet(lake).write.option("compression", "zstd").parquet(copy))  # noqa: B023
        with penstock.open(url) as broker:
            broker.create("direct")
        sink = (
            spark.read.parquet(lake).select(*CARRIED).write.format("penstock").mode("append").options(url=url, queue="direct")
        )
        timed("sink", sink.save)
        with penstock.open(url) as broker:
            broker.delete("direct")
        timed("load", lambda: load(spark, lake, url, "bench", checkpoint=f"{lake}-check"))  # noqa: B023
        shutil.rmtree(lake)
        shutil.rmtree(copy)
    with penstock.open(url) as broker:
        assert broker["bench"].stats().messages == rows
    return {name: turns[1:] for name, turns in rates.items()}


def report(rates: dict[str, list[float]]) -> str:
    lines = ["| | rows a second |", "|---|---:|", *(f"| {name} | {median(turns):,.0f} |" for name, turns in rates.items()), ""]
    for name, limit, wanted in (("archive", "copy Parquet", ARCHIVE_SHARE), ("load", "sink", LOAD_SHARE)):
        share = median(mine / its for mine, its in zip(rates[name], rates[limit], strict=True))
        lines.append(
            f"* {name}: {share:.0%} of {limit}, at least {wanted:.0%} wanted: **{'met' if share >= wanted else 'NOT met'}**"
        )
    return "\n".join(lines) + "\n"
