"""The contract's chapter on death at an exact point: a fixed list of steps, each of which is done whole or not at all.

    python -m penstock.testing.steps URL LOG

runs the steps and writes a line into LOG (what the clock shows) once each is answered. `StepCrashes` runs this under strace,
which kills it at the first, second, third … system call that writes, until a run survives; each time, what is in the store
must be what was there before the step that was cut short, or what is there after it.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import penstock
from penstock import Broker, Draft
from penstock.testing.clock import FakeClock


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
        lambda: jobs.receive(3),  # buries the poison, gives the two others
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
    """All that can be seen, with nothing that differs from run to run."""
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
    """What is to be seen before the first step and after each."""
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        prepare(broker)
        seen = [look(broker)]
        for step in steps(broker, clock):
            step()
            seen.append(look(broker))
        return seen


class StepCrashes:
    syscalls: ClassVar[list[str]]
    """The system calls by which the store writes."""

    def test_killed_at_any_system_call_each_step_is_done_whole_or_not_at_all(
        self, make_url: Callable[[str], str], tmp_path: Path
    ) -> None:
        seen = snapshots(make_url("whole"))
        points = 0
        for syscall in self.syscalls:
            with ThreadPoolExecutor(2) as pool:
                when, survived = 1, False
                while not survived:
                    block = range(when, when + 8)
                    results = pool.map(lambda at: self._kill(make_url, tmp_path, syscall, at, seen), block)  # noqa: B023
                    survived = any(results)
                    when += 8
                points += when
        assert points > 20, "the store hardly wrote: are these its system calls?"

    def _kill(self, make_url: Callable[[str], str], folder: Path, syscall: str, when: int, seen: list[object]) -> bool:
        """Run the steps, killed at one point; True if it was past the last."""
        url, log = make_url(f"{syscall}-{when}"), folder / f"{syscall}-{when}.log"
        with penstock.open(url, clock=FakeClock()) as broker:
            prepare(broker)
        strace = shutil.which("strace")
        assert strace, "install strace (tools/provision does)"
        inject = f"inject={syscall}:signal=KILL:when={when}"
        trace = [strace, "-f", "-qq", "-o", os.devnull, "-e", f"trace={syscall}", "-e", inject]
        program = [sys.executable, "-m", "penstock.testing.steps", url, str(log)]
        survived = subprocess.run([*trace, *program], check=False).returncode == 0
        lines = log.read_text().splitlines() if log.exists() else []
        done, now = len(lines), int(lines[-1]) if lines else FakeClock().now
        with penstock.open(url, clock=FakeClock(now)) as broker:
            assert look(broker) in seen[done : done + 2], f"{syscall} {when}: step {done} was left half done"
        return survived


def main(url: str, log: str) -> None:
    clock = FakeClock()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with penstock.open(url, clock=clock) as broker:
        for step in steps(broker, clock):
            step()
            os.write(handle, b"%d\n" % clock())


if __name__ == "__main__":
    main(*sys.argv[1:])
