"""Where a consumer's callbacks run, and the ways in which they end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

import penstock
from penstock import Broker, Message, Queue

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
