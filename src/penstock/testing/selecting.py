"""The dialect suite's chapter on looking: messages that fit a filter, listed, counted and grouped, and one in full."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

from penstock import Broker
from penstock.message import Redrive
from penstock.testing.clock import FakeClock
from penstock.testing.http import Http

SELECT = "/penstock/queues/orders/select"


def select(http: Http, **asked: Any) -> Any:
    answer = http("POST", SELECT, asked)
    assert answer.status == 200, answer.body
    return answer.json


class SelectingChapter:
    def test_a_selection_lists_all_messages_in_parts_and_claims_none(self, http: Http, broker: Broker) -> None:
        queue = broker.create("orders")
        for number in range(7):
            queue.send(b"%d" % number)
        found: list[str] = []
        more: str | None = None
        while found == [] or more is not None:
            part = select(http, limit=3, after=more)
            assert len(part["messages"]) <= 3
            found += [message["preview"] for message in part["messages"]]
            more = part["more"]
        assert sorted(found) == [str(number) for number in range(7)]
        stats = queue.stats()
        assert (stats.visible, stats.in_flight) == (7, 0)
        assert {message.receives for message in queue.peek(10)} == {0}

    def test_a_selection_without_a_limit_counts_what_fits(self, http: Http, broker: Broker) -> None:
        queue = broker.create("orders")
        for number in range(30):
            queue.send(json.dumps({"shop": {"id": number % 3}, "number": number}).encode())
        assert select(http)["count"] == 30
        counted = select(http, filter={"field": "shop.id", "equals": 1})
        assert (counted["count"], counted["scanned"], counted["complete"], counted["more"]) == (10, 30, True, None)
        assert len(counted["sample"]) == 10
        assert select(http, filter={"text": '"number": 7}'})["count"] == 1
        assert select(http, filter={"field": "shop.id", "equals": "1"})["count"] == 0
        (listed,) = select(http, limit=5, filter={"field": "number", "equals": 29})["messages"]
        assert json.loads(listed["preview"])["number"] == 29

    def test_states_are_those_that_the_queue_counts(self, http: Http, broker: Broker) -> None:
        queue = broker.create("orders", visibility=60)
        for _ in range(3):
            queue.send(b"now")
        queue.send(b"later", delay=60)
        queue.receive(1, holder="worker 7")
        states = [message["state"] for message in select(http, limit=10)["messages"]]
        assert sorted(states) == ["delayed", "in_flight", "visible", "visible"]
        for state, count in {"visible": 2, "in_flight": 1, "delayed": 1, "damaged": 0}.items():
            assert select(http, filter={"state": state})["count"] == count
            assert len(select(http, limit=10, filter={"state": state})["messages"]) == count
        (held,) = select(http, limit=10, filter={"state": "in_flight"})["messages"]
        assert (held["holder"], held["receives"]) == ("worker 7", 1)

    def test_dead_letters_are_grouped_and_each_group_says_its_filter(
        self, http: Http, broker: Broker, clock: FakeClock
    ) -> None:
        letters = broker.create("orders")
        for source, count in {"mail": 2, "shop": 3}.items():
            home = broker.create(source, redrive=Redrive("orders", 1), visibility=1)
            for _ in range(count):
                home.send(b'{"to": "%s"}' % source.encode())
            home.receive(10)
            clock.advance(2)
            home.receive(10)
            clock.advance(100)
        assert letters.stats().messages == 5
        for by, values in {"source": ["shop", "mail"], "reason": ["max_receives"], "field:to": ['"shop"', '"mail"']}.items():
            groups = select(http, by=by)["groups"]
            assert [group["value"] for group in groups] == values
            for group in groups:
                assert select(http, filter=group["filter"])["count"] == group["count"]
        ages = select(http, by="age")["groups"]
        assert sum(group["count"] for group in ages) == 5
        for group in ages:
            assert select(http, filter=group["filter"])["count"] == group["count"]

    def test_one_message_is_found_by_its_id_with_all_that_it_has(self, http: Http, broker: Broker) -> None:
        queue = broker.create("orders", history=3600)
        for _ in range(60):
            queue.send(b"another")
        sent = queue.send(b"\x00\xff", content_type="image/x", attributes={"name": "Zoë", "big": 2**60 + 1, "raw": b"\x00"})
        path = f"/penstock/queues/orders/messages/{quote(sent.id, safe='')}"
        message = http("GET", path).json["message"]
        assert (message["id"], message["state"], message["size"]) == (sent.id, "visible", 2)
        assert base64.b64decode(message["body"]) == b"\x00\xff"
        assert (message["preview"], message["content_type"]) == (None, "image/x")
        told = {one["name"]: (one["type"], one["value"]) for one in message["attributes"]}
        assert told == {"name": ("text", "Zoë"), "big": ("number", str(2**60 + 1)), "raw": ("bytes", "AA==")}
        queue.delete(sent.id)
        assert http("GET", path).json["message"]["state"] == "processed"  # the history has it
        gone = http("GET", "/penstock/queues/orders/messages/nothing")
        assert gone.status == 404
        assert "nothing" in gone.json["error"]

    def test_a_selection_that_makes_no_sense_is_refused_by_name(self, http: Http, broker: Broker) -> None:
        broker.create("orders")
        for asked, words in (
            ({"filter": {"colour": "red"}}, "colour"),
            ({"limit": 201}, "201"),
            ({"after": "3.x"}, "3.x"),
            ({"by": "colour"}, "colour"),
            ({"size": 3}, "size"),
            ({"filter": {"equals": 1}}, "field"),
        ):
            refused = http("POST", SELECT, asked)
            assert refused.status == 400
            assert words in refused.json["error"]
        assert http("POST", "/penstock/queues/none/select", {}).status == 404
