"""The dialect suite's chapter on serving: shared commits, long polls, clients that disconnect, pipelined requests."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from urllib.parse import urlsplit

import penstock
from penstock import Broker
from penstock.broker import LocalBroker
from penstock.policy import MAX_BODY
from penstock.server import BackgroundServer, ServerSettings
from penstock.testing.clock import FakeClock
from penstock.testing.http import Http, HttpAnswer


def dial(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port or 0), timeout=60)


def until(true: Callable[[], bool]) -> None:
    """Wait for a condition that other threads bring about."""
    give_up_at = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up_at, "it never happened"
        time.sleep(0.002)


def held(server: BackgroundServer) -> int:
    """The bytes that the server counts for its clients, beside those of their connections."""
    connections = server.app.connections
    return server.app.budget.used - len(connections.open) * connections.cost


def read_answer(client: socket.socket) -> bytes:
    data = b""
    while piece := client.recv(65536):
        data += piece
    return data


class ServingChapter:
    def test_concurrent_sends_are_each_there_once(self, server: BackgroundServer, broker: Broker) -> None:
        broker.create("orders")

        def send(worker: int) -> list[int]:
            http = Http(server.url)
            return [http("POST", "/messages/orders", b"%d-%d" % (worker, number)).status for number in range(20)]

        with ThreadPoolExecutor(8) as pool:
            statuses = [status for each in pool.map(send, range(8)) for status in each]
        assert statuses == [201] * 160
        assert len({message.body for message in broker["orders"].receive(1000)}) == 160

    def test_a_refused_neighbour_harms_nobody(self, server: BackgroundServer, broker: Broker) -> None:
        broker.create("orders")

        def send(worker: int) -> list[int]:
            http = Http(server.url)
            bad = worker % 2
            answers = []
            for number in range(20):
                path = "/messages/none" if bad and number % 2 else "/messages/orders"
                kind = "\x80" if bad and not number % 2 else "text/plain"
                answers.append(http("POST", path, b"x", Content_Type=kind).status)
            return answers

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(send, range(8)))
        assert all(set(each) == {201} for each in answers[::2])
        assert all(each == [400, 404] * 10 for each in answers[1::2])
        assert broker["orders"].stats().messages == 80

    def test_concurrent_receives_get_each_message_once(self, server: BackgroundServer, broker: Broker) -> None:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(120)])

        def receive(_: int) -> list[bytes]:
            http, found = Http(server.url), []
            while (answer := http("GET", "/messages/orders")).status == 200:
                found.append(answer.body)
                assert http("DELETE", f"/messages/{answer.headers['x-mqs-message-id']}").status == 204
            return found

        with ThreadPoolExecutor(6) as pool:
            found = [body for each in pool.map(receive, range(6)) for body in each]
        assert sorted(found, key=int) == [b"%d" % number for number in range(120)]
        assert queue.stats().messages == 0

    def test_a_long_poll_waits_no_longer_than_asked(self, http: Http, broker: Broker) -> None:
        broker.create("orders")
        started = time.monotonic()
        assert http("GET", "/messages/orders", X_MQS_MAX_WAIT_TIME="1").status == 204
        assert 1 <= time.monotonic() - started < 60  # which is the longest wait that it could have asked for

    def test_a_send_wakes_one_long_poll_after_another(self, server: BackgroundServer, broker: Broker) -> None:
        broker.create("orders")
        answers: list[HttpAnswer] = []
        pollers = [
            Thread(target=lambda: answers.append(Http(server.url)("GET", "/messages/orders", X_MQS_MAX_WAIT_TIME="60")))
            for _ in range(5)
        ]
        for poller in pollers:
            poller.start()
        until(lambda: server.app.polls.resting == 5)
        http = Http(server.url)
        for number in range(5):
            http("POST", "/messages/orders", b"%d" % number)
        for poller in pollers:
            poller.join()
        assert sorted(answer.body for answer in answers) == [b"0", b"1", b"2", b"3", b"4"]

    def test_a_long_poll_is_woken_by_the_library_and_by_time(self, server: BackgroundServer, broker: Broker) -> None:
        queue = broker.create("orders")
        answers: list[HttpAnswer] = []

        def poll() -> None:
            answers.append(Http(server.url)("GET", "/messages/orders", X_MQS_MAX_WAIT_TIME="60"))

        for body, delay in ((b"now", 0.0), (b"later", 0.1)):
            poller = Thread(target=poll)
            poller.start()
            until(lambda: server.app.polls.resting == 1)
            queue.send(body, delay=delay)
            if delay:
                assert isinstance(broker.clock, FakeClock)
                broker.clock.advance(0.1)
            poller.join()
        assert [answer.body for answer in answers] == [b"now", b"later"]

    def test_a_client_that_leaves_its_long_poll_costs_no_message(self, broker: LocalBroker) -> None:
        queue = broker.create("orders")
        with BackgroundServer(broker, ServerSettings(port=0, max_wait=3600)) as server:
            with dial(server.url) as client:
                client.sendall(b"GET /messages/orders HTTP/1.1\r\nHost: localhost\r\nX-MQS-MAX-WAIT-TIME: 3600\r\n\r\n")
                until(lambda: server.app.polls.resting == 1)
            until(lambda: server.app.polls.resting == 0)  # long before the poll would end by itself
            queue.send(b"x")
            (message,) = queue.receive()
        assert message.receives == 1

    def test_what_a_client_does_not_take_is_visible_again_at_once(self, server: BackgroundServer, broker: Broker) -> None:
        queue = broker.create("orders", visibility=3600)
        size = 1024 * 1024
        queue.send_many([b"x" * size] * 30)
        with dial(server.url) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"GET /messages/orders HTTP/1.1\r\nHost: localhost\r\nX-MQS-MAX-MESSAGES: 30\r\n\r\n")
            until(lambda: queue.stats().in_flight == 16)
            client.recv(1000)  # the answer is on its way, and too long for the socket buffers
        until(lambda: queue.stats().visible == 30)
        assert server.app.polls.given_back == 16

    def test_an_answer_holds_no_more_than_so_many_bytes_of_messages(self, http: Http, broker: Broker) -> None:
        queue = broker.create("orders")
        queue.send_many([b"x" * MAX_BODY] * 20 + [b"y"] * 50)
        big = http("GET", "/messages/orders", X_MQS_MAX_MESSAGES="999")
        assert big.body.count(b"X-MQS-MESSAGE-ID") == 16
        assert queue.stats().in_flight == 16
        assert http("GET", "/messages/orders", X_MQS_MAX_MESSAGES="999").body.count(b"X-MQS-MESSAGE-ID") == 54

    def test_what_is_hidden_for_no_time_comes_once_an_answer(self, http: Http, broker: Broker) -> None:
        broker.create("orders", visibility=0).send_many([b"x"] * 40)
        answer = http("GET", "/messages/orders", X_MQS_MAX_MESSAGES="40")
        ids = [line for line in answer.body.splitlines() if line.startswith(b"X-MQS-MESSAGE-ID")]
        assert len(ids) == len(set(ids)) > 0

    def test_requests_on_one_connection_are_answered_in_order(self, server: BackgroundServer, broker: Broker) -> None:
        broker.create("orders")
        request = b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n"
        with dial(server.url) as client:
            client.sendall(b"".join(request + b"%d" % number for number in range(10)))
            client.sendall(b"GET /queues/none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answers = read_answer(client)
        assert answers.count(b"HTTP/1.1 201 Created") == 10
        assert answers.index(b"HTTP/1.1 404") > answers.rindex(b"HTTP/1.1 201")
        assert [message.body for message in broker["orders"].receive(10)] == [b"%d" % number for number in range(10)]

    def test_health_touches_the_store(self, http: Http, broker: LocalBroker) -> None:
        assert http("GET", "/health").json == {"status": "ok"}
        broker.store.close()
        answer = http("GET", "/health")
        assert (answer.status, "closed" in answer.json["error"]) == (503, True)

    def test_metrics_count_what_was_done(self, http: Http, broker: Broker) -> None:
        broker.create("orders")
        http("POST", "/messages/orders", b"x")
        http("POST", "/messages/orders", b"x")
        id = http("GET", "/messages/orders").headers["x-mqs-message-id"]
        http("DELETE", f"/messages/{id}")
        lines = http("GET", "/metrics").body.decode().splitlines()
        for line in [
            'penstock_queue_messages{queue="orders"} 1',
            'penstock_queue_visible{queue="orders"} 1',
            'penstock_queue_oldest_age_seconds{queue="orders"} 0.0',
            'penstock_messages_total{deed="sent",queue="orders"} 2',
            'penstock_messages_total{deed="received",queue="orders"} 1',
            'penstock_messages_total{deed="deleted",queue="orders"} 1',
            'penstock_requests_total{dialect="mqs",method="POST",status="201"} 2',
        ]:
            assert line in lines
        (commits,) = (line for line in lines if line.startswith("penstock_commit_operations_count "))
        assert int(commits.split()[1]) >= 6  # and the server looks for move tasks

    def test_the_client_is_the_same_broker(self, server: BackgroundServer, broker: Broker) -> None:
        with penstock.open(server.url) as remote:
            queue = remote.create("orders", visibility=5)
            queue.send(b"x", content_type="text/plain", attributes={"n": 1, "b": b"\x00"})
            (message,) = remote["orders"].receive(wait=1)
            assert (message.text, message.attributes) == ("x", {"n": 1, "b": b"\x00"})
            assert message.extend(60)
            assert message.delete()
            assert message.delete() is False
            assert broker["orders"].stats() == queue.stats()
