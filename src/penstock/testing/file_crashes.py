"""The contract's chapter on killed processes and failing disks, for stores that keep each message in a file.

`FileCrashes` runs programs of a few steps in a child (`penstock.testing.faults`): once to see which system calls change the
store, then repeatedly, killing the child at one of them or making the call fail. Short programs try every call, the long one
(`penstock.testing.steps` and batches) some of each kind. A batch of several files is not atomic, so the account is checked:
what is in the state both before and after the interrupted step must be there, what is in neither must not, no body is
truncated, and a day later nothing is stuck.

The program that sends marked messages then repeats all of its sends, as their senders would. A send that had been answered must
be a duplicate, and in the end each message must have been delivered exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest

import penstock
from penstock import Broker, Queue, Sent, StoreError
from penstock.broker import open_local
from penstock.testing.clock import FakeClock
from penstock.testing.faults import ChildResult, Fault, run_child, short_lived, unsynced
from penstock.testing.steps import prepare, steps

ERRORS = ["EIO", "ENOSPC"]
FAILURES = ["write", "pwrite64", "fsync", "syncfs", "rename", "renameat2"]
DAY = 86400


def short_steps(broker: Broker, clock: FakeClock) -> list[Callable[[], object]]:
    """Send, claim, requeue, extend, release and delete, once each, with as little else as possible."""
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
        lambda: once.send_many([b"%d" % number * 3000 for number in range(10, 20)]),  # enough for all to share one sync
        lambda: once.receive(4),
    ]


def marked_steps(broker: Broker, clock: FakeClock) -> list[Callable[[], list[Sent]]]:
    """Sends to queues that deduplicate: single, in batches, delayed, and enough to share one sync."""
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
    """What is in the store before the first step and after each step."""
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
    """How many places of each system call of the long program to die at."""

    @pytest.mark.parametrize("program", ["short", "long"])
    def test_killed_at_a_system_call_nothing_is_lost_or_stuck_or_comes_back(
        self, make_url_in: Callable[[Path], str], program: str
    ) -> None:
        with short_lived(make_url_in) as url:
            whole = accounts(program, url)
        self._check(make_url_in, program, [], lambda url, told, name: check_account(url, told, whole, name))

    @pytest.mark.parametrize("program", ["short", "long"])
    def test_where_a_system_call_fails_nothing_is_lost_or_stuck_or_half_written(
        self, make_url_in: Callable[[Path], str], program: str
    ) -> None:
        with short_lived(make_url_in) as url:
            whole = accounts(program, url)
        self._check(make_url_in, program, ERRORS, lambda url, told, name: check_account(url, told, whole, name))

    @pytest.mark.parametrize("errors", [[], ERRORS], ids=["killed", "failed"])
    def test_sent_again_after_a_sender_was_cut_short_each_message_comes_once(
        self, make_url_in: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch, errors: list[str]
    ) -> None:
        def check(url: str, told: list[str], name: str) -> None:
            with monkeypatch.context() as patched:
                patched.setattr("penstock.file_times.ORPHANED", -(10**10))  # the dead sender is long gone
                check_sent_again(url, told, name)

        self._check(make_url_in, "marked", errors, check)

    def _check(
        self,
        make_url_in: Callable[[Path], str],
        program: str,
        errors: list[str],
        check: Callable[[str, list[str], str], None],
    ) -> None:
        def work(url: str, fault: Fault | None = None) -> ChildResult:
            with unsynced(), penstock.open(url, clock=FakeClock()) as broker:
                prepare(broker)
            return run_child(lambda tell: run_steps(program, url, tell), fault)

        with short_lived(make_url_in) as url:
            calls = work(url).calls
        places = {call: range(1, count + 1) for call, count in calls.items() if not errors or call in FAILURES}
        if program == "long":
            places = {call: spread(whens, self.points) for call, whens in places.items()}
        faults = [Fault(call, when, *errors[when % 2 :][:1]) for call, whens in places.items() for when in whens]
        assert len(faults) > 10, "the store hardly wrote"
        came = 0
        for fault in faults:
            with short_lived(make_url_in) as url:
                run = work(url, fault)
                came += run.came
                with unsynced():
                    check(url, run.told, str(fault))
        # By the real clock a run may make a call more or less than was counted, so it may not reach the last one.
        assert came >= 0.9 * len(faults), f"only {came} of {len(faults)} faults came to pass"


def spread(places: range, points: int) -> range:
    step = max(1, len(places) // points)
    return places[step // 2 :: step]


def run_steps(program: str, url: str, tell: Callable[[str], None]) -> None:
    """Run the steps of a program; after each answer, report the clock."""
    clock = FakeClock()
    with suppress(StoreError), penstock.open(url, clock=clock) as broker:
        for step in PROGRAMS[program](broker, clock):
            step()
            tell(str(clock()))


def check_account(url: str, told: list[str], whole: list[Counter[bytes]], name: str) -> None:
    done, now = len(told), int(told[-1]) if told else FakeClock().now
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
        for queue in sorted(broker, key=lambda queue: queue.name, reverse=True):  # dead letters last
            while messages := queue.receive(99):
                left.update(message.body for message in messages)
                queue.delete_many(messages)
            expired = [message for message in queue.settled(99) if message.reason == "retention"]
            left.update(message.body for message in expired if message.settled_at == clock.now)
        assert left == there, f"{name}: what was there could not be received after step {done}"


def check_sent_again(url: str, told: list[str], name: str) -> None:
    done = len(told)
    clock = FakeClock()
    clock.advance(30)
    with open_local(url, clock=clock) as broker:
        sends = marked_steps(broker, clock)
        window, present = broker["window"], broker["present"]
        if sum(name.encode()) % 2:
            broker.store.queue("window").sweep(clock())
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
