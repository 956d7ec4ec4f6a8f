"""Dramatiq on Penstock: its worker in this process, its command line as users have it, and kill -9."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq import errors
from framework_workers import LONG, WorkerProgram, counted, notes, until
from test_celery import server_of

import penstock
from penstock.contrib.dramatiq import PenstockBroker
from penstock.server import BackgroundServer

TASKS = 1000 if LONG else 100
KILLS = 10 if LONG else 1
COUNTDOWN = 5.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def broker(url: str) -> Iterator[PenstockBroker]:
    made = PenstockBroker(url, visibility=1)
    yield made
    made.close()


@contextmanager
def working(broker: PenstockBroker, **options: Any) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=4, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def actor(broker: PenstockBroker, function: Callable[..., Any], **options: Any) -> Any:
    return dramatiq.actor(function, broker=broker, **options)


@pytest.mark.parametrize("store", ["memory", "sqlite", "vsqs", "spool", "memcached", "postgresql", "mariadb", "http"])
def test_dramatiq_works_on_every_store(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if store == "http":
        with penstock.open(f"sqlite:///{tmp_path}/served.db") as served, BackgroundServer(served) as server:
            take_a_round(server.url)
    elif store in ("sqlite", "vsqs", "spool"):
        take_a_round(f"{store}:///{tmp_path}/queue")
    elif store == "memory":
        take_a_round("memory:")
    else:
        take_a_round(request.getfixturevalue(store).new_url())


def take_a_round(url: str) -> None:
    """A message now, one later, and one that is dead after its retries."""
    ran: list[Any] = []

    def work(name: str, due_at: float) -> None:
        ran.append(name)
        assert time.time() >= due_at - 0.05
        if name == "bad":
            raise ValueError(name)

    broker = PenstockBroker(url)
    do = actor(broker, work, max_retries=1, min_backoff=1, max_backoff=1)
    do.send_with_options(args=("later", time.time() + 1), delay=1000)
    do.send("now", 0)
    do.send("bad", 0)
    with working(broker):
        broker.join("default", timeout=60_000)
    assert sorted(ran) == ["bad", "bad", "later", "now"]
    (letter,) = broker.store["default.XQ"].peek(10)
    assert dramatiq.Message.decode(letter.body).args == ("bad", 0)
    assert letter.content_type == "application/json"
    broker.close()


def test_without_dramatiq_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['dramatiq'] = None\n"
        "import penstock\n"
        "try:\n    import penstock.contrib.dramatiq\n"
        "except penstock.MissingExtra as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == 'penstock.contrib.dramatiq needs an optional library: pip install "penstock[dramatiq]"\n'


def test_a_declared_actor_opens_nothing(broker: PenstockBroker, tmp_path: Path) -> None:
    actor(broker, lambda: None, actor_name="idle")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(errors.QueueNotFound):
        broker.consume("never declared")


def test_a_message_is_visible_only_when_it_is_due(broker: PenstockBroker) -> None:
    do = actor(broker, lambda: None, actor_name="idle")
    do.send_with_options(delay=3_600_000)
    assert broker.store["default"].stats().delayed == 1
    assert set(broker.get_declared_delay_queues()) == set(), "no queue beside it"
    with pytest.raises(errors.QueueJoinTimeout):
        broker.join("default", timeout=200)
    broker.flush_all()
    broker.join("default", timeout=200)


def test_a_lease_is_extended_while_an_actor_runs(broker: PenstockBroker) -> None:
    ran: list[float] = []

    def work() -> None:
        ran.append(time.time())
        time.sleep(2.5)

    actor(broker, work).send()
    with working(broker):
        broker.join("default", timeout=60_000)
    assert len(ran) == 1


def test_a_consumer_holds_no_more_than_it_may_and_gives_back_the_rest(broker: PenstockBroker) -> None:
    do = actor(broker, lambda number: None, actor_name="count")
    for number in range(10):
        do.send(number)
    consumer = broker.consume("default", prefetch=3, timeout=100)
    got = [next(consumer) for _ in range(3)]
    assert next(consumer) is None
    assert broker.store["default"].stats().in_flight == 3
    consumer.ack(got[0])
    more = next(consumer)
    assert more
    assert more.args == (3,)
    until("the end of the first", lambda: broker.store["default"].stats().messages == 9)
    assert broker.store["default"].stats().in_flight == 3
    consumer.requeue(got[1:])
    assert next(consumer)
    consumer.close()
    stats = broker.store["default"].stats()
    assert (stats.messages, stats.in_flight) == (9, 2), "one of the two that it fetched is in nobody's hands"


def test_what_is_not_dramatiqs_is_a_dead_letter(broker: PenstockBroker) -> None:
    actor(broker, lambda: None, actor_name="idle").send()
    broker.queue("default").send(b"\xff")
    with working(broker):
        broker.join("default", timeout=60_000)
    assert [letter.body for letter in broker.store["default.XQ"].peek(10)] == [b"\xff"]


def test_a_queue_that_was_deleted_is_created_again(broker: PenstockBroker) -> None:
    do = actor(broker, lambda: None, actor_name="idle")
    do.send()
    broker.store.delete("default")
    do.send()
    assert broker.store["default"].stats().messages == 1


def test_a_broker_that_was_closed_opens_again(broker: PenstockBroker) -> None:
    do = actor(broker, lambda: None, actor_name="idle")
    do.send()
    broker.close()
    do.send()
    assert broker.store["default"].stats().messages == 2


def worker(folder: Path, name: str, url: str) -> WorkerProgram:
    command = ["dramatiq", "dramatiq_app", "-p", "2", "-t", "2", "--worker-shutdown-timeout", "60000"]
    return WorkerProgram(folder, name, *command, APP_URL=url, APP_VISIBILITY="3")


def test_a_worker_that_is_told_to_end_finishes_what_runs_and_gives_back_the_rest(tmp_path: Path, url: str) -> None:
    sender = PenstockBroker(url)
    sender.declare_queue("slow")
    for number in range(10):
        sender.enqueue(dramatiq.Message("slow", "slow", (number,), {}, {}))
    with worker(tmp_path, "first", url) as first:
        until("running actors", lambda: len([note for note in notes(tmp_path) if note[0] == "slow"]) == 4)
        first.ask_to_stop()
        until("the warm shutdown of both processes", lambda: first.log.read_text().count("Shutting down...") == 2)
        (tmp_path / "go").touch()
        assert first.wait() == 0
    done = {int(note[1]) for note in notes(tmp_path) if note[0] == "slow-end"}
    assert len(done) == 4
    stats = sender.store["slow"].stats()
    assert (stats.messages, stats.in_flight) == (6, 0)
    sender.close()


@pytest.mark.parametrize("store", ["sqlite", "http"])
def test_no_message_of_dramatiq_is_lost_after_kill_9_of_workers_and_server(store: str, tmp_path: Path) -> None:
    chance = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    with server_of(store, tmp_path) as server, worker(tmp_path, "one", server.url) as one:
        sender = PenstockBroker(server.url)
        sender.declare_queue("default")
        moments = set(chance.sample(range(TASKS // 10, TASKS * 9 // 10), KILLS))
        for number in range(TASKS):
            later = number % 10 == 0
            at = time.time() + COUNTDOWN if later else 0
            sender.enqueue(
                dramatiq.Message("default", "count", (number, at), {}, {}), delay=round(COUNTDOWN * 1000) if later else None
            )
            if number in moments:
                until("progress", lambda: len(counted(tmp_path)) * 4 >= number)  # noqa: B023
                one.restart()
                if server.restart:
                    server.restart()
        until("every message", lambda: len(counted(tmp_path)) == TASKS, 1200)
        until("the end of the last", lambda: sender.store["default"].stats().messages == 0)
        assert one.stop() == 0
        print(f"{store}: {TASKS} messages ran {sum(counted(tmp_path).values())} times", file=sys.stderr)
        sender.close()
