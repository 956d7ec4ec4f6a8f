"""The server when the store stalls or memory runs short: it says so in time, and loses nothing."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import penstock
from penstock import Broker, Draft
from penstock.policy import MAX_BODY
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.http.listening import TLS_BYTES
from penstock.server.log_writer import LogWriter
from penstock.testing.http import Http
from penstock.testing.serving import dial, held, read_answer, until

RECEIVE = b"GET /messages/orders HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with penstock.open("memory:") as broker:
        broker.create("orders", visibility=3600)
        yield broker


def begun(server: BackgroundServer) -> bool:
    """The store has begun an operation of a request."""
    jobs = [connection._job for connection in server.app.connections.open]  # type: ignore[attr-defined]
    return any(job is not None and getattr(job._awaited, "begun", False) for job in jobs)


SEND = b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"


def test_a_request_that_takes_too_long_is_answered_in_time_and_never_begun(broker: Broker) -> None:
    with BackgroundServer(broker, ServerSettings(port=0, request_timeout=1.0)) as server:
        with broker.store.batch(), dial(server.url) as first:  # blocks the store for everyone else
            first.sendall(SEND)
            until(lambda: begun(server))
            answer = Http(server.url)("POST", "/messages/orders", b"not begun")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.json == {"error": "this took longer than 1 s, the limit (request_timeout)"}
        assert Http(server.url)("GET", "/health").status == 200
        until(lambda: server.app.commits.pending == 0)
        assert [message.body for message in broker["orders"].peek(9)] == [b"x"]
        assert server.app.metrics.requests["mqs", "POST", 503] == 1
        until(lambda: held(server) == 0)


def test_what_the_store_has_begun_is_answered_late_with_its_outcome(broker: Broker) -> None:
    with BackgroundServer(broker, ServerSettings(port=0, request_timeout=1.0)) as server, dial(server.url) as client:
        with broker.store.batch():
            client.sendall(SEND)
            until(lambda: begun(server))
            overdue = time.monotonic() + 2
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
                until(lambda: begun(server))
                second.sendall(b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
                until(lambda: server.app.commits.pending == 2)
                for client in (first, second):  # with a reset, since an end of stream could be a half-close
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            until(lambda: not server.app.connections.open)
        until(lambda: server.app.commits.pending == 0)
        assert broker["orders"].stats().messages == 0


def test_bodies_that_do_not_fit_into_memory_are_told_to_come_again(broker: Broker) -> None:
    with BackgroundServer(broker, ServerSettings(port=0, max_memory=MAX_BODY)) as server:
        with dial(server.url) as client:
            head = b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1)
            client.sendall(head + b"x" * (MAX_BODY + 1))
            answer = read_answer(client)
        assert answer[9:12] == b"503"
        assert b"Retry-After: " in answer
        until(lambda: held(server) == 0)
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


def receive_all(url: str) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(("127.0.0.1", int(url.rpartition(":")[2])))
    client.sendall(b"GET /messages/orders HTTP/1.1\r\nHost: localhost\r\nX-MQS-MAX-MESSAGES: 16\r\n\r\n")
    return client


def test_answers_count_until_the_kernel_has_them(broker: Broker) -> None:
    """Clients that ask for megabytes and read none get what fits; the others are told to come again, and nothing is claimed."""
    clients, each, budget = 20, 8, 64 * MAX_BODY
    queue = broker["orders"]
    queue.send_many([b"x" * MAX_BODY] * (clients * each))
    settings = ServerSettings(port=0, max_memory=budget, max_body=each * MAX_BODY, read_timeout=3600)
    with BackgroundServer(broker, settings) as server:
        asking = []
        for _ in range(clients):
            asking.append(receive_all(server.url))
            assert asking[-1].recv(12)[9:] in (b"200", b"503")
            assert server.app.budget.used <= budget + 2 * each * MAX_BODY
        assert server.app.metrics.requests["mqs", "GET", 503] > clients // 2
        claimed = queue.stats().in_flight
        assert 0 < claimed <= budget // MAX_BODY
        for client in asking:
            client.close()
        until(lambda: queue.stats().visible == clients * each)
        assert server.app.polls.given_back == claimed
        until(lambda: held(server) == 0)


def test_attributes_count_as_bodies_do(broker: Broker) -> None:
    broker["orders"].send_many([Draft(b"", attributes={"a": "x" * MAX_BODY})] * 8)
    with BackgroundServer(broker, ServerSettings(port=0, max_memory=16 * MAX_BODY)) as server:
        assert Http(server.url)("GET", "/messages/orders", x_mqs_max_messages="8").status == 200
        assert 0 < broker["orders"].stats().in_flight < 8
        until(lambda: held(server) == 0)


def test_at_most_once_nothing_is_taken_that_does_not_fit(broker: Broker) -> None:
    queue = broker.create("once", mode="at_most_once")
    queue.send_many([b"x" * MAX_BODY] * 3)
    with BackgroundServer(broker, ServerSettings(port=0, max_memory=8 * MAX_BODY)) as server:
        server.app.budget.take(7 * MAX_BODY + MAX_BODY // 2)
        answer = Http(server.url)("GET", "/messages/once")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert queue.stats().messages == 3
        server.app.budget.give(7 * MAX_BODY)
        assert Http(server.url)("GET", "/messages/once").status == 200
        assert queue.stats().messages == 2


def test_tls_handshakes_count_as_connections(broker: Broker, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2"]
    subprocess.run(
        [*command, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
    )
    settings = ServerSettings(
        port=0, tls_cert=str(cert), tls_key=str(key), max_connections=5, idle_timeout=3600, read_timeout=3600
    )
    with BackgroundServer(broker, settings) as server:
        silent = [dial(server.url) for _ in range(30)]
        until(lambda: len(server.app.connections.open) == 5)
        for client in silent[:-5]:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""  # it made room for another
        with penstock.open(server.url, cafile=str(cert)) as remote:
            assert remote["orders"].send(b"x").id
            assert len(server.app.connections.open) == 5
            until(lambda: server.app.budget.used == 5 * TLS_BYTES)
        for client in silent:
            client.close()
        until(lambda: not server.app.connections.open)
        until(lambda: held(server) == 0)
        server.app.budget.take(settings.max_memory - 2 * TLS_BYTES)
        silent = [dial(server.url) for _ in range(3)]
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""  # it made room for another
        until(lambda: len(server.app.connections.open) == 2)
        for client in silent:
            client.close()


def test_many_strangers_from_one_address_lock_out_nobody_else(broker: Broker) -> None:
    with BackgroundServer(broker, ServerSettings(port=0, max_connections=10, max_per_address=4)) as server:
        strangers = [dial(server.url) for _ in range(20)]
        until(lambda: len(server.app.connections.open) == 4)
        port = int(server.url.rpartition(":")[2])
        for place in range(3):
            with socket.create_connection(("127.0.0.1", port), source_address=(f"127.0.0.{place + 2}", 0), timeout=60) as other:
                other.sendall(SEND)
                assert other.recv(1000)[9:12] == b"201"
                assert len(server.app.connections.open) <= 5
        for client in strangers:
            client.close()


def test_a_log_that_nobody_reads_is_dropped_and_counted() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading) as reader:
        writer = LogWriter(stream)
        line = "x" * 99_999
        for _ in range(100):
            writer.write([line])  # does not wait
        assert 0 < writer.dropped < 100
        with ThreadPoolExecutor(1) as pool:
            lines = pool.submit(lambda: [reader.readline() for _ in range(100 - writer.dropped)])
            assert lines.result(60) == [line + "\n"] * (100 - writer.dropped)
        writer.close()


def test_a_log_without_a_reader_stops_nothing() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        writer = LogWriter(stream)
        writer.write(["x"])
        writer.close()
        writer.write(["y"])
