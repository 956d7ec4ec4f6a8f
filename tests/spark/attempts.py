"""Writes a batch, and a stream of one batch, whose first attempts fail or are overtaken: python attempts.py FOLDER URL"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from penstock.spark.session import session

ROWS = 2000


def main(folder: str, url: str) -> None:
    spark = session(
        os.environ["PENSTOCK_MASTER"],
        spark__submit__pyFiles=os.environ["PENSTOCK_ZIP"],
        spark__executor__memory="512m",
        spark__speculation="true",
        spark__speculation__interval="100ms",
        spark__speculation__quantile="0.4",
        spark__speculation__multiplier="1.1",
        spark__speculation__minTaskRuntime="100ms",
        spark__sql__execution__arrow__maxRecordsPerBatch="100",
    )
    spark.sparkContext.setLogLevel("OFF")

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first attempt of one partition sleeps, and writes all the same, later."""
        yield from batches
        task = TaskContext.get()
        if task and task.partitionId() == 0 and task.attemptNumber() == 0:
            time.sleep(15)

    def badly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first attempt of one partition fails after it has written some."""
        yield from batches
        task = TaskContext.get()
        if task and task.partitionId() == 1 and task.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")

    rows = spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) body")
    for queue, how in (("slow", slowly), ("bad", badly)):
        rows.mapInArrow(how, "body string").write.format("penstock").mode("append").options(url=url, queue=queue).save()

    rows.write.parquet(f"{folder}/rows")
    stream = spark.readStream.schema("body string").parquet(f"{folder}/rows").repartition(2)
    for queue, how in (("slow-stream", slowly), ("bad-stream", badly)):
        written = stream.mapInArrow(how, "body string").writeStream.format("penstock").options(url=url, queue=queue)
        written.option("checkpointLocation", f"{folder}/check-{queue}").trigger(availableNow=True).start().awaitTermination()
    spark.stop()


main(*sys.argv[1:])
