"""The contract's chapter on publishers that are killed in a store of files: at any system call, a batch is published once.

A child stages a batch for two queues and publishes it, and is killed at one of its system calls. Then a consumer takes
everything, and the batch is replayed with its rows in another order. What was taken and what is there then must be the batch,
each message once, with nothing left over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import penstock
from penstock import Broker, Draft, StoreError
from penstock.broker import open_local
from penstock.publishing.segments import pack_drafts
from penstock.testing.faults import ChildResult, Fault, run_child, short_lived, unsynced

PLAIN = [b"1", b"2", b"3"]
ONCE = [b"4", b"5", b"5"]
EXPECTED = Counter([*PLAIN, b"4", b"5"])


def publish(broker: Broker, attempt: str, turned: bool) -> int | None:
    """Stage the batch and publish it; ``turned``: in the order of a replay."""
    parts: list[tuple[str, list[bytes]]] = [("plain", PLAIN), ("once", ONCE), ("plain", [])]
    counts = {}
    for place, (queue, bodies) in enumerate(reversed(parts) if turned else parts):
        drafts = [Draft(body, "text/plain") for body in (reversed(bodies) if turned else bodies)]
        counts[f"{attempt}{place}"] = len(drafts)
        broker.stage("query", 7, f"{attempt}{place}", pack_drafts(queue, drafts))
    return broker.publish("query", 7, counts)


def prepare(url: str) -> None:
    with penstock.open(url) as broker:
        broker.create("plain")
        broker.create("once", deduplicate=True)


def take_all(broker: Broker) -> Counter[bytes]:
    taken: Counter[bytes] = Counter()
    for queue in broker:
        while messages := queue.receive(9):
            taken.update(message.body for message in messages)
            queue.delete_many(messages)
    return taken


def check(url: str, name: str) -> None:
    with open_local(url) as broker:
        taken = take_all(broker)
        publish(broker, "replay", True)
        taken += take_all(broker)
        assert taken == EXPECTED, f"{name}: {taken}"
        assert broker.store.outbox.staging.staged() == [], f"{name}: something stays staged"


class PublishCrashes:
    def test_a_publication_that_fails_half_way_is_finished_by_the_next(self, make_url_in: Callable[[Path], str]) -> None:
        _check_all(make_url_in, lambda calls: [fault for fault in calls.faults("EIO") if fault.call.startswith("rename")])

    def test_killed_at_a_system_call_a_batch_is_published_once(self, make_url_in: Callable[[Path], str]) -> None:
        _check_all(make_url_in, lambda calls: calls.faults())


def _check_all(make_url_in: Callable[[Path], str], choose: Callable[[ChildResult], list[Fault]]) -> None:
    with short_lived(make_url_in) as url:
        faults = choose(_publish(url))
        check(url, "whole")
    assert len(faults) > 5, "the store hardly wrote"
    came = 0
    for fault in faults:
        with short_lived(make_url_in) as url:
            came += _publish(url, fault).came
            with unsynced():
                check(url, str(fault))
    assert came >= 0.9 * len(faults), f"only {came} of {len(faults)} faults came to pass"


def _publish(url: str, fault: Fault | None = None) -> ChildResult:
    def work(tell: Callable[[str], None]) -> None:
        with penstock.open(url) as broker:
            try:
                publish(broker, "first", False)
                tell("published")
            except StoreError:
                tell("failed")

    with unsynced():
        prepare(url)
    run = run_child(work, fault)
    if fault is None or not run.came:
        assert run.told == ["published"]
    elif fault.error:
        assert run.told == ["failed"], f"{fault} was not told"
    return run
