"""What all Spark tests share; tests/conftest.py has the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.server import BackgroundServer, ServerSettings
from penstock.spark import reading


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take a URL run on each store that their module names."""
    if "url" in metafunc.fixturenames and hasattr(metafunc.module, "STORES"):
        metafunc.parametrize("url", metafunc.module.STORES, indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgresql":
        yield request.getfixturevalue("postgresql").new_url()
    elif request.param == "http":
        with (
            penstock.open(f"sqlite:///{tmp_path}/behind.db") as behind,
            BackgroundServer(behind, ServerSettings(port=0, access_log=False)) as server,
        ):
            yield server.url
    else:
        yield f"{request.param}:///{tmp_path}/queue"


@pytest.fixture(autouse=True)
def _connections() -> Iterator[None]:
    """Tests that read like an executor run in a process that stays, so close its connections."""
    yield
    while reading.kept:
        reading.kept.popitem()[1].close()
