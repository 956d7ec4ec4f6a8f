"""Starts a Spark Connect server, copies one queue into another through it, and keeps the server up until stdin ends.

python connected.py FOLDER URL

It prints how many messages it saw, and the server's port.
"""

from __future__ import annotations

import sys

from pyspark.sql.connect.client import DefaultChannelBuilder

from penstock.spark.session import session
from penstock.testing.servers import QUICK_JAVA


def main(folder: str, url: str) -> None:
    spark = session(
        remote="local[2]",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        spark__driver__extraJavaOptions=QUICK_JAVA,
        spark__local__dir=f"{folder}/local",
        spark__sql__shuffle__partitions="2",
        spark__sql__streaming__pollingDelay="10ms",
        spark__sql__warehouse__dir=f"{folder}/warehouse",
        spark__ui__enabled="false",
    )
    assert "connect" in type(spark).__module__
    seen = spark.read.format("penstock").options(url=url, queue="in").load().count()
    stream = spark.readStream.format("penstock").options(url=url, queue="in").load().select("body", "attributes")
    query = stream.writeStream.format("penstock").options(url=url, queue="out")
    query.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    print(seen, DefaultChannelBuilder.default_port(), flush=True)
    sys.stdin.read()
    spark.stop()


main(*sys.argv[1:])
