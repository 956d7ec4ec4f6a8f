"""Schedules: when they are due, by which clock, who runs them, and what a server lets whom do with them."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import BadInput, Broker, Draft, MissingExtra, Queue, ScheduleNotFound, Unsupported
from penstock.broker import LocalBroker
from penstock.clock import MachineClock
from penstock.message import SECOND, from_datetime
from penstock.schedules import scheduler as scheduling
from penstock.schedules import times
from penstock.schedules.book import SCHEDULES
from penstock.schedules.schedule import DUE_AT, MOST_MISSED, SET_BACK
from penstock.schedules.times import Cron, Every
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.tokens import read_tokens
from penstock.testing.clock import START, FakeClock
from penstock.testing.http import Http
from penstock.testing.scheduling import ScheduleRefusals, SchedulesChapter, seconds, take
from penstock.testing.serving import until

BERLIN, HAVANA, LORD_HOWE = "Europe/Berlin", "America/Havana", "Australia/Lord_Howe"
HOUR = 3600 * SECOND


def at(text: str) -> int:
    return from_datetime(datetime.fromisoformat(text).astimezone(UTC))


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # At a time that does not exist, once: at the first instant after the gap.
        ("30 2 * * *", BERLIN, "2026-03-28T12:00+01", ["2026-03-29T03:00+02", "2026-03-30T02:30+02"]),
        ("0,30 2 * * *", BERLIN, "2026-03-28T12:00+01", ["2026-03-29T03:00+02", "2026-03-30T02:00+02"]),
        ("0 2,3 * * *", BERLIN, "2026-03-28T12:00+01", ["2026-03-29T03:00+02", "2026-03-30T02:00+02"]),
        # At a time that exists twice, once: the first time, also if a program asks between both.
        ("30 2 * * *", BERLIN, "2026-10-24T12:00+02", ["2026-10-25T02:30+02", "2026-10-26T02:30+01"]),
        ("30 2 * * *", BERLIN, "2026-10-25T02:15+01", ["2026-10-26T02:30+01"]),
        ("0 3 * * *", BERLIN, "2026-10-24T12:00+02", ["2026-10-25T03:00+01"]),
        # Each hour, and each minute of an hour, as the clock shows them.
        ("30 * * * *", BERLIN, "2026-03-29T01:00+01", ["2026-03-29T01:30+01", "2026-03-29T03:30+02"]),
        ("30 * * * *", BERLIN, "2026-10-25T02:00+02", ["2026-10-25T02:30+02", "2026-10-25T02:30+01", "2026-10-25T03:30+01"]),
        ("*/30 2 * * *", BERLIN, "2026-03-28T12:00+01", ["2026-03-30T02:00+02"]),
        ("*/30 2 * * *", BERLIN, "2026-10-25T02:20+02", ["2026-10-25T02:30+02", "2026-10-25T02:00+01", "2026-10-25T02:30+01"]),
        # Midnight does not exist, or half an hour is left out.
        ("0 0 * * *", HAVANA, "2026-03-07T12:00-05", ["2026-03-08T01:00-04", "2026-03-09T00:00-04"]),
        ("15 2 * * *", LORD_HOWE, "2026-10-03T12:00+10:30", ["2026-10-04T02:30+11", "2026-10-05T02:15+11"]),
        # Days: the last of a month, a leap day, a weekday that is the fifth of its month.
        ("0 0 L * *", "UTC", "2027-02-01T00:00+00", ["2027-02-28T00:00+00", "2027-03-31T00:00+00"]),
        ("0 0 29 2 *", "UTC", "2027-02-01T00:00+00", ["2028-02-29T00:00+00", "2032-02-29T00:00+00"]),
        ("0 0 * 2 MON#5", "UTC", "2027-02-01T00:00+00", ["2044-02-29T00:00+00"]),
        ("@weekly", "UTC", "2027-01-15T08:00+00", ["2027-01-17T00:00+00"]),
    ],
)
def test_cron_at_the_edges_of_the_calendar(cron: str, zone: str, after: str, expected: list[str]) -> None:
    found = itertools.islice(Cron(cron, zone).after(at(after)), len(expected))
    assert list(found) == [at(text) for text in expected]


fields = st.sampled_from(["*", "*/7", "0", "30", "2", "1-3", "2,30"])
instants = st.integers(at("2026-01-01T00:00+00") // SECOND, at("2027-01-01T00:00+00") // SECOND)
edges = st.sampled_from(
    [at("2026-03-29T01:00+00") // SECOND, at("2026-10-25T01:00+00") // SECOND, at("2026-03-08T05:00+00") // SECOND]
)
near = st.builds(lambda edge, by: edge + by, edges, st.integers(-7200, 7200))


@settings(max_examples=150)
@given(fields, st.sampled_from(["*", "2", "1-3", "*/2", "0,2,3"]), st.sampled_from([BERLIN, HAVANA, "UTC"]), instants | near)
def test_a_rule_is_the_same_wherever_one_begins_to_ask(minute: str, hour: str, zone: str, second: int) -> None:
    """Instants that others skip or add, because they have begun elsewhere, would be lost or doubled."""
    rule = Cron(f"{minute} {hour} * * *", zone) if minute != "30" else Cron(f"30 {hour} * * *", zone)
    start = second * SECOND
    found = list(itertools.islice(rule.after(start), 8))
    assert found == sorted(set(found))
    assert start < found[0]
    for place, instant in enumerate(found[:-1]):
        assert next(rule.after(instant)) == found[place + 1]
        assert next(rule.after(instant - SECOND)) == instant
        assert next(rule.after(instant + 1)) == found[place + 1]
    assert rule.last(start, found[5], 3) == found[3:6]
    assert rule.last(start, found[1] - 1, 99) == found[:1]


def test_seconds_are_counted_from_where_the_rule_was_made() -> None:
    rule = Every(10, START + 3)
    assert list(itertools.islice(rule.after(START + 3), 2)) == [START + 3 + 10 * SECOND, START + 3 + 20 * SECOND]
    assert next(rule.after(START - HOUR)) == START + 3 - HOUR
    assert rule.last(START + 3, START + 3 + 35 * SECOND, 2) == [START + 3 + 20 * SECOND, START + 3 + 30 * SECOND]
    assert rule.last(START + HOUR, START, 2) == []


def test_what_was_missed_for_years_is_found_at_once() -> None:
    """A look at each minute of ten years would take minutes, in which nobody else could run the schedule."""
    now = at("2026-10-25T12:00+01")
    began = time.monotonic()
    assert Cron("* * * * *", BERLIN).last(now - 10 * 8760 * HOUR, now, 1) == [now]
    assert len(Cron("* * 29 2 *", BERLIN).last(now - 10 * 8760 * HOUR, now, MOST_MISSED)) == MOST_MISSED
    assert time.monotonic() - began < 5


def test_all_that_was_missed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    with penstock.open("memory:", clock=clock) as broker:
        queue = broker.create("orders")
        broker.schedule("tick", queue="orders", every=1, missed="all", body=b"")
        clock.advance(MOST_MISSED + 500)
        assert broker.scheduler().run_due() == 10, "the others get their turns in between"
        assert seconds(take(queue)) == list(range(501, MOST_MISSED + 501))


def test_a_store_has_a_limit_of_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.schedules.book.MOST", 3)
    with penstock.open("memory:") as broker:
        broker.create("orders")
        for name in "abc":
            broker.schedule(name, queue="orders", every=9, body=b"")
        with pytest.raises(BadInput, match="there are 3 schedules already, the limit"):
            broker.schedule("d", queue="orders", every=9, body=b"")
        broker.schedule("c", queue="orders", every=8, body=b"")


def test_without_the_library_seconds_work_and_cron_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    with penstock.open("memory:", clock=clock) as broker:
        queue = broker.create("orders")
        broker.schedule("known", queue="orders", cron="* * * * *", body=b"")
        monkeypatch.setattr(times, "CronSim", None)
        with pytest.raises(MissingExtra, match=r'pip install "penstock\[schedules\]"'):
            broker.schedule("cron", queue="orders", cron="* * * * *", body=b"")
        broker.schedule("tick", queue="orders", every=60, body=b"")
        assert [(each.name, each.next_at) for each in broker.schedules()] == [("known", None), ("tick", START + 60 * SECOND)]
        clock.advance(60)
        broker.scheduler().run_due()
        assert [name for name, _ in take(queue)] == ["tick"]
        monkeypatch.undo()
        clock.advance(3600)  # a process that has the library goes on
        broker.scheduler().run_due()
        assert "known" in [name for name, _ in take(queue)]


# which clock


class Machine:
    """A machine whose wall clock a test can set."""

    def __init__(self) -> None:
        self.passed, self.set_by = 0, 0
        self.clock = MachineClock(
            steady=lambda: self.passed, wall=lambda: START + self.passed + self.set_by, boot=lambda: "boot"
        )

    def wait(self, seconds: float) -> None:
        self.passed += int(seconds * SECOND)

    def set(self, seconds: float) -> None:
        self.set_by += int(seconds * SECOND)


def on(machine: Machine) -> LocalBroker:
    broker = penstock.broker.open_local("memory:", clock=machine.clock)
    broker.create("orders")
    return broker


def walls(queue: Queue) -> list[float]:
    """For which instants on the wall clock messages came, in hours since the start."""
    return [float(at) / 3600 for _, at in take(queue)]


def test_cron_goes_by_the_wall_clock_when_it_is_set_forward() -> None:
    machine = Machine()
    with on(machine) as broker:
        broker.schedule("cron", queue="orders", cron="0 12 * * *", body=b"")  # in four hours
        broker.schedule("tick", queue="orders", every=3600, body=b"")
        scheduler = broker.scheduler()
        machine.wait(60)
        machine.set(3.5 * 3600)
        for _ in range(31 * 2):
            machine.wait(30)
            broker.schedule_book.rearrange()  # as a scheduler does all 30 seconds while the clocks differ
            scheduler.run_due()
        assert take(broker["orders"]) == [("cron", 4 * 3600)], "no hour has passed, for what counts seconds"


def test_nothing_is_sent_twice_when_the_wall_clock_is_set_back() -> None:
    machine = Machine()
    with on(machine) as broker:
        broker.schedule("cron", queue="orders", cron="0 9 * * *", body=b"")
        broker.schedule("tick", queue="orders", every=600, body=b"")
        scheduler, queue = broker.scheduler(), broker["orders"]
        machine.wait(3600)
        scheduler.run_due()
        assert [name for name, _ in take(queue)] == ["tick", "cron"]
        machine.set(-1800)
        for _ in range(42):
            machine.wait(60)
            scheduler.run_due()
        assert [name for name, _ in take(queue)] == ["tick"] * 4, "seconds are those that pass"


def test_a_wall_clock_that_was_years_ahead_does_not_stop_a_schedule_for_years() -> None:
    machine = Machine()
    with on(machine) as broker:
        scheduler, queue = broker.scheduler(), broker["orders"]
        machine.set(SET_BACK + 400 * 86400)
        machine.clock.look()
        broker.schedule("cron", queue="orders", cron="0 * * * *", body=b"")
        machine.set(-SET_BACK - 400 * 86400)
        broker.schedule_book.rearrange()
        for _ in range(10):
            machine.wait(1800)
            broker.schedule_book.rearrange()
            scheduler.run_due()
        assert walls(queue)[-4:] == [2, 3, 4, 5]


# who runs them


def watch(broker: Broker, name: str, count: int) -> list[float]:
    """How late so many messages of a schedule came, in seconds of the store's clock."""
    late = []
    while len(late) < count:
        for message in broker[name].receive(9, wait=30):
            late.append((message.sent_at - int(message.attributes[DUE_AT])) / SECOND)
            message.delete()
    return late


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
def test_a_consumer_runs_the_schedules_too(store: str, tmp_path: Path) -> None:
    with penstock.open("memory:" if store == "memory:" else f"sqlite:///{tmp_path}/queue.db") as broker:
        broker.create("orders")
        consumer = broker.consumer("orders")
        came: list[bytes] = []

        @consumer.process
        def handle(body: bytes, message: penstock.Message) -> None:
            came.append(body)
            if len(came) == 2:
                consumer.stop()

        worker = threading.Thread(target=consumer.run, daemon=True)
        worker.start()
        broker.schedule("tick", queue="orders", every=1, body=b"x")  # after the consumer has begun
        worker.join(30)
        consumer.stop()
        worker.join()
        assert came[:2] == [b"x", b"x"]
        assert not [each for each in threading.enumerate() if each.name == "penstock scheduler"]


