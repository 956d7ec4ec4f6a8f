"""Drivers of two queries, queue to Parquet and queue to queue, are killed at every step and at random, while ordinary consumers
take from the same queues: every message is in exactly one place.

By default once at each step, some on SQLite and the others on PostgreSQL, and one kill of the executors of a cluster. With
PENSTOCK_LONG=1, in half an hour and more: 36 kills on SQLite, 36 on PostgreSQL, and 8 of executors."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from cluster import Cluster
from faulty import STEPS
from pyspark.sql import SparkSession

import penstock
from penstock.testing.servers import PostgresqlServer

LONG = bool(os.environ.get("PENSTOCK_LONG"))
AT_RANDOM = "at random"
DEATHS = (*STEPS, AT_RANDOM)
CONSUMED_QUEUES = ("lake", "in")
SPARKS_OWN = (b"failed to connect back", b"java.util.HashMap.readObject")
"""How Spark itself fails now and then: where a machine is busy, it gives up on Python workers that take ten seconds to start;
where two queries start at once, one adds to the environment for Python workers while a task of the other is being packed."""


def start_job(folder: Path, url: str, *how: str, **extra: str) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parent)
    environment = os.environ | {"PENSTOCK_FAULTS": str(folder), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": here} | extra
    (folder / "pids").unlink(missing_ok=True)
    with (folder / "job.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, f"{here}/job.py", str(folder), url, *how], env=environment, stdout=log, stderr=log
        )


def kill(folder: Path) -> None:
    for pid in (folder / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)


class Traffic:
    """Producers and ordinary consumers, who write down what they were told."""

    def __init__(self, broker: penstock.Broker) -> None:
        self.broker = broker
        self.sent: dict[str, list[str]] = {name: [] for name in CONSUMED_QUEUES}
        self.taken: dict[str, list[str]] = {name: [] for name in CONSUMED_QUEUES}
        self.failed: list[BaseException] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(act,)) for act in (self._send, self._take)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert not self.failed

    def _run(self, act: object) -> None:
        try:
            while not self._over.wait(0.2):
                for name in CONSUMED_QUEUES:
                    act(name)  # type: ignore[operator]
        except BaseException as error:
            self.failed.append(error)
            raise

    def _send(self, name: str) -> None:
        bodies = [f"{name}-{len(self.sent[name]) + place}" for place in range(random.randint(1, 20))]
        self.broker[name].send_many([body.encode() for body in bodies])
        self.sent[name] += bodies

    def _take(self, name: str) -> None:
        for message in self.broker[name].receive(random.randint(1, 3)):
            if message.delete():
                self.taken[name].append(message.text)


def await_(true: object, seconds: float, what: str, folder: Path) -> None:
    give_up_at = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < give_up_at, f"{what}\n{(folder / 'job.log').read_text()[-4000:]}"
        time.sleep(0.02)


def die(folder: Path, url: str, step: str, chance: random.Random) -> None:
    (folder / "fired").unlink(missing_ok=True)
    status, job_id = 0, uuid.uuid4().hex
    if step != AT_RANDOM:
        (folder / "arm").write_text(f"{step} of {job_id}")
    for _ in range(3):
        logged = (folder / "job.log").stat().st_size if (folder / "job.log").exists() else 0
        job = start_job(folder, url, PENSTOCK_JOB=job_id)
        if step == AT_RANDOM:
            await_(lambda: (folder / "pids").exists() or job.poll() is not None, 120, "the job did not start", folder)  # noqa: B023
            time.sleep(chance.uniform(0.5, 8))
            kill(folder)
        status = job.wait(timeout=180)
        if not any(sign in (folder / "job.log").read_bytes()[logged:] for sign in SPARKS_OWN):
            break
    assert status == -signal.SIGKILL, (folder / "job.log").read_text()[-4000:]
    assert step == AT_RANDOM or (folder / "fired").exists()


def finish(folder: Path, url: str, **extra: str) -> None:
    """Read all that is there; as after any failure (of Spark's own, above), the queries are started again."""
    for _ in range(3):
        if start_job(folder, url, "once", **extra).wait(timeout=300) == 0:
            return
    pytest.fail((folder / "job.log").read_text()[-4000:])


def check_all(broker: penstock.Broker, traffic: Traffic, spark: SparkSession, folder: Path) -> None:
    for name in CONSUMED_QUEUES:
        assert broker[name].stats().messages == 0, f"{name}: {broker[name].readers()}"
        held = [claim for claims in broker[name].readers().values() for claim in claims]
        assert not any(claim.confirmed for claim in held), "what was read is settled"
    lake = Counter(row.body for row in spark.read.parquet(f"{folder}/lake").select("body").collect())
    check(traffic.sent["lake"], lake, traffic.taken["lake"])
    out = Counter(message.text for message in broker["out"].peek(100_000))
    check(traffic.sent["in"], out, traffic.taken["in"])


def check(sent: list[str], arrived: Counter[str], taken: list[str]) -> None:
    places = arrived + Counter(taken)
    assert len(arrived) > 0
    assert len(taken) > 0
    assert {body for body, times in places.items() if times > 1} == set(), "some are in two places"
    assert set(sent) - places.keys() == set(), "some are lost"
    assert places.keys() == set(sent)


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
@pytest.mark.timeout(3000)
def test_whatever_dies_every_message_is_in_exactly_one_place(
    store: str, tmp_path: Path, spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    if store == "postgresql":
        server: PostgresqlServer = request.getfixturevalue("postgresql")
        url = server.new_url()
    else:
        url = f"sqlite:///{tmp_path}/queue.db"
    chance = random.Random(11)
    deaths = [*DEATHS] * 4 if LONG else [*DEATHS[store == "postgresql" :: 2]]
    chance.shuffle(deaths)
    with penstock.open(url) as broker:
        for name in (*CONSUMED_QUEUES, "out"):
            broker.create(name, visibility=60)
        traffic = Traffic(broker)
        try:
            for step in deaths:
                die(tmp_path, url, step, chance)
        finally:
            traffic.stop()
        time.sleep(10.5)  # the claims of the dead lapse
        finish(tmp_path, url)

        check_all(broker, traffic, spark, tmp_path)


@pytest.mark.timeout(900)
def test_executors_of_a_cluster_may_die(postgresql: PostgresqlServer, tmp_path: Path, spark: SparkSession) -> None:
    url = postgresql.new_url()
    chance = random.Random(5)
    with Cluster(tmp_path) as cluster, penstock.open(url) as broker:
        for name in (*CONSUMED_QUEUES, "out"):
            broker.create(name, visibility=60)
        traffic = Traffic(broker)
        job = start_job(tmp_path, url, **cluster.environment())
        try:
            for _ in range(8 if LONG else 1):
                before = broker["out"].stats().messages
                await_(lambda: broker["out"].stats().messages > before, 180, "nothing arrives", tmp_path)  # noqa: B023
                time.sleep(chance.uniform(0, 2))
                assert cluster.kill_executors() > 0
            before = broker["out"].stats().messages
            await_(lambda: broker["out"].stats().messages > before, 180, "nothing arrives any more", tmp_path)
        finally:
            traffic.stop()
            kill(tmp_path)
            job.wait()
        time.sleep(10.5)
        finish(tmp_path, url, **cluster.environment())
        check_all(broker, traffic, spark, tmp_path)
