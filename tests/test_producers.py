"""A producer when sending fails, and when its process forks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import penstock
from penstock import Broker, Queue, StoreUnreachable, policy
from penstock.testing.receiving import bodies

pytestmark = pytest.mark.timeout(60)
NEVER = 10**6


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr("penstock.workers.producer.ERROR_PAUSE", 0.01)
    with penstock.open("memory:") as broker:
        yield broker


@pytest.fixture
def queue(broker: Broker) -> Queue:
    return broker.create("orders")


def test_what_is_gathered_for_a_queue_that_is_gone_is_pushed_when_it_is_back(
    broker: Broker, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    told = Event()
    caplog.handler.addFilter(lambda record: told.set() or True)
    with broker.producer("orders", batch_size=100, max_delay=0.01) as producer:
        broker.delete("orders")
        producer.push(b"1")
        assert told.wait(30)
        assert "could not be pushed yet: there is no queue 'orders'" in caplog.text
        assert bodies(broker.create("orders").receive(wait=30)) == [b"1"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_producers_thread_that_died_is_started_again(broker: Broker, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    with broker.producer("orders", batch_size=100, max_delay=0.01) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(producer.queue, "send_once", lambda batch, token: 1 // 0)
            producer.push(b"1")
            assert producer._thread is not None
            producer._thread.join()
        producer.push(b"2")
        assert bodies(queue.receive(1, wait=30)) == [b"1"]


def test_more_is_gathered_than_a_batch_holds_and_all_is_pushed_once(
    broker: Broker, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "MAX_BATCH", 4)
    producer = broker.producer("orders", batch_size=4, max_delay=NEVER)
    send, room = producer.queue.send_once, 0

    def send_while_there_is_room(batch: Any, token: str) -> Any:
        nonlocal room
        if not room:
            raise StoreUnreachable("away")
        room -= 1
        return send(batch, token)

    monkeypatch.setattr(producer.queue, "send_once", send_while_there_is_room)
    for number in range(10):
        try:
            producer.push(b"%d" % number)
        except StoreUnreachable:
            assert number >= 3
    room = 1  # the first batch succeeds, then the store is unreachable again
    with pytest.raises(StoreUnreachable):
        producer.flush()
    room = 9
    producer.close()
    monkeypatch.undo()
    assert bodies(queue.peek(99)) == [b"%d" % number for number in range(10)]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_after_a_fork_parent_and_child_push_what_each_has_gathered(tmp_path: Path) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        queue = broker.create("orders")
        sending, forked = Event(), Event()
        producer = broker.producer("orders", batch_size=100, max_delay=0.01)
        send = producer.queue.send_once

        def send_after_the_fork(batch: Any, token: str) -> Any:
            sending.set()
            forked.wait(30)
            return send(batch, token)

        producer.queue.send_once = send_after_the_fork  # type: ignore[method-assign]
        producer.push(b"parent")
        assert sending.wait(30)
        child = os.fork()  # while the producer's thread holds its lock
        if child == 0:
            code = 1
            try:
                signal.alarm(20)
                forked.set()
                producer.push(b"child")
                code = int(bodies(queue.receive(visibility=0, wait=10)) != [b"child"])
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        forked.set()
        producer.close()
        assert sorted(bodies(queue.peek(9))) == [b"child", b"parent"]