def test_a_consumer_may_leave_schedules_to_others() -> None:
    clock = FakeClock()
    with penstock.open("memory:", clock=clock) as broker:
        broker.create("orders")
        for schedules in (False, True):
            consumer, seen = broker.consumer("orders", schedules=schedules), list[int]()
            consumer.process(lambda body, message, consumer=consumer, seen=seen: seen.append(_schedulers()) or consumer.stop())
            broker["orders"].send(b"")
            consumer.run()
            assert seen == [schedules]
            assert not _schedulers()


def _schedulers() -> int:
    return sum(each.name == "penstock scheduler" for each in threading.enumerate())


def test_a_scheduler_rests_until_something_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open("memory:") as broker:
        broker.create("orders")
        looks: list[float] = []
        claim = broker.schedule_book.claim
        monkeypatch.setattr(broker.schedule_book, "claim", lambda: looks.append(time.monotonic()) or claim())
        broker.schedule("later", queue="orders", every=3600, body=b"")
        with broker.scheduler():
            until(lambda: bool(looks))
            time.sleep(0.5)
            assert len(looks) <= 2
            broker.schedule("soon", queue="orders", every=1, missed="all", body=b"")
            assert max(watch(broker, "orders", 2)) < scheduling.CLOCK_EVERY / 2
            assert len(looks) <= 12


