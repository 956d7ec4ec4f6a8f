"""Where a consumer's callbacks run, and how they end."""

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
from penstock import Broker, Draft, Message, Queue, StoreUnreachable
from penstock.message import Settlement, State
from penstock.testing import FakeClock
from penstock.testing.serving import until
from penstock.workers.consumer import Consumer
from penstock.workers.executors import Outcome, Runner

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

    def stop_and_land(*arguments: Any) -> None:
        if consumer._stopping.is_set():
            cancelled.set()
        consumer.stop()  # all were taken, but at most two have begun
        land(*arguments)

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


@pytest.mark.parametrize("how", ["threads", "coroutines"])
def test_what_has_not_begun_is_given_back_at_once_however_long_the_rest_takes(broker: Broker, queue: Queue, how: str) -> None:
    queue.send_many([b"%d" % number for number in range(6)])
    consumer = broker.consumer("orders", workers=2)
    begun, go, submitted = threading.Semaphore(0), Event(), Event()
    land = consumer._land

    def note_and_land(*arguments: Any) -> None:
        submitted.set()
        land(*arguments)

    consumer._land = note_and_land  # type: ignore[method-assign]

    def handle(payload: bytes, message: Message) -> None:
        begun.release()
        go.wait(300)

    async def handle_async(payload: bytes, message: Message) -> None:
        begun.release()
        await asyncio.to_thread(go.wait, 300)

    consumer.process(handle if how == "threads" else handle_async)
    working = threading.Thread(target=consumer.run)
    working.start()
    for _ in range(2):
        begun.acquire()
    submitted.wait(30)  # otherwise those that were not are given back before any waits for a worker
    consumer.stop()
    try:
        until(lambda: queue.stats().visible == 4)
        assert queue.stats().in_flight == 2
    finally:
        go.set()
    working.join(30)
    assert (consumer.tally.processed, consumer.tally.given_back) == (2, 4)


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
    """One callback dies as soon as the other has begun; the other ends when it is dead."""
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
    give_up_at = time.monotonic() + 120
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
    assert [message.endswith(": Unsendable: 7 no such customer") for message in caplog.messages] == [True, True]


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


def test_at_most_once_what_takes_its_process_down_has_failed(broker: Broker, tmp_path: Path) -> None:
    queue = broker.create("orders", mode="at_most_once", history=60)
    (tmp_path / "begun").touch()
    queue.send(b"die %s" % bytes(tmp_path))
    consumer = broker.consumer("orders", kind="processes")
    consumer.process(die_or_outlive)
    tally = consumer.run(until_empty=True)
    assert (tally.processed, tally.failed) == (0, 1)
    assert [(message.state.name, message.reason) for message in queue.settled()] == [("FAILED", "took its process down")]


def test_a_coroutine_that_cancels_itself_has_failed(broker: Broker, queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.send(b"1")
    consumer = broker.consumer("orders")

    @consumer.process
    async def handle(payload: bytes, message: Message) -> None:
        if message.receives < 3:  # a released message is taken again at once
            raise asyncio.CancelledError("by the library that I use")

    tally = consumer.run(until_empty=True)
    assert (tally.retried, tally.given_back) == (1, 0)
    assert "CancelledError: by the library that I use" in caplog.text


def test_a_consumer_that_cannot_register_leaves_no_thread_behind(
    broker: Broker, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = broker.consumer("orders")
    consumer.process(Clerk())
    monkeypatch.setattr(broker.store.roster, "beat", refuse)
    before = threading.active_count()
    with pytest.raises(StoreUnreachable):
        consumer.run()
    assert threading.active_count() == before


def note_and_wait(payload: bytes, message: Message) -> None:
    """Report that it has begun, and wait for permission to end."""
    number, folder = payload.decode().split(" ", 1)
    Path(folder, f"begun {number}").touch()
    wait_for(Path(folder, "go").exists)


async def note_and_wait_async(payload: bytes, message: Message) -> None:
    await asyncio.to_thread(note_and_wait, payload, message)


@pytest.mark.parametrize("how", ["threads", "processes", "coroutines"])
@pytest.mark.parametrize("mode", ["at_most_once", "at_least_once"])
def test_what_waited_for_its_turn_past_its_deadline_is_not_started(how: str, mode: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open("memory:", clock=clock) as broker:
        queue = broker.create("orders", visibility=3600)
        queue.send_many([Draft(b"%d %b" % (number, bytes(tmp_path)), deadline=60) for number in range(4)])
        kind = "processes" if how == "processes" else "threads"
        consumer = broker.consumer("orders", workers=2, kind=kind, mode=mode, heartbeat=3600)
        consumer.process(note_and_wait_async if how == "coroutines" else note_and_wait)
        submitted = count_calls_of_submit(consumer)
        running = threading.Thread(target=consumer.run)
        running.start()
        wait_for(lambda: len(list(tmp_path.glob("begun *"))) == 2 and len(submitted) == 4)
        clock.advance(60)
        broker.store.queue("orders").delete(
            queue.peek(9), Settlement(State.PROCESSED, clock.now)
        )  # so that it is not taken again
        (tmp_path / "go").touch()
        wait_for(lambda: consumer.tally.failed + consumer.tally.lost + consumer.tally.processed == 4)
        consumer.stop()
        running.join()
        assert len(list(tmp_path.glob("begun *"))) == 2
        late = consumer.tally.failed if mode == "at_most_once" else consumer.tally.lost - 2
        assert late == 2


def count_calls_of_submit(consumer: Consumer) -> list[Message]:
    submitted: list[Message] = []
    fill = consumer._fill

    def note(runner: Runner, *arguments: Any) -> int:
        submit = runner.submit

        def submit_and_note(message: Message) -> Outcome:
            outcome = submit(message)
            submitted.append(message)
            return outcome

        runner.submit = submit_and_note  # type: ignore[method-assign]
        consumer._fill = fill  # type: ignore[method-assign]
        return fill(runner, *arguments)

    consumer._fill = note  # type: ignore[method-assign]
    return submitted


@pytest.mark.parametrize("error", [StoreUnreachable("away"), ZeroDivisionError("a bug"), SystemExit(3)])
def test_no_error_ends_the_heartbeats_or_the_renewals(
    broker: Broker, queue: Queue, error: BaseException, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.send(b"x")
    consumer = broker.consumer("orders", heartbeat=0.01, visibility=0.1)
    verbs: list[tuple[object, str]] = [(broker.store.roster, "strike"), (queue._opened.stored, "extend")]
    again = [fail_twice(port, verb, error, monkeypatch) for port, verb in verbs]
    with_both: list[bool] = []

    @consumer.process
    def handle(payload: bytes, message: Message) -> None:
        with_both.extend(went_on.wait(30) for went_on in again)

    consumer.run(until_empty=True)
    assert with_both == [True, True]
    assert "missed a heartbeat" in caplog.text
    assert "could not renew its leases" in caplog.text


def fail_twice(port: object, verb: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Event:
    """Fail the first two calls of the heartbeat thread; the event is set by its third."""
    act, calls, went_on = getattr(port, verb), [0], Event()

    def fail(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread().name == "penstock heartbeat":
            calls[0] += 1
            if calls[0] <= 2:
                raise error
            went_on.set()
        return act(*arguments, **options)

    monkeypatch.setattr(port, verb, fail)
    return went_on


def refuse(*_: object, **__: object) -> None:
    raise StoreUnreachable("away")
