"""A Spark session that works wherever this Python does: Java is found, and Spark's workers run in this environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from penstock.spark.java import find_java


def session(master: str = "local[*]", *, remote: str | None = None, name: str = "penstock", **config: str) -> SparkSession:
    """A session on ``master``, or through Spark Connect at ``remote``: sc://host:port, or local[2] for a server that is started
    for it. Settings have __ for a dot: ``spark__sql__shuffle__partitions="4"``."""
    builder = SparkSession.builder.appName(name)
    if remote is None or remote.startswith("local"):  # Spark runs here: then Spark Connect starts a server of its own
        os.environ["JAVA_HOME"] = find_java()
        os.environ.setdefault("PYSPARK_PYTHON", _worker_python() if (remote or master).startswith("local") else sys.executable)
    if remote is not None:
        builder = builder.remote(remote)
    else:
        builder = builder.master(master).config("spark.ui.enabled", "false")
        if master.startswith("local"):
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.python.filterPushdown.enabled", "true")
    # Who is killed while Spark writes its first offsets leaves a file that is none; by itself Spark then refuses to go on.
    builder = builder.config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    for setting, value in config.items():
        builder = builder.config(setting.replace("__", "."), value)
    return builder.getOrCreate()


def _worker_python() -> str:
    """This Python; and if Spark itself is of this environment, without a second copy of it."""
    quick = Path(__file__).with_name("worker-python")
    if Path(_find_spark_home()).resolve() != Path(pyspark.__file__).parent.resolve() or not os.access(quick, os.X_OK):
        return sys.executable
    os.environ["PENSTOCK_WORKER_PYTHON"] = sys.executable
    return str(quick)
