"""The contract's chapter on kill -9: senders and receivers die at any moment, and the account is exact."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import penstock
from penstock.clock import system_clock
from penstock.policy import SECOND
from penstock.testing.races import start_worker, wait_for

ROUNDS = 8


class Crashes:
    def test_after_kill_9_nothing_acknowledged_is_lost_and_nothing_is_stuck(self, url: str, tmp_path: Path) -> None:
        chance = random.Random(7)
        with penstock.open(url) as broker:
            broker.create("orders", visibility=1)
        log = tmp_path / "log"
        log.touch()
        for turn in range(ROUNDS):
            begun = log.read_text().count("ready\n")
            workers = [
                start_worker(url, "orders", role, log, f"{turn}-{number}", chance.choice([1, 3, 20]), 10**6)
                for number, role in enumerate(["send", "send", "receive", "receive"])
            ]
            wait_for(log, "ready\n", begun + len(workers), workers)
            time.sleep(chance.uniform(0.05, 0.3))
            for worker in chance.sample(workers, len(workers)):
                worker.kill()
            for worker in workers:
                worker.wait()
        check_account(url, "orders", log)


def check_account(url: str, name: str, log: Path, known: int | None = None) -> set[str]:
    """Sent = deleted + still there; none delivered again after a successful delete. What was still there, and is taken now.

    Of the log, answers count as far as ``known``; what was answered later than that may or may not have happened."""
    text = log.read_text()
    lines = [line.split() for line in text.splitlines()]
    answered = [line.split() for line in text[:known].splitlines()]
    tried = {line[1] for line in lines if line[0] == "try"}
    sent = {line[1] for line in answered if line[0] == "sent"}
    deleting = {line[1] for line in lines if line[0] == "deleting"}
    deleted = {line[2]: int(line[1]) for line in answered if line[0] == "deleted"}
    # Later than any visibility: whatever the dead held is visible again, or it is stuck.
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
