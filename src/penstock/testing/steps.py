"""The contract's chapter on death at an exact point: a fixed list of steps, each of which is atomic.

`StepCrashes` runs the steps in a child (`penstock.testing.faults`) that is killed at the first, second, third … of its system
calls that change files. Each time, the store must be in the state before the interrupted step, or in the state after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from penstock import Broker, Draft
from penstock.testing.clock import FakeClock
from penstock.testing.faults import ChildResult, Fault, run_child, short_lived


def prepare(broker: Broker) -> None:
    broker.create("dead")
    broker.create("jobs", redrive=("dead", 1), deduplicate=True, history=6000)
    broker.create("once", mode="at_most_once", deduplicate=300)


def steps(broker: Broker, clock: FakeClock) -> list[Callable[[], object]]:
    jobs, once, dead = broker["jobs"], broker["once"], broker["dead"]
    return [
        lambda: jobs.send_many([b"poison", Draft(b"good", attributes={"a": 1}), Draft(b"third", key="k")]),
        lambda: jobs.send(b"poison"),
        lambda: jobs.receive(),
        lambda: jobs.release(jobs.peek(state="consumed")[0].receipt),
        lambda: jobs.receive(3),  # buries the poison, returns the two others
        lambda: jobs.delete_many([jobs.peek()[0].receipt, "no such id"]),
        lambda: dead.redrive(),
        lambda: once.send_many([b"1", b"1", b"2"]),
        lambda: once.receive(2),
        lambda: once.send(b"1"),
        lambda: once.sadd("member"),
        lambda: once.spop(),
        lambda: jobs.send_many([b"4", b"5", b"6"]),
        lambda: jobs.claim("reader", 1, 2),
        lambda: jobs.confirm("reader", 1),
        lambda: jobs.settle("reader", 1),
        lambda: jobs.claim("reader", 2, 9),
        lambda: jobs.give_up("reader"),
        lambda: clock.advance(1000),
        lambda: jobs.update(retention=60),
        lambda: jobs.receive(9),
        lambda: broker.delete("dead"),
    ]


def look(broker: Broker) -> object:
    """Everything visible that does not differ from run to run."""
    return [
        (
            name,
            broker[name].settings,
            [_plain(message) for message in (*broker[name].peek(99), *broker[name].settled())],
            dataclasses.asdict(broker[name].stats()),
            broker[name].scard(),
            broker[name].readers(),
            broker[name].settled_epoch("reader"),
        )
        for name in broker.queues().names
    ]


def _plain(message: penstock.Message) -> dict[str, Any]:
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message) if field.compare}
    return fields | {"id": None, "number": None}


def snapshots(url: str) -> list[object]:
    """What is visible before the first step and after each step."""
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        prepare(broker)
        seen = [look(broker)]
        for step in steps(broker, clock):
            step()
            seen.append(look(broker))
        return seen


class StepCrashes:
    def test_killed_at_any_system_call_each_step_is_done_whole_or_not_at_all(self, make_url_in: Callable[[Path], str]) -> None:
        with short_lived(make_url_in) as url:
            seen = snapshots(url)
        with short_lived(make_url_in) as url:
            faults = _run(url).faults()
        assert len(faults) > 20, "the store hardly wrote"
        for fault in faults:
            with short_lived(make_url_in) as url:
                run = _run(url, fault)
                assert run.came, f"{fault} did not come to pass"
                done, now = len(run.told), int(run.told[-1]) if run.told else FakeClock().now
                with penstock.open(url, clock=FakeClock(now)) as broker:
                    assert look(broker) in seen[done : done + 2], f"{fault}: step {done} was left half done"


def _run(url: str, fault: Fault | None = None) -> ChildResult:
    """Run the steps in a child, which reports the clock after each answer."""

    def work(tell: Callable[[str], None]) -> None:
        clock = FakeClock()
        with penstock.open(url, clock=clock) as broker:
            for step in steps(broker, clock):
                step()
                tell(str(clock()))

    with penstock.open(url, clock=FakeClock()) as broker:
        prepare(broker)
    return run_child(work, fault)
