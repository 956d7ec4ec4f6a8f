"""The servers that tests share: started when the first test asks, stopped at the end. In CI a missing one is a failure."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from starting import start

from penstock.testing.servers import MariadbServer, MemcachedServer, PostgresqlServer, Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure() -> None:
    """One seed for the random plans of a run; the processes that xdist starts inherit it."""
    os.environ.setdefault("PENSTOCK_SEED", str(secrets.randbelow(2**32)))


def pytest_report_header() -> str:
    return f"random plans: PENSTOCK_SEED={os.environ['PENSTOCK_SEED']}"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    yield from start(PostgresqlServer)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    yield from start(MariadbServer)


@pytest.fixture(scope="session")
def memcached() -> Iterator[MemcachedServer]:
    yield from start(MemcachedServer)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests in this process: it takes long to start."""
    from penstock.spark.session import session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    found = session(
        "local[2]",
        name="tests",
        spark__sql__shuffle__partitions="2",
        spark__sql__warehouse__dir=str(tmp_path_factory.mktemp("warehouse")),
        spark__local__dir=str(tmp_path_factory.mktemp("spark")),
        spark__sql__streaming__pollingDelay="10ms",
        spark__driver__extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # quick to start, and quick enough
    )
    found.sparkContext.setLogLevel("OFF")
    yield found
    found.stop()
