"""The bridge between the event loop and the core: operations in one commit share nothing else, and none waits for the loop."""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import penstock
from penstock import Broker, Draft, Receipt
from penstock.bridge.commits import Commits, Operation
from penstock.client.wire import CONTENT_TYPE, join, pack, split
from penstock.errors import QueueNotFound, StoreFull
from penstock.queue.queue import LocalQueue
from penstock.queue.sending import Batch
from penstock.server import BackgroundServer
from penstock.server.http import conversation
from penstock.server.http.conversation import unread
from penstock.server.http.request_response import Response, render
from penstock.server.http.serving import Serving
from penstock.testing.http import Http
from penstock.testing.serving import dial, until
from penstock.testing.verbs import wrap_verb


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        broker.create("orders")
        yield broker


def post(body: bytes, content_type: str = "text/plain", queue: str = "orders") -> bytes:
    head = f"POST /messages/{queue} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def in_one_commit(
    broker: Broker,
    server: BackgroundServer,
    *requests: bytes,
    first: bytes | None = None,
    read: Callable[..., Any] | None = None,
) -> list[Any]:
    """The statuses of requests that waited for the store together; 0 for no answer."""
    with ExitStack() as stack:
        with broker.store.batch():
            blocked = stack.enter_context(closing(dial(server.url)))
            blocked.sendall(first or post(b"first"))  # this one blocks the commit thread
            until(lambda: server.app.commits.pending == 1 and not server.app.commits._gathered)
            clients = [stack.enter_context(closing(dial(server.url))) for _ in requests]
            for number, (client, request) in enumerate(zip(clients, requests, strict=True)):
                client.sendall(request)
                until(lambda number=number: server.app.commits.pending == number + 2)  # type: ignore[misc]
        return [(read or read_status)(client) for client in clients]


def read_status(client: socket.socket) -> int:
    try:
        return int(client.recv(4096)[9:12] or 0)
    except ConnectionResetError:
        return 0


def test_the_next_commit_does_not_wait_for_the_event_loop() -> None:
    begun, end, done = Event(), Event(), Event()

    def first() -> None:
        begun.set()
        assert end.wait(60)

    async def run() -> None:
        with penstock.open("memory:") as broker:
            commits = Commits(broker, asyncio.get_running_loop(), max_pending=10)
            commits.soon(first)
            await asyncio.sleep(0)
            assert begun.wait(60)
            commits.soon(done.set)
            end.set()
            assert done.wait(30)  # although the event loop is blocked
            await commits.stop()

    asyncio.run(run())


def test_a_commit_that_is_stuck_holds_up_no_other_where_the_store_has_several_writers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = Event()
    sizes: list[int] = []

    async def run() -> None:
        with penstock.open("memory:") as broker:
            monkeypatch.setattr(broker.store, "writers", 3)
            commits = Commits(broker, asyncio.get_running_loop(), max_pending=10)
            commits.sizes = lambda size, _: sizes.append(size)
            commits.soon(lambda: end.wait(60))  # as if it waited for a lock
            await asyncio.sleep(0)
            stuck, done = Event(), Event()
            commits.soon(lambda: (stuck.set(), end.wait(60)))
            while not stuck.is_set():
                await asyncio.sleep(0.001)
            commits.soon(done.set)
            commits.soon(int)
            while not sizes:
                await asyncio.sleep(0.001)
            end.set()
            await commits.stop()

    asyncio.run(run())
    assert sizes == [2, 1, 1]


def test_an_operation_is_withdrawn_before_the_store_begins_it_or_not_at_all() -> None:
    begun, end = Event(), Event()
    done: list[str] = []

    def hold() -> None:
        begun.set()
        assert end.wait(60)
        done.append("shared")

    async def run() -> None:
        with penstock.open("memory:") as broker:
            broker.create("orders")
            commits = Commits(broker, asyncio.get_running_loop(), max_pending=10)

            def submit(operation: Any) -> Operation:
                assert isinstance(operation, Operation)
                operation.wake = lambda: done.append("answered")
                return operation

            first = submit(commits.run(hold))
            alone = submit(commits.run(lambda: done.append("alone"), alone=True))
            await asyncio.sleep(0)
            assert begun.wait(60)
            late = [submit(commits.run(lambda: done.append("late"))), submit(commits.send("orders", Batch([Draft(b"late")])))]
            assert not first.withdraw()
            assert all(operation.withdraw() for operation in (alone, *late))  # although `alone` is in the commit under way
            assert [(operation.act, operation.item) for operation in late] == [
                (None, None)
            ] * 2  # what it would have sent is not held any longer
            end.set()
            await commits.stop()
            assert not first.withdraw()
            assert not any(operation.begun or operation.error for operation in (alone, *late))
            assert broker["orders"].stats().messages == 0

    asyncio.run(run())
    assert done == ["shared", "answered"]


