"""Two queries, queue to Parquet and queue to queue, are killed at every step while ordinary consumers take from the same
queues: every message is in exactly one place.

At each step on each store, the Python process that reaches it dies while Spark continues. Once on each store, a whole driver
dies with all its processes. With PENSTOCK_LONG=1, 36 drivers die on each store, in more than half an hour."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import faulty
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from traffic import Traffic, read_all

import penstock

STORES = ["sqlite", "postgresql"]
LONG = bool(os.environ.get("PENSTOCK_LONG"))
AT_RANDOM = "at random"
ONE = {"sqlite": "in write", "postgresql": "before sink commit"}
SPARKS_OWN = b"java.util.HashMap.readObject"
"""A race in Spark itself: when two queries start at once, one changes the environment of Python workers while a task of the
other is being serialized."""
TOO_BUSY = b"failed to connect back"
"""Spark gives a Python worker ten seconds to start. On a busy machine that may not be enough."""


@pytest.mark.timeout(900)
def test_a_process_may_die_at_every_step(url: str, tmp_path: Path, spark: SparkSession) -> None:
    cloudpickle.register_pickle_by_value(faulty)  # Spark's workers cannot import it
    with penstock.open(url) as broker:
        with Traffic(broker, ["in"]) as traffic:
            for step in faulty.STEPS:
                faults = arm(tmp_path, step)
                query = faulty.Queries(spark, tmp_path, url, faults, once=False).start_onward()
                with pytest.raises(StreamingQueryException):
                    query.awaitTermination(120)
                assert (faults / "fired").exists(), query.exception()
        traffic.check(read_all(spark, traffic, tmp_path, url))


@pytest.mark.timeout(3000)
def test_whatever_dies_every_message_is_in_exactly_one_place(url: str, tmp_path: Path, spark: SparkSession) -> None:
    cloudpickle.register_pickle_by_value(faulty)
    chance = random.Random(11)
    deaths = [*faulty.STEPS, AT_RANDOM] * 4 if LONG else [ONE[url.partition(":")[0]]]
    chance.shuffle(deaths)
    with penstock.open(url) as broker:
        with Traffic(broker) as traffic:
            for step in deaths:
                die(tmp_path, url, step, chance)
        traffic.check(read_all(spark, traffic, tmp_path, url))


def arm(folder: Path, step: str) -> Path:
    """Use a new folder for each death, since workers may outlive their driver for a while."""
    faults = folder / f"faults-{len(list(folder.glob('faults-*')))}"
    faults.mkdir()
    if step != AT_RANDOM:
        (faults / "arm").write_text(step)
    return faults


def die(folder: Path, url: str, step: str, chance: random.Random) -> None:
    """Run both queries in a driver until it is killed at this step."""
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": path}
    log = folder / "job.log"
    for _ in range(3):
        faults = arm(folder, step)
        with log.open("wb") as file:
            command = [sys.executable, f"{here}/job.py", str(folder), url, str(faults)]
            job = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        if step == AT_RANDOM:
            await_(lambda: (faults / "pids").exists() or job.poll() is not None, log)  # noqa: B023
            time.sleep(chance.uniform(0.5, 8))
            for pid in (faults / "pids").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            status = job.wait(timeout=600)
        finally:
            job.kill()
            job.wait()
        if not any(known in log.read_bytes() for known in (SPARKS_OWN, TOO_BUSY)):
            break
    assert status == -signal.SIGKILL, log.read_text()[-4000:]
    assert step == AT_RANDOM or (faults / "fired").exists()


def await_(true: object, log: Path) -> None:
    give_up_at = time.monotonic() + 600
    while not true():  # type: ignore[operator]
        assert time.monotonic() < give_up_at, log.read_text()[-4000:]
        time.sleep(0.02)
