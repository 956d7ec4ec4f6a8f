"""The dialect suite's chapter on mqs: every line of its documentation, and the additions of its later version."""

from __future__ import annotations

from email import message_from_bytes
from email.message import Message as Mail
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from penstock import Broker
from penstock.broker import LocalBroker
from penstock.policy import MAX_BODY
from penstock.testing.clock import FakeClock
from penstock.testing.http import Http, HttpAnswer

INT32_MAX = 2**31 - 1
QUEUE = {
    "redrive_policy": None,
    "retention_timeout": 3600,
    "visibility_timeout": 30,
    "message_delay": 0,
    "message_deduplication": False,
}
BAD_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"retention_timeout": 0}, "retention"),
    ({"retention_timeout": INT32_MAX + 1}, "retention"),
    ({"retention_timeout": "soon"}, "retention"),
    ({"retention_timeout": None}, "retention"),
    ({"visibility_timeout": -1}, "visibility"),
    ({"visibility_timeout": INT32_MAX + 1}, "visibility"),
    ({"visibility_timeout": True}, "visibility"),
    ({"message_delay": -1}, "delay"),
    ({"message_delay": INT32_MAX + 1}, "delay"),
    ({"message_deduplication": "yes"}, "message_deduplication"),
    ({"message_deduplication": 5}, "message_deduplication"),
    ({"redrive_policy": {"max_receives": 0, "dead_letter_queue": "dead"}}, "max_receives"),
    ({"redrive_policy": {"max_receives": INT32_MAX + 1, "dead_letter_queue": "dead"}}, "max_receives"),
    ({"redrive_policy": {"max_receives": 1.5, "dead_letter_queue": "dead"}}, "max_receives"),
    ({"redrive_policy": {"max_receives": 1, "dead_letter_queue": "missing"}}, "missing"),
    ({"redrive_policy": {"max_receives": 1, "dead_letter_queue": 7}}, "7"),
    ({"redrive_policy": {"max_receives": 1}}, "redrive_policy"),
    ({"redrive_policy": "dead"}, "redrive_policy"),
    ({"colour": "red"}, "colour"),
    ({"name": "other"}, "other"),
]


def parts_of(answer: HttpAnswer) -> list[Mail]:
    head = f"Content-Type: {answer.headers['content-type']}\r\n\r\n".encode()
    parts = message_from_bytes(head + answer.body).get_payload()
    assert isinstance(parts, list)
    return parts  # type: ignore[return-value]


