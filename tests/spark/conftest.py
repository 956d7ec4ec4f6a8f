"""What all tests of Spark share; the session is that of tests/conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.spark import reading


@pytest.fixture(autouse=True)
def _connections() -> Iterator[None]:
    """Where tests read as an executor does, nobody ends the process, and with it the connections."""
    yield
    while reading.kept:
        reading.kept.popitem()[1].close()
