"""The dialect suite's chapter on MQ-Core: its six endpoints."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from penstock import Broker
from penstock.broker import LocalBroker
from penstock.policy import MAX_BODY
from penstock.server import BackgroundServer
from penstock.testing.clock import FakeClock
from penstock.testing.http import Http


class MqCoreChapter:
    def test_a_queue_is_created_fetched_and_deleted(self, http: Http) -> None:
        assert http("GET", "/queue001").status == 404
        assert http("PUT", "/queue001", b"whatever this is, it is discarded").status == 201
        assert http("GET", "/queue001").status == 200
        assert http("PUT", "/queue001").status == 200
        assert http("DELETE", "/queue001").status == 204
        assert http("DELETE", "/queue001").status == 404

    def test_deleting_a_queue_deletes_its_messages(self, http: Http) -> None:
        http("PUT", "/queue001")
        http("POST", "/queue001/messages", b"x")
        http("DELETE", "/queue001")
        http("PUT", "/queue001")
        assert http("GET", "/queue001/messages").status == 204

    def test_a_message_is_added_fetched_and_deleted(self, http: Http) -> None:
        http("PUT", "/queue001")
        sent = http("POST", "/queue001/messages", b"\x00\xff")
        assert sent.status == 201
        got = http("GET", "/queue001/messages")
        assert (got.status, got.body) == (200, b"\x00\xff")
        id = got.headers["x-message-id"]
        assert id == sent.headers["x-message-id"]
        assert http("DELETE", f"/queue001/messages/{id}").status == 204
        assert http("DELETE", f"/queue001/messages/{id}").status == 404

    def test_no_message_is_no_content(self, http: Http) -> None:
        http("PUT", "/queue001")
        assert http("GET", "/queue001/messages").status == 204

    def test_a_message_that_is_not_deleted_comes_again(self, http: Http, clock: FakeClock) -> None:
        http("PUT", "/queue001")
        http("POST", "/queue001/messages", b"x")
        first = http("GET", "/queue001/messages")
        assert http("GET", "/queue001/messages").status == 204
        clock.advance(31)
        assert http("GET", "/queue001/messages").headers["x-message-id"] == first.headers["x-message-id"]

    def test_a_message_can_be_deleted_before_it_was_fetched(self, http: Http) -> None:
        http("PUT", "/queue001")
        id = http("POST", "/queue001/messages", b"x").headers["x-message-id"]
        assert http("DELETE", f"/queue001/messages/{id}").status == 204

    def test_a_missing_queue_or_message_is_not_found(self, http: Http) -> None:
        assert http("GET", "/none/messages").status == 404
        assert http("POST", "/none/messages", b"x").status == 404
        assert http("DELETE", f"/none/messages/{uuid4()}").status == 404
        http("PUT", "/queue001")
        assert http("DELETE", f"/queue001/messages/{uuid4()}").status == 404
        assert http("DELETE", "/queue001/messages/nonsense").status == 404

    def test_a_body_that_cannot_be_read_is_refused(self, http: Http, server: BackgroundServer) -> None:
        http("PUT", "/queue001")
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port or 0), timeout=60) as client:
            client.sendall(b"POST /queue001/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf")
            client.shutdown(socket.SHUT_WR)
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
        assert http("GET", "/queue001/messages").status == 204

    def test_a_body_over_the_limit_is_refused(self, http: Http) -> None:
        http("PUT", "/queue001")
        assert http("POST", "/queue001/messages", b"x" * (MAX_BODY + 1)).status == 413
        assert http("POST", "/queue001/messages", b"x" * MAX_BODY).status == 201

    def test_a_store_that_cannot_keep_it_is_unavailable_and_says_when_to_come_again(
        self, http: Http, broker: LocalBroker
    ) -> None:
        http("PUT", "/queue001")
        broker.store.close()
        for method, path in [("POST", "/queue001/messages"), ("GET", "/queue001/messages"), ("GET", "/queue001")]:
            answer = http(method, path, b"x" if method == "POST" else None)
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) > 0

    @pytest.mark.parametrize("name", ["queues", "messages", "penstock", "health", "metrics", "openapi.json"])
    def test_a_name_that_another_dialect_has_is_a_clear_error(self, http: Http, broker: Broker, name: str) -> None:
        for method, path in [("PUT", f"/{name}"), ("DELETE", f"/{name}/messages/x"), ("PATCH", f"/{name}/messages")]:
            answer = http(method, path)
            assert answer.status in (404, 405)
            assert name in answer.json["error"]
            assert "dialect" in answer.json["error"]
        assert name not in broker

    def test_both_dialects_see_one_queue(self, http: Http) -> None:
        http("PUT", "/queue001")
        id = http("POST", "/messages/queue001", b"x", Content_Type="text/plain").headers["x-mqs-message-id"]
        got = http("GET", "/queue001/messages")
        assert (got.headers["x-message-id"], got.headers["content-type"]) == (id, "text/plain")
        assert http("DELETE", f"/messages/{id}").status == 204

    def test_a_method_that_is_not_done_names_those_that_are(self, http: Http) -> None:
        answer = http("PATCH", "/queue001")
        assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, PUT")
