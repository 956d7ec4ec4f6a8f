"""Consumers in several processes, killed and frozen at random: each message is processed, and every repetition is explained.

A few seconds by default; PENSTOCK_SOAK=1 runs two minutes and 50,000 messages.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

import penstock
from penstock.testing.servers import DatabaseServer

SOAK = bool(os.environ.get("PENSTOCK_SOAK"))
SECONDS, MESSAGES = (120, 50_000) if SOAK else (8, 3_000)
LEASE = 1.0
BEAT = 0.2
PENSTOCK = str(Path(sys.executable).parent / "penstock")

WORKER = """
import os, sys, threading, penstock
url, log, mode = sys.argv[1:]
handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def process(payload, message):
    os.write(handle, b"%s %d\\n" % (payload, message.received_at))

with penstock.open(url) as broker:
    consumers = [broker.consumer("orders", batch_size=20, mode=mode, heartbeat=0.2) for _ in range(2)]
    for consumer in consumers:
        consumer.process(process)
    threads = [threading.Thread(target=consumer.run) for consumer in consumers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


class Workers:
    """Four processes with two consumers each."""

    def __init__(self, url: str, log: Path, mode: str) -> None:
        self._arguments = [sys.executable, "-c", WORKER, url, str(log), mode]
        self._chance = random.Random(5)
        self.running = [self.start() for _ in range(4)]

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._arguments)

    def harm(self) -> None:
        """Kill a process and start another in its place, or freeze one for longer than a lease."""
        place = self._chance.randrange(4)
        if self._chance.random() < 0.5:
            self.running[place].kill()
            self.running[place].wait()
            self.running[place] = self.start()
        else:
            self.running[place].send_signal(signal.SIGSTOP)
            time.sleep(LEASE * 1.5)
            self.running[place].send_signal(signal.SIGCONT)

    def kill(self) -> None:
        for worker in self.running:
            with suppress(ProcessLookupError):
                worker.kill()
            worker.wait()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_consumers_killed_and_frozen_lose_nothing_and_every_double_is_explained(
    postgresql: DatabaseServer, tmp_path: Path, mode: str
) -> None:
    url, log = postgresql.new_url(), tmp_path / "log"
    log.touch()
    with penstock.open(url) as broker:
        queue = broker.create("orders", visibility=LEASE)
        workers = Workers(url, log, mode)
        try:
            harm_at, end_at = time.monotonic() + 1, time.monotonic() + SECONDS
            with broker.producer("orders", batch_size=50) as producer:
                for number in range(MESSAGES):
                    producer.push(b"%d" % number)
                    behind = number / MESSAGES - (1 - (end_at - time.monotonic()) / SECONDS)
                    if behind > 0:
                        time.sleep(behind * SECONDS)
                    if time.monotonic() > harm_at:
                        workers.harm()
                        harm_at = time.monotonic() + 1
            give_up_at = time.monotonic() + 240
            while queue.stats().messages and time.monotonic() < give_up_at:
                time.sleep(0.1)
            assert queue.stats().messages == 0
            workers.running[0].kill()
            gone_by = time.monotonic() + (BEAT * 20 if SOAK else 60)  # a busy machine misses beats
            while len(broker.store.roster.living("orders")) != 6 and time.monotonic() < gone_by:
                time.sleep(BEAT / 2)
            assert time.monotonic() < gone_by, "the dead were struck off"
        finally:
            workers.kill()
    runs: dict[int, list[int]] = defaultdict(list)
    for line in log.read_text().splitlines():
        body, received_at = map(int, line.split())
        runs[body].append(received_at)
    doubled = {body: sorted(times) for body, times in runs.items() if len(times) > 1}
    if mode == "at_most_once":
        assert doubled == {}
        assert len(runs) > MESSAGES // 2
        return
    assert runs.keys() == set(range(MESSAGES)), "none is lost"
    for times in doubled.values():
        assert all(later - earlier >= LEASE * 1_000_000 for earlier, later in pairwise(times)), "its lease had not lapsed"


TASKS = """
import os
def handle(payload, message):
    if payload == b"poison":
        os._exit(3)
    with open("done", "a") as log:
        log.write(payload.decode() + "\\n")
"""


def test_work_survives_a_callback_that_takes_its_process_down(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with penstock.open(url) as broker:
        dead = broker.create("dead")
        jobs = broker.create("jobs", visibility=0.5, redrive=("dead", 2))
        jobs.send_many([b"1", b"poison", b"2", b"3"])
        command = [PENSTOCK, "work", "jobs", "tasks:handle", "--workers", "2", "--batch-size", "1", "--store", url]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as work:
            give_up_at = time.monotonic() + 60
            while dead.stats().messages == 0 or jobs.stats().messages:
                assert work.poll() is None
                assert time.monotonic() < give_up_at
                time.sleep(0.05)
            work.send_signal(signal.SIGTERM)
            output, errors = work.communicate(timeout=120)
    assert work.returncode == 0, errors
    assert sorted((tmp_path / "done").read_text().split()) == ["1", "2", "3"]
    assert "a worker has ended with 3; starting another" in errors
    assert "processed" in output


def test_work_until_empty_tells_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    url = f"sqlite:///{tmp_path}/jobs.db"
    with penstock.open(url) as broker:
        broker.create("jobs").send_many([b"%d" % number for number in range(5)])
    command = [PENSTOCK, "work", "jobs", "tasks:handle", "--until-empty", "--json", "--store", url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == '{"name": "jobs", "processed": 5, "retried": 0, "failed": 0, "lost": 0, "given_back": 0}\n'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["jobs", "tasks"], "is not MODULE:FUNCTION"),
        (["jobs", "no_such_module:x"], "cannot be found"),
        (["jobs", "os:no_such_function"], "cannot be found"),
        (["jobs", "os:sep"], "is not a function"),
        (["jobs", "os:getpid", "--workers", "0"], "workers 0"),
        (["jobs", "os:getpid", "--batch-size", "0"], "batch_size 0"),
        (["nobody", "os:getpid"], "'nobody'"),
    ],
)
def test_work_names_what_is_wrong(tmp_path: Path, arguments: list[str], words: str) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with penstock.open(url) as broker:
        broker.create("jobs")
    done = subprocess.run([PENSTOCK, "work", *arguments, "--store", url], capture_output=True, text=True, check=False)
    assert done.returncode in (2, 3)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
