"""Penstock under asyncio and uvloop: on a store in this process and over HTTP, with and without TLS."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import itertools
import socket
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import AsyncBroker, AsyncMessage, AsyncQueue, Broker, Message, Queue
from penstock.aio.connections import AsyncConnection
from penstock.broker import LocalBroker
from penstock.client.http import HttpResponse
from penstock.server import BackgroundServer, ServerSettings
from penstock.testing import FakeClock, serving
from penstock.testing.awaiting import LONG, Awaiting, in_flight, until
from penstock.testing.http import SETTINGS
from penstock.testing.model import Player, configurations, steps
from penstock.testing.verbs import wrap_verb

serial = itertools.count()


@contextmanager
def served(url: str, **options: Any) -> Iterator[str]:
    with penstock.open(url, **options) as broker, BackgroundServer(broker, SETTINGS) as server:
        yield server.url


class TestOverHttp(Awaiting):
    @pytest.fixture(params=["memory", "sqlite", "vsqs"])
    def url(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
        with served({"memory": "memory:"}.get(request.param, f"{request.param}:///{tmp_path}/queue")) as url:
            yield url


class TestUvloop(Awaiting):
    @pytest.fixture(params=["memory", "sqlite", "http"])
    def url(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
        if request.param == "http":
            with served("memory:") as url:
                yield url
        else:
            yield "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/queue.db"

    def run_tasks(self, main: Coroutine[Any, Any, Any]) -> Any:
        return uvloop.run(main)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_over_tls_what_a_cancelled_receive_has_claimed_is_given_back(
    tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    certificate = _certificate(tmp_path)
    settings = ServerSettings(port=0, access_log=False, tls_cert=str(certificate), tls_key=str(certificate))

    async def main(url: str) -> None:
        async with penstock.aopen(url, cafile=str(certificate)) as broker:
            queue = await broker.create("orders", visibility=LONG)
            for turns in range(40):
                await queue.send(b"x")
                task = asyncio.create_task(queue.receive(wait=60))
                for _ in range(turns):
                    await asyncio.sleep(0.0005)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await queue.delete_many(await task)
                await until(lambda: in_flight(queue), 0)

    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        run(main(server.url.replace("http:", "https:").replace("127.0.0.1", "localhost")))


def _certificate(folder: Path) -> Path:
    path = folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(path), "-out", str(folder / "certificate.pem")]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + (folder / "certificate.pem").read_text())
    return path


# the same verbs


LEFT_OUT = {"share", "connection"}
"""Arguments for consumers, and for a transaction of the caller's own thread."""
OF_BROKER = {"clock", "producer", "consumer", "scheduler", "task", "tasks", "task_worker"}


def test_a_task_has_the_verbs_of_the_library_with_the_same_arguments() -> None:
    assert _public(AsyncQueue) == _public(Queue) | {"messages", "let_go"}
    assert _public(AsyncBroker) == (_public(Broker) - OF_BROKER) | {"has", "task"}
    for kind, tasks in ((Queue, AsyncQueue), (Broker, AsyncBroker)):
        for name in sorted((_public(kind) & _public(tasks)) - OF_BROKER):
            verb = getattr(kind, name)
            if callable(verb):
                expected = {
                    argument: (given.kind, given.default)
                    for argument, given in inspect.signature(verb).parameters.items()
                    if argument not in LEFT_OUT and not (name == "publish" and argument == "how")
                }
                found = inspect.signature(getattr(tasks, name)).parameters
                assert {argument: (given.kind, given.default) for argument, given in found.items()} == expected, name
            assert inspect.iscoroutinefunction(getattr(tasks, name)), name


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


