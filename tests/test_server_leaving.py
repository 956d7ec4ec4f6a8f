"""Clients that leave, or read slowly: what was claimed for them is given back, and what was done is in the log."""

from __future__ import annotations

import io
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event
from typing import Any

import pytest

import penstock
from penstock.broker import LocalBroker
from penstock.policy import MAX_BODY
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.http.conversation import AHEAD
from penstock.server.http.open_connections import READ_BYTES
from penstock.testing.serving import dial, held, read_answer, until

SETTINGS = ServerSettings(port=0, read_timeout=3600, idle_timeout=3600, max_wait=3600)
RECEIVE = b"GET /messages/orders HTTP/1.1\r\nHost: localhost\r\n\r\n"
POLL = b"GET /messages/orders HTTP/1.1\r\nHost: localhost\r\nX-MQS-MAX-WAIT-TIME: 3600\r\n\r\n"
MANY = b"GET /messages/orders HTTP/1.1\r\nHost: localhost\r\nX-MQS-MAX-MESSAGES: 16\r\n\r\n"
SEND = b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
BEHIND = {
    "a request": RECEIVE,
    "half a request": RECEIVE[:20],
    "more than is read": RECEIVE * ((AHEAD + READ_BYTES + 20_000) // len(RECEIVE)),  # and no more than the kernel takes
}


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with penstock.open("memory:") as broker:
        broker.create("orders", visibility=3600)
        yield broker  # type: ignore[misc]


@pytest.fixture
def server(broker: LocalBroker) -> Iterator[BackgroundServer]:
    with BackgroundServer(broker, SETTINGS) as server:
        yield server


def in_loop(server: BackgroundServer, act: Callable[[], Any]) -> Any:
    """Call it in the server's event loop."""
    done, answers = Event(), []

    def call() -> None:
        try:
            answers.append(act())
        finally:
            done.set()

    server.app.connections.loop.call_soon_threadsafe(call)
    assert done.wait(60)
    return answers[0]


def connection(server: BackgroundServer) -> Any:
    (one,) = server.app.connections.open
    return one


def begun(server: BackgroundServer) -> bool:
    job = connection(server)._job
    return job is not None and getattr(job._awaited, "begun", False)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def send_what_is_taken(client: socket.socket, data: bytes) -> None:
    """The server reads no further at some point."""
    client.settimeout(0.2)
    with suppress(TimeoutError):
        client.sendall(data)


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["close", "reset"])
@pytest.mark.parametrize("behind", BEHIND)
def test_a_client_that_hangs_up_behind_a_pipelined_request_ends_its_poll(
    server: BackgroundServer, broker: LocalBroker, behind: str, leave: Callable[[socket.socket], None]
) -> None:
    client = dial(server.url)
    client.sendall(POLL)
    until(lambda: server.app.polls.resting == 1)
    send_what_is_taken(client, BEHIND[behind])
    leave(client)
    until(lambda: server.app.polls.resting == 0)
    until(lambda: not server.app.connections.open)
    broker["orders"].send(b"x")
    (message,) = broker["orders"].receive()
    assert message.receives == 1


@pytest.mark.parametrize("behind", BEHIND)
def test_what_was_claimed_for_a_client_that_hung_up_behind_a_pipelined_request_is_given_back(
    server: BackgroundServer, broker: LocalBroker, behind: str
) -> None:
    broker["orders"].send(b"x")
    with broker.store.batch():
        client = dial(server.url)
        client.sendall(RECEIVE)
        until(lambda: len(server.app.connections.open) == 1 and begun(server))
        send_what_is_taken(client, BEHIND[behind])
        client.close()
        until(lambda: connection(server).ended)
    until(lambda: not server.app.connections.open)
    until(lambda: broker["orders"].stats().visible == 1)
    assert server.app.polls.given_back == 1


def test_what_the_kernel_does_not_take_is_given_back(server: BackgroundServer, broker: LocalBroker) -> None:
    """The client resets its connection just before the answer is written: send() fails."""
    broker["orders"].send(b"x")
    client = dial(server.url)
    written = Event()

    def hold() -> None:
        """In the event loop: nobody hears of the reset before the answer is written."""
        written.wait(60)
        reset(client)

    with broker.store.batch():
        client.sendall(RECEIVE)
        until(lambda: len(server.app.connections.open) == 1 and begun(server))
        server.app.connections.loop.call_soon_threadsafe(hold)
    until(lambda: broker["orders"].stats().in_flight == 1)
    until(lambda: len(server.app.connections.loop._ready) > 0)  # type: ignore[attr-defined]  # the answer waits for its turn
    written.set()
    until(lambda: broker["orders"].stats().visible == 1)
    assert server.app.polls.given_back == 1


