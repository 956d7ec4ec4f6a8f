"""A Spark session that works wherever this Python does: it finds Java, and runs Spark's workers in this environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from penstock.errors import MissingExtra
from penstock.spark.java import find_java
from penstock.spark.options import PARALLELISM
from penstock.spark.reaching import check_master, check_remote

try:
    import pyspark
    from pyspark.find_spark_home import _find_spark_home
    from pyspark.sql import SparkSession
except ImportError as error:
    raise MissingExtra("Spark", "spark") from error


def session(master: str = "local[*]", *, remote: str | None = None, name: str = "penstock", **config: str) -> SparkSession:
    """A session on ``master``, or through Spark Connect at ``remote``: sc://host:port, or local[2] to start a server. In
    settings __ stands for a dot: ``spark__sql__shuffle__partitions="4"``."""
    builder = SparkSession.builder.appName(name)
    if remote is None:
        check_master(master)
    elif not remote.startswith("local"):
        check_remote(remote)
    if remote is None or remote.startswith("local"):  # Spark, or the server of Spark Connect, runs here
        os.environ["JAVA_HOME"] = find_java()
        os.environ.setdefault("PYSPARK_PYTHON", _worker_python() if (remote or master).startswith("local") else sys.executable)
        os.environ[PARALLELISM] = str(_parallelism(remote or master, config) or "")
    if remote is not None:
        builder = builder.remote(remote)
    else:
        builder = builder.master(master).config("spark.ui.enabled", "false")
        if master.startswith("local"):
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.python.filterPushdown.enabled", "true")
    # A driver killed while Spark writes its first offsets leaves a stray file, at which Spark would refuse to start again.
    builder = builder.config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    for setting, value in config.items():
        builder = builder.config(setting.replace("__", "."), value)
    return builder.getOrCreate()


def _parallelism(master: str, config: Mapping[str, str]) -> int | None:
    """How many tasks run at a time, as far as that is known before Spark starts."""
    known = {name: int(value) for name, value in config.items() if value.isdecimal()}
    cores = known.get("spark__executor__instances", 0) * known.get("spark__executor__cores", 1)
    if told := known.get("spark__default__parallelism") or known.get("spark__cores__max") or cores:
        return told
    if found := re.match(r"local\[(\d+|\*)", master):
        return os.cpu_count() if found[1] == "*" else int(found[1])
    return 1 if master == "local" else None


def _worker_python() -> str:
    """This Python; if Spark is installed in this environment, through a script that skips Spark's zipped copy of itself."""
    quick = Path(__file__).with_name("worker-python")
    if Path(_find_spark_home()).resolve() != Path(pyspark.__file__).parent.resolve() or not os.access(quick, os.X_OK):
        return sys.executable
    os.environ["PENSTOCK_WORKER_PYTHON"] = sys.executable
    return str(quick)
