"""How tests start a real server: if it is missing, they are skipped on a laptop and fail in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeVar

import pytest

from penstock.testing.servers import DatabaseServer, MemcachedServer, Missing

AnyServer = TypeVar("AnyServer", bound=DatabaseServer | MemcachedServer)


def start(kind: type[AnyServer]) -> Iterator[AnyServer]:
    try:
        server = kind()
    except Missing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    with server:
        yield server