def test_a_slow_reader_that_goes_on_reading_is_not_cut_and_one_that_stops_is(
    server: BackgroundServer, broker: LocalBroker
) -> None:
    broker["orders"].send_many([b"x" * MAX_BODY] * 16)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.settimeout(60)
    client.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
    client.sendall(MANY)
    until(lambda: len(server.app.connections.open) == 1 and connection(server)._answering is not None)
    in_loop(server, server.app.connections._timer.cancel)  # the test is the clock
    one, now, left = connection(server), time.monotonic(), []

    def tick() -> int:
        nonlocal now
        now += 0.9 * SETTINGS.read_timeout
        one.tick(now)
        return int(one._left)

    for _ in range(20):
        before = in_loop(server, tick)
        left.append(before)
        got = 0
        while got < 1_000_000 // 4:
            got += len(client.recv(65536))
        until(lambda before=before: in_loop(server, lambda: one._in_kernel() + len(one._unsent or b"")) < before)  # type: ignore[misc]
    assert not one._lost
    assert left[-1] < left[0]
    in_loop(server, tick)
    in_loop(server, tick)
    in_loop(server, tick)
    until(lambda: one._lost)
    until(lambda: broker["orders"].stats().visible == 16)
    until(lambda: held(server) == 0)
    client.close()


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_change_whose_client_left_is_in_the_log(broker: LocalBroker) -> None:
    log = io.StringIO()
    with BackgroundServer(broker, SETTINGS, log=log) as server:
        with broker.store.batch():
            first, second = dial(server.url), dial(server.url)
            first.sendall(SEND)
            until(lambda: server.app.commits.pending == 1)
            until(lambda: any(getattr(one._job and one._job._awaited, "begun", 0) for one in server.app.connections.open))  # type: ignore[attr-defined]
            second.sendall(SEND)
            until(lambda: server.app.commits.pending == 2)
            reset(first)
            reset(second)
            until(lambda: not server.app.connections.open)
        until(lambda: server.app.commits.pending == 0)
    assert broker["orders"].stats().messages == 1
    noted = [(line["status"], line.get("unheard")) for line in lines(log)]
    assert sorted(noted) == [(201, True), (499, True)]  # the second was never begun


def test_what_was_heard_is_not_called_unheard(broker: LocalBroker) -> None:
    log = io.StringIO()
    with BackgroundServer(broker, SETTINGS, log=log) as server, dial(server.url) as client:
        client.sendall(SEND + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        read_answer(client)
    assert [(line["path"], line["status"], "unheard" in line) for line in lines(log)] == [
        ("/messages/orders", 201, False),
        ("/health", 200, False),
    ]


def test_a_receive_that_was_given_back_is_unheard_in_the_log(broker: LocalBroker) -> None:
    broker["orders"].send_many([b"x" * MAX_BODY] * 16)
    log = io.StringIO()
    with BackgroundServer(broker, SETTINGS, log=log) as server:
        with dial(server.url) as client:
            client.sendall(MANY)
            until(lambda: broker["orders"].stats().in_flight == 16)
            client.recv(1000)
        until(lambda: broker["orders"].stats().visible == 16)
    assert [(line["status"], line["unheard"]) for line in lines(log)] == [(200, True)]


def test_what_a_client_that_left_had_sent_is_counted_until_the_store_lets_go_of_it(
    server: BackgroundServer, broker: LocalBroker
) -> None:
    body = b"x" * MAX_BODY
    post = b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with broker.store.batch():
        first = dial(server.url)
        first.sendall(post)
        until(lambda: len(server.app.connections.open) == 1 and begun(server))
        others = [dial(server.url) for _ in range(5)]
        for other in others:
            other.sendall(post)
        until(lambda: server.app.commits.pending == 6)
        assert server.app.budget.used > 6 * MAX_BODY
        for client in (first, *others):
            reset(client)
        until(lambda: not server.app.connections.open)
        assert MAX_BODY < server.app.budget.used < 2 * MAX_BODY  # what was not begun is forgotten
    until(lambda: held(server) == 0)
    assert broker["orders"].stats().messages == 1