class MqsQueues:
    @pytest.fixture(autouse=True)
    def dead(self, broker: Broker) -> None:
        broker.create("dead")

    def test_a_queue_is_created_and_shown(self, http: Http) -> None:
        redrive = {"max_receives": 3, "dead_letter_queue": "dead"}
        answer = http("PUT", "/queues/orders", {**QUEUE, "redrive_policy": redrive, "message_deduplication": True})
        assert answer.status == 201
        assert answer.headers["content-type"] == "application/json"
        expected = {"name": "orders", **QUEUE, "redrive_policy": redrive, "message_deduplication": True}
        assert answer.json == expected
        status = {"messages": 0, "visible_messages": 0, "oldest_message_age": 0}
        assert http("GET", "/queues/orders").json == {**expected, "status": status}

    def test_what_may_be_left_out_has_a_default(self, http: Http) -> None:
        answer = http("PUT", "/queues/orders", {"retention_timeout": 60, "visibility_timeout": 5})
        assert answer.json == {"name": "orders", **QUEUE, "retention_timeout": 60, "visibility_timeout": 5}

    def test_a_queue_that_exists_is_a_conflict_whatever_the_body(self, http: Http) -> None:
        assert http("PUT", "/queues/orders", QUEUE).status == 201
        assert http("PUT", "/queues/orders", QUEUE).status == 409
        assert http("PUT", "/queues/orders", b"{").status == 409

    @pytest.mark.parametrize(("change", "word"), BAD_SETTINGS, ids=str)
    def test_bad_settings_are_named_and_change_nothing(self, http: Http, change: dict[str, Any], word: str) -> None:
        answer = http("PUT", "/queues/orders", {**QUEUE, **change})
        assert (answer.status, answer.headers["content-type"]) == (400, "application/json")
        assert word in answer.json["error"]
        assert http("GET", "/queues/orders").status == 404
        http("PUT", "/queues/orders", QUEUE)
        answer = http("POST", "/queues/orders", {**QUEUE, "message_delay": 7, **change})
        assert answer.status == 400
        assert word in answer.json["error"]
        assert http("GET", "/queues/orders").json["message_delay"] == 0

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null", b'{"retention_timeout": 5}', b"[" * 60_000])
    def test_a_body_that_does_not_parse_is_refused(self, http: Http, body: bytes) -> None:
        assert http("PUT", "/queues/orders", body).status == 400
        http("PUT", "/queues/orders", QUEUE)
        assert http("POST", "/queues/orders", body).status == 400

    def test_a_queue_is_updated(self, http: Http) -> None:
        http("PUT", "/queues/orders", QUEUE)
        answer = http("POST", "/queues/orders", {**QUEUE, "visibility_timeout": 7})
        assert (answer.status, answer.json) == (200, {"name": "orders", **QUEUE, "visibility_timeout": 7})
        assert http("GET", "/queues/orders").json["visibility_timeout"] == 7

    def test_what_get_shows_can_be_posted_back(self, http: Http) -> None:
        http("PUT", "/queues/orders", QUEUE)
        assert http("POST", "/queues/orders", http("GET", "/queues/orders").json).status == 200

    def test_an_update_of_no_queue_is_not_found_whatever_the_body(self, http: Http) -> None:
        assert http("POST", "/queues/orders", b"{").status == 404

    def test_an_update_keeps_what_this_dialect_cannot_say(self, http: Http, broker: Broker) -> None:
        broker.create("orders", deduplicate=300, history=60, labels={"team": "a"})
        assert http("POST", "/queues/orders", {**QUEUE, "message_deduplication": True}).status == 200
        settings = broker["orders"].settings
        assert (settings.deduplicate, settings.history, settings.labels) == (300, 60, {"team": "a"})

    def test_a_deleted_queue_is_shown_once_more_and_gone(self, http: Http) -> None:
        http("PUT", "/queues/orders", QUEUE)
        http("POST", "/messages/orders", b"x")
        answer = http("DELETE", "/queues/orders")
        assert (answer.status, answer.json) == (200, {"name": "orders", **QUEUE})
        assert http("DELETE", "/queues/orders").status == 404
        http("PUT", "/queues/orders", QUEUE)
        assert http("GET", "/messages/orders").status == 204

    def test_a_deleted_dead_letter_queue_is_cleared_from_others(self, http: Http) -> None:
        http("PUT", "/queues/orders", {**QUEUE, "redrive_policy": {"max_receives": 3, "dead_letter_queue": "dead"}})
        http("DELETE", "/queues/dead")
        assert http("GET", "/queues/orders").json["redrive_policy"] is None

    def test_queues_are_listed_in_parts(self, http: Http, broker: Broker) -> None:
        broker.delete("dead")
        for name in "cab":
            http("PUT", f"/queues/{name}", QUEUE)
        assert http("GET", "/queues").json == {"total": 3, "queues": [{"name": name, **QUEUE} for name in "abc"]}
        part = http("GET", "/queues?offset=1&limit=1")
        assert (part.status, part.json["total"], [queue["name"] for queue in part.json["queues"]]) == (200, 3, ["b"])
        assert http("GET", "/queues?limit=0").json["queues"] == []

    @pytest.mark.parametrize(
        "query", ["offset=x", "limit=x", "offset=-1", "limit=1.5", "limit=", "offset=99999999999", "limit=٣"]
    )
    def test_an_offset_or_limit_that_is_no_number_is_refused(self, http: Http, query: str) -> None:
        answer = http("GET", f"/queues?{quote(query, safe='=')}")
        assert answer.status == 400
        assert query.partition("=")[0] in answer.json["error"]

    def test_no_such_queue_is_not_found(self, http: Http) -> None:
        for method, path in [("GET", "/queues/x"), ("DELETE", "/queues/x"), ("POST", "/messages/x"), ("GET", "/messages/x")]:
            answer = http(method, path, b"" if method == "POST" else None)
            assert (answer.status, "'x'" in answer.json["error"]) == (404, True)

    def test_the_status_counts_messages(self, http: Http, clock: FakeClock) -> None:
        http("PUT", "/queues/orders", QUEUE)
        http("POST", "/messages/orders", b"1")
        http("POST", "/messages/orders", b"2")
        clock.advance(9)
        http("GET", "/messages/orders")
        status = {"messages": 2, "visible_messages": 1, "oldest_message_age": 9}
        assert http("GET", "/queues/orders").json["status"] == status

    @pytest.mark.parametrize("name", ["a%2Fb", "..", "%2e%2e%2fetc", "%00", "a%0D%0AX-Evil:1", "%ff", "x" * 200, "a:b", "%20a"])
    def test_a_bad_name_is_refused_and_writes_no_header(self, http: Http, name: str) -> None:
        answer = http("PUT", f"/queues/{name}", QUEUE)
        assert answer.status == 400
        assert "x-evil" not in answer.headers


class MqsMessages:
    @pytest.fixture
    def orders(self, broker: Broker, http: Http) -> Http:
        """The server, with a queue "orders"."""
        broker.create("orders")
        return http

    def test_a_message_comes_back_byte_for_byte_with_its_type(self, orders: Http) -> None:
        body = bytes(range(256))
        sent = orders("POST", "/messages/orders", body, Content_Type="application/x-thing; a=b")
        assert (sent.status, sent.body) == (201, b"")
        got = orders("GET", "/messages/orders")
        assert (got.status, got.body, got.headers["content-type"]) == (200, body, "application/x-thing; a=b")
        assert got.headers["x-mqs-message-id"] == sent.headers["x-mqs-message-id"]

    def test_without_a_type_it_is_octets(self, orders: Http) -> None:
        orders("POST", "/messages/orders", b"")
        got = orders("GET", "/messages/orders")
        assert (got.headers["content-type"], got.body) == ("application/octet-stream", b"")

    def test_an_encoding_is_kept(self, orders: Http) -> None:
        orders("POST", "/messages/orders", b"x", Content_Encoding="gzip")
        assert orders("GET", "/messages/orders").headers["content-encoding"] == "gzip"

    def test_a_duplicate_is_200_with_the_first_id(self, orders: Http) -> None:
        orders("PUT", "/queues/once", {**QUEUE, "message_deduplication": True})
        first, second = (orders("POST", "/messages/once", b"same") for _ in range(2))
        assert (first.status, second.status) == (201, 200)
        assert first.headers["x-mqs-message-id"] == second.headers["x-mqs-message-id"]

    def test_no_message_is_no_content(self, orders: Http) -> None:
        assert orders("GET", "/messages/orders").status == 204

    def test_a_received_message_is_hidden_and_comes_again(self, orders: Http, clock: FakeClock) -> None:
        orders("POST", "/messages/orders", b"x")
        assert orders("GET", "/messages/orders").headers["x-mqs-message-receives"] == "1"
        assert orders("GET", "/messages/orders").status == 204
        clock.advance(31)
        again = orders("GET", "/messages/orders")
        assert again.headers["x-mqs-message-receives"] == "2"
        assert again.headers["x-mqs-message-published-at"] == "2027-01-15T08:00:00.000Z"
        assert again.headers["x-mqs-message-visible-at"] == "2027-01-15T08:01:01.000Z"

    def test_a_receiver_can_give_its_name(self, orders: Http, broker: Broker) -> None:
        orders("POST", "/messages/orders", b"1")
        orders("POST", "/messages/orders", b"2")
        answer = orders("GET", "/messages/orders", X_MQS_HOLDER="Küche 7".encode().decode("latin-1"))
        assert answer.headers["x-mqs-message-holder"].encode("latin-1").decode() == "Küche 7"
        assert "x-mqs-message-holder" not in orders("GET", "/messages/orders").headers
        assert sorted(str(message.holder) for message in broker["orders"].peek(2)) == ["Küche 7", "None"]

    @pytest.mark.parametrize("holder", ["x" * 201, "\xff", "a\tb"])
    def test_a_name_that_cannot_be_kept_is_refused(self, orders: Http, broker: Broker, holder: str) -> None:
        orders("POST", "/messages/orders", b"x")
        answer = orders("GET", "/messages/orders", X_MQS_HOLDER=holder)
        assert answer.status == 400
        assert "holder" in answer.json["error"].lower()
        assert broker["orders"].peek()[0].receives == 0

    def test_a_message_is_deleted_once(self, orders: Http) -> None:
        id = orders("POST", "/messages/orders", b"x").headers["x-mqs-message-id"]
        assert orders("DELETE", f"/messages/{id}").status == 204
        assert orders("DELETE", f"/messages/{id}").status == 404
        assert orders("GET", "/messages/orders").status == 204

    def test_a_received_message_is_deleted_by_its_id_in_capitals(self, orders: Http) -> None:
        orders("POST", "/messages/orders", b"x")
        id = orders("GET", "/messages/orders").headers["x-mqs-message-id"]
        assert orders("DELETE", f"/messages/{id.upper()}").status == 204

    @pytest.mark.parametrize("id", ["x", "orders", "12345", "%00", "g" * 36])
    def test_an_id_that_is_no_uuid_is_refused(self, orders: Http, id: str) -> None:
        assert orders("DELETE", f"/messages/{id}").status == 400

    def test_an_unknown_id_is_not_found(self, orders: Http) -> None:
        assert orders("DELETE", f"/messages/{uuid4()}").status == 404

    def test_more_than_the_limit_is_cut_and_said_so(self, orders: Http) -> None:
        sent = orders("POST", "/messages/orders", b"x" * (MAX_BODY + 5))
        assert (sent.status, sent.headers["x-mqs-truncated"]) == (201, str(MAX_BODY + 5))
        assert orders("GET", "/messages/orders").body == b"x" * MAX_BODY
        whole = orders("POST", "/messages/orders", b"x" * MAX_BODY)
        assert "x-mqs-truncated" not in whole.headers

    def test_or_refused_if_the_server_is_set_so(self, orders: Http, refusing: Http) -> None:
        answer = refusing("POST", "/messages/orders", b"x" * (MAX_BODY + 1))
        assert answer.status == 413
        assert str(MAX_BODY) in answer.json["error"]
        assert refusing("GET", "/messages/orders").status == 204

    def test_several_messages_come_as_parts(self, orders: Http) -> None:
        for number in range(3):
            orders("POST", "/messages/orders", b"%d\r\n--x" % number, Content_Type=f"text/n{number}")
        answer = orders("GET", "/messages/orders", X_MQS_MAX_MESSAGES="999")
        parts = parts_of(answer)
        assert [part.get_payload(decode=True) for part in parts] == [b"%d\r\n--x" % number for number in range(3)]
        assert [part["Content-Type"] for part in parts] == ["text/n0", "text/n1", "text/n2"]
        assert len({part["X-MQS-MESSAGE-ID"] for part in parts}) == 3
        assert {part["X-MQS-MESSAGE-RECEIVES"] for part in parts} == {"1"}

    def test_one_message_comes_plain_however_many_were_asked_for(self, orders: Http) -> None:
        orders("POST", "/messages/orders", b"x", Content_Type="text/plain")
        assert orders("GET", "/messages/orders", X_MQS_MAX_MESSAGES="5").headers["content-type"] == "text/plain"

    def test_several_messages_are_sent_as_parts(self, orders: Http) -> None:
        body = b"--b\r\nContent-Type: text/a\r\n\r\n1\r\n--b\r\ncontent-encoding: gzip\r\n\r\n\r\n--b\r\n\r\n\r\n3\r\n--b--\r\n"
        answer = orders("POST", "/messages/orders", body, Content_Type='multipart/mixed; boundary="b"')
        assert answer.status == 201
        assert [message["duplicate"] for message in answer.json["messages"]] == [False] * 3
        got = [orders("GET", "/messages/orders") for _ in range(3)]
        assert [each.body for each in got] == [b"1", b"", b"\r\n3"]
        assert [each.headers["content-type"] for each in got] == ["text/a"] + ["application/octet-stream"] * 2
        assert got[1].headers["content-encoding"] == "gzip"
        assert [each.headers["x-mqs-message-id"] for each in got] == [message["id"] for message in answer.json["messages"]]

    @pytest.mark.parametrize(
        ("content_type", "body"),
        [
            ("multipart/mixed", b"--b\r\n\r\nx\r\n--b--"),
            ("multipart/mixed; boundary=", b"--b\r\n\r\nx\r\n--b--"),
            ("multipart/mixed; boundary=b", b""),
            ("multipart/mixed; boundary=b", b"--b--"),
            ("multipart/mixed; boundary=b", b"--b\r\n\r\nx"),
            ("multipart/mixed; boundary=b", b"--b\r\nno header\r\n\r\nx\r\n--b--"),
            ("multipart/mixed; boundary=b", b"--b\r\n\r\nx\r\n--b--".replace(b"x", b"x\r\n--b\r\n\r\n" * 1000)),
        ],
    )
    def test_malformed_parts_are_refused_whole(self, orders: Http, content_type: str, body: bytes) -> None:
        assert orders("POST", "/messages/orders", body, Content_Type=content_type).status == 400
        assert orders("GET", "/messages/orders").status == 204

    @pytest.mark.parametrize("header", ["X_MQS_MAX_MESSAGES", "X_MQS_MAX_WAIT_TIME"])
    @pytest.mark.parametrize("value", ["-1", "x", "", "1000", "1.5", "1, 2"])
    def test_a_header_out_of_range_is_refused(self, orders: Http, header: str, value: str) -> None:
        answer = orders("GET", "/messages/orders", **{header: value})
        assert answer.status == 400
        assert header.replace("_", "-") in answer.json["error"]

    @pytest.mark.parametrize("content_type", ["\x80", "x" * 300, "a\tb"])
    def test_a_content_type_that_cannot_be_given_back_is_refused(self, orders: Http, content_type: str) -> None:
        assert orders("POST", "/messages/orders", b"x", Content_Type=content_type).status == 400

    def test_an_attribute_of_the_library_writes_no_header(self, orders: Http, broker: Broker) -> None:
        broker["orders"].send(b"x", attributes={"Content-Encoding": "gzip\r\nX-Evil: 1"})
        answer = orders("GET", "/messages/orders")
        assert (answer.status, "x-evil" in answer.headers) == (200, False)

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("PUT", "/queues/new"),
            ("POST", "/queues/orders"),
            ("DELETE", "/queues/orders"),
            ("GET", "/queues"),
            ("GET", "/queues/orders"),
            ("POST", "/messages/orders"),
            ("GET", "/messages/orders"),
            ("DELETE", "/messages/ID"),
        ],
    )
    def test_a_store_that_fails_is_a_server_error(self, orders: Http, broker: LocalBroker, method: str, path: str) -> None:
        id = orders("POST", "/messages/orders", b"x").headers["x-mqs-message-id"]
        broker.store.close()
        path = path.replace("ID", id)
        answer = orders(
            method, path, QUEUE if "queues/" in path and method in ("PUT", "POST") else b"x" if method == "POST" else None
        )
        assert (answer.status, "closed" in answer.json["error"]) == (500, True)