def test_a_schedule_made_by_another_process_is_run_at_its_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(url) as broker:
        broker.create("orders")
        broker.schedule("first", queue="orders", every=3600, body=b"")
        with broker.scheduler():
            program = "import sys, penstock\nwith penstock.open(sys.argv[1]) as b:"
            program += " b.schedule('x', queue='orders', every=1, missed='all', body=b'')"
            subprocess.run([sys.executable, "-c", program, url], check=True)
            assert max(watch(broker, "orders", 2)) < scheduling.CLOCK_EVERY / 2


def test_one_bad_schedule_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with penstock.open("memory:") as broker:
        broker.create("orders")
        for name in ("bad", "good"):
            broker.schedule(name, queue="orders", every=1, body=name.encode())
        run = broker.schedule_book.run

        def fail(message: penstock.Message) -> None:
            if message.body == b"bad":
                raise ZeroDivisionError
            run(message)

        monkeypatch.setattr(broker.schedule_book, "run", fail)
        with broker.scheduler():
            watch(broker, "orders", 2)
        assert "a defect in Penstock, in schedule" in caplog.text


def test_a_scheduler_survives_a_store_that_fails_and_the_loss_of_all_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "ERROR_PAUSE", 0.01)
    monkeypatch.setattr(scheduling, "LOOK_EVERY", 0.01)
    with penstock.open("memory:") as broker:
        broker.create("orders")
        broker.schedule("tick", queue="orders", every=1, body=b"")
        claim, failing = broker.schedule_book.claim, [True] * 5

        def sometimes() -> list[penstock.Message]:
            if failing:
                failing.pop()
                raise penstock.StoreBusy("for now")
            return claim()

        monkeypatch.setattr(broker.schedule_book, "claim", sometimes)
        with broker.scheduler():
            watch(broker, "orders", 1)
            broker.delete(SCHEDULES)
            assert broker.schedules() == []
            with pytest.raises(ScheduleNotFound):
                broker.change_schedule("tick", paused=True)
            broker.schedule("tick", queue="orders", every=1, body=b"")
            watch(broker, "orders", 1)