class Blocking:
    """A broker or a queue of tasks with the verbs of the library, for the random calls of the contract."""

    def __init__(self, home: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._home, self._loop = home, loop
        self.name = getattr(home, "name", "")

    def __getattr__(self, verb: str) -> Any:
        act = getattr(self._home, verb)

        def call(*arguments: Any, **named: Any) -> Any:
            answer = asyncio.run_coroutine_threadsafe(act(*arguments, **named), self._loop).result(60)
            return self._as_the_library_does(answer)

        return call() if verb == "settings" else call

    def _as_the_library_does(self, answer: Any) -> Any:
        if isinstance(answer, AsyncQueue):
            return Blocking(answer, self._loop)
        if isinstance(answer, AsyncMessage):
            fields = {each.name: getattr(answer, each.name) for each in dataclasses.fields(Message) if each.name != "home"}
            return Message(**fields, home=self if answer.home is not None else None)
        if type(answer) in (list, tuple):
            return type(answer)(map(self._as_the_library_does, answer))
        return answer


@contextmanager
def in_another_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@contextmanager
def opened(url: str, clock: FakeClock | None) -> Iterator[Any]:
    with in_another_thread() as loop:

        async def begin() -> AsyncBroker:
            return await penstock.aopen(url, clock=clock)

        broker = asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
        try:
            yield Blocking(broker, loop)
        finally:
            asyncio.run_coroutine_threadsafe(broker.close(), loop).result(60)


@pytest.mark.parametrize("where", ["sqlite", "http"])
def test_random_calls_of_tasks_are_answered_as_by_the_library(where: str, tmp_path: Path) -> None:
    clocks = FakeClock(), FakeClock()
    with ExitStack() as stack:
        library = stack.enter_context(penstock.open("memory:", clock=clocks[0]))
        if where == "http":
            tasks = stack.enter_context(opened(stack.enter_context(served("memory:", clock=clocks[1])), None))
        else:
            tasks = stack.enter_context(opened(f"sqlite:///{tmp_path}/queue.db", clocks[1]))

        @settings(max_examples=25, derandomize=True)
        @given(configurations, st.lists(steps, min_size=5, max_size=20))
        def run(configuration: dict[str, Any], plan: list[tuple[Any, ...]]) -> None:
            suffix = f"-{next(serial)}"
            players = [Player(broker, clock, suffix) for broker, clock in zip((library, tasks), clocks, strict=True)]
            for player in players:
                player.start(dict(configuration))
            for step in plan:
                expected, actual = (player.play(step) for player in players)
                assert actual == expected, step
            expected, actual = (player.look() for player in players)
            assert actual == expected

        run()


# cancellation, one await after the other


@contextmanager
def stalled(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, verb: str
) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The first event tells that the verb has begun, the second lets it go on."""
    begun, on = threading.Event(), threading.Event()

    def stall(act: Callable[..., Any], _: str, *arguments: Any, **how: Any) -> Any:
        begun.set()
        assert on.wait(60)
        return act(*arguments, **how)

    with monkeypatch.context() as patched:
        wrap_verb(patched, broker, verb, stall)
        yield begun, on


def behind(broker: AsyncBroker) -> LocalBroker:
    found: LocalBroker = broker._backend._broker  # type: ignore[attr-defined]
    return found


async def begin(event: threading.Event) -> None:
    await asyncio.to_thread(event.wait, 60)


def test_what_the_store_has_not_begun_when_its_task_is_cancelled_is_never_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with penstock.aopen("memory:") as broker:
            queue = await broker.create("orders")
            await queue.send(b"0")
            with stalled(behind(broker), monkeypatch, "insert") as (begun, on):
                first = asyncio.create_task(queue.send(b"1"))
                await begin(begun)
                second = asyncio.create_task(queue.send(b"2"))
                await asyncio.sleep(0)
                second.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await second
                on.set()
                await first
            assert sorted(message.body for message in await queue.peek(9)) == [b"0", b"1"]

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["receive", "exchange", "messages"])
def test_what_the_store_claims_for_a_cancelled_task_is_given_back(monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    async def main() -> None:
        async with penstock.aopen("memory:") as broker:
            queue = await broker.create("orders", visibility=LONG)
            await queue.send(b"x")
            calls = {
                "receive": lambda: queue.receive(wait=60),
                "exchange": lambda: queue.exchange([], 1),
                "messages": lambda: anext(queue.messages()),
            }
            with stalled(behind(broker), monkeypatch, "claim") as (begun, on):
                task = asyncio.ensure_future(calls[verb]())
                await begin(begun)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                on.set()
                await until(lambda: in_flight(queue), 0)
            (message,) = await queue.receive(wait=60)
            assert message.receives == 2

    asyncio.run(main())


def test_a_task_that_is_cancelled_between_its_answer_and_its_turn_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with penstock.aopen("memory:") as broker:
            queue = await broker.create("orders", visibility=LONG)
            await queue.send(b"x")
            tasks: list[asyncio.Task[Any]] = []
            commits = broker._backend._commits  # type: ignore[attr-defined]
            answer = commits._answer

            def answer_and_cancel(*arguments: Any) -> None:
                answer(*arguments)
                for task in tasks:
                    task.cancel()

            monkeypatch.setattr(commits, "_answer", answer_and_cancel)
            tasks.append(asyncio.create_task(queue.receive()))
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            tasks.clear()
            await until(lambda: in_flight(queue), 0)

    asyncio.run(main())


def test_over_http_a_task_that_is_cancelled_between_its_answer_and_its_turn_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[asyncio.Task[Any]] = []
    ask = AsyncConnection.ask

    def ask_and_cancel(self: AsyncConnection, request: bytes, timeout: float) -> asyncio.Future[HttpResponse]:
        answer = ask(self, request, timeout)
        for task in tasks:
            answer.add_done_callback(lambda _, task=task: task.cancel())
        return answer

    async def main(url: str) -> None:
        async with penstock.aopen(url) as broker:
            queue = await broker.create("orders", visibility=LONG)
            await queue.send(b"x")
            begin = asyncio.Event()

            async def receive() -> None:
                await begin.wait()
                await queue.receive()

            tasks.append(asyncio.create_task(receive()))
            begin.set()
            with pytest.raises(asyncio.CancelledError):
                await tasks[0]
            tasks.clear()
            await until(lambda: in_flight(queue), 0)

    monkeypatch.setattr(AsyncConnection, "ask", ask_and_cancel)
    with served("memory:") as url:
        asyncio.run(main(url))


@pytest.mark.parametrize("where", ["memory:", "http"])
def test_what_was_settled_for_a_cancelled_task_goes_to_the_next(where: str) -> None:
    async def main(url: str) -> None:
        async with penstock.aopen(url) as broker:
            queue = await broker.create("orders", mode="at_most_once")
            seen: list[bytes] = []
            for number in range(60):
                await queue.send(b"%d" % number)
                task = asyncio.create_task(queue.receive(wait=60))
                for _ in range(number % 30):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    seen += [message.body for message in await task]
            async with asyncio.timeout(30):
                while len(seen) < 60:
                    seen += [message.body for message in await queue.receive(60, wait=0.1)]
            assert sorted(seen, key=int) == [b"%d" % number for number in range(60)]

    if where == "http":
        with served("memory:") as url:
            asyncio.run(main(url))
    else:
        asyncio.run(main(where))


def test_a_client_that_stops_sending_still_gets_what_was_settled_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody would: it cannot be given back."""
    with penstock.open("memory:") as broker, BackgroundServer(broker, SETTINGS) as server:
        broker.create("orders", mode="at_most_once").send(b"x")
        with stalled(broker, monkeypatch, "claim") as (begun, on), serving.dial(server.url) as client:  # type: ignore[arg-type]
            client.sendall(b"POST /penstock/queues/orders/receive HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n")
            client.sendall(b'{"arguments": {}}')
            assert begun.wait(60)
            client.shutdown(socket.SHUT_WR)
            serving.until(lambda: all(connection.ended for connection in list(server.app.connections.open)))
            on.set()
            assert b'"eA=="' in serving.read_answer(client)


def test_a_cancelled_long_poll_ends_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.aio.queue.LONGEST_WAIT", 60)
    monkeypatch.setattr("penstock.client.queue.LONGEST_WAIT", 60)

    async def main(server: BackgroundServer) -> None:
        async def resting() -> int:
            return server.app.polls.resting

        async with penstock.aopen(server.url) as broker:
            queue = await broker.create("orders")
            task = asyncio.create_task(queue.receive(wait=60))
            await until(resting, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(resting, 0)

    with penstock.open("memory:") as broker, BackgroundServer(broker, SETTINGS) as server:
        asyncio.run(main(server))


def test_a_cancelled_opening_leaves_no_store_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[LocalBroker] = []
    close = LocalBroker.close

    def note(broker: LocalBroker) -> None:
        close(broker)
        closed.append(broker)

    monkeypatch.setattr(LocalBroker, "close", note)

    async def opening() -> None:
        await penstock.aopen(f"sqlite:///{tmp_path}/queue.db")

    async def main() -> None:
        task = asyncio.create_task(opening())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(closed) == 1


def test_a_cancelled_close_is_finished_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        broker = await penstock.aopen(f"sqlite:///{tmp_path}/queue.db")
        queue = await broker.create("orders")
        sending = asyncio.create_task(queue.send(b"x"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(broker.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert (await sending).duplicate is False
        await broker.close()
        with pytest.raises(penstock.StoreClosed):
            await queue.send(b"y")

    asyncio.run(main())
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as library:
        assert [message.body for message in library["orders"].peek(9)] == [b"x"]


# what is one's own


def test_tasks_that_send_at_the_same_time_share_a_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[int] = []

    def count(act: Callable[..., Any], _: str, entries: Any, *others: Any) -> Any:
        calls.append(len(entries))
        return act(entries, *others)

    async def main() -> None:
        async with penstock.aopen(f"sqlite:///{tmp_path}/queue.db") as broker:
            queue = await broker.create("orders")
            wrap_verb(monkeypatch, behind(broker), "insert", count)
            await asyncio.gather(*(queue.send(b"x") for _ in range(100)))

    asyncio.run(main())
    assert calls == [100]


def test_a_message_whose_lease_has_lapsed_in_a_loop_is_left_to_others() -> None:
    async def main() -> None:
        async with penstock.aopen("memory:") as broker:
            queue = await broker.create("orders")
            await queue.send_many([b"1", b"2"])
            messages = queue.messages(limit=2, visibility=0.2)
            first = await anext(messages)
            await until(lambda: in_flight(queue), 0)
            second = await anext(messages)
            assert (first.body, second.receives) == (b"1", 2), "the second was received again, and not delivered from the past"
            await messages.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["memory:", "http"])
def test_a_block_settles_its_message_by_how_it_ends(where: str) -> None:
    async def main(url: str) -> None:
        async with penstock.aopen(url) as broker:
            queue = await broker.create("orders", visibility=LONG)

            async def process(error: BaseException | None) -> None:
                (message,) = await queue.receive(wait=60)
                async with message:
                    if error is not None:
                        raise error

            await queue.send(b"x")
            await process(None)
            assert (await queue.stats()).messages == 0
            await queue.send(b"y")
            with pytest.raises(asyncio.CancelledError):
                await process(asyncio.CancelledError())
            (message,) = await queue.receive(wait=60)
            assert await message.release()
            with pytest.raises(ZeroDivisionError):
                await process(ZeroDivisionError())
            stats = await queue.stats()
            assert (stats.messages, stats.visible, stats.delayed + stats.in_flight) == (1, 0, 1), "after a back-off"

    with served("memory:") as url:
        asyncio.run(main(url if where == "http" else where))


def test_a_broker_belongs_to_one_event_loop() -> None:
    with served("memory:") as url:
        for where in ("memory:", url):

            async def begin(where: str = where) -> tuple[AsyncBroker, AsyncQueue]:
                broker = await penstock.aopen(where)
                return broker, await broker.create("orders")

            async def use(queue: AsyncQueue) -> None:
                with pytest.raises(penstock.BadInput, match="another event loop"):
                    await queue.send(b"x")

            loop = asyncio.new_event_loop()
            broker, queue = loop.run_until_complete(begin())
            asyncio.run(use(queue))
            loop.run_until_complete(broker.close())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


def test_a_message_that_a_task_only_looked_at_cannot_be_settled() -> None:
    async def main() -> None:
        async with penstock.aopen("memory:") as broker:
            queue = await broker.create("orders")
            await queue.send(b"x")
            with pytest.raises(penstock.BadMessage, match="looked at"):
                await (await queue.peek())[0].delete()

    asyncio.run(main())


def test_a_bad_url_or_option_is_named_to_tasks_too(tmp_path: Path) -> None:
    async def main() -> None:
        for url, options, word in (
            ("oracle://x", {}, "oracle"),
            ("http://localhost:1", {"colour": 1}, "colour"),
            (f"sqlite:///{tmp_path}/q.db", {"colour": 1}, "colour"),
            ("http://host/path", {}, "host:port"),
        ):
            with pytest.raises(penstock.BadURL, match=word):
                await penstock.aopen(url, **options)

    asyncio.run(main())


def test_over_http_no_more_calls_are_under_way_than_connections_are_kept() -> None:
    async def main(url: str, server: BackgroundServer) -> None:
        async with penstock.aopen(url, connections=5) as broker:
            queue = await broker.create("orders")
            waiting = asyncio.create_task(queue.receive(wait=60, visibility=LONG))
            await asyncio.gather(*(queue.stats() for _ in range(100)))
            assert len(server.app.connections.open) <= 6
            await queue.send(b"x")
            assert await waiting

    with penstock.open("memory:") as broker, BackgroundServer(broker, SETTINGS) as server:
        asyncio.run(main(server.url, server))


def test_a_server_that_is_not_there_is_a_clear_error_for_tasks() -> None:
    async def main() -> None:
        async with penstock.aopen("http://127.0.0.1:1") as broker:
            with pytest.raises(penstock.StoreUnreachable, match="no server at"):
                await broker.queues()

    asyncio.run(main())
