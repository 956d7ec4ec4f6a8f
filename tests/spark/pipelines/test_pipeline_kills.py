"""kill -9 of the commands run and redrive, with their Java; another driver continues, and nothing is lost or duplicated.

Once each by default, ten times with PENSTOCK_LONG=1."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.message import Draft
from penstock.spark import pipelines
from penstock.testing.servers import QUICK_JAVA

KILLS = 10 if os.environ.get("PENSTOCK_LONG") else 1
MOMENTS = (
    "take/orders/offsets",
    "landed/orders",
    "take/orders/commits",
    "sink/lake/offsets",
    "sink/lake/commits",
    "sink/onward/offsets",
    "sink/onward/commits",
    "dead/orders/offsets",
    "dead/orders/commits",
)
PIPELINE = """
[source.orders]
queue = "orders"
json = "n int"
options = { maxMessagesPerTrigger = 150, claimTimeout = 3 }

[check.orders]
where = "n % 10 <> 0"
reason = "round"

[step.numbers]
sql = "SELECT n FROM orders"

[sink.lake]
from = "numbers"
parquet = "lake"

[sink.onward]
from = "numbers"
queue = "onward"

[dead_letters]
queue = "dead"
"""


class Driver:
    """A command in a separate process, which can be killed with all its children."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        fast = {"JDK_JAVA_OPTIONS": QUICK_JAVA, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, "-m", "penstock.cli", "--store", url, "pipeline", *arguments, "--master", "local[2]"]
        self._log = folder / "driver.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=os.environ | fast, stdout=log, stderr=log, start_new_session=True)

    def kill_when(self, reached: Callable[[], bool]) -> bool:
        """kill -9 it, unless it has ended already."""
        give_up_at = time.monotonic() + 800
        try:
            while not reached():
                if self._process.poll() is not None:
                    return False
                assert time.monotonic() < give_up_at, self._log.read_text()[-3000:]
                time.sleep(0.005)
        finally:
            if self._process.poll() is None:
                for pid in (str(self._process.pid), *_below(self._process.pid)):
                    os.kill(int(pid), signal.SIGKILL)
                self._process.wait()
        return True


def _below(pid: int) -> list[str]:
    """The Java process, which would outlive its driver and finish the batch; its Python workers end with it."""
    return subprocess.run(["pgrep", "-P", str(pid), "java"], capture_output=True, text=True, check=False).stdout.split()


@pytest.mark.timeout(3000)
def test_a_run_that_is_killed_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    file, home = tmp_path / "shop.toml", tmp_path / "shop-checkpoint"
    file.write_text(PIPELINE)
    chance, sent, kills, moments = random.Random(), 0, 0, []

    def files(moment: str) -> int:
        folder = home / moment
        return sum(not file.name.startswith(".") for file in folder.iterdir()) if folder.exists() else 0

    with penstock.open(url) as broker:
        orders, dead, onward = (broker.create(name) for name in ("orders", "dead", "onward"))
        while kills < KILLS:
            orders.send_many([Draft(json.dumps({"n": n}).encode()) for n in range(sent, sent + 400)])
            sent += 400
            moments = moments or chance.sample(MOMENTS, len(MOMENTS))
            moment = moments.pop()
            before, pause = files(moment), chance.choice([0, 0, 0.02, 0.1, 0.3, 1])

            def reached(moment: str = moment, before: int = before, pause: float = pause) -> bool:
                if files(moment) <= before:
                    return False
                time.sleep(pause)
                return True

            kills += Driver(tmp_path, url, "run", str(file)).kill_when(reached)
        for _ in range(5):  # a claim that was never logged lapses after a while
            pipelines.run(spark, file, store=url)
            if not orders.stats().messages:
                break
            time.sleep(1)
        good = Counter(n for n in range(sent) if n % 10)
        assert orders.stats().messages == 0
        assert Counter(row["n"] for row in spark.read.parquet(f"{tmp_path}/lake").collect()) == good
        assert Counter(json.loads(message.body)["n"] for message in onward.peek(100_000)) == good
        letters = Counter(json.loads(message.body)["n"] for message in dead.peek(100_000))
        assert letters == Counter(range(0, sent, 10))
        assert list((home / "landed" / "orders").rglob("*.parquet")) == []


@pytest.mark.timeout(3000)
def test_a_redrive_that_is_killed_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/work.db"
    count, chance, kills = 400 * (KILLS + 1), random.Random(), 0
    with penstock.open(url) as broker:
        work = broker.create("work")
        dead = broker.create("dead")
        for first in range(0, count, 400):
            dead.send_many(
                Draft(json.dumps({"n": n}).encode(), attributes={"queue": "work", "reason": "so"})
                for n in range(first, first + 400)
            )
        even = "json:n::int % 2 = 0"
        while kills < KILLS:
            enough = work.stats().messages + chance.randint(1, 150)
            driver = Driver(tmp_path, url, "redrive", "dead", "--where", even, "--rate", "100")
            kills += driver.kill_when(lambda enough=enough: work.stats().messages >= enough)  # type: ignore[misc]
        assert 0 < work.stats().messages < count / 2
        pipelines.redrive(spark, url, "dead", where=even)
        assert Counter(json.loads(message.body)["n"] for message in work.peek(100_000)) == Counter(range(0, count, 2))
        left = dead.peek(100_000)
        assert Counter(json.loads(message.body)["n"] for message in left) == Counter(range(1, count, 2))
        assert {message.receives for message in left} == {0}
