"""The servers that tests share: started when the first test asks, stopped at the end. In CI a missing one is a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeVar

import pytest

from penstock.testing.servers import MariadbServer, MemcachedServer, Missing, PostgresqlServer, Server

AnyServer = TypeVar("AnyServer", bound=Server | MemcachedServer)


def start(kind: type[AnyServer]) -> Iterator[AnyServer]:
    try:
        server = kind()
    except Missing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    yield from start(PostgresqlServer)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Server]:
    yield from start(MariadbServer)


@pytest.fixture(scope="session")
def memcached() -> Iterator[MemcachedServer]:
    yield from start(MemcachedServer)
