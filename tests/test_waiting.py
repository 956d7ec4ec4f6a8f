"""Waiting: an event wakes those who wait for it and nobody else, and none is missed between a look and a rest."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import penstock
from penstock.bridge.commits import Commits
from penstock.bridge.polls import Polls
from penstock.broker import LocalBroker, open_local
from penstock.errors import StoreClosed
from penstock.queue import inotify, watching
from penstock.queue import waiting as waiting_module
from penstock.queue.inotify import FileWatch
from penstock.server import BackgroundServer
from penstock.server.budget import Budget
from penstock.server.http.request_response import NOBODY, Request, Response
from penstock.server.http.serving import Serving
from penstock.testing.http import Http
from penstock.testing.serving import dial, until
from penstock.testing.verbs import wrap_verb

QUEUES = 20


def poll(queue: str, wait: float) -> bytes:
    return f"GET /messages/{queue} HTTP/1.1\r\nHost: localhost\r\nX-MQS-MAX-WAIT-TIME: {wait}\r\n\r\n".encode()


def count_looks(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    looks = Counter[str]()

    def look(verb: Callable[..., Any], queue: str, *arguments: Any) -> Any:
        looks[queue] += 1
        return verb(*arguments)

    for verb in ("due", "claim"):
        wrap_verb(monkeypatch, broker, verb, look)
    return looks


class TestTheCostOfAnEvent:
    """However many polls wait at other queues, an event costs nothing there."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/queue.db"

    def rest_everywhere(self, broker: LocalBroker, server: BackgroundServer, stack: ExitStack) -> None:
        for number in range(QUEUES):
            broker.create(f"idle-{number}")
            client = stack.enter_context(closing(dial(server.url)))
            client.sendall(poll(f"idle-{number}", 20))
        until(lambda: server.app.polls.resting == QUEUES)

    def test_a_send_looks_at_no_queue_but_its_own(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with open_local(url) as broker, BackgroundServer(broker) as server, ExitStack() as stack:
            orders = broker.create("orders")
            self.rest_everywhere(broker, server, stack)
            looks = count_looks(broker, monkeypatch)
            for _ in range(50):
                orders.send(b"x")
            assert Http(server.url)("GET", "/messages/orders").status == 200  # behind whatever the sends have caused
            assert server.app.polls.resting == QUEUES
            assert sum(looks[f"idle-{number}"] for number in range(QUEUES)) == 0

    def test_a_change_by_another_process_wakes_no_poll_that_has_nothing_to_receive(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with open_local(url) as broker, BackgroundServer(broker) as server, ExitStack() as stack:
            broker.create("orders")
            self.rest_everywhere(broker, server, stack)
            client = stack.enter_context(closing(dial(server.url)))
            client.sendall(poll("orders", 20))
            until(lambda: server.app.polls.resting == QUEUES + 1)
            performed: list[int] = []
            server.app.commits.sizes = lambda size, _: performed.append(size)
            with penstock.open(url) as other:
                other["orders"].send(b"x")
                assert client.recv(4096).endswith(b"x")
            assert server.app.polls.resting == QUEUES
            assert sum(performed) == 1  # the poll that has received it


def test_a_bell_rings_once_and_only_for_its_queue() -> None:
    with open_local("memory:") as broker:
        waiting, rung = broker.waiting, list[str]()
        assert waiting.listen("a", waiting.events("a"), lambda: rung.append("a"))
        assert waiting.listen("b", waiting.events("b"), lambda: rung.append("b"))
        waiting.notify("a")
        waiting.notify("a", "c")
        assert rung == ["a"]
        waiting.notify()
        assert rung == ["a", "b"]
        assert waiting.is_empty()


def test_an_event_between_a_look_and_a_rest_is_not_missed() -> None:
    with open_local("memory:") as broker:
        waiting = broker.waiting
        for happen in (lambda: waiting.notify("a"), waiting.notify, waiting.hear):
            events = waiting.events("a")
            happen()
            assert not waiting.listen("a", events, lambda: None)


def test_events_of_more_queues_than_are_remembered_are_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "MOST_QUEUES", 10)
    with open_local("memory:") as broker:
        waiting = broker.waiting
        waiting.notify("a")
        events = waiting.events("a")
        for number in range(30):
            waiting.notify(f"q{number}")
        assert waiting.events("a") > events  # forgotten, so that it counts as changed
        assert len(waiting._last) <= 11


def test_what_happens_in_a_batch_is_told_when_it_is_committed() -> None:
    with open_local("memory:") as broker:
        waiting, rung = broker.waiting, list[str]()
        orders = broker.create("orders")
        assert waiting.listen("orders", waiting.events("orders"), lambda: rung.append("rung"))
        with waiting.told(), broker.store.batch():
            with waiting.told():
                orders.send(b"x")
            assert rung == []
        assert rung == ["rung"]


def test_whoever_waits_sees_that_the_broker_is_closed() -> None:
    broker = open_local("memory:")
    queue, errors = broker.create("orders"), list[BaseException]()

    def wait() -> None:
        try:
            queue.receive(wait=60)
        except StoreClosed as error:
            errors.append(error)

    waiter = Thread(target=wait)
    waiter.start()
    until(lambda: not broker.waiting.is_empty())
    broker.close()
    waiter.join(30)
    assert len(errors) == 1


def test_a_message_that_another_process_delayed_wakes_when_it_is_visible(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with open_local(url) as broker, penstock.open(url) as other:
        queue, received = broker.create("orders"), list[Any]()
        waiter = Thread(target=lambda: received.extend(queue.receive(wait=60)))
        waiter.start()
        until(lambda: not broker.waiting.is_empty())
        other["orders"].send(b"x", delay=0.3)
        waiter.join(30)
        assert [message.body for message in received] == [b"x"]


def test_a_poll_that_gives_up_leaves_the_next_event_to_another() -> None:
    """It was woken, found nothing, and has no time left: the bell of its queue must hang again for those who still wait."""
    received: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with open_local("memory:") as broker:
            orders = broker.create("orders")
            commits = Commits(broker, loop, max_pending=10)
            polls = Polls(broker, commits, loop, max_bytes=1000, room=Budget(2**30))

            async def receive(request: Request, name: str, wait: float) -> Response:
                if await polls.receive(request, "orders", 1, wait):
                    received.append(name)
                return Response(204)

            ended: list[Any] = []

            def serve(name: str, wait: float) -> None:
                request = Request("GET", ("orders",), "", {}, b"", 0, NOBODY)
                Serving(request, receive(request, name, wait), ended.append, 0.0).go_on()

            serve("first", 0.2)
            give_up_at = loop.time() + 0.2
            serve("second", 60)
            while polls.resting < 2:
                await asyncio.sleep(0.001)
            with broker.store.batch():  # the look of the first takes longer than it waits
                broker.waiting.notify("orders")
                while loop.time() < give_up_at:
                    await asyncio.sleep(0.01)
            while not ended:
                await asyncio.sleep(0.001)
            assert received == []
            await asyncio.sleep(0.05)
            orders.send(b"x")
            waited = time.monotonic()
            while len(ended) < 2 and time.monotonic() - waited < 20:
                await asyncio.sleep(0.001)
            polls.stop()
            await commits.stop()

    asyncio.run(run())
    assert received == ["second"]


SENDER = """
import sys, penstock
with penstock.open(sys.argv[1]) as broker:
    for line in sys.stdin:
        broker["orders"].send(b"x")
        print("sent", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="others poll")
@pytest.mark.parametrize("scheme", ["sqlite", "vsqs", "spool"])
def test_a_message_of_another_process_wakes_by_the_file_that_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Not by a look now and then: those come so seldom here that this would take minutes."""
    monkeypatch.setattr(watching, "LOOK_EVERY", 100.0)
    url = f"{scheme}:///{tmp_path}/queue"
    command = [sys.executable, "-c", SENDER, url]
    with open_local(url) as broker:
        queue = broker.create("orders")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sender:
            assert sender.stdin
            assert sender.stdout
            for _ in range(5):
                received: list[Any] = []
                waiter = Thread(target=lambda received=received: received.extend(queue.receive(wait=90)))  # type: ignore[misc]
                waiter.start()
                until(
                    lambda: bool((watch := broker.waiting._watcher._watch) and watch._watched) and not broker.waiting.is_empty()
                )
                print("send", file=sender.stdin, flush=True)
                assert sender.stdout.readline() == "sent\n"
                waiter.join(30)
                assert [message.body for message in received] == [b"x"]
                queue.delete(received[0])  # which changes the file too
            sender.stdin.close()


def test_descriptors_are_given_back_when_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "LINGER", 0.01)
    with open_local(f"sqlite:///{tmp_path}/queue.db") as broker:
        queue = broker.create("orders")
        before = count_descriptors()
        for _ in range(3):
            assert queue.receive(wait=0.1) == []
            until(lambda: count_descriptors() == before and broker.waiting._watcher._thread is None)
        assert queue.receive(wait=0.1) == []
    until(lambda: count_descriptors() < before)  # the file's are closed with the broker


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0


@pytest.mark.skipif(sys.platform != "linux", reason="others poll")
class TestFileWatch:
    def test_a_path_that_is_made_anew_is_watched_again(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        watch = FileWatch()
        with closing(watch):
            assert not watch.follow([str(file)])
            file.write_text("a")
            assert watch.follow([str(file)])
            file.unlink()
            while watch.wait(0.1):
                pass
            file.write_text("b")
            assert watch.follow([str(file)])
            file.write_text("c")
            assert watch.wait(10)

    def test_too_many_paths_are_not_watched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inotify, "MOST", 1)
        with closing(FileWatch()) as watch:
            assert watch.follow([str(tmp_path)])
            assert not watch.follow([str(tmp_path), "/"])

    def test_it_polls_where_no_descriptor_is_left(self, tmp_path: Path) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with closing(FileWatch()) as watch:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            try:
                assert not watch.follow([str(tmp_path)])
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert watch.follow([str(tmp_path)])

    def test_a_wait_in_another_thread_can_be_ended(self, tmp_path: Path) -> None:
        with closing(FileWatch()) as watch:
            assert watch.follow([str(tmp_path)])
            waiter = Thread(target=watch.wait, args=[60])
            waiter.start()
            watch.wake()
            waiter.join(30)
            assert not waiter.is_alive()
