"""The pipelines through Spark Connect, on a server of its own: the client has no Java, and the figures are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock

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
