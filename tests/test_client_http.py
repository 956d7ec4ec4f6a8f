"""The client's format and its HTTP: what travels is read back as it was, and what is not an answer is an error, not a value."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from threading import Barrier, Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import BadInput, Draft
from penstock.client import calls, http
from penstock.client.http import ClientConnection
from penstock.client.queue import RemoteQueue
from penstock.client.wire import CONTENT_TYPE, LENGTH, join, pack, split, unpack
from penstock.message import Message, Mode, Receipt, Redriven, Sent, Settings, State
from penstock.queue.queue import LocalQueue
from penstock.server import BackgroundServer
from penstock.testing.http import SETTINGS, Http

MOMENT = datetime(2026, 11, 18, tzinfo=UTC)
attributes = st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.floats(allow_nan=False) | st.binary())
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from([MOMENT, State.DAMAGED, Mode.AT_MOST_ONCE, Redriven(5, 1, 2), Sent("a", True), Receipt("q", "a", None)])
    | st.sampled_from([Settings(), Settings(deduplicate=True), Settings(deduplicate=1.0), Settings(redrive=None, history=5)])
    | st.builds(Draft, st.binary(), attributes=attributes, key=st.none() | st.text() | st.binary(), deadline=st.just(MOMENT))
    | st.builds(
        Message, st.text(), st.integers(), st.text(), st.binary(), st.text(), attributes, st.sampled_from(State),
        *[st.integers()] * 5, lapsed=st.booleans(), key=st.none() | st.binary(), holder=st.none() | st.text(),
    ),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(values)
def test_what_is_packed_is_read_back_in_both_formats(value: Any) -> None:
    bodies: list[bytes] = []
    head, rest = split(b"".join(join(pack(value, bodies), bodies)))
    for read in (unpack(json.loads(head), rest), unpack(json.loads(json.dumps(pack(value))))):
        assert read == value
        assert repr(read) == repr(value), "True is not 1, and a Sent not a tuple"
    rest.check()


def test_a_value_of_an_unknown_type_is_refused_by_its_name() -> None:
    with pytest.raises(BadInput, match="there is no type 'a'; an object with other keys is a map"):
        unpack({"a": 1})


def test_bodies_travel_as_they_are() -> None:
    bodies: list[bytes] = []
    packed = b"".join(join(pack([b"\0\xff" * 500, Draft(b"two")], bodies), bodies))
    assert packed.endswith(b"\0\xff" * 500 + b"two")
    assert len(packed) < 1003 + 100


@pytest.fixture
def server() -> Iterator[BackgroundServer]:
    with penstock.open("memory:") as broker, BackgroundServer(broker, SETTINGS) as server:
        broker.create("orders")
        yield server


def framed(head: Any, rest: bytes = b"", more: int = 0) -> bytes:
    text = json.dumps(head).encode()
    return LENGTH.pack(len(text) + more) + text + rest


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff{}",
        b"\0\0\0\1[",
        framed([]),
        framed({"arguments": {"drafts": [{"bytes": 3}]}}, b"ab"),
        framed({"arguments": {"drafts": [{"bytes": 1}]}}, b"ab"),
        framed({"arguments": {"drafts": [{"bytes": -1}]}}, b"ab"),
        framed({"arguments": {"drafts": [{"bytes": True}]}}, b"a"),
        framed({"arguments": {"drafts": [{"bytes": 2**70}]}}, b"a"),
        framed({"arguments": {"drafts": [{"bytes": 1.0}]}}, b"a"),
        framed({"arguments": {"drafts": [{"bytes": [1]}]}}, b"a"),
        framed({"arguments": {"drafts": []}}, more=1),
    ],
)
def test_a_request_that_is_not_in_our_format_is_refused(server: BackgroundServer, body: bytes) -> None:
    http = Http(server.url)
    answer = http("POST", "/penstock/queues/orders/send_many", body, Content_Type=CONTENT_TYPE)
    assert (answer.status, "error" in answer.json) == (400, True)
    plain = http("POST", "/penstock/queues/orders/stats", {"arguments": {}}).json["answer"]["Stats"]
    assert plain["messages"] == 0


def test_plain_json_is_answered_in_plain_json(server: BackgroundServer) -> None:
    http = Http(server.url)
    sent = http(
        "POST", "/penstock/queues/orders/send_many", {"arguments": {"drafts": [{"Draft": {"body": {"bytes": "eA=="}}}]}}
    )
    assert sent.headers["content-type"] == "application/json"
    received = http("POST", "/penstock/queues/orders/receive", {"arguments": {}}).json["answer"][0]["Message"]
    assert (received["body"], received["deadline_at"]) == ({"bytes": "eA=="}, None), "with every field"


def test_as_many_threads_as_call_keep_their_connections(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ClientConnection] = []
    begin = ClientConnection.__init__

    def count(self: ClientConnection, *arguments: Any) -> None:
        opened.append(self)
        begin(self, *arguments)

    monkeypatch.setattr(ClientConnection, "__init__", count)
    barrier = Barrier(40, timeout=60)
    with penstock.open(server.url, connections=30) as remote, ThreadPoolExecutor(40) as pool:
        queue = RemoteQueue("orders", remote._line)  # type: ignore[attr-defined]

        def work(_: int) -> None:
            for _ in range(3):
                barrier.wait()  # so that 40 requests are under way at a time
                queue.stats()

        list(pool.map(work, range(40)))
        assert len(remote._line._idle) == 30  # type: ignore[attr-defined]
    assert len(opened) <= 40 + 2 * 10


def test_no_two_tokens_are_alike_not_even_in_a_child_that_sends_at_the_same_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls.time, "time_ns", lambda: 1)  # type: ignore[attr-defined]
    line = penstock.open("http://localhost:1")._line.calls  # type: ignore[attr-defined]
    assert len({line.new_token() for _ in range(100)}) == 100
    readable, writable = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writable, line.new_token().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writable)
    with os.fdopen(readable) as written:
        assert written.read() != line.new_token()


@pytest.mark.parametrize("number", [0, -1, "5", True, None])
def test_a_bad_number_of_connections_is_refused(number: Any) -> None:
    with pytest.raises(penstock.BadURL, match="connections"):
        penstock.open("http://localhost:1", connections=number)


def test_an_exchange_is_one_request_and_one_call_of_the_queue(
    server: BackgroundServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("exchange", "delete_many", "receive"):
        verb = getattr(LocalQueue, name)

        def call(*arguments: Any, _name: str = name, _verb: Callable[..., Any] = verb, **how: Any) -> Any:
            calls.append(_name)
            return _verb(*arguments, **how)

        monkeypatch.setattr(LocalQueue, name, call)
    with penstock.open(server.url) as remote:
        queue = remote["orders"]
        queue.send_many([b"%d" % number for number in range(60)])
        held = queue.receive()
        calls.clear()
        settled, taken = queue.exchange(held, 2, holder="worker 7", visibility=5)
        assert calls == ["exchange"]
        assert (settled, [message.body for message in taken]) == ([True], [b"1", b"2"])
        assert [message.holder for message in taken] == ["worker 7"] * 2
        assert taken[0].delete()
        settled, taken = queue.exchange([held[0], taken[1]], 100)
        assert (settled, len(taken)) == ([False, True], 57), "more than the first part of an answer"
        assert queue.exchange([], 1) == ([], [])
        for bad in ({"colour": "red"}, {"messages": [], "colour": "red"}, {"messages": [5]}, {"messages": [], "limit": 0}):
            with pytest.raises(BadInput):
                queue._line.follow(queue._ask("exchange", **bad))  # type: ignore[attr-defined]
    lines = Http(server.url)("GET", "/metrics").body.decode().splitlines()
    assert 'penstock_messages_total{deed="received",queue="orders"} 60' in lines
    assert 'penstock_messages_total{deed="deleted",queue="orders"} 3' in lines


def test_an_interrupted_request_leaves_no_answer_for_the_next(
    server: BackgroundServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(server.url) as remote:
        queue = remote["orders"]
        queue.send(b"x")
        receive = ClientConnection._receive

        def interrupted(_: ClientConnection, count: int) -> bytes:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(ClientConnection, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.stats()
        assert ClientConnection._receive is receive
        # Whether the answer has come by now or not: nobody uses this connection again.
        assert remote._line._idle == []  # type: ignore[attr-defined]
        assert queue.peek()[0].body == b"x"
        assert len(remote._line._idle) == 1  # type: ignore[attr-defined]


class Saying:
    """A server that answers each connection's request with these bytes and closes the connection."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                data = client.recv(65536)
                head, _, body = data.partition(b"\r\n\r\n")
                missing = int(re.findall(rb"Content-Length: (\d+)", head)[0]) - len(body)
                while missing > 0:
                    missing -= len(client.recv(65536))
                client.sendall(self._answer)

    def close(self) -> None:
        self._listener.close()


