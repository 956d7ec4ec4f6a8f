"""Archive, load, move and dedupe side by side, each until all is done, in a driver that the tests kill.

python transfers.py FOLDER URL TO_URL
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.load import load
from penstock.spark.pipelines.move import dedupe, move
from penstock.spark.session import session
from penstock.testing.servers import QUICK_JAVA

SMALL = {"maxMessagesPerTrigger": "60", "claimTimeout": "10"}


def main(folder: str, url: str, to: str) -> None:
    spark = session(
        "local[2]",
        spark__sql__shuffle__partitions="1",
        spark__local__dir=f"{folder}/local",
        spark__sql__streaming__pollingDelay="10ms",
        spark__driver__extraJavaOptions=QUICK_JAVA,
    )
    spark.sparkContext.setLogLevel("OFF")
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "java"], capture_output=True, text=True, check=True).stdout
    Path(folder, "pids").write_text(f"{os.getpid()} {children}")
    sys.exit(1 if transfer(spark, folder, url, to) else 0)


def transfer(spark: SparkSession, folder: str, url: str, to: str) -> list[BaseException]:
    """Run all four; returns their errors."""
    acts: list[Callable[[], object]] = [
        lambda: archive(spark, url, "archived-*", f"{folder}/lake", once=True, **SMALL),
        lambda: load(spark, f"{folder}/rows", url, "loaded", checkpoint=f"{folder}/load", maxFilesPerTrigger="1"),
        lambda: prove(move(spark, url, "moving", to, "moved", checkpoint=f"{folder}/move", **SMALL)),
        lambda: dedupe(spark, url, "doubled", "single", by="body", checkpoint=f"{folder}/dedupe", **SMALL),
    ]
    failed: list[BaseException] = []
    threads = [threading.Thread(target=run, args=(spark, act, failed)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def prove(moved: object) -> None:
    assert moved.proven, moved  # type: ignore[attr-defined]


def run(spark: SparkSession, act: Callable[[], object], failed: list[BaseException]) -> None:
    try:
        spark.createDataFrame(
            [], "nothing int"
        )  # makes the session active in this thread: otherwise Spark finds no sink by name
        act()
    except BaseException as error:
        traceback.print_exc()
        failed.append(error)


if __name__ == "__main__":
    main(*sys.argv[1:])
