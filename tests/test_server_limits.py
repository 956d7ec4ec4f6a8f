"""The server when the store stalls or memory runs short: it says so in time, and loses nothing."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import pytest

import penstock
from penstock import Broker
from penstock.policy import MAX_BODY
from penstock.server import BackgroundServer, ServerSettings
from penstock.testing.http import Http
from penstock.testing.serving import dial, read_answer, until

RECEIVE = b"GET /messages/orders HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with penstock.open("memory:") as broker:
        broker.create("orders", visibility=3600)
        yield broker


SEND = b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"


def test_a_request_that_takes_too_long_is_answered_in_time_and_never_begun(broker: Broker) -> None:
    with BackgroundServer(broker, ServerSettings(port=0, request_timeout=0.3)) as server:
        with broker.store.batch(), dial(server.url) as first:  # blocks the store for everyone else
            first.sendall(SEND)
            until(lambda: server.app.commits.pending == 1 and not server.app.commits._gathered)  # it has begun
            answer = Http(server.url)("POST", "/messages/orders", b"not begun")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert Http(server.url)("GET", "/health").status == 200
        until(lambda: server.app.commits.pending == 0)
        assert [message.body for message in broker["orders"].peek(9)] == [b"x"]
        assert server.app.metrics.requests["mqs", "POST", 503] == 1
        assert server.app.budget.used == 0


def test_what_the_store_has_begun_is_answered_late_with_its_outcome(broker: Broker) -> None:
    with BackgroundServer(broker, ServerSettings(port=0, request_timeout=0.3)) as server, dial(server.url) as client:
        with broker.store.batch():
            client.sendall(SEND)
            until(lambda: server.app.commits.pending == 1 and not server.app.commits._gathered)
            overdue = time.monotonic() + 1
            until(lambda: time.monotonic() > overdue)
        assert client.recv(1000)[9:12] == b"201"
    assert broker["orders"].stats().messages == 1


def test_what_was_claimed_for_a_client_who_left_is_visible_again_at_once(broker: Broker) -> None:
    broker["orders"].send(b"x")
    with BackgroundServer(broker) as server:
        with broker.store.batch():
            with dial(server.url) as client:
                client.sendall(RECEIVE)
                until(lambda: server.app.commits.pending == 1)
            until(lambda: all(connection.ended for connection in server.app.connections.open))
        until(lambda: server.app.polls.given_back == 1 and broker["orders"].stats().visible == 1)


def test_a_request_that_nobody_waits_for_any_more_is_not_begun(broker: Broker) -> None:
    with BackgroundServer(broker) as server:
        with broker.store.batch():
            with dial(server.url) as first, dial(server.url) as second:
                first.sendall(RECEIVE)
                until(lambda: server.app.commits.pending == 1 and not server.app.commits._gathered)  # it has begun
                second.sendall(b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
                until(lambda: server.app.commits.pending == 2)
                for client in (first, second):  # with a reset, since an end of stream could be a half-close
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            until(lambda: not server.app.connections.open)
        until(lambda: server.app.commits.pending == 0)
        assert broker["orders"].stats().messages == 0


def test_bodies_that_do_not_fit_into_memory_are_told_to_come_again(broker: Broker) -> None:
    with BackgroundServer(broker, ServerSettings(port=0, max_memory=MAX_BODY - 1)) as server:
        with dial(server.url) as client:
            head = b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1)
            client.sendall(head + b"x" * (MAX_BODY + 1))
            answer = read_answer(client)
        assert answer[9:12] == b"503"
        assert b"Retry-After: " in answer
        assert server.app.budget.used == 0
        assert Http(server.url)("POST", "/messages/orders", b"x").status == 201


def test_a_store_that_stands_still_turns_into_503_and_not_into_memory(broker: Broker) -> None:
    with BackgroundServer(broker, ServerSettings(port=0, max_pending=3)) as server:
        with broker.store.batch():
            clients = [dial(server.url) for _ in range(5)]
            for place, client in enumerate(clients):
                client.sendall(RECEIVE)
                until(lambda place=place: server.app.commits.pending == min(place + 1, 3))  # type: ignore[misc]
            assert [client.recv(1000)[9:12] for client in clients[3:]] == [b"503", b"503"]
        assert [client.recv(1000)[9:12] for client in clients[:3]] == [b"204"] * 3
        for client in clients:
            client.close()