def test_a_broker_that_is_closed_ends_its_schedulers() -> None:
    with ExitStack() as stack:
        with penstock.open("memory:") as broker:
            broker.create("orders")
            broker.schedule("later", queue="orders", every=3600, body=b"")
            stack.enter_context(broker.scheduler())
            until(lambda: _schedulers() == 1)
        until(lambda: _schedulers() == 0)


# through a server


class Served:
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def behind(self, clock: FakeClock) -> Iterator[Broker]:
        with penstock.open("memory:", clock=clock) as broker:
            yield broker

    @pytest.fixture
    def broker(self, behind: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
        monkeypatch.setattr("penstock.server.scheduling.Scheduling.start", lambda _: None)
        with BackgroundServer(behind, ServerSettings(port=0, access_log=False)) as server, penstock.open(server.url) as broker:
            yield broker

    @pytest.fixture
    def queue(self, broker: Broker) -> Queue:
        return broker.create("orders")

    @pytest.fixture
    def run_due(self, behind: Broker) -> Callable[[], int]:
        return behind.scheduler().run_due


class TestOverHttp(Served, SchedulesChapter, ScheduleRefusals):
    """The contract's chapter, with the HTTP client as the broker."""

    def test_the_server_runs_the_schedules(self, broker: Broker) -> None:
        with pytest.raises(Unsupported, match="the server runs its schedules itself"):
            broker.scheduler()
        assert broker.create("others")
        assert broker.consumer("others")


class TestInMemory(ScheduleRefusals):
    @pytest.fixture
    def broker(self) -> Iterator[Broker]:
        with penstock.open("memory:") as broker:
            yield broker

    @pytest.fixture
    def queue(self, broker: Broker) -> Queue:
        return broker.create("orders")


def test_a_server_runs_the_schedules_of_its_store_and_counts_their_messages() -> None:
    with penstock.open("memory:") as behind, BackgroundServer(behind, ServerSettings(port=0, access_log=False)) as server:
        with penstock.open(server.url) as broker:
            broker.create("orders")
            broker.schedule("tick", queue="orders", every=1, body=Draft(b"x", "text/plain"))
            (message,) = broker["orders"].receive(wait=30)
            assert message.body == b"x"
        line = b'penstock_messages_total{deed="sent",queue="orders"} 1'
        until(lambda: line in Http(server.url)("GET", "/metrics").body)


SECRETS = {name: name * 16 for name in "abcr"}


@pytest.fixture
def shared(clock_of_shared: FakeClock) -> Iterator[str]:
    tables = [
        {"name": "a", "secret": SECRETS["a"], "scopes": ["send", "admin", "count", "read"], "queues": ["a.*"]},
        {"name": "b", "secret": SECRETS["b"], "scopes": ["admin", "count"], "queues": ["b.*", "a.shared"]},
        {"name": "c", "secret": SECRETS["c"], "scopes": ["send", "read"], "queues": ["*"]},
        {"name": "r", "secret": SECRETS["r"], "scopes": ["send", "admin", "read", "count"], "queues": ["*"]},
    ]
    settings = ServerSettings(port=0, access_log=False, tokens=read_tokens(tables, "test", ""))
    with penstock.open("memory:", clock=clock_of_shared) as behind, BackgroundServer(behind, settings) as server:
        for name in ("a.1", "a.shared", "b.1"):
            behind.create(name)
        yield server.url


@pytest.fixture
def clock_of_shared() -> FakeClock:
    return FakeClock()


def test_a_token_makes_sees_and_changes_only_schedules_of_its_own_queues(shared: str) -> None:
    with ExitStack() as stack:
        a, b, c, root = (stack.enter_context(penstock.open(shared, token=SECRETS[name])) for name in "abcr")
        a.schedule("mine", queue="a.1", every=10, body=b"secret")
        a.schedule("shared", queue="a.shared", every=10, body=b"secret")
        for act, words in [
            (lambda: a.schedule("x", queue="b.1", every=10, body=b""), "may not admin on queue 'b.1'"),
            (lambda: b.schedule("x", queue="b.1", every=10, body=b""), "may not send on queue 'b.1'"),
            (lambda: c.schedule("x", queue="b.1", every=10, body=b""), "may not admin on queue 'b.1'"),
            (lambda: b.schedule("mine", queue="b.1", every=10, body=b""), "'mine' sends to a queue that is not for this token"),
            (lambda: b.change_schedule("mine", queue="b.1"), "'mine' sends to a queue that is not for this token"),
            (lambda: b.change_schedule("shared", every=5), "may not send on queue 'a.shared'"),
            (lambda: a.change_schedule("mine", queue="b.1"), "may not admin on queue 'b.1'"),
            (lambda: c.remove_schedule("mine"), "may not admin on queue 'a.1'"),
        ]:
            with pytest.raises(BadInput, match=words):
                act()
        with pytest.raises(ScheduleNotFound):
            b.remove_schedule("mine")
        assert [(each.name, each.draft.body) for each in a.schedules()] == [("mine", b"secret"), ("shared", b"secret")]
        assert [(each.name, each.draft.body) for each in b.schedules()] == [("shared", b"")]
        assert [each.name for each in root.schedules()] == ["mine", "shared"]
        b.remove_schedule("shared")
        assert [each.every for each in root.schedules()] == [10]


def test_a_request_with_other_arguments_is_refused(shared: str) -> None:
    http = Http(shared, {"Authorization": f"Bearer {SECRETS['r']}"})
    for verb, arguments, words in [
        ("schedules", {"queue": "a.1"}, "no argument 'queue'"),
        ("schedule", {"name": "x"}, "queue"),
        ("schedule", {"name": "x", "queue": "a.1", "body": "eA==", "colour": 1}, "colour"),
        ("remove_schedule", {}, "name"),
        ("change_schedule", {}, "name"),
        ("change_schedule", {"name": ["x"]}, "text"),
    ]:
        answer = http("POST", f"/penstock/broker/{verb}", {"arguments": arguments})
        assert answer.status == 400, answer.body
        assert words in answer.json["error"]
    assert http("POST", "/penstock/broker/remove_schedule", {"arguments": {"name": "x"}}).status == 404
