"""On a standalone cluster: the package travels as a zip, and each row arrives once, whatever happens to write attempts and
executors. With PENSTOCK_LONG=1 all executors die eight times."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Self

import faulty
import pytest
from cluster import Cluster
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from traffic import Traffic, read_all

import penstock
from penstock.testing.servers import PostgresqlServer

DEATHS = 8 if os.environ.get("PENSTOCK_LONG") else 1
WRITTEN = ("slow", "slow-stream", "bad", "bad-stream")


@pytest.mark.timeout(1800)
def test_attempts_and_executors_of_a_cluster_may_die(postgresql: PostgresqlServer, tmp_path: Path, spark: SparkSession) -> None:
    cloudpickle.register_pickle_by_value(faulty)
    url = postgresql.new_url()
    with penstock.open(url) as broker:
        for name in WRITTEN:
            broker.create(name)
        with Cluster(tmp_path) as cluster, Traffic(broker) as traffic, Job(cluster, tmp_path, url) as job:
            for _ in range(DEATHS):
                job.await_more(broker["out"])
                assert cluster.kill_executors() > 0
            job.await_more(broker["out"])
        for name in WRITTEN:
            assert (tmp_path / f"{name} attempt").exists(), "no attempt of two was overtaken, or failed"
            bodies = Counter(message.text for message in broker[name].peek(100_000))
            assert bodies == Counter(str(number) for number in range(2000)), name
        traffic.check(read_all(spark, traffic, tmp_path, url))


class Job:
    """The driver (job_on_cluster.py), which runs until told to stop."""

    def __init__(self, cluster: Cluster, folder: Path, url: str) -> None:
        self._folder = folder
        self._log = folder / "job.log"
        environment = os.environ | cluster.environment() | {"SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, Path(__file__).parent / "job_on_cluster.py", str(folder), url]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        (self._folder / "stop").touch()
        try:
            code = self._process.wait(400)
        finally:
            self._process.kill()
        assert failed or code == 0, self._log.read_text()[-4000:]

    def await_more(self, queue: penstock.Queue) -> None:
        """Wait until more messages arrive."""
        before, give_up_at = queue.stats().messages, time.monotonic() + 800
        while queue.stats().messages <= before:
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            assert time.monotonic() < give_up_at, self._log.read_text()[-4000:]
            time.sleep(0.05)
