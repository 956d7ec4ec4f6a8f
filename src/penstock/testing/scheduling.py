"""The contract's chapters on schedules: one message for each due time, whoever sends it and whoever dies."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from threading import Barrier, Thread
from types import FrameType
from typing import Any, ClassVar

import pytest

from penstock import BadInput, BadMessage, BadName, Broker, Draft, Queue, QueueNotFound, Schedule, ScheduleNotFound
from penstock.broker import LocalBroker, open_local
from penstock.message import SECOND, micros
from penstock.schedules.book import LEASE, SCHEDULES
from penstock.schedules.schedule import DUE_AT, LATE, NAME, read_kept, read_record
from penstock.stores.ports import Published
from penstock.testing.clock import START, FakeClock
from penstock.testing.faults import unsynced
from penstock.testing.model import SEED

Tick = tuple[str, float]
"""The name of a schedule, and for which second of the test it has sent a message."""
HOUR, DAY = 3600, 86400


def take(queue: Queue) -> list[Tick]:
    """Receive and delete what schedules have sent."""
    ticks: list[Tick] = []
    while messages := queue.receive(100):
        ticks += [(str(each.attributes[NAME]), (int(each.attributes[DUE_AT]) - START) / SECOND) for each in messages]
        queue.delete_many(messages)
    return sorted(ticks, key=lambda tick: tick[1])


def seconds(ticks: list[Tick]) -> list[float]:
    return [at for _, at in ticks]


class SchedulesChapter:
    """What clients can see; also true over HTTP."""

    @pytest.fixture
    def run_due(self, broker: Broker) -> Callable[[], int]:
        """Runs the schedules that are due."""
        return broker.scheduler().run_due

    def test_a_schedule_sends_its_message_every_so_many_seconds(
        self, broker: Broker, queue: Queue, clock: FakeClock, run_due: Callable[[], int]
    ) -> None:
        made = broker.schedule("tick", queue="orders", every=10, body=Draft(b"now", "text/plain", {"a": 1}, key="k"))
        assert made.next_at == clock() + 10 * SECOND
        assert (made.last_at, made.runs, made.paused) == (None, 0, False)
        assert (run_due(), queue.stats().messages) == (0, 0)
        clock.advance(10)
        assert run_due() == 1
        (message,) = queue.receive(9)
        assert (message.body, message.content_type, message.sent_at) == (b"now", "text/plain", clock())
        assert message.attributes == {"a": 1, NAME: "tick", DUE_AT: clock()}
        assert (run_due(), queue.receive(9)) == (0, [])
        assert broker.schedules() == [replace(made, next_at=clock() + 10 * SECOND, last_at=clock(), runs=1)]
        clock.advance(10)
        assert (run_due(), len(queue.receive(9))) == (1, 1)

    def test_cron_goes_by_the_clock_of_its_zone(
        self, broker: Broker, queue: Queue, clock: FakeClock, run_due: Callable[[], int]
    ) -> None:
        # START is 2027-01-15 08:00 in UTC, a Friday; noon in New York is 17:00.
        broker.schedule("noon", queue="orders", cron="0 12 * * 1-5", zone="America/New_York", body=b"")
        broker.schedule("utc", queue="orders", cron="@daily", body=b"")
        found: list[Tick] = []
        for _ in range(4 * 24):
            clock.advance(HOUR)
            run_due()
            found += take(queue)
        assert [at / HOUR for name, at in found if name == "noon"] == [9, 9 + 72]
        assert [at / HOUR for name, at in found if name == "utc"] == [16, 40, 64, 88]

    @pytest.mark.parametrize(
        ("missed", "away", "expected"),
        [
            ("once", 25, [20]),
            ("all", 45, [10, 20, 30, 40]),
            ("skip", 45, [40]),
            ("skip", 9, []),
        ],
    )
    def test_what_was_missed_is_sent_as_the_schedule_says(
        self,
        broker: Broker,
        queue: Queue,
        clock: FakeClock,
        run_due: Callable[[], int],
        missed: str,
        away: int,
        expected: list[int],
    ) -> None:
        broker.schedule("tick", queue="orders", every=10, missed=missed, body=b"")
        clock.advance(away)
        run_due()
        assert seconds(take(queue)) == expected
        clock.advance(10)
        run_due()
        assert seconds(take(queue)) == [(away + 10) // 10 * 10]

    def test_a_schedule_that_skips_does_not_send_what_is_a_minute_late(
        self, broker: Broker, queue: Queue, clock: FakeClock, run_due: Callable[[], int]
    ) -> None:
        broker.schedule("hourly", queue="orders", every=HOUR, missed="skip", body=b"")
        clock.advance(HOUR + LATE)
        run_due()
        clock.advance(HOUR + 0.001)
        run_due()
        assert seconds(take(queue)) == [HOUR]
        (shown,) = broker.schedules()
        assert (shown.runs, shown.last_at, shown.next_at) == (1, START + HOUR * SECOND, START + 3 * HOUR * SECOND)

    def test_a_program_may_declare_its_schedules_whenever_it_starts(
        self, broker: Broker, queue: Queue, clock: FakeClock, run_due: Callable[[], int]
    ) -> None:
        def declare(every: float = 10, body: bytes = b"1") -> Schedule:
            return broker.schedule("tick", queue="orders", every=every, body=body)

        made = declare()
        clock.advance(7)
        assert declare() == made
        assert declare(body=b"2") == replace(made, draft=Draft(b"2"))  # the rule is the same, and so are its times
        clock.advance(3)
        run_due()
        assert [message.body for message in queue.receive(9)] == [b"2"]
        broker.change_schedule("tick", paused=True)
        assert declare(20).paused
        clock.advance(60)
        assert run_due() == 0

    def test_a_schedule_that_is_paused_sends_nothing_and_makes_up_for_nothing(
        self, broker: Broker, queue: Queue, clock: FakeClock, run_due: Callable[[], int]
    ) -> None:
        broker.schedule("tick", queue="orders", every=10, missed="all", body=b"")
        clock.advance(10)
        run_due()
        paused = broker.change_schedule("tick", paused=True)
        assert (paused.paused, paused.next_at, paused.runs) == (True, None, 1)
        assert broker.schedules() == [paused]
        clock.advance(34)
        run_due()
        resumed = broker.change_schedule("tick", paused=False)
        assert (resumed.next_at, resumed.last_at) == (clock() + 10 * SECOND, START + 10 * SECOND)
        clock.advance(10)
        run_due()
        assert seconds(take(queue)) == [10, 54]

    def test_a_schedule_can_be_changed_and_removed(
        self, broker: Broker, queue: Queue, clock: FakeClock, run_due: Callable[[], int]
    ) -> None:
        broker.create("others")
        broker.schedule("tick", queue="orders", every=10, body=b"1")
        clock.advance(5)
        changed = broker.change_schedule("tick", queue="others", body=Draft(b"2", "text/plain"))
        assert changed.next_at == START + 10 * SECOND
        clock.advance(5)
        run_due()
        assert [message.body for message in broker["others"].receive(9)] == [b"2"]
        changed = broker.change_schedule("tick", cron="*/5 * * * *", zone="Europe/Berlin")
        assert (changed.cron, changed.every, changed.next_at) == ("*/5 * * * *", None, START + 300 * SECOND)
        assert broker.change_schedule("tick", every=7).cron is None
        removed = broker.remove_schedule("tick")
        assert (removed.every, removed.runs) == (7, 1)
        assert broker.schedules() == []
        clock.advance(DAY)
        run_due()
        assert (queue.stats().messages, broker[SCHEDULES].stats().messages) == (0, 0)
        for act in (broker.remove_schedule, broker.change_schedule):
            with pytest.raises(ScheduleNotFound, match="'tick'"):
                act("tick")
        assert broker.schedule("tick", queue="orders", every=10, body=b"1").runs == 0

    def test_schedules_are_listed_by_name(self, broker: Broker, queue: Queue) -> None:
        assert broker.schedules() == []
        made = {name: broker.schedule(name, queue="orders", every=number, body=b"") for number, name in enumerate("cab", 1)}
        assert broker.schedules() == [made["a"], made["b"], made["c"]]

    def test_a_queue_that_is_gone_does_not_stop_a_schedule(
        self, broker: Broker, clock: FakeClock, run_due: Callable[[], int], caplog: pytest.LogCaptureFixture
    ) -> None:
        broker.create("passing")
        broker.schedule("tick", queue="passing", every=10, body=b"")
        broker.delete("passing")
        clock.advance(10)
        with caplog.at_level(logging.WARNING, "penstock"):
            run_due()
        assert "schedule 'tick' could not send its message: there is no queue 'passing'" in caplog.text
        (shown,) = broker.schedules()
        assert (shown.runs, shown.next_at) == (0, START + 20 * SECOND)
        queue = broker.create("passing")
        clock.advance(10)
        run_due()
        assert seconds(take(queue)) == [20]

    def test_what_cannot_be_a_schedule_changes_nothing(self, broker: Broker, queue: Queue) -> None:
        before = broker.schedule("tick", queue="orders", every=10, body=b"")
        for changes in ({"queue": "nowhere"}, {"every": 0}, {"body": Draft(b"", delay=-1)}, {"colour": "red"}):
            with pytest.raises((BadInput, QueueNotFound)):
                broker.change_schedule("tick", **changes)
            assert broker.schedules() == [before]


class ScheduleRefusals:
    """What is refused is the same on every store."""

    @pytest.mark.parametrize(
        ("changes", "error", "words"),
        [
            ({"name": "a/b"}, BadName, "no '/'"),
            ({"name": "x" * 101}, BadName, "101 characters, the limit is 100"),
            ({"queue": "nowhere"}, QueueNotFound, "nowhere"),
            ({"every": 0.5}, BadInput, "every 0.5 is not between 1 and"),
            ({"every": "5"}, BadInput, "every must be a number of seconds"),
            ({"cron": "* * * * *"}, BadInput, "either cron, such as"),
            ({"every": None}, BadInput, "either cron, such as"),
            ({"every": None, "cron": "61 * * * *"}, BadInput, "cron '61 .* cannot be read: Bad minute"),
            ({"every": None, "cron": "* * * * * *"}, BadInput, "must have five fields"),
            ({"every": None, "cron": "* * */20 * 1L"}, BadInput, "never comes"),
            ({"every": None, "cron": "* " * 101}, BadInput, "at most 200 characters"),
            ({"every": None, "cron": 5}, BadInput, "must be text"),
            ({"zone": "Europe/Atlantis"}, BadInput, "no time zone 'Europe/Atlantis'"),
            ({"zone": None}, BadInput, "zone is the name of a time zone"),
            ({"missed": "perhaps"}, BadInput, "missed 'perhaps' is not one of skip, once, all"),
            ({"body": "text"}, BadMessage, "a body is bytes, not str"),
            ({"body": bytes(65537)}, BadMessage, "65537 bytes together, the limit for a schedule is 65536"),
            ({"body": Draft(b"x", attributes={"é": "y" * 65534})}, BadMessage, "65537 bytes together, the limit"),
            ({"body": Draft(b"", attributes={NAME: 1})}, BadMessage, "names that begin with 'penstock.'"),
            ({"body": Draft(b"", key=b"k")}, BadMessage, "is text, not bytes"),
            ({"body": Draft(b"", delay=-1)}, BadMessage, "delay -1"),
        ],
    )
    def test_what_cannot_be_a_schedule_is_refused_and_changes_nothing(
        self, broker: Broker, queue: Queue, changes: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        given: dict[str, Any] = {"name": "tick", "queue": "orders", "every": 10, "body": b""}
        broker.schedule(**given)
        before = broker.schedules()
        with pytest.raises(error, match=words):
            broker.schedule(**{**given, **changes})
        if "name" not in changes:
            if changes.get("cron") is not None and "every" not in changes:
                changes = {"cron": 1}  # cron alone takes the place of every
            with pytest.raises((error, BadInput)):
                broker.change_schedule("tick", **changes)
        with pytest.raises(BadInput, match="a schedule has no 'colour' that could be changed"):
            broker.change_schedule("tick", colour="red")
        assert broker.schedules() == before


class Scheduling(SchedulesChapter):
    """What the library alone shows: the steps in between."""

    rounds: ClassVar = 3

    def test_a_schedule_is_sent_once_when_all_processes_find_it_due(
        self, broker: LocalBroker, queue: Queue, clock: FakeClock
    ) -> None:
        broker.schedule("tick", queue="orders", every=10, body=b"")
        clock.advance(10)
        (first,) = broker.schedule_book.claim()
        clock.advance(LEASE)  # it was slow, so that another process has it too
        (second,) = broker.schedule_book.claim()
        for message in (second, first, second):
            broker.schedule_book.run(message)
        assert seconds(take(queue)) == [10]
        assert broker.schedule_book.due_at() == START + 20 * SECOND

    def test_what_a_killed_change_has_left_sends_nothing(self, broker: LocalBroker, queue: Queue, clock: FakeClock) -> None:
        broker.schedule("tick", queue="orders", every=10, body=b"counts")
        book, home = broker.schedule_book, broker[SCHEDULES]
        (message,) = home.peek(9)
        kept = read_kept(message)
        assert kept is not None
        with broker.store.outbox.ledger.publishing("schedule:tick") as noted:
            record = read_record(noted)
        left = replace(kept, schedule=replace(kept.schedule, draft=Draft(b"does not"), every=5), revision="other")
        book._write(left, record)
        assert [each.draft.body for each in broker.schedules()] == [b"counts"]
        clock.advance(10)
        while messages := book.claim():
            for each in messages:
                book.run(each)
        assert [each.body for each in queue.receive(9)] == [b"counts"]
        assert len(home.peek(9)) == 1

    def test_a_message_that_keeps_no_schedule_is_left_alone(
        self, broker: LocalBroker, queue: Queue, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        broker.schedule("tick", queue="orders", every=10, body=b"")
        broker[SCHEDULES].send(b"from elsewhere", attributes={"penstock.definition": "{}"})
        clock.advance(10)
        with caplog.at_level(logging.WARNING, "penstock"):
            broker.scheduler().run_due()
        assert "cannot be run by this process" in caplog.text
        assert seconds(take(queue)) == [10]
        assert len(broker.schedules()) == 1
        assert broker[SCHEDULES].stats().messages == 2

    def test_a_schedule_whose_record_is_lost_goes_on(self, broker: LocalBroker, queue: Queue, clock: FakeClock) -> None:
        broker.schedule("tick", queue="orders", every=100, missed="all", body=b"")
        clock.advance(100)
        broker.scheduler().run_due()
        ledger = broker.store.outbox.ledger
        with ledger.publishing("schedule:tick"):
            ledger.note("schedule:tick", Published(1), 0)
        ledger.forget(clock())
        clock.advance(100)
        broker.scheduler().run_due()
        assert seconds(take(queue)) == [100, 200]

    def test_random_calls_send_what_a_calendar_says(self, broker: LocalBroker, queue: Queue, clock: FakeClock) -> None:
        for turn in range(self.rounds):
            try:
                with unsynced():
                    play(broker, queue, clock, random.Random(SEED + turn))
            except BaseException as error:
                error.add_note(f"turn {turn}; PENSTOCK_SEED={SEED} plays it again")
                raise


class Calendar:
    """What the schedules of a test should do: plain loops over seconds."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.rules: dict[str, tuple[int, int, str, bool]] = {}
        """Seconds, since when they count, what happens to what was missed, paused."""
        self.after: dict[str, int] = {}

    def put(self, name: str, every: int, missed: str) -> None:
        _, _, _, paused = self.rules.get(name, (0, 0, "", False))
        if name not in self.rules or self.rules[name][0] != every:
            self.rules[name] = (every, self.now, missed, paused)
            self.after[name] = self.now
        else:
            self.rules[name] = (every, self.rules[name][1], missed, paused)

    def pause(self, name: str, paused: bool) -> None:
        if name in self.rules and self.rules[name][3] != paused:
            every, _, missed, _ = self.rules[name]
            self.rules[name] = (every, self.now, missed, paused)
            self.after[name] = self.now

    def run(self) -> list[Tick]:
        ticks: list[Tick] = []
        for name, (every, since, missed, paused) in self.rules.items():
            due = [at for at in range(self.after[name] + 1, self.now + 1) if (at - since) % every == 0]
            if paused or not due:
                continue
            self.after[name] = due[-1]
            if missed == "skip" and due[-1] < self.now - LATE:
                continue
            ticks += [(name, float(at)) for at in (due if missed == "all" else due[-1:])]
        return ticks


