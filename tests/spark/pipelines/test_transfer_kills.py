"""SIGKILL of a driver that runs all restartable pipelines side by side; another driver finishes them, and nothing is lost or
duplicated. Killed once by default, ten times with PENSTOCK_LONG=1."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession
from transfers import transfer

import penstock
from penstock.message import Message

KILLS = 10 if os.environ.get("PENSTOCK_LONG") else 1
COUNT = 300 * KILLS
DOUBLED = [f"doubled {number % (COUNT // 2)}" for number in range(COUNT)]


def start(folder: Path, *urls: str) -> subprocess.Popen[bytes]:
    (folder / "pids").unlink(missing_ok=True)
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "job.log").open("ab") as log:
        command = [sys.executable, str(Path(__file__).parent / "transfers.py"), str(folder), *urls]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def kill(folder: Path, job: subprocess.Popen[bytes], chance: random.Random) -> bool:
    """Kill it at a random moment, after some batches; returns False if it had already ended."""
    enough = batches(folder) + chance.randint(1, 12)
    give_up_at = time.monotonic() + 400
    while job.poll() is None and batches(folder) < enough:
        assert time.monotonic() < give_up_at, (folder / "job.log").read_text()[-4000:]
        time.sleep(0.02)
    try:
        job.wait(chance.uniform(0, 1))
    except subprocess.TimeoutExpired:
        for pid in (folder / "pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    return job.wait(60) == -signal.SIGKILL


def batches(folder: Path) -> int:
    """How many batches all pipelines have begun and ended, according to their checkpoints."""
    checkpoints = ("lake/_penstock/checkpoints/*", "load/load", "move/move", "dedupe/dedupe")
    logs = [f"{checkpoint}/{kind}/*" for checkpoint in checkpoints for kind in ("offsets", "commits")]
    return sum(path.name.isdecimal() for log in logs for path in folder.glob(log))


def await_lapsed(broker: penstock.Broker) -> None:
    """Wait until claims that Spark had not logged have lapsed; at most the ten seconds of a claim."""
    lapsed_at = time.monotonic() + 10.5
    while time.monotonic() < lapsed_at and any(
        not claim.confirmed
        for name in ("archived-a", "archived-b", "moving", "doubled")
        for claims in broker[name].readers().values()
        for claim in claims
    ):
        time.sleep(0.05)


def texts(messages: Iterable[Message]) -> Counter[str]:
    return Counter(message.text for message in messages)


def numbered(name: str) -> list[str]:
    return [f"{name} {number}" for number in range(COUNT)]


@pytest.mark.timeout(3000 if KILLS > 1 else 900)
def test_a_pipeline_that_is_killed_goes_on_and_nothing_is_lost_or_doubled(spark: SparkSession, tmp_path: Path) -> None:
    url, to = f"sqlite:///{tmp_path}/queue.db", f"vsqs:///{tmp_path}/other"
    chance = random.Random(8)
    (tmp_path / "rows").mkdir()
    for start_at in range(0, COUNT, 40):
        lines = "\n".join(numbered("loaded")[start_at : start_at + 40])
        (tmp_path / "rows" / f"{start_at:05}.txt").write_text(f"{lines}\n")
    with penstock.open(url) as broker, penstock.open(to) as other:
        for name in ("archived-a", "archived-b", "moving"):
            broker.create(name).send_many([body.encode() for body in numbered(name)])
        broker.create("doubled").send_many([body.encode() for body in DOUBLED])
        broker.create("loaded"), broker.create("single"), other.create("moved")
        killed = sum(kill(tmp_path, start(tmp_path, url, to), chance) for _ in range(KILLS))
        assert killed > 0, "it was too quick to be killed"
        await_lapsed(broker)
        assert transfer(spark, str(tmp_path), url, to) == []

        rows = pyarrow.dataset.dataset(tmp_path / "lake", format="parquet", partitioning="hive").to_table(["body"])
        archived = Counter(body.decode() for body in rows["body"].to_pylist())
        left = {name: texts(broker[name].peek(100_000)) for name in ("archived-a", "archived-b", "moving", "doubled")}
        archived += left["archived-a"] + left["archived-b"]  # claims that lapsed during the last run are left for the next
        assert archived == Counter(numbered("archived-a") + numbered("archived-b"))
        assert texts(broker["loaded"].peek(100_000)) == Counter(numbered("loaded"))
        assert texts(other["moved"].peek(100_000)) + left["moving"] == Counter(numbered("moving"))
        single = texts(broker["single"].peek(100_000))
        assert set(single.values()) == {1}
        assert single.keys() | left["doubled"].keys() == set(DOUBLED)
        print(f"killed {killed} times")