def said(*headers: bytes, status: bytes = b"HTTP/1.1 200 OK", body: bytes = b"") -> bytes:
    return b"\r\n".join([status, b"Content-Type: application/json", *headers, b"", body])


GOOD = b'{"answer": 5}'
ANSWERS = {
    "with its length": said(b"Content-Length: 13", body=GOOD),
    "until the end": said(status=b"HTTP/1.0 200", body=GOOD),
    "in chunks, from a proxy": said(b"Transfer-Encoding: chunked", body=b'4\r\n{"an\r\n9;x=y\r\nswer": 5}\r\n0\r\n\r\n'),
    "after another one": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + said(b"content-length:13", body=GOOD),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_read_however_it_is_framed(answer: bytes) -> None:
    with closing(Saying(answer)) as saying, penstock.open(saying.url) as remote:
        assert RemoteQueue("orders", remote._line).purge() == 5  # type: ignore[attr-defined]


BAD = {
    "nothing": b"",
    "no HTTP": b"220 mail.example.org ESMTP\r\n\r\n",
    "HTTP/2": said(status=b"HTTP/2 200", body=GOOD),
    "no status": said(status=b"HTTP/1.1 20x OK", body=GOOD),
    "an endless head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
    "no header": said(b"what", b"Content-Length: 13", body=GOOD),
    "a folded header": said(b" folded", b"Content-Length: 13", body=GOOD),
    "a space before the colon": said(b"Content-Length : 13", body=GOOD),
    "two lengths": said(b"Content-Length: 13", b"Content-Length: 12", body=GOOD),
    "a negative length": said(b"Content-Length: -1", body=GOOD),
    "a length in words": said(b"Content-Length: 0x0d", body=GOOD),
    "too long": said(b"Content-Length: 99999999999", body=GOOD),
    "cut": said(b"Content-Length: 14", body=GOOD),
    "a length and chunks": said(b"Content-Length: 13", b"Transfer-Encoding: chunked", body=b"d\r\n" + GOOD + b"\r\n0\r\n\r\n"),
    "another coding": said(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "a chunk without a size": said(b"Transfer-Encoding: chunked", body=b"x\r\n" + GOOD + b"\r\n0\r\n\r\n"),
    "a chunk that is longer": said(b"Transfer-Encoding: chunked", body=b"1\r\n" + GOOD + b"\r\n0\r\n\r\n"),
    "chunks without an end": said(b"Transfer-Encoding: chunked", body=b"d\r\n" + GOOD + b"\r\n"),
    "a trailer": said(b"Transfer-Encoding: chunked", body=b"d\r\n" + GOOD + b"\r\n0\r\nX: y\r\n\r\n"),
}


@pytest.mark.parametrize("answer", BAD.values(), ids=BAD)
def test_what_is_not_an_answer_leaves_the_outcome_unknown(answer: bytes) -> None:
    with (
        closing(Saying(answer)) as saying,
        penstock.open(saying.url) as remote,
        pytest.raises(penstock.OutcomeUnknown, match="gave no answer"),
    ):
        RemoteQueue("orders", remote._line).purge()  # type: ignore[attr-defined]


def test_an_answer_that_is_too_long_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER", 12)
    for answer in ANSWERS.values():
        with (
            closing(Saying(answer)) as saying,
            penstock.open(saying.url) as remote,
            pytest.raises(penstock.OutcomeUnknown, match=r"12( bytes)?\)"),
        ):
            RemoteQueue("orders", remote._line).purge()  # type: ignore[attr-defined]


def test_what_follows_an_answer_is_not_the_next_one(server: BackgroundServer) -> None:
    extra = said(b"Content-Length: 13", body=GOOD) * 2
    with closing(Saying(extra)) as saying, penstock.open(saying.url) as remote:
        assert RemoteQueue("orders", remote._line).purge() == 5  # type: ignore[attr-defined]
        assert not remote._line._idle  # type: ignore[attr-defined]


def test_a_host_that_could_be_a_header_is_refused() -> None:
    for url in ("http://a b:80", "http://a\x7f:80", f"http://{'a' * 99}.org"):
        with pytest.raises(penstock.BadURL):
            penstock.open(url)
