"""Producers and ordinary consumers on the queues that two queries read (see faulty.py), and where each message ends up."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from faulty import Queries
from pyspark.sql import SparkSession

import penstock

QUEUES = ("lake", "in")


class Traffic:
    """A producer and a consumer that record the answers they get."""

    def __init__(self, broker: penstock.Broker, names: Sequence[str] = QUEUES) -> None:
        for name in (*names, "out"):
            broker.create(name, visibility=60)
        self.broker = broker
        self.names = names
        self.sent: dict[str, list[str]] = {name: [] for name in names}
        self.taken: dict[str, list[str]] = {name: [] for name in names}
        self.failed: list[BaseException] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(act,)) for act in (self._send, self._take)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert not self.failed

    def _run(self, act: Callable[[str], None]) -> None:
        try:
            while not self._over.wait(0.2):
                for name in self.names:
                    act(name)
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

    def left(self) -> int:
        return sum(self.broker[name].stats().messages for name in self.names)

    def check(self, arrived: dict[str, Counter[str]]) -> None:
        """Each sent message was either taken by the consumer or has arrived, once."""
        for name in self.names:
            held = [claim for claims in self.broker[name].readers().values() for claim in claims]
            assert not any(claim.confirmed for claim in held), "what was read is settled"
            assert len(arrived[name]) > 0
            assert len(self.taken[name]) > 0
            places = arrived[name] + Counter(self.taken[name])
            assert {body for body, times in places.items() if times > 1} == set(), "some are in two places"
            assert set(self.sent[name]) - places.keys() == set(), "some are lost"
            assert places.keys() == set(self.sent[name])


def read_all(spark: SparkSession, traffic: Traffic, folder: Path, url: str) -> dict[str, Counter[str]]:
    """Let the queries read the rest, from their checkpoints; returns everything that ever arrived. A claim of a query that died
    before Spark logged anything belongs to no checkpoint: its messages come back when it lapses."""
    give_up_at = time.monotonic() + 600
    queries = Queries(spark, folder, url, folder / "no faults", once=True)
    starts = {"lake": queries.start_lake, "in": queries.start_onward}
    while True:
        for name in traffic.names:
            starts[name]().awaitTermination()
        if not traffic.left():
            break
        assert time.monotonic() < give_up_at, {name: traffic.broker[name].readers() for name in traffic.names}
        time.sleep(0.2)
    arrived = {"in": Counter(message.text for message in traffic.broker["out"].peek(100_000))}
    if "lake" in traffic.names:
        arrived["lake"] = Counter(row.body for row in spark.read.parquet(f"{folder}/lake").select("body").collect())
    return arrived