def play(broker: LocalBroker, queue: Queue, clock: FakeClock, chance: random.Random) -> None:
    calendar = Calendar((clock() - START) // SECOND)
    scheduler = broker.scheduler()
    for _ in range(30):
        name = chance.choice("ab")
        match chance.randrange(7):
            case 0 | 1:
                every, missed = chance.choice([7, 45, 100]), chance.choice(["skip", "once", "all"])
                broker.schedule(name, queue=queue.name, every=every, missed=missed, body=b"")
                calendar.put(name, every, missed)
            case 2:
                paused = chance.random() < 0.5
                with suppress(ScheduleNotFound):
                    broker.change_schedule(name, paused=paused)
                calendar.pause(name, paused)
            case 3 if chance.random() < 0.3:
                with suppress(ScheduleNotFound):
                    broker.remove_schedule(name)
                calendar.rules.pop(name, None)
            case _:
                step = chance.choice([1, 3, 10, 130])
                clock.advance(step)
                calendar.now += step
                scheduler.run_due()
                assert sorted(take(queue)) == sorted(calendar.run())
    for schedule in broker.schedules():
        broker.remove_schedule(schedule.name)


class SchedulesAcross:
    """For stores that several processes may open."""

    kills: ClassVar = 7
    """At how many points of a run a process is killed."""

    def test_killed_at_any_step_of_a_run_a_schedule_is_sent_once(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.stores.memcached.link.LOCK_SECONDS", 1)  # of real time
        with open_local(url, clock=FakeClock()) as broker:
            broker.create("orders")
            broker.schedule("tick", queue="orders", every=100, missed="all", body=b"")
        expected = 0
        steps = _run_in_child(url, START + 100 * SECOND, None)
        assert steps > 10, "the store hardly did anything"
        points = sorted({round(place * steps / self.kills) for place in range(self.kills + 1)})
        for turn, point in enumerate(points, 2):
            at = START + turn * 100 * SECOND
            _run_in_child(url, at, point)
            expected = turn
            with open_local(url, clock=FakeClock(at + micros(LEASE))) as broker:
                broker.scheduler().run_due()
                assert broker.schedules()[0].next_at == at + 100 * SECOND, f"killed at {point} of {steps}"
        with open_local(url, clock=FakeClock(START + DAY * SECOND)) as broker:
            assert seconds(take(broker["orders"])) == [100 * turn for turn in range(1, expected + 1)]
            assert broker[SCHEDULES].stats().messages == 1

    def test_two_processes_send_each_message_once(self, url: str) -> None:
        ticks = 30
        with open_local(url, clock=FakeClock()) as broker:
            broker.create("orders")
            for name in ("a", "b"):
                broker.schedule(name, queue="orders", every=1, missed="all", body=b"")
        context = get_context("fork")
        workers = [context.Process(target=_run_for, args=(url, ticks), daemon=True) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        ticks += int(LEASE)
        with open_local(url, clock=FakeClock(START + ticks * SECOND)) as broker:
            found = Counter(take(broker["orders"]))
            assert found == Counter({(name, float(at)): 1 for name in "ab" for at in range(1, ticks + 1)})

    def test_whoever_changes_a_schedule_meanwhile_is_obeyed(self, url: str) -> None:
        """A message for a time after the schedule was paused is never sent, and none is sent twice."""
        clock = FakeClock()
        with open_local(url, clock=clock) as broker, open_local(url, clock=clock) as other:
            if "orders" not in broker:
                broker.create("orders")
            broker.schedule("tick", queue="orders", every=1, missed="all", body=b"")
            pauses: list[tuple[float, float]] = []
            begin, changed = Barrier(2), list[bool]()

            def change() -> None:
                begin.wait()
                for _ in range(15):
                    other.change_schedule("tick", paused=True)
                    since = clock.now
                    for _ in range(3):
                        other.change_schedule("tick", body=b"x")
                        other.change_schedule("tick", body=b"y")
                    pauses.append((since / SECOND, clock.now / SECOND))
                    other.change_schedule("tick", paused=False)
                changed.append(True)

            thread = Thread(target=change)
            thread.start()
            begin.wait()
            scheduler = broker.scheduler()
            with unsynced():
                while thread.is_alive():
                    clock.advance(0.25)
                    scheduler.run_due()
                thread.join()
            assert changed, "a change failed"
            sent = Counter(seconds(take(broker["orders"])))
            assert set(sent.values()) <= {1}
            for since, until in pauses:
                assert not [at for at in sent if since < at + START / SECOND <= until], "it was paused"


def _run_for(url: str, ticks: int) -> None:
    """In a child: run schedules for so many seconds of its own clock, and once more when what the other held has lapsed."""
    clock = FakeClock()
    chance = random.Random(os.getpid())
    with open_local(url, clock=clock) as broker:
        scheduler = broker.scheduler()
        while clock.now < START + ticks * SECOND:
            clock.now = min(START + ticks * SECOND, clock.now + chance.choice([1, 1, 2]) * SECOND)
            scheduler.run_due()
        clock.advance(LEASE)
        scheduler.run_due()


STEPS = frozenset({"claim", "insert", "insert_once", "note", "extend", "delete", "publishing", "unstage", "load", "due"})
"""Verbs of stores. A process is killed when one begins or ends."""


def _run_in_child(url: str, now: int, point: int | None) -> int:
    """Run what is due in a process that is killed at this step; returns how many there were."""
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_run_until, args=(url, now, point, there), daemon=True)
    child.start()
    there.close()
    child.join()
    assert child.exitcode == (0 if point is None else -signal.SIGKILL)
    return int(here.recv()) if point is None else 0


def _run_until(url: str, now: int, point: int | None, there: Any) -> None:
    count = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        code = frame.f_code
        if event in ("call", "return") and code.co_name in STEPS and "/stores/" in code.co_filename:
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    with open_local(url, clock=FakeClock(now)) as broker:
        scheduler = broker.scheduler()
        sys.setprofile(note)
        scheduler.run_due()
        sys.setprofile(None)
    if point is not None:
        os.kill(os.getpid(), signal.SIGKILL)  # it was shorter this time
    there.send(count)
