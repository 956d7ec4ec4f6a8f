"""A declared pipeline with two tables as sinks, beside an archive to a third: in a driver that the tests kill at a commit.

python lakes.py FOLDER URL before|after
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.spark.lakes.delta import DeltaLakeTable
from penstock.spark.lakes.iceberg import IcebergLakeTable
from penstock.spark.lakes.tables import LakeBatch
from penstock.spark.pipelines import archive, run
from penstock.spark.session import session
from penstock.testing.servers import QUICK_JAVA

PIPELINE = """
[source.orders]
queue = "orders"
json = "n int"

[step.numbers]
sql = "SELECT n, n % 2 AS half FROM orders"

[sink.delta]
from = "numbers"
delta = "numbers"
partition = ["half"]

[sink.iceberg]
from = "numbers"
iceberg = "./ware/shop.numbers"
partition = ["half"]

[dead_letters]
queue = "dead"
"""


def main(folder: str, url: str, moment: str) -> None:
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
    for kind in (DeltaLakeTable, IcebergLakeTable):
        kind.commit = held(Path(folder), moment, kind.commit)  # type: ignore[method-assign]
    sys.exit(1 if both(spark, folder, url) else 0)


def held(folder: Path, moment: str, commit: Callable[..., None]) -> Callable[..., None]:
    """The first commit of each table gets as far as the moment, and no further."""

    def hold(self: Any, batch: LakeBatch, files: Any) -> None:
        if moment == "after":
            commit(self, batch, files)
        (folder / "reached" / batch.app).touch()
        time.sleep(3600)

    return hold


def both(spark: SparkSession, folder: str, url: str) -> list[BaseException]:
    """Run the pipeline and the archive; returns their errors."""
    acts: list[Callable[[], object]] = [
        lambda: run(spark, f"{folder}/shop.toml", store=url),
        lambda: archive(spark, url, "archived", f"iceberg:{folder}/ware/shop.archived", once=True),
    ]
    failed: list[BaseException] = []

    def attempt(act: Callable[[], object]) -> None:
        try:
            spark.createDataFrame([], "nothing int")  # makes the session active in this thread
            act()
        except BaseException as error:
            traceback.print_exc()
            failed.append(error)

    threads = [threading.Thread(target=attempt, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


if __name__ == "__main__":
    main(*sys.argv[1:])
