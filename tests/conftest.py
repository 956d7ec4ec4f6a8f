"""The servers that tests share: started when the first test asks, stopped at the end. In CI a missing one is a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from penstock.testing.servers import MemcachedServer, Missing


@pytest.fixture(scope="session")
def memcached() -> Iterator[MemcachedServer]:
    try:
        server = MemcachedServer()
    except Missing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    with server:
        yield server
