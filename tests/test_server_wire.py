"""Raw sockets and the server: malformed requests are refused, slow clients are cut off, and nothing hangs or answers 500."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest

import penstock
from penstock.server import BackgroundServer, ServerSettings
from penstock.testing.serving import dial, held, read_answer, until

SETTINGS = ServerSettings(port=0, read_timeout=60, idle_timeout=60, max_head=4096, max_body=2 * 1024 * 1024, max_connections=20)
IMPATIENT = replace(SETTINGS, read_timeout=0.5, idle_timeout=1.0)
"""For tests that wait until a client is cut off. The others must pass on a machine that is too busy for such times."""


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    with penstock.open("memory:") as broker:
        broker.create("q")
        with BackgroundServer(broker, SETTINGS) as server:
            yield server


@pytest.fixture(scope="module")
def impatient() -> Iterator[BackgroundServer]:
    with penstock.open("memory:") as broker:
        broker.create("q")
        with BackgroundServer(broker, IMPATIENT) as server:
            yield server


def exchange(server: BackgroundServer, *pieces: bytes, shut: bool = False) -> bytes:
    """Everything the server answers until it closes."""
    with dial(server.url) as client:
        for piece in pieces:
            client.sendall(piece)
        if shut:
            client.shutdown(socket.SHUT_WR)
        return read_answer(client)


GOOD = b"POST /messages/q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\ngood"
LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
POST = b"POST /messages/q HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
MALFORMED = {
    "no sense": b"\x00\x01\x02\r\n\r\n",
    "tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no version": b"GET /health\r\n\r\n",
    "http 2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http 3": b"GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n",
    "space in a name": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX Y: 1\r\n\r\n",
    "space before the colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "no colon": b"GET /health HTTP/1.1\r\nHost: localhost\r\nnonsense\r\n\r\n",
    "empty name": b"GET /health HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n",
    "nul in a value": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    "cr in a value": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\rb: c\r\n\r\n",
    "bare lf": b"GET /health HTTP/1.1\nHost: localhost\n\n",
    "folded": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n",
    "bad target": b"GET http:// HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n",
    "star": b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "lengths in a list": POST + b"Content-Length: 1, 2\r\n\r\nab",
    "negative length": POST + b"Content-Length: -1\r\n\r\n",
    "signed length": POST + b"Content-Length: +1\r\n\r\na",
    "hexadecimal length": POST + b"Content-Length: 0x5\r\n\r\nabcde",
    "empty length": POST + b"Content-Length: \r\n\r\n",
    "endless length": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "unknown coding": POST + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
    "chunked not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "hidden chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunk size is no number": CHUNKED + b"x\r\na\r\n0\r\n\r\n",
    "chunk size is negative": CHUNKED + b"-1\r\na\r\n0\r\n\r\n",
    "chunk size is endless": CHUNKED + b"fffffffffffffffff\r\na\r\n0\r\n\r\n",
    "chunk is too long": CHUNKED + b"1\r\nabc\r\n0\r\n\r\n",
    "chunk without an end": CHUNKED + b"1\r\na0\r\n\r\n",
    "chunk with bare lf": CHUNKED + b"1\na\n0\n\n",
    "bad escape": b"GET /queues/%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "expectation": POST + b"Expect: wonders\r\nContent-Length: 1\r\n\r\na",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_refused_and_its_connection_closed(server: BackgroundServer, name: str) -> None:
    answer = exchange(server, MALFORMED[name])
    status = int(answer[9:12])
    assert 400 <= status < 600
    assert status != 500
    assert answer.count(b"HTTP/1.1 ") == 1, "what follows a malformed request is not another one"
    assert b"Connection: close" in answer


@pytest.fixture(autouse=True)
def nothing_was_sent(server: BackgroundServer, impatient: BackgroundServer) -> Iterator[None]:
    yield
    assert sent(server) == sent(impatient) == 0


def statuses(answers: bytes) -> list[int]:
    return [int(answers[at + 9 : at + 12]) for at in range(len(answers)) if answers.startswith(b"HTTP/1.1 ", at)]


def sent(server: BackgroundServer) -> int:
    """How many good requests were executed."""
    with penstock.open(server.url) as broker:
        return broker["q"].purge()


REFUSED = {
    **MALFORMED,
    "no token": b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n",
    "a body for health": LAST.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\nab"),
    "too long a head": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5000 + b"\r\n\r\n",
    "too long a target": b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "too long a body": POST + b"Content-Length: 2097153\r\n\r\n",
    "too many headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 101 + b"\r\n",
    "coded twice": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unknown method": b"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
DELETE = b"DELETE /queues/q HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_behind_a_refused_request_is_executed(server: BackgroundServer, name: str) -> None:
    answers = exchange(server, REFUSED[name] + GOOD + DELETE)
    assert len(statuses(answers)) == 1
    assert 400 <= statuses(answers)[0] < 600
    assert sent(server) == 0


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_in_front_of_a_refused_request_is_executed(server: BackgroundServer, name: str) -> None:
    answers = exchange(server, GOOD + REFUSED[name] + GOOD + DELETE)
    assert statuses(answers)[0] == 201
    assert len(statuses(answers)) == 2
    assert 400 <= statuses(answers)[1] < 600
    assert sent(server) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_final_and_the_clock_goes_on(impatient: BackgroundServer, name: str) -> None:
    """Whatever trickles in behind a refusal; and a slow client is still cut afterwards."""
    with dial(impatient.url) as client:
        client.sendall(REFUSED[name])
        assert 400 <= int(client.recv(65536)[9:12]) < 600
        with suppress(OSError):  # closed meanwhile
            client.sendall(GOOD[:9])
            client.sendall(GOOD[9:])
            assert b"HTTP/1.1 " not in read_answer(client)
    assert exchange(impatient, b"GET / HT")[9:12] == b"408"
    assert sent(impatient) == 0


def test_36_bytes_do_not_switch_off_the_clock() -> None:
    settings = replace(IMPATIENT, token="a token of many characters")
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        answer = exchange(server, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HT")
        assert statuses(answer) == [401]
        assert statuses(exchange(server, b"GET / HT")) == [408]
        assert exchange(server, b"") == b""


def test_a_clock_that_fails_for_one_connection_goes_on_for_the_others(
    impatient: BackgroundServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with dial(impatient.url) as broken:
        found: list[Any] = []

        def find() -> bool:
            transports = [(one, one._transport) for one in list(impatient.app.connections.open)]  # type: ignore[attr-defined]
            found[:] = [one for one, it in transports if it and it.get_extra_info("peername") == broken.getsockname()]
            return bool(found)

        until(find)
        monkeypatch.setattr(found[0], "tick", lambda _: 1 / 0)
        assert broken.recv(1) == b""
    assert statuses(exchange(impatient, b"GET / HT")) == [408]
    assert "ZeroDivisionError" in caplog.text


def test_a_first_request_has_as_long_as_any_other() -> None:
    """With a token, a client that has shown none is not left in peace because it asked for /health."""
    settings = replace(IMPATIENT, idle_timeout=3600, token="a token of many characters")
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        assert exchange(server) == b""
        assert statuses(exchange(server, health)) == [200]


@pytest.mark.parametrize(
    "start",
    [b"", b"GET", b"GET /health HTTP/1.1\r\nHost: loc", POST + b"Content-Length: 10\r\n\r\nhalf", CHUNKED + b"5\r\nha"],
    ids=["nothing", "method", "head", "body", "chunk"],
)
def test_a_slow_request_is_cut(impatient: BackgroundServer, start: bytes) -> None:
    started = time.monotonic()
    answer = exchange(impatient, start)
    assert answer[9:12] == b"408" if start else answer == b""
    assert time.monotonic() - started < 60


def test_a_request_that_trickles_is_cut(impatient: BackgroundServer) -> None:
    with dial(impatient.url) as client:
        started = time.monotonic()
        with pytest.raises(OSError):
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            while time.monotonic() - started < 120:
                client.sendall(b"X: y\r\n")
                time.sleep(0.05)
        assert time.monotonic() - started < 60


@pytest.mark.parametrize("start", [b"GET /he", POST + b"Content-Length: 10\r\n\r\nhalf", CHUNKED + b"5\r\nha"])
def test_a_request_that_ends_in_the_middle_is_refused(server: BackgroundServer, start: bytes) -> None:
    assert exchange(server, start, shut=True)[9:12] == b"400"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5000 + b"\r\n\r\n", b"431"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1_000_000, b"431"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"431"),
        (b"GET /" + b"x" * 1_000_000, b"431"),
        (POST + b"Content-Length: 2097153\r\n\r\n", b"413"),
        (POST + b"Expect: 100-continue\r\nContent-Length: 2097153\r\n\r\n", b"413"),
        (CHUNKED + b"100000\r\n%b\r\n" % (b"x" * 0x100000) * 3, b"413"),
        (CHUNKED + b"1\r\na\r\n0\r\nX: " + b"x" * 2_000_000, b"431"),
        (CHUNKED + b"1\r\na\r\n0\r\n" + b"X: y\r\n" * 300_000, b"431"),
        (CHUNKED + b"1;x=" + b"x" * 2_000_000, b"431"),
    ],
    ids=[
        "header",
        "endless header",
        "many headers",
        "target",
        "endless target",
        "length",
        "expected",
        "chunks",
        "trailer",
        "trailers",
        "extension",
    ],
)
def test_what_is_too_large_is_refused(server: BackgroundServer, request_: bytes, status: bytes) -> None:
    with dial(server.url) as client:
        try:
            client.sendall(request_)
        except OSError:
            return  # disconnected before it had sent everything
        assert read_answer(client)[9:12] == status


def test_a_client_that_expects_it_is_told_to_go_on(server: BackgroundServer) -> None:
    with dial(server.url) as client:
        client.sendall(
            b"PUT /penstock HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
            b"Content-Length: 1\r\nConnection: close\r\n\r\n"
        )
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"x")
        assert read_answer(client)[9:12] == b"404"


def test_an_upgrade_is_not_taken_and_the_request_served(impatient: BackgroundServer) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    answer = exchange(impatient, head)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    body = head.replace(b"GET /health", b"POST /messages/none").replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\nabc")
    assert exchange(impatient, body)[9:12] == b"404"


def test_http_1_0_is_answered_and_closed(server: BackgroundServer) -> None:
    assert exchange(server, b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 OK")


def test_an_absolute_target_is_a_path(server: BackgroundServer) -> None:
    request = b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert exchange(server, request).startswith(b"HTTP/1.1 200 OK")


def test_a_half_closed_client_still_gets_its_answer(server: BackgroundServer) -> None:
    answer = exchange(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", shut=True)
    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_a_refusal_comes_after_the_answers_before_it(server: BackgroundServer) -> None:
    answers = exchange(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3 + b"nonsense\r\n\r\n")
    assert [answers[at + 9 : at + 12] for at in range(len(answers)) if answers.startswith(b"HTTP/1.1 ", at)] == [b"200"] * 3 + [
        b"400"
    ]


def test_head_and_options_are_not_taken_for_a_receive(server: BackgroundServer) -> None:
    for method in (b"HEAD", b"OPTIONS", b"TRACE"):
        answer = exchange(server, method + b" /messages/q HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answer[9:12] == b"405"


def test_a_resting_connection_is_closed_after_its_time(impatient: BackgroundServer) -> None:
    with dial(impatient.url) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(client).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("limit", ["max_connections", "max_per_address"])
def test_connections_over_the_limit_are_told_to_come_again(limit: str) -> None:
    with penstock.open("memory:") as broker:
        broker.create("q")
        settings = replace(SETTINGS, idle_timeout=60, max_connections=100)
        with BackgroundServer(broker, replace(settings, **{limit: 5})) as server:
            clients = [dial(server.url) for _ in range(5)]
            for client in clients:
                client.sendall(GOOD)
                assert client.recv(1000)[9:12] == b"201"
            with dial(server.url) as another:
                another.sendall(GOOD)
                answer = read_answer(another)
            assert answer[9:12] == b"503"
            assert b"Retry-After: " in answer
            for client in clients:
                client.close()
        assert broker["q"].purge() == 5


def test_silent_connections_lock_nobody_out() -> None:
    """The one that has been silent longest makes room for the next."""
    settings = replace(SETTINGS, read_timeout=3600)  # they stay silent for as long as a busy machine needs to open them all
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server, ExitStack() as silent:
        for _ in range(settings.max_connections):
            silent.enter_context(dial(server.url))
        until(lambda: len(server.app.connections.open) == settings.max_connections)
        for _ in range(3):
            assert exchange(server, LAST)[9:12] == b"200"


def test_a_client_that_does_not_read_is_cut() -> None:
    with penstock.open("memory:") as broker:
        queue = broker.create("q", visibility=3600)
        queue.send_many([b"x" * 1_000_000] * 30)
        with (
            BackgroundServer(broker, replace(SETTINGS, read_timeout=0.3, max_body=32 * 1024 * 1024)) as server,
            dial(server.url) as client,
        ):
            client.sendall(b"GET /messages/q HTTP/1.1\r\nHost: localhost\r\nX-MQS-MAX-MESSAGES: 30\r\n\r\n")
            give_up_at = time.monotonic() + 60
            while server.app.polls.given_back == 0 and time.monotonic() < give_up_at:
                time.sleep(0.01)
        assert queue.stats().visible == 30


@pytest.mark.parametrize("path", ["/health", "/queues/q", "/nowhere/at/all"])
def test_an_answer_to_head_has_no_body(server: BackgroundServer, path: str) -> None:
    end = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = exchange(server, b"HEAD %b HTTP/1.1\r\nHost: localhost\r\n\r\n%b" % (path.encode(), end))
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head[9:12] in (b"404", b"405")
    assert rest.startswith(b"HTTP/1.1 200 ")


def test_a_refusal_of_head_has_no_body(server: BackgroundServer) -> None:
    answer = exchange(server, b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nExpect: wonders\r\n\r\n")
    assert answer[9:12] == b"417"
    assert answer.endswith(b"\r\n\r\n")


def test_what_was_refused_is_counted_and_nothing_is_kept_of_it(server: BackgroundServer) -> None:
    with penstock.open(server.url) as broker:  # earlier tests have left nothing behind
        broker.queues()
    until(lambda: held(server) == 0)
    refused = {key: count for key, count in server.app.metrics.requests.items() if key[2] >= 400}
    exchange(server, b"nonsense\r\n\r\n")
    key = ("mq-core", "?", 400)
    assert server.app.metrics.requests[key] == refused.get(key, 0) + 1


def test_half_a_head_does_not_hold_up_a_stop() -> None:
    settings = replace(SETTINGS, read_timeout=3600, idle_timeout=3600, grace=3600)
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        client = dial(server.url)
        client.sendall(b"GET /hea")
        until(lambda: any(one._talk.waiting for one in list(server.app.connections.open)))  # type: ignore[attr-defined]
    assert client.recv(1) == b""
    client.close()
