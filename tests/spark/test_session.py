"""The session that Penstock makes: which Python its workers use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import _worker_python


def test_workers_are_of_this_environment_and_import_no_zip(spark: SparkSession) -> None:
    def where(_: int) -> tuple[str, str, str]:
        import py4j
        import pyspark

        return sys.executable, pyspark.__file__, py4j.__file__

    python, found, gateway = spark.sparkContext.parallelize([0], 1).map(where).first()
    assert (python, found) == (sys.executable, pyspark.__file__)
    assert ".zip" not in gateway


def test_workers_of_a_spark_that_is_elsewhere_import_what_it_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _worker_python() != sys.executable
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert _worker_python() == sys.executable


def test_a_worker_connects_before_it_imports_spark(tmp_path: Path) -> None:
    """Spark waits ten seconds for the connection, too short for the import on a busy machine."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()")
    python = _worker_python()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        told = {"PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]), "PYTHON_WORKER_FACTORY_SECRET": "hush"}
        environment = os.environ | told | {"PYTHONPATH": str(tmp_path)}
        worker = subprocess.Popen([python, "-m", "pyspark.worker"], env=environment, stderr=subprocess.DEVNULL)
        with server.accept()[0] as connection:
            assert connection.recv(8, socket.MSG_WAITALL) == b"\0\0\0\4hush"
            assert not (tmp_path / "imported").exists()
            connection.sendall(b"\0\0\0\2ok")
            worker.wait(120)
    assert (tmp_path / "imported").exists()
