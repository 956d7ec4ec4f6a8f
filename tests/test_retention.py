"""Clearing away runs beside the calls of users: none of them waits for it, and it ends when a broker is closed."""

import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

import penstock
from penstock import Broker
from penstock.message import State
from penstock.queue import retention
from penstock.stores.requests import Swept
from penstock.stores.sql import queue as sql_queue
from penstock.testing import FakeClock
from penstock.testing.verbs import wrap_verb


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with penstock.open(url) as broker:
        yield broker


def tenders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock tender"]


def wait_for_tenders() -> None:
    for thread in tenders():
        thread.join(60)
        assert not thread.is_alive()


def test_a_send_and_a_receive_return_while_the_queue_is_being_cleared(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = broker.create("orders")
    begun, end = Event(), Event()

    def sweep(*_: object) -> Swept:
        begun.set()
        assert end.wait(60)
        return Swept()

    wrap_verb(monkeypatch, broker, "sweep", sweep)
    queue.send(b"first")
    assert begun.wait(60)
    queue.send(b"second")
    assert len(queue.receive(2)) == 2
    end.set()
    wait_for_tenders()


def test_what_outlived_its_retention_goes_without_anyone_who_receives(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SLICE", 2)
    queue = broker.create("orders", history=3600)
    wait_for_tenders()
    queue.send_many([b"%d" % number for number in range(5)])
    wait_for_tenders()
    much_later = broker.clock() + 10**13
    monkeypatch.setattr(queue._opened.retention, "_clock", lambda: much_later)
    queue._opened.retention.due_at = 0
    queue.send(b"another")
    wait_for_tenders()
    assert broker.store.queue("orders").count(much_later).messages == 0


def test_old_history_goes_a_part_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_queue, "SWEEP_AT_ONCE", 2)
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", history=1)
        for number in range(6):
            queue.send(b"%d" % number)
            queue.delete(queue.receive()[0])
            clock.advance(0.01)
        assert len(queue.settled()) == 6
        clock.advance(2)
        left = []
        while broker.store.queue("orders").sweep(clock()).more:
            left.append(len(queue.settled()))
        assert left == [3, 0]
        assert all(message.state is State.PROCESSED for message in queue.settled())


def test_a_settled_claim_is_cleared_though_the_queue_is_not_due(url: str, tmp_path: Path) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"x"] * 5)
        wait_for_tenders()
        queue.claim("reader", 1, 10)
        queue.confirm("reader", 1)
        assert queue.settle("reader", 1) == 5
        wait_for_tenders()
    with closing(sqlite3.connect(tmp_path / "queue.db")) as file:
        assert file.execute("SELECT count(*) FROM penstock_message").fetchone() == (0,)


def test_closing_finishes_a_slice_and_ends_the_thread(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = Event()
    broker = penstock.open(url)
    queue = broker.create("orders")
    wait_for_tenders()

    def sweep(*_: object) -> Swept:
        begun.set()
        return Swept(more=True)  # there is always more

    wrap_verb(monkeypatch, broker, "sweep", sweep)
    queue._opened.retention.due_at = 0
    queue.send(b"x")
    assert begun.wait(60)
    broker.close()
    assert not tenders()


def test_a_child_clears_away_by_a_thread_of_its_own(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = broker.create("orders")
    queue.send(b"x")
    child = os.fork()
    if child == 0:
        done = Event()
        wrap_verb(monkeypatch, broker, "sweep", lambda *_: Swept(bool(done.set())))
        queue._opened.retention.due_at = 0
        queue.send(b"y")
        os._exit(0 if done.wait(60) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_queue_that_cannot_be_cleared_does_not_keep_others_from_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = broker.create("bad"), broker.create("good")
    wait_for_tenders()
    swept = Event()

    def sweep(_: object, name: str, now: int) -> Swept:
        if name == "bad":
            raise ZeroDivisionError
        swept.set()
        return Swept()

    wrap_verb(monkeypatch, broker, "sweep", sweep)
    for queue in (bad, good):
        queue._opened.retention.due_at = 0
    with caplog.at_level(logging.ERROR, "penstock"):
        bad.send(b"x")
        good.send(b"x")
        assert swept.wait(60)
        wait_for_tenders()
    assert "could not clear queue 'bad'" in caplog.text


def test_counting_settles_a_bounded_part_of_what_has_expired(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SLICE", 2)
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", retention=60)
        queue.send_many([b"x"] * 50)
        clock.advance(61)
        asked: list[object] = []
        with monkeypatch.context() as patch:
            patch.setattr(broker._tender, "ask", lambda *given: asked.append(given))  # type: ignore[attr-defined]
            assert queue.stats().messages == 30
        assert len(asked) == 1
        assert queue.stats().messages == 0
