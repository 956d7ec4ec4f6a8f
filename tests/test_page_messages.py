"""Looking at messages for people: in parts, within the budget, and only for those who may read. The rest: penstock.testing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

import penstock
from penstock import Broker
from penstock.broker import LocalBroker
from penstock.message import Draft
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.page import messages as looking
from penstock.server.page.heads import preview
from penstock.server.tokens import read_tokens
from penstock.testing.http import Http
from penstock.testing.selecting import SELECT, select
from penstock.testing.serving import held, until

SETTINGS = ServerSettings(port=0, access_log=False)
COUNTS, READS = "a-secret-that-counts", "a-secret-that-reads"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with penstock.open("memory:") as broker:
        yield broker


def test_a_look_that_takes_long_is_answered_in_parts_that_add_up(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.create("orders").send_many([Draft(b'{"kind": %d}' % (number % 2)) for number in range(100)])
    moments = iter(range(10**6))
    monkeypatch.setattr(looking, "PATIENCE", 2)  # of the clock below: a part has one slice of four messages or so
    monkeypatch.setattr(looking, "time", SimpleNamespace(monotonic=lambda: float(next(moments))))
    with BackgroundServer(broker, SETTINGS) as server:
        http, counted, parts, more = Http(server.url), 0, 0, None
        while parts == 0 or more is not None:
            part = select(http, filter={"field": "kind", "equals": 1}, by="field:kind", after=more)
            counted, parts, more = counted + part["count"], parts + 1, part["more"]
            assert part["complete"] == (more is None)
            assert sum(group["count"] for group in part["groups"]) == part["count"]
    assert counted == 50
    assert parts > 3


def test_only_a_token_that_may_read_looks_at_messages(broker: LocalBroker) -> None:
    sent = broker.create("orders").send(b"pizza")
    tables = [{"name": "counts", "secret": COUNTS, "scopes": ["count"]}, {"name": "reads", "secret": READS, "scopes": ["read"]}]
    with BackgroundServer(broker, replace(SETTINGS, tokens=read_tokens(tables, "here", ""))) as server:
        for secret, status in ((COUNTS, 403), (READS, 200)):
            http = Http(server.url, {"Authorization": f"Bearer {secret}"})
            for answer in (
                http("POST", SELECT, {"limit": 5}),
                http("POST", SELECT, {}),
                http("GET", f"/penstock/queues/orders/messages/{sent.id}"),
            ):
                assert answer.status == status
                assert (b"pizza" in answer.body or b"count" in answer.body or b"cGl6emE=" in answer.body) == (status == 200)


def test_what_a_look_has_held_is_given_back(broker: LocalBroker) -> None:
    orders = broker.create("orders")
    sent = orders.send_many([bytes(100_000)] * 30)
    with BackgroundServer(broker, SETTINGS) as server:
        http = Http(server.url)
        assert len(select(http, limit=30)["messages"]) == 30
        assert select(http, filter={"text": "x"})["count"] == 0
        assert http("GET", f"/penstock/queues/orders/messages/{sent[3].id}").json["message"]["size"] == 100_000
        assert http("POST", SELECT, b"{").status == 400
        until(lambda: held(server) == 0)


def test_a_value_that_no_browser_can_read_makes_no_broken_answer(broker: LocalBroker) -> None:
    broker.create("orders").send_many([b'{"a": NaN}', b'{"a": "\\ud800"}', b'{"a": 1e999}', b'{"a": 12345678901234567890}'])
    with BackgroundServer(broker, SETTINGS) as server:
        answer = Http(server.url)("POST", SELECT, {"by": "field:a"})

        def refuse(word: str) -> None:
            raise AssertionError(word)

        groups = json.loads(answer.body, parse_constant=refuse)["groups"]
        assert sum(group["count"] for group in groups) == 4


def test_a_preview_is_the_beginning_of_a_text_and_of_nothing_else() -> None:
    assert preview("äöü".encode() * 1000) == ("äöü" * 1000)[:200]
    assert preview("a😀".encode() * 500) == ("a😀" * 500)[:200]  # cut within a letter, it is still text
    assert preview(b"\xff\xfe") is None
    assert preview(b"") == ""
