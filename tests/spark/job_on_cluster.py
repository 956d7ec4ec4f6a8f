"""A driver on a cluster: python job_on_cluster.py FOLDER URL

It writes a batch and a stream of one batch, whose first attempts fail or are overtaken. Then it runs both queries of faulty.py
until there is a file "stop" in the folder.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from faulty import Queries
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.spark.session import session
from penstock.testing.servers import QUICK_JAVA

ROWS = 2000
TOO_BUSY = "failed to connect back"
"""Spark gives a Python worker ten seconds to start. On a busy machine that may not be enough; the query is started again."""
Attempt = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def main(folder: Path, url: str) -> None:
    spark = session(
        os.environ["PENSTOCK_MASTER"],
        spark__submit__pyFiles=os.environ["PENSTOCK_ZIP"],
        spark__local__dir=f"{folder}/local",
        spark__executor__memory="512m",
        spark__driver__extraJavaOptions=QUICK_JAVA,
        spark__executor__extraJavaOptions=QUICK_JAVA,
        spark__speculation="true",
        spark__speculation__interval="100ms",
        spark__speculation__quantile="0.4",
        spark__speculation__multiplier="1.1",
        spark__speculation__minTaskRuntime="100ms",
        spark__task__maxFailures="20",
        spark__sql__shuffle__partitions="2",
        spark__sql__streaming__pollingDelay="10ms",
        spark__sql__execution__arrow__maxRecordsPerBatch="100",
    )
    spark.sparkContext.setLogLevel("OFF")
    write(spark, folder, url)
    queries = Queries(spark, folder, url, folder / "no faults", once=False)
    starts = [queries.start_lake, queries.start_onward]
    running = [start() for start in starts]
    while not (folder / "stop").exists():
        for place, start in enumerate(starts):
            try:
                running[place].awaitTermination(0.1)
            except StreamingQueryException as error:
                if TOO_BUSY not in str(error):
                    raise
                running[place] = start()
    for query in running:
        query.stop()
    spark.stop()


def write(spark: SparkSession, folder: Path, url: str) -> None:
    def slowly(overtaken: Path) -> Attempt:
        def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """The first attempt of one partition waits until another attempt has all its rows, and then continues anyway."""
            yield from batches
            task = TaskContext.get()
            if task and task.partitionId() == 0 and task.attemptNumber() > 0:
                overtaken.touch()
            give_up_at = time.monotonic() + 60
            while task and task.partitionId() == 0 and not overtaken.exists() and time.monotonic() < give_up_at:
                time.sleep(0.01)

        return attempt

    def badly(failed: Path) -> Attempt:
        def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            """The first attempt of one partition fails after it has written some rows."""
            yield from batches
            task = TaskContext.get()
            if task and task.partitionId() == 1 and task.attemptNumber() == 0:
                failed.touch()
                raise RuntimeError("the first attempt fails")

        return attempt

    rows = spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) body")
    rows.write.parquet(f"{folder}/rows")
    stream = spark.readStream.schema("body string").parquet(f"{folder}/rows").repartition(2)
    for name, how in (("slow", slowly), ("bad", badly)):
        rows.mapInArrow(how(folder / f"{name} attempt"), "body string").write.format("penstock").mode("append").options(
            url=url, queue=name
        ).save()
        tried = stream.mapInArrow(how(folder / f"{name}-stream attempt"), "body string")
        written = tried.writeStream.format("penstock").options(url=url, queue=f"{name}-stream")
        written.option("checkpointLocation", f"{folder}/check-{name}").trigger(availableNow=True).start().awaitTermination()


main(Path(sys.argv[1]), sys.argv[2])