def test_who_waits_shares_a_commit_with_those_who_were_just_answered() -> None:
    begun, end = Event(), Event()
    sizes: list[int] = []

    def hold() -> None:
        begun.set()
        assert end.wait(60)

    async def run() -> None:
        with penstock.open("memory:") as broker:
            commits = Commits(broker, asyncio.get_running_loop(), max_pending=10)
            commits.sizes = lambda size, _: sizes.append(size)

            async def ask_twice() -> Response:
                await commits.run(hold)
                await commits.run(int)
                return Response(204)

            for _ in range(3):
                Serving(unread(), ask_twice(), lambda _: None, 0.0).go_on()
            await asyncio.sleep(0)
            assert begun.wait(60)
            commits.soon(int)
            end.set()
            await commits.stop()

    asyncio.run(run())
    assert sizes == [3, 4]


def test_what_was_sent_together_is_there_in_the_order_it_came(broker: Broker) -> None:
    with BackgroundServer(broker) as server:
        statuses = in_one_commit(broker, server, *(post(b"%d" % number) for number in range(20)))
    assert statuses == [201] * 20
    bodies = [message.body for message in broker["orders"].receive(100)]
    assert bodies == [b"first", *(b"%d" % number for number in range(20))]


def test_one_that_is_refused_is_refused_alone(broker: Broker) -> None:
    with BackgroundServer(broker) as server:
        assert in_one_commit(broker, server, post(b"a"), post(b"b", "\x80"), post(b"c")) == [201, 400, 201]
        assert in_one_commit(broker, server, post(b"d"), post(b"e", queue="none"), post(b"f")) == [201, 404, 201]
        assert in_one_commit(broker, server, *[post(b"g", queue="none")] * 2) == [404, 404]
    bodies = [message.body for message in broker["orders"].receive(100)]
    assert [body for body in bodies if body != b"first"] == [b"a", b"c", b"d", b"f"]


def test_what_a_failing_disk_could_not_confirm_is_not_tried_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(insert: Callable[..., Any], _: str, entries: Any, *others: Any) -> Any:
        if entries[0].body == b"first":
            return insert(entries, *others)
        calls.append(len(entries))
        raise StoreFull("no space left")

    with BackgroundServer(broker) as server:
        wrap_verb(monkeypatch, broker, "insert", fail)
        assert in_one_commit(broker, server, post(b"a"), post(b"b"), post(b"c")) == [500] * 3
    assert calls == [3]


def test_what_may_be_there_although_the_store_failed_is_not_sent_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch is no transaction, what it sent before it failed stays in the queue."""
    broker.create("other")
    calls = Counter[str]()

    def fail(insert: Callable[..., Any], queue: str, entries: Any, *others: Any) -> Any:
        calls[queue] += 1
        if entries[0].body == b"a":
            raise StoreFull("no space left")
        return insert(entries, *others)

    with BackgroundServer(broker) as server:
        wrap_verb(monkeypatch, broker, "insert", fail)
        sent = [post(b"a"), post(b"b"), post(b"c", queue="other")]
        assert in_one_commit(broker, server, *sent) == [500, 500, 201]
    assert calls == {"orders": 2, "other": 1}


@pytest.mark.parametrize("error", [StoreFull, QueueNotFound])
def test_what_a_long_answer_has_taken_is_answered_although_the_next_part_fails(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """At most once, it is already settled."""
    broker["orders"].send_many([b"%d" % number for number in range(40)])
    with BackgroundServer(broker) as server, penstock.open(server.url) as remote:
        receive, calls = LocalQueue.receive, [0]

        def fail(queue: LocalQueue, *arguments: Any, **how: Any) -> Any:
            calls[0] += 1
            if calls[0] > 1:
                raise error("orders")
            return receive(queue, *arguments, **how)

        with monkeypatch.context() as patched:
            patched.setattr(LocalQueue, "receive", fail)
            taken = remote["orders"].receive(40, mode="at_most_once")
    assert 0 < len(taken) < 40
    assert broker["orders"].stats().messages == 40 - len(taken)


def test_an_answer_that_cannot_be_written_harms_nobody_else(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Response] = []

    def fail(response: Response, **how: Any) -> bytes:
        answers.append(response)
        if len(answers) == 3:
            raise ValueError("a defect")
        return render(response, **how)

    monkeypatch.setattr(conversation, "render", fail)
    with BackgroundServer(broker) as server:
        assert in_one_commit(broker, server, post(b"a"), post(b"b"), post(b"c")) == [201, 0, 201]
    assert broker["orders"].stats().messages == 4


def test_many_requests_at_once_on_one_connection_are_answered_in_order(broker: Broker) -> None:
    """More than the interpreter's recursion limit."""
    many = 3000
    with BackgroundServer(broker) as server, dial(server.url) as client:
        with broker.store.batch():
            client.sendall(post(b"x") + b"GET /nothing/at/all HTTP/1.1\r\nHost: localhost\r\n\r\n" * many + post(b"y"))
            until(lambda: server.app.commits.pending == 1)
        answers = b""
        while answers.count(b"HTTP/1.1 ") < many + 2:
            answers += client.recv(65536)
    statuses = [answer[:3] for answer in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"201", *[b"404"] * many, b"201"]


