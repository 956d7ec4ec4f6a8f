"""A driver whose executors see neither its files nor its environment: python job_far_away.py FOLDER FILE_URL SERVER_URL

It prints what each job did, or the error as people see it, as one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from pyspark.sql import SparkSession

from penstock.spark.pipelines.access import source_options
from penstock.spark.pipelines.failures import readable
from penstock.spark.reaching import await_executors
from penstock.spark.session import session
from penstock.testing.servers import QUICK_JAVA


def main(folder: str, file: str, server: str) -> None:
    spark = session(
        os.environ["PENSTOCK_MASTER"],
        spark__submit__pyFiles=os.environ["PENSTOCK_ZIP"],
        spark__local__dir=f"{folder}/local",
        spark__executor__memory="512m",
        spark__driver__extraJavaOptions=QUICK_JAVA,
        spark__executor__extraJavaOptions=QUICK_JAVA,
        spark__sql__shuffle__partitions="1",
        spark__sql__streaming__pollingDelay="10ms",
    )
    spark.sparkContext.setLogLevel("OFF")
    assert await_executors(spark)
    rows = spark.createDataFrame([("new",)], "body string")
    far = spark.read.format("penstock").options(url=file, queue="jobs")
    done = {
        "partitions": far.options(**source_options(spark, file, "jobs")).load().rdd.getNumPartitions(),
        "read a file": told(lambda: far.load().count()),
        "write a file": told(lambda: rows.write.format("penstock").mode("append").options(url=file, queue="jobs").save()),
        "stream a file": told(lambda: stream(spark, file, f"{folder}/check-file")),
        "write with a token": told(
            lambda: rows.write.format("penstock").mode("append").options(url=server, queue="jobs").save()
        ),
        "read with a token": told(lambda: spark.read.format("penstock").options(url=server, queue="jobs").load().count()),
        "stream with a token": told(lambda: stream(spark, server, f"{folder}/check-server")),
    }
    print(json.dumps(done), flush=True)
    spark.stop()


def stream(spark: SparkSession, url: str, checkpoint: str) -> int:
    frame = spark.readStream.format("penstock").options(url=url, queue="jobs", maxMessagesPerTrigger="10").load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(source["numInputRows"] for event in query.recentProgress for source in event["sources"])


def told(act: Callable[[], object]) -> object:
    try:
        return act()
    except Exception as error:
        return str(readable(error))


main(*sys.argv[1:])
