"""The contract's chapter on death, and on a failing disk, for stores that keep a message a file.

    python -m penstock.testing.file_crashes PROGRAM URL LOG

runs the steps of a program and writes a line into LOG once each is answered. `FileCrashes` runs this under strace: once to see
which calls touch the store, then again and again, killed at one of them or with it failing. Of the short programs every call is
tried, of the long one (`penstock.testing.steps` and batches) some of each kind. A batch of several files is not atomic, so what
is checked is the account: what both the state before and the state after the step that was cut short have must be there, what
neither has must not, no body is cut short, and a day later nothing is stuck.

After the program that sends marked messages, all of its sends are done again, as their senders would. What had been answered
must be a duplicate, and in the end each message must have been delivered exactly once.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest

import penstock
from penstock import Broker, Queue, Sent
from penstock.testing.clock import FakeClock
from penstock.testing.steps import prepare, steps

NAMES = ["rename", "renameat", "renameat2", "link", "unlink", "unlinkat", "rmdir", "mkdir", "utimensat"]
DEATHS = ["openat", "write", "pwrite64", "fsync", "syncfs", *NAMES]
FAILURES = ["write", "pwrite64", "fsync", "syncfs", "rename", "renameat2"]
KILLS = [(syscall, "signal=KILL") for syscall in DEATHS]
FAULTS = [(syscall, "error={}") for syscall in FAILURES]
ERRORS = ["EIO", "ENOSPC"]
DAY = 86400


def short_steps(broker: Broker, clock: FakeClock) -> list[Callable[[], object]]:
    """Send, claim, requeue, extend, release and delete: once each, and with as little beside as there can be."""
    queue = broker.create("plain", visibility=30, exist_ok=True)
    return [
        lambda: queue.send(b"one" * 1000),
        lambda: queue.send(b"two", delay=20),
        lambda: queue.receive(),
        lambda: clock.advance(31),
        lambda: queue.receive(2),
        lambda: queue.extend(queue.peek(9)[0].receipt, 60),
        lambda: queue.release(queue.peek(9)[1].receipt),
        lambda: queue.delete(queue.peek(9)[0].receipt),
    ]


def long_steps(broker: Broker, clock: FakeClock) -> list[Callable[[], object]]:
    once = broker["once"]
    return [
        *steps(broker, clock),
        lambda: once.send_many([b"%d" % number * 3000 for number in range(10, 20)]),  # so many that one sync serves all
        lambda: once.receive(4),
    ]


def marked_steps(broker: Broker, clock: FakeClock) -> list[Callable[[], list[Sent]]]:
    """Sends to queues that deduplicate: one and several at a time, delayed, and so many that one sync serves all."""
    window = broker.create("window", deduplicate=3600, exist_ok=True)
    present = broker.create("present", deduplicate=True, exist_ok=True)
    return [
        lambda: [window.send(b"one", key="1")],
        lambda: [present.send(b"one")],
        lambda: window.send_many([b"two", b"three", b"two"]),
        lambda: [window.send(b"four", delay=20)],
        lambda: window.send_many([b"%d" % number for number in range(10, 19)]),
    ]


WINDOW = Counter([b"one", b"two", b"three", b"four", *(b"%d" % number for number in range(10, 19))])
PROGRAMS: dict[str, Callable[[Broker, FakeClock], Sequence[Callable[[], object]]]] = {
    "short": short_steps,
    "long": long_steps,
    "marked": marked_steps,
}


def bodies(broker: Broker) -> Counter[bytes]:
    return Counter(message.body for queue in broker for message in queue.peek(99))


def accounts(program: str, url: str) -> list[Counter[bytes]]:
    """What is in the store before the first step and after each."""
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        prepare(broker)
        found = [bodies(broker)]
        for step in PROGRAMS[program](broker, clock):
            step()
            found.append(bodies(broker))
        return found


class FileCrashes:
    points: ClassVar[int] = 3
    """At how many places of each system call of the long program to die."""

    @pytest.mark.parametrize("program", ["short", "long"])
    def test_killed_at_a_system_call_nothing_is_lost_or_stuck_or_comes_back(
        self, make_url: Callable[[str], str], tmp_path: Path, program: str
    ) -> None:
        whole = accounts(program, make_url("whole"))
        self._check(make_url, tmp_path, program, KILLS, lambda url, log, name: check_account(url, log, whole, name))

    @pytest.mark.parametrize("program", ["short", "long"])
    def test_where_a_system_call_fails_nothing_is_lost_or_stuck_or_half_written(
        self, make_url: Callable[[str], str], tmp_path: Path, program: str
    ) -> None:
        whole = accounts(program, make_url("whole"))
        self._check(make_url, tmp_path, program, FAULTS, lambda url, log, name: check_account(url, log, whole, name))

    @pytest.mark.parametrize("faults", [KILLS, FAULTS], ids=["killed", "failed"])
    def test_sent_again_after_a_sender_was_cut_short_each_message_comes_once(
        self, make_url: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[tuple[str, str]]
    ) -> None:
        monkeypatch.setattr("penstock.stores.files.folder.ORPHANED", -(10**10))  # whoever is dead has been so for long
        self._check(make_url, tmp_path, "marked", faults, check_sent_again)

    def _check(
        self,
        make_url: Callable[[str], str],
        folder: Path,
        program: str,
        faults: list[tuple[str, str]],
        check: Callable[[str, Path, str], None],
    ) -> None:
        options = ["-y", "-o", str(folder / "trace"), "-e", f"trace={','.join(DEATHS)}"]
        _run(program, make_url("traced"), folder / "trace.log", options)
        calls = calls_on(folder, (folder / "trace").read_text())
        every = program != "long"
        jobs = [
            (syscall, fault.format(ERRORS[when % 2]), when)
            for syscall, fault in faults
            for when in (calls[syscall] if every else spread(calls[syscall], self.points))
        ]
        assert len(jobs) > 10, "the store hardly wrote: are these its system calls?"

        def die(job: tuple[str, str, int]) -> bool:
            """Whether the fault came to pass."""
            syscall, fault, when = job
            name = f"{syscall}-{fault.replace('=', '-')}-{when}"
            url, log, trace = make_url(name), folder / f"{name}.log", folder / f"{name}.trace"
            inject = ["-o", str(trace), "-e", f"trace={syscall}", "-e", f"inject={syscall}:{fault}:when={when}"]
            errors = _run(program, url, log, inject)
            assert "Traceback" not in errors or "penstock.errors.Store" in errors, f"{name}: not an error of ours: {errors}"
            check(url, log, name)
            return re.search(r"\(INJECTED\)|killed by SIGKILL", trace.read_text()) is not None

        with ThreadPoolExecutor(2) as pool:
            reached = sum(pool.map(die, jobs))
        # Python itself does not open quite the same number of files in each run, so the last places may lie behind the end.
        assert reached >= 0.9 * len(jobs), f"only {reached} of {len(jobs)} faults came to pass"


def calls_on(folder: Path, trace: str) -> dict[str, list[int]]:
    """Of each system call: which ones, counted from 1, had to do with the store and not with Python or the log."""
    found = defaultdict(list)
    count: Counter[str] = Counter()
    for line in trace.splitlines():
        called = re.match(r"(?:\d+ +)?(\w+)\(", line)
        if called:
            count[called[1]] += 1
            changes = called[1] != "openat" or "O_CREAT" in line
            if str(folder) in line and "trace.log" not in line and changes:
                found[called[1]].append(count[called[1]])
    return found


def spread(places: list[int], points: int) -> list[int]:
    step = max(1, len(places) // points)
    return places[step // 2 :: step]


def _run(name: str, url: str, log: Path, options: list[str]) -> str:
    """What the program wrote on stderr."""
    with penstock.open(url, clock=FakeClock()) as broker:
        prepare(broker)
    strace = shutil.which("strace")
    assert strace, "install strace (tools/provision does)"
    program = [sys.executable, "-B", "-m", "penstock.testing.file_crashes", name, url, str(log)]
    return subprocess.run([strace, "-f", *options, *program], check=False, stderr=subprocess.PIPE, text=True).stderr


def check_account(url: str, log: Path, whole: list[Counter[bytes]], name: str) -> None:
    lines = log.read_text().splitlines() if log.exists() else []
    done, now = len(lines), int(lines[-1]) if lines else FakeClock().now
    before, after = whole[done], whole[min(done + 1, len(whole) - 1)]
    with penstock.open(url, clock=FakeClock(now)) as broker:
        there = bodies(broker)
        assert not (before & after) - there, f"{name}: lost in step {done}"
        assert not there - (before | after), f"{name}: came back, or was half written, in step {done}"
    clock = FakeClock(now)
    clock.advance(DAY)
    with penstock.open(url, clock=clock) as broker:
        for queue in broker:
            queue.give_up("reader")
            stats = queue.stats()
            assert stats.messages == stats.visible, f"{name}: something is stuck in {queue.name} after step {done}"
        left: Counter[bytes] = Counter()
        for queue in sorted(broker, key=lambda queue: queue.name, reverse=True):  # the dead letters come last
            while messages := queue.receive(99):
                left.update(message.body for message in messages)
                queue.delete_many(messages)
            expired = [message for message in queue.settled(99) if message.reason == "retention"]
            left.update(message.body for message in expired if message.settled_at == clock.now)
        assert left == there, f"{name}: what was there could not be received after step {done}"


def check_sent_again(url: str, log: Path, name: str) -> None:
    done = len(log.read_text().splitlines()) if log.exists() else 0
    clock = FakeClock()
    clock.advance(30)
    with penstock.open(url, clock=clock) as broker:
        sends = marked_steps(broker, clock)
        window, present = broker["window"], broker["present"]
        if sum(name.encode()) % 2:
            broker.store.sweep("window", clock())
        taken = take_all(window)
        assert not window.send(b"another").duplicate, f"{name}: a new message was taken for a duplicate"
        for place, send in enumerate(sends):
            duplicates = [sent.duplicate for sent in send()]
            assert place >= done or all(duplicates), f"{name}: step {place} was answered, and sent again it is no duplicate"
        clock.advance(30)
        taken += take_all(window)
        assert taken == WINDOW + Counter([b"another"]), f"{name}: not each message came once"
        assert [message.body for message in present.receive(9)] == [b"one"], f"{name}: not there once"


def take_all(queue: Queue) -> Counter[bytes]:
    taken: Counter[bytes] = Counter()
    while messages := queue.receive(9):
        taken.update(message.body for message in messages)
        assert all(queue.delete_many(messages))
    return taken


def main(program: str, url: str, log: str) -> None:
    clock = FakeClock()
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with penstock.open(url, clock=clock) as broker:
        for step in PROGRAMS[program](broker, clock):
            step()
            os.write(handle, b"%d\n" % clock())


if __name__ == "__main__":
    main(*sys.argv[1:])
