"""The pipelines through Spark Connect, on a server of its own: the client has no Java, and the figures are the same."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

import penstock
from penstock.spark.java import find_java

PIPELINE = """
[source.orders]
queue = "orders"
json = "n int"

[check.orders]
where = "n >= 0"
reason = "n is negative"

[step.big]
sql = "SELECT n FROM orders WHERE n > 1"

[sink.big]
from = "big"
queue = "big"

[dead_letters]
queue = "dead"
"""


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
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


@pytest.mark.timeout(300)
def test_pipelines_run_through_spark_connect(tmp_path: Path, remote: str) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    (tmp_path / "pipeline.toml").write_text(PIPELINE)

    def run(*words: str) -> Any:
        command = [sys.executable, "-m", "penstock.cli", "pipeline", *words, "--remote", remote, "--json"]
        environment = os.environ | {"PENSTOCK_STORE": url, "JAVA_HOME": "/nowhere"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    with penstock.open(url) as broker:
        for name in ("orders", "again", "big", "dead"):
            broker.create(name)
        broker["orders"].send_many([json.dumps({"n": n}).encode() for n in (-1, 1, 2, 3)])
        assert run("archive", "orders", "lake", "--once")["rows"] == 4
        assert run("load", "lake", "orders")["rows"] == 4
        assert run("run", "pipeline.toml", "--once")["taken"] == 4
        assert sorted(json.loads(message.body)["n"] for message in broker["big"].peek(10)) == [2, 3]
        assert run("redrive", "dead", "--to", "again", "--where", "reason = 'n is negative'")["moved"] == {"again": 1}
        assert [json.loads(message.body) for message in broker["again"].peek(10)] == [{"n": -1}]
        assert broker["orders"].stats().messages == broker["dead"].stats().messages == 0
