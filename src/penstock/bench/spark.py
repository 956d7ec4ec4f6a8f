"""``penstock bench spark``: Spark reading and writing queues, compared with its own Parquet, JDBC and rate sources.

All rows are the same kind of message: in a SQLite queue, a PostgreSQL queue, and a Parquet copy of the first. Each is read into
nothing (``noop``), in turns. All bodies differ, since Parquet stores repeated ones only once. Writes read the Parquet copy, and
go to a vacuumed table; JDBC's table is new each time. The first turn of each is not counted, because Java compiles and Python's
workers start. A rate is the median of the turns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.bench.machine import facts
from penstock.spark.session import session
from penstock.testing.servers import PostgresqlServer

JDBC = os.environ.get("PENSTOCK_JDBC", "/usr/share/java/postgresql.jar")
"""PostgreSQL's driver for Java: Debian's libpostgresql-jdbc-java."""
FILL = 5_000
SQLITE_SHARE, POSTGRESQL_SHARE, WRITE_SHARE = 0.5, 0.35, 0.7


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="penstock bench spark", description="Measure Spark reading and writing queues.")
    parser.add_argument("--rows", metavar="N", type=int, default=1_000_000, help="messages in each queue (1000000)")
    parser.add_argument("--size", metavar="BYTES", type=int, default=1000, help="of a body (1000)")
    parser.add_argument("--repeats", metavar="N", type=int, default=3, help="turns of each (3)")
    parser.add_argument("--master", default="local[2]", help="where Spark runs (local[2])")
    parser.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help="where the queues lie (not a tmpfs)")
    arguments = parser.parse_args(argv)
    with TemporaryDirectory(prefix=".penstock-bench-", dir=arguments.folder) as name, PostgresqlServer(sync=True) as server:
        folder = Path(name).resolve()
        known = facts(folder)
        drivers = {"spark__jars": JDBC} if Path(JDBC).exists() else {}
        spark = session(
            arguments.master,
            spark__driver__memory="4g",
            spark__sql__shuffle__partitions="2",
            spark__sql__warehouse__dir=str(folder / "warehouse"),
            **drivers,
        )
        spark.sparkContext.setLogLevel("ERROR")
        run = SparkBench(spark, folder, server.url, arguments.rows, arguments.size, arguments.repeats)
        try:
            rates = run.measure()
        finally:
            spark.stop()
    print("\n".join(f"* {fact}: {value}" for fact, value in known.items()), end="\n\n")
    print(report(rates, run))
    return 0


class SparkBench:
    def __init__(self, spark: SparkSession, folder: Path, database: str, rows: int, size: int, repeats: int) -> None:
        self.spark, self.folder, self.rows, self.size, self.repeats = spark, folder, rows, size, repeats
        self.urls = {"sqlite": f"sqlite:///{folder}/queue.db", "postgresql": database}
        self.floors: dict[str, float] = {}
        with psycopg.connect(database) as connection:
            told = connection.info
            self.jdbc = {
                "url": f"jdbc:postgresql://{told.host}:{told.port}/{told.dbname}",
                "user": told.user,
                "password": told.password or "",
                "driver": "org.postgresql.BenchDriver",
            }

    def measure(self) -> dict[str, list[float]]:
        """Rows a second in each turn, by task."""
        for url in self.urls.values():
            self._fill(url)
        self._load("sqlite").write.parquet(f"{self.folder}/copy")
        reads: dict[str, Callable[[], DataFrame]] = {
            "read Parquet": lambda: self.spark.read.parquet(f"{self.folder}/copy"),
            "read SQLite": lambda: self._load("sqlite"),
            "read PostgreSQL": lambda: self._load("postgresql"),
        }
        if Path(JDBC).exists():
            reads["read PostgreSQL by JDBC"] = self._by_jdbc
        rates: dict[str, list[float]] = {name: [] for name in reads}
        for turn in range(self.repeats + 1):
            for name, load in reads.items():
                rate = self._timed(load().write.format("noop").mode("overwrite").save)
                if turn:
                    rates[name].append(rate)
        self._measure_writes(rates)
        rates["stream from SQLite, claimed and settled"] = [self._timed(self._drain)]
        self.floors = {"rate source": self._floor("rate"), "queue in SQLite": self._floor("penstock")}
        return rates

    def _measure_writes(self, rates: dict[str, list[float]]) -> None:
        rows = self.spark.read.parquet(f"{self.folder}/copy").select("body")
        for turn in range(self.repeats + 1):
            for store, url in self.urls.items():
                with penstock.open(url) as broker:
                    broker.create(f"written-{turn}")
                write = rows.write.format("penstock").mode("append").options(url=url, queue=f"written-{turn}")
                rates.setdefault(f"write {store}", []).append(self._timed(write.save))
                with penstock.open(url) as broker:
                    broker.delete(f"written-{turn}")
            with psycopg.connect(self.urls["postgresql"], autocommit=True) as connection:
                connection.execute("VACUUM penstock_message, penstock_staged")
                connection.execute("CHECKPOINT")
            if Path(JDBC).exists():
                plain = rows.write.format("jdbc").mode("overwrite").options(**self.jdbc, dbtable="plain", batchsize="10000")
                rates.setdefault("write postgresql by JDBC", []).append(self._timed(plain.save))
        for name in rates:
            if name.startswith("write "):
                del rates[name][0]

    def _timed(self, act: Callable[[], Any]) -> float:
        started = time.perf_counter()
        act()
        return self.rows / (time.perf_counter() - started)

    def _fill(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("bench")
            for start in range(0, self.rows, FILL):
                queue.send_many([os.urandom(self.size) for _ in range(min(FILL, self.rows - start))])
            broker.create("trickle")

    def _load(self, store: str, **options: str) -> DataFrame:
        return self.spark.read.format("penstock").options(url=self.urls[store], queue="bench", **options).load()

    def _by_jdbc(self) -> DataFrame:
        bounds = {"partitionColumn": "number", "lowerBound": "1", "upperBound": str(self.rows), "numPartitions": "2"}
        return (
            self.spark.read.format("jdbc").options(**self.jdbc, **bounds, dbtable="penstock_message", fetchsize="10000").load()
        )

    def _drain(self) -> None:
        stream = self.spark.readStream.format("penstock").options(url=self.urls["sqlite"], queue="bench").load()
        query = stream.writeStream.format("noop").option("checkpointLocation", f"{self.folder}/drained")
        query.trigger(availableNow=True).start().awaitTermination()

    def _floor(self, source: str) -> float:
        """How many milliseconds a micro-batch of a few rows takes."""
        reader = self.spark.readStream.format(source)
        if source == "penstock":
            reader = reader.options(url=self.urls["sqlite"], queue="trickle", maxMessagesPerTrigger="10")
            with penstock.open(self.urls["sqlite"]) as broker:
                broker["trickle"].send_many([b"x"] * 400)
        else:
            reader = reader.option("rowsPerSecond", "100")
        query = reader.load().writeStream.format("noop").option("checkpointLocation", f"{self.folder}/floor-{source}")
        running = query.trigger(processingTime="0 seconds").start()
        give_up_at = time.monotonic() + 60
        while len(running.recentProgress) < 30 and time.monotonic() < give_up_at:
            time.sleep(0.2)
        running.stop()
        spent = [one["durationMs"]["triggerExecution"] for one in running.recentProgress if one["numInputRows"] > 0]
        return float(median(spent[2:] or spent or [0]))


def report(rates: dict[str, list[float]], run: SparkBench) -> str:
    medians = {name: median(turns) for name, turns in rates.items()}
    lines = ["| | rows a second |", "|---|---:|", *(f"| {name} | {rate:,.0f} |" for name, rate in medians.items()), ""]

    def compare(name: str, limit: str, wanted: float, *, ahead: bool = False) -> None:
        if name in rates and limit in rates:
            share = median(mine / its for mine, its in zip(rates[name], rates[limit], strict=True))
            asked = "ahead wanted" if ahead else f"at least {wanted:.0%} wanted"
            lines.append(f"* {name}: {share:.0%} of {limit}, {asked}: **{'met' if share >= wanted else 'NOT met'}**")
        else:
            lines.append(f"* {name}: not compared with {limit}: there is no {JDBC} (Debian's libpostgresql-jdbc-java has it)")

    compare("read SQLite", "read Parquet", SQLITE_SHARE)
    compare("read PostgreSQL", "read Parquet", POSTGRESQL_SHARE)
    compare("read PostgreSQL", "read PostgreSQL by JDBC", 1, ahead=True)
    compare("write postgresql", "write postgresql by JDBC", WRITE_SHARE)
    floors = ", ".join(f"{name} {spent:.0f} ms" for name, spent in run.floors.items())
    lines.append(f"* a micro-batch of a few rows takes: {floors}")
    return f"{run.rows:,} messages of {run.size} bytes\n\n" + "\n".join(lines) + "\n"
