"""Where a consumer's callbacks run, and the ways in which they end."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest

import penstock
from penstock import Broker, Message, Queue, StoreUnreachable

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with penstock.open("memory:") as broker:
        yield broker


@pytest.fixture
def queue(broker: Broker) -> Queue:
    return broker.create("orders")


@pytest.mark.parametrize("how", ["threads", "coroutines"])
def test_at_most_once_what_was_taken_is_run_even_when_it_is_told_to_stop(broker: Broker, queue: Queue, how: str) -> None:
    queue.send_many([b"%d" % number for number in range(6)])
    consumer = broker.consumer("orders", workers=2, mode="at_most_once")
    cancelled = Event()
    ran: list[bytes] = []
    land = consumer._land

    def stop_and_land(*arguments: Any) -> list[Message]:
        if consumer._stopping.is_set():
            cancelled.set()
        consumer.stop()  # all were taken, and no more than two have begun
        return land(*arguments)

    consumer._land = stop_and_land  # type: ignore[method-assign]

    def handle(payload: bytes, message: Message) -> None:
        cancelled.wait(30)
        ran.append(payload)

    async def handle_async(payload: bytes, message: Message) -> None:
        await asyncio.to_thread(cancelled.wait, 30)
        ran.append(payload)

    consumer.process(handle if how == "threads" else handle_async)
    assert consumer.run().processed == 6
    assert sorted(ran) == [b"%d" % number for number in range(6)]


class Clerk:
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def __call__(self, payload: bytes, message: Message) -> None:
        self.seen.append(payload)


def test_an_object_whose_call_is_a_coroutine_is_awaited(broker: Broker, queue: Queue) -> None:
    queue.send(b"1")
    consumer, clerk = broker.consumer("orders"), Clerk()
    consumer.process(clerk)
    assert consumer.run(until_empty=True).processed == 1
    assert clerk.seen == [b"1"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_plain_callback_that_returns_an_awaitable_has_failed(
    broker: Broker, queue: Queue, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    queue.send(b"1")
    consumer, clerk = broker.consumer("orders", workers=workers), Clerk()
    consumer.process(lambda payload, message: clerk(payload, message))
    assert consumer.run(until_empty=True).retried == 1
    assert "returned an awaitable, which nobody awaits" in caplog.text


@pytest.mark.parametrize("workers", [1, 2])
def test_a_callback_that_is_a_generator_has_failed(
    broker: Broker, queue: Queue, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    queue.send(b"1")
    consumer = broker.consumer("orders", workers=workers)
    consumer.process(lambda payload, _: (yield payload))
    assert consumer.run(until_empty=True).retried == 1
    assert "is a generator, of which nothing has run" in caplog.text


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_that_cannot_be_told_is_a_failure_like_any_other(
    broker: Broker, queue: Queue, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Shy(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    def handle(payload: bytes, _: Message) -> None:
        raise Shy(payload)

    queue.send(b"1")
    consumer = broker.consumer("orders", workers=workers)
    consumer.process(handle)
    assert consumer.run(until_empty=True).retried == 1
    assert "Shy, which cannot be told (ValueError)" in caplog.text


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_coroutine_that_exits_has_failed_and_the_others_go_on(
    broker: Broker, queue: Queue, error: type[BaseException]
) -> None:
    queue.send_many([b"1", b"exit", b"2", b"3"])
    consumer = broker.consumer("orders", workers=2)

    @consumer.process
    async def handle(payload: bytes, message: Message) -> None:
        await asyncio.sleep(0)
        if payload == b"exit":
            raise error

    tally = consumer.run(until_empty=True)
    assert (tally.processed, tally.retried) == (3, 1)


class Unsendable(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")


def fail_unsendably(payload: bytes, message: Message) -> None:
    raise Unsendable(7, "no such customer")


def return_what_cannot_be_pickled(payload: bytes, message: Message) -> object:
    return Lock()


def die_or_outlive(payload: bytes, message: Message) -> None:
    """One dies as soon as the other has begun; the other ends when it is dead."""
    what, folder = payload.decode().split(" ", 1)
    begun, dying = Path(folder, "begun"), Path(folder, "dying")
    if what == "die":
        wait_for(begun.exists)
        dying.with_suffix(".new").write_text(str(os.getpid()))
        dying.with_suffix(".new").rename(dying)
        os._exit(3)
    begun.touch()
    wait_for(dying.exists)
    wait_for(lambda: not is_alive(int(dying.read_text())))


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def test_an_exception_that_cannot_be_sent_from_its_process_is_a_failure_like_any_other(
    broker: Broker, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.send_many([b"1", b"2"])
    consumer = broker.consumer("orders", kind="processes")
    consumer.process(fail_unsendably)
    assert consumer.run(until_empty=True).retried == 2
    assert caplog.text.count(": Unsendable: 7 no such customer\n") == 2


def test_what_a_callback_in_a_process_returns_does_not_matter(broker: Broker, queue: Queue) -> None:
    queue.send(b"1")
    consumer = broker.consumer("orders", kind="processes")
    consumer.process(return_what_cannot_be_pickled)
    assert consumer.run(until_empty=True).processed == 1


def test_a_process_that_dies_takes_only_its_own_message_along(broker: Broker, queue: Queue, tmp_path: Path) -> None:
    queue.send_many([b"%s %s" % (what, bytes(tmp_path)) for what in (b"die", b"outlive")])
    consumer = broker.consumer("orders", workers=2, kind="processes")
    consumer.process(die_or_outlive)
    tally = consumer.run(until_empty=True)
    assert (tally.processed, tally.retried, tally.failed) == (1, 0, 0)
    assert [message.body.split()[0] for message in queue.peek(9)] == [b"die"]
    assert queue.stats().in_flight == 1, "its lease lapses"


def test_a_coroutine_that_cancels_itself_has_failed(broker: Broker, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.send(b"1")
    consumer = broker.consumer("orders")

    @consumer.process
    async def handle(payload: bytes, message: Message) -> None:
        if message.receives < 3:  # given back at once, it would be taken again at once
            raise asyncio.CancelledError("by the library that I use")

    tally = consumer.run(until_empty=True)
    assert (tally.retried, tally.given_back) == (1, 0)
    assert "CancelledError: by the library that I use" in caplog.text


def test_a_consumer_that_cannot_register_leaves_no_thread_behind(
    broker: Broker, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = broker.consumer("orders")
    consumer.process(Clerk())
    monkeypatch.setattr(broker.store, "beat", refuse)
    before = threading.active_count()
    with pytest.raises(StoreUnreachable):
        consumer.run()
    assert threading.active_count() == before


def refuse(*_: object, **__: object) -> None:
    raise StoreUnreachable("away")