def test_a_queue_that_was_made_anew_has_its_new_settings(broker: Broker) -> None:
    with BackgroundServer(broker) as server, penstock.open(f"sqlite:///{broker.store.database.file.path}") as other:  # type: ignore[attr-defined]
        http = Http(server.url)
        assert [http("POST", "/messages/orders", b"x").status for _ in range(2)] == [201, 201]
        other.delete("orders")
        assert http("POST", "/messages/orders", b"x").status == 404
        other.create("orders", deduplicate=True)
        assert [http("POST", "/messages/orders", b"x").status for _ in range(2)] == [201, 200]


GET = b"GET /messages/orders HTTP/1.1\r\nHost: localhost\r\n\r\n"


def count_calls(monkeypatch: pytest.MonkeyPatch, broker: Broker, verb: str) -> list[Any]:
    calls: list[Any] = []

    def count(act: Callable[..., Any], _: str, *arguments: Any) -> Any:
        calls.append(arguments)
        return act(*arguments)

    wrap_verb(monkeypatch, broker, verb, count)
    return calls


def test_receives_in_one_commit_share_a_claim_and_no_message(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker["orders"].send_many([b"%d" % number for number in range(4)])
    with BackgroundServer(broker) as server:
        claims = count_calls(monkeypatch, broker, "claim")
        answers = in_one_commit(broker, server, *[GET] * 7, read=lambda client: client.recv(4096))
    assert [answer[9:12] for answer in answers] == [b"200"] * 5 + [b"204"] * 2
    bodies = [answer.partition(b"\r\n\r\n")[2] for answer in answers[:5]]
    assert bodies == [b"0", b"1", b"2", b"3", b"first"]  # the last was sent in the commit before
    assert len(claims) == 1


def test_receives_in_one_commit_share_no_group_that_comes_together(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two clients would hold messages of one group, and nobody could say which of them are processed first."""
    broker.delete("orders")
    lines = broker.create("orders", groups=True)
    lines.send_many([Draft(name.encode(), group=name[0]) for name in ["a=1", "a=2", "a=3", "a=4", "b=1", "b=2"]])
    taken: list[list[str]] = []
    receive = LocalQueue.receive

    def note(*arguments: Any, **how: Any) -> Any:
        messages = receive(*arguments, **how)
        taken.append([message.text for message in messages])
        return messages

    with BackgroundServer(broker) as server:
        monkeypatch.setattr(LocalQueue, "receive", note)
        asked = [call("receive", limit=limit, together=True) for limit in (2, 3, 4)]
        answers = in_one_commit(broker, server, *asked, read=lambda client: client.recv(65536))
    assert [answer[9:12] for answer in answers] == [b"200"] * 3
    assert taken == [["a=1", "a=2"], ["b=1", "b=2", "first"], []]
    shares = [[body for body in (b"a=1", b"a=2", b"b=1", b"b=2") if body in answer] for answer in answers]
    assert shares == [[b"a=1", b"a=2"], [b"b=1", b"b=2"], []]


def test_receives_of_messages_that_stay_visible_do_not_come_back_empty(broker: Broker) -> None:
    broker["orders"].update(visibility=0)
    with BackgroundServer(broker) as server:
        statuses = in_one_commit(broker, server, *[GET] * 40)
    assert statuses == [200] * 40


def test_receives_alone_do_not_wait_for_the_disk(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker["orders"].send_many([b"x"] * 20)
    with BackgroundServer(broker) as server:
        database = broker.store.database  # type: ignore[attr-defined]
        batch, durable = database.batch, list[bool]()
        monkeypatch.setattr(database, "batch", lambda *, durable=True: (durables.append(durable), batch(durable=durable))[1])
        durables = durable
        assert in_one_commit(broker, server, *[GET] * 5, first=GET) == [200] * 5
    assert durable[1:] == [False] * (len(durable) - 1)  # the first is the test's own


def test_one_of_two_deletes_of_a_message_finds_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (sent.id for sent in broker["orders"].send_many([b"a", b"b"]))
    with BackgroundServer(broker) as server:
        deletes = count_calls(monkeypatch, broker, "delete")
        ids = [one, one.upper(), other, "00000000-0000-8000-8000-000000000001"]
        requests = [f"DELETE /orders/messages/{id} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for id in ids]
        assert in_one_commit(broker, server, *requests) == [204, 404, 204, 404]
    assert len(deletes) == 1
    assert [message.body for message in broker["orders"].peek(10)] == [b"first"]


def read_answer(client: socket.socket) -> Any:
    """The value of an answer to a client's request, or its status."""
    head, _, body = client.recv(4096).partition(b"\r\n\r\n")
    return json.loads(split(body)[0])["answer"] if head.startswith(b"HTTP/1.1 200") else int(head[9:12])


def test_deletes_of_clients_share_a_call_and_one_of_two_finds_nothing(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = broker["orders"]
    queue.send_many([b"a", b"b", b"c"])
    a, b, c = (message.receipt for message in queue.receive(3))
    stale = Receipt("orders", c.id, 1)
    with BackgroundServer(broker) as server:
        deletes = count_calls(monkeypatch, broker, "delete")
        once = [call("delete_many", messages=held) for held in ([a], [b], [stale])]
        assert in_one_commit(broker, server, *once, read=read_answer) == [[True], [True], [False]]
        assert len(deletes) == 1
        again = [call("delete_many", messages=held) for held in ([a, c], [c], ["bad"], [5])]
        assert in_one_commit(broker, server, *again, read=read_answer) == [[False, True], [False], [False], 400]
    assert [message.body for message in queue.peek(10)] == [b"first"] * 2


def test_receives_that_share_a_claim_keep_what_was_taken_before_it_failed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that got nothing are told of the failure, not that the queue is empty."""
    broker["orders"].send_many([b"x"] * 40)
    with BackgroundServer(broker) as server:
        calls = list[int]()

        def fail(claim: Callable[..., Any], _: str, claiming: Any) -> Any:
            calls.append(claiming.limit)
            if len(calls) > 1:
                raise StoreFull("no space left")
            return claim(claiming)

        wrap_verb(monkeypatch, broker, "claim", fail)
        statuses = in_one_commit(broker, server, *[GET] * 40)
    assert statuses == [200] * calls[0] + [500] * (40 - calls[0])
    assert 0 < calls[0] < 40


def call(verb: str, **arguments: Any) -> bytes:
    """A request of the client."""
    bodies: list[bytes] = []
    parts = join({"arguments": {name: pack(value, bodies) for name, value in arguments.items()}}, bodies)
    body = b"".join(parts)
    head = f"POST /penstock/queues/orders/{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {CONTENT_TYPE}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize("store", ["sqlite:///{}/other.db", "memory:", "vsqs:///{}/vsqs"])
def test_sends_with_a_token_share_a_commit_and_each_keeps_its_meaning(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def count(insert: Callable[..., Any], _: str, entries: Any, *others: Any) -> Any:
        calls.append(len(entries))
        return insert(entries, *others)

    with penstock.open(store.format(tmp_path)) as broker:
        broker.create("orders")
        with BackgroundServer(broker) as server:
            wrap_verb(monkeypatch, broker, "insert", count)
            sends = [call("send_many", drafts=[b"1", Draft(b"2")], token=token) for token in "aba"]
            sends += [call("send_many", drafts=[b"3"]), call("send_many", drafts=[b"4"], token="c")]
            assert in_one_commit(broker, server, *sends) == [200] * 5
            assert calls == [1, 8], "all sends are one call of the store"
            assert in_one_commit(broker, server, sends[0], sends[4]) == [200] * 2
            lines = Http(server.url)("GET", "/metrics").body.decode().splitlines()
        bodies = sorted(message.body for message in broker["orders"].receive(100))
        assert bodies == [b"1", b"1", b"2", b"2", b"3", b"4", b"first", b"first"]
        assert 'penstock_messages_total{deed="sent",queue="orders"} 8' in lines, "a repeated send is not counted"


def test_a_bad_token_is_refused_alone(broker: Broker) -> None:
    with BackgroundServer(broker) as server:
        sends = [call("send_many", drafts=[b"x"], token=token) for token in ("a", "", "b")]
        assert in_one_commit(broker, server, *sends) == [200, 400, 200]
    assert broker["orders"].stats().messages == 3
