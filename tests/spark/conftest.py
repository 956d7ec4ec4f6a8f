"""One Spark session for all tests of Spark: it takes long to start."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.spark import reading
from penstock.spark.session import session


@pytest.fixture(autouse=True)
def _connections() -> Iterator[None]:
    """Where tests read as an executor does, nobody ends the process, and with it the connections."""
    yield
    while reading.kept:
        reading.kept.popitem()[1].close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    found = session(
        "local[2]",
        name="tests",
        spark__sql__shuffle__partitions="2",
        spark__sql__warehouse__dir=str(tmp_path_factory.mktemp("warehouse")),
        spark__local__dir=str(tmp_path_factory.mktemp("spark")),
        spark__sql__streaming__pollingDelay="10ms",
    )
    found.sparkContext.setLogLevel("OFF")
    yield found
    found.stop()
