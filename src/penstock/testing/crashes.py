"""The contract's chapter on kill -9: senders and receivers die at any moment, and the account stays exact."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import penstock
from penstock.clock import system_clock
from penstock.message import SECOND
from penstock.testing.races import wait_for
from penstock.testing.worker import main

ROUNDS = 8


class Crashes:
    def test_after_kill_9_nothing_acknowledged_is_lost_and_nothing_is_stuck(self, url: str, tmp_path: Path) -> None:
        chance = random.Random(7)
        with penstock.open(url) as broker:
            broker.create("orders", visibility=1)
        log = tmp_path / "log"
        log.touch()
        for turn in range(ROUNDS):
            done = log.read_text()
            workers = [
                fork_worker(url, "orders", role, str(log), f"{turn}-{number}", chance.choice([1, 3, 20]), 10**6)
                for number, role in enumerate(["send", "send", "receive", "receive"])
            ]
            # Kill them after some sends, or some deletes, were answered.
            for word, more in [("ready\n", len(workers)), (["sent ", "deleted "][turn % 2], chance.randrange(1, 60))]:
                wait_for(log, word, done.count(word) + more, partial(all_alive, workers))
            for worker in chance.sample(workers, len(workers)):
                worker.kill()
            for worker in workers:
                worker.join()
        check_account(url, "orders", log)


def fork_worker(*arguments: object) -> BaseProcess:
    worker = get_context("fork").Process(target=main, args=arguments, daemon=True)
    worker.start()
    return worker


def all_alive(workers: list[BaseProcess]) -> bool:
    return all(worker.is_alive() for worker in workers)


def check_account(url: str, name: str, log: Path, known: int | None = None) -> set[str]:
    """Sent = deleted + still there; none delivered again after a successful delete. Receives and returns what was still there.

    Answers in the log count up to ``known``; later ones may or may not have happened."""
    text = log.read_text()
    lines = [line.split() for line in text.splitlines()]
    answered = [line.split() for line in text[:known].splitlines()]
    tried = {line[1] for line in lines if line[0] == "try"}
    sent = {line[1] for line in answered if line[0] == "sent"}
    deleting = {line[1] for line in lines if line[0] == "deleting"}
    deleted = {line[2]: int(line[1]) for line in answered if line[0] == "deleted"}
    # Later than any visibility: a message that a dead process held is visible again, or it is stuck.
    with penstock.open(url, clock=lambda: system_clock() + 3600 * SECOND) as broker:
        queue = broker[name]
        stats = queue.stats()
        assert stats.messages == stats.visible
        left: Counter[str] = Counter()
        while messages := queue.receive(1000):
            left.update(message.text for message in messages)
            assert all(queue.delete_many(messages))
    assert set(left.values()) <= {1}
    assert sent - deleted.keys() - left.keys() - deleting == set(), "acknowledged sends were lost"
    assert left.keys() & deleted.keys() == set(), "deleted messages came back"
    assert left.keys() <= tried, "messages were invented"
    for line in lines:
        if line[0] == "got" and line[2] in deleted:
            assert int(line[1]) <= deleted[line[2]], f"{line[2]} was delivered after its delete"
    assert sent, "the workers did nothing"
    assert deleted, "the workers did nothing"
    return set(left)
