"""Spark Connect: the source and the sink, the pipelines, and Spark's own Declarative Pipelines all work. They share the one
server that a session starts for itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import penstock

EXAMPLE = Path(__file__).parents[2] / "examples/declarative"
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
COMMANDS = [
    ["archive", "orders", "lake", "--once"],
    ["load", "lake", "orders"],
    ["run", "pipeline.toml", "--once"],
    ["redrive", "dead", "--to", "again", "--where", "reason = 'n is negative'"],
]
RUN_ALL = """
import sys, json
from penstock.cli import main
for words in json.loads(sys.argv[1]):
    if code := main(words):
        sys.exit(code)
"""


@dataclass
class Server:
    url: str
    queues: str
    """The store in which the client that started it read the queue "in" into "out"."""
    seen: int
    environment: dict[str, str]
    """For other clients."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    queues = f"sqlite:///{folder}/queue.db"
    with penstock.open(queues) as broker:
        source, _ = broker.create("in"), broker.create("out")
        source.send(b"\x00one", attributes={"kind": "order"})
        source.send_many([b"two", b"three"])
    # With SPARK_TESTING the server takes a free port instead of a fixed one.
    secret = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONNECT_AUTHENTICATE_TOKEN": "a token of the tests"}
    command = [sys.executable, Path(__file__).parent / "connected.py", folder, queues]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            command, env=os.environ | secret | {"SPARK_TESTING": "yes"}, cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout.readline().split()
        assert len(said) == 2, (folder / "log").read_text()[-4000:]
        yield Server(f"sc://localhost:{said[1]}", queues, int(said[0]), os.environ | secret)
        process.stdin.close()
        assert process.wait(60) == 0, (folder / "log").read_text()[-4000:]


@pytest.mark.timeout(900)
def test_a_queue_flows_into_another(server: Server) -> None:
    assert server.seen == 3
    with penstock.open(server.queues) as broker:
        arrived = broker["out"].peek(10)
        assert sorted(message.body for message in arrived) == [b"\x00one", b"three", b"two"]
        assert {str(message.attributes.get("kind")) for message in arrived} == {"order", "None"}
        assert broker["in"].stats().messages == 0


@pytest.mark.timeout(900)
def test_pipelines_run_where_the_client_has_no_java(server: Server, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    with penstock.open(url) as broker:
        for name in ("orders", "again", "big", "dead"):
            broker.create(name)
        broker["orders"].send_many([json.dumps({"n": n}).encode() for n in (-1, 1, 2, 3)])
        commands = [["pipeline", *words, "--remote", server.url, "--json"] for words in COMMANDS]
        done = run(
            [sys.executable, "-c", RUN_ALL, json.dumps(commands)], server, tmp_path, PENSTOCK_STORE=url, JAVA_HOME="/nowhere"
        )
        archived, loaded, ran, redriven = map(json.loads, done.stdout.splitlines())
        assert archived["rows"] == loaded["rows"] == ran["taken"] == 4
        assert redriven["moved"] == {"again": 1}
        assert sorted(json.loads(message.body)["n"] for message in broker["big"].peek(10)) == [2, 3]
        assert [json.loads(message.body) for message in broker["again"].peek(10)] == [{"n": -1}]
        assert broker["orders"].stats().messages == broker["dead"].stats().messages == 0


@pytest.mark.timeout(900)
def test_a_declarative_pipeline_reads_a_queue_and_writes_one(server: Server, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "pipeline")
    spec = tmp_path / "pipeline/spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///data", f"file://{tmp_path}"))
    url = f"sqlite:///{tmp_path}/shop.db"
    with penstock.open(url) as broker:
        source, target = broker.create("orders"), broker.create("packing")
        source.send_many([b"tea", b"cup"])
        pipelines = Path(sys.executable).parent / "spark-pipelines"
        run(
            [pipelines, "--remote", server.url, "run", "--spec", spec],
            server,
            tmp_path,
            PENSTOCK_STORE=url,
            PYSPARK_PYTHON=sys.executable,
        )
        assert sorted(message.body for message in target.peek(10)) == [b"pack cup", b"pack tea"]
        assert source.stats().messages == 0


def run(command: list[Any], server: Server, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = server.environment | environment
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done
