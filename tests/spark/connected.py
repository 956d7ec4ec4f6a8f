"""Reads a queue into another through Spark Connect, whose server this starts: python connected.py FOLDER URL"""

from __future__ import annotations

import os
import sys

from penstock.spark.java import find_java
from penstock.spark.session import session


def main(folder: str, url: str) -> None:
    os.environ.setdefault("JAVA_HOME", find_java())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = session(remote="local[2]")
    assert "connect" in type(spark).__module__
    print(spark.read.format("penstock").options(url=url, queue="in").load().count())
    stream = spark.readStream.format("penstock").options(url=url, queue="in").load().select("body", "attributes")
    query = stream.writeStream.format("penstock").options(url=url, queue="out")
    query.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    spark.stop()


main(*sys.argv[1:])
