"""What all tests of Spark share; the session is that of tests/conftest.py."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import penstock
from penstock.server import BackgroundServer, ServerSettings
from penstock.spark import reading
from penstock.spark.java import find_java


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
    """Where tests read as an executor does, nobody ends the process, and with it the connections."""
    yield
    while reading.kept:
        reading.kept.popitem()[1].close()


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """A Spark Connect server of this test's own; the one that Spark starts by itself is always on port 15002."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {
        "spark.master": "local[2]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(tmp_path / "spark"),
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    flags = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environment = os.environ | {"JAVA_HOME": find_java(), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [submit, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *flags, "spark-internal"],
            env=environment, cwd=tmp_path, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        give_up_at = time.monotonic() + 90
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < give_up_at, (tmp_path / "server.log").read_text()[-3000:]
                time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)
