"""A driver that the tests kill: queue to Parquet and queue to queue, side by side, until killed or (``once``) all is read.

python job.py FOLDER URL [once]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from faulty import DefaultSource

from penstock.spark.session import session


def main(folder: str, url: str, *how: str) -> None:
    shipped = os.environ.get("PENSTOCK_ZIP")
    spark = session(
        os.environ.get("PENSTOCK_MASTER", "local[2]"),
        spark__sql__shuffle__partitions="2",
        spark__local__dir=f"{folder}/local",
        spark__sql__streaming__pollingDelay="10ms",
        spark__driver__extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        spark__executor__memory="512m",
        **({"spark__submit__pyFiles": shipped} if shipped else {}),
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(DefaultSource)
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "java"], capture_output=True, text=True, check=True).stdout
    Path(folder, "pids").write_text(f"{os.getpid()} {children}")

    def read(queue: str):
        options = {"url": url, "queue": queue, "minPartitions": "2", "claimTimeout": "10"}
        options["maxMessagesPerTrigger"] = "5000" if how else "150"
        return spark.readStream.format("faulty").options(**options).load()

    trigger = {"availableNow": True} if how else {"processingTime": "0 seconds"}
    lake = read("lake").selectExpr("id", "cast(body as string) body")
    lake = lake.writeStream.format("parquet").option("path", f"{folder}/lake")
    lake = lake.option("checkpointLocation", f"{folder}/check-lake").trigger(**trigger).start()
    onward = read("in").select("body", "content_type")
    onward = onward.writeStream.format("faulty").options(url=url, queue="out")
    onward = onward.option("checkpointLocation", f"{folder}/check-out").trigger(**trigger).start()
    lake.awaitTermination()
    onward.awaitTermination()


main(*sys.argv[1:])
