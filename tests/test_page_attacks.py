"""What a stranger with a weak token, or with none, may try at the page and at what it asks for."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from streams import Follower
from test_page_access import Browser

import penstock
from penstock import BadInput, Broker
from penstock.broker import LocalBroker
from penstock.message import PRIVATE, Draft
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.jobs.book import JOBS, LABEL
from penstock.server.jobs.filters import DEEPEST, LONGEST_ID, read_filter
from penstock.server.page import messages as looking
from penstock.server.page.records import HISTORY
from penstock.server.page.sessions import QUEUE
from penstock.server.tokens import read_tokens
from penstock.testing.http import Http, HttpAnswer
from penstock.testing.serving import until

SECRETS = {"boss": "a-secret-of-the-boss", "shop": "a-secret-of-the-shop", "counter": "a-secret-of-a-counter"}
TABLES: list[dict[str, Any]] = [
    {"name": "boss", "secret": SECRETS["boss"]},
    {"name": "shop", "secret": SECRETS["shop"], "queues": ["shop*", "penstock.*"]},
    {"name": "counter", "secret": SECRETS["counter"], "scopes": ["count"], "queues": ["shop*"]},
]
SETTINGS = ServerSettings(port=0, access_log=False, tokens=read_tokens(TABLES, "test", ""))


@pytest.fixture
def broker() -> Iterator[Broker]:
    with penstock.open("memory:") as broker:
        broker.create("shop")
        broker.create("secret")
        yield broker


@pytest.fixture
def server(broker: LocalBroker) -> Iterator[BackgroundServer]:
    with BackgroundServer(broker, SETTINGS) as server:
        yield server


def of(server: BackgroundServer, name: str) -> Http:
    return Http(server.url, {"Authorization": f"Bearer {SECRETS[name]}"})


def start(server: BackgroundServer, **plan: Any) -> HttpAnswer:
    return of(server, "boss")("POST", "/penstock/jobs", plan)


def test_settings_do_not_tell_what_a_job_looks_for_and_where_it_goes(server: BackgroundServer, broker: Broker) -> None:
    broker["shop"].send_many([b"a private word"] * 3)
    assert start(server, queue="shop", action="move", to="secret", rate=1, filter={"text": "private"}).status == 200
    counter = of(server, "counter")
    for answer in (
        counter("GET", "/penstock/queues/shop/summary"),
        counter("POST", "/penstock/queues/shop/settings", {"arguments": {}}),
        counter("GET", "/penstock/jobs"),
    ):
        assert answer.status == 200
        assert b"private" not in answer.body
        assert b"secret" not in answer.body
    (job,) = counter("GET", "/penstock/jobs").json["jobs"]
    assert (job["filter"], job["to"]) == (None, ":hidden")


@pytest.mark.parametrize("name", [f"{LABEL}1", f"{PRIVATE}key"])
def test_nobody_writes_the_labels_of_servers(server: BackgroundServer, broker: Broker, name: str) -> None:
    with penstock.open(server.url, token=SECRETS["boss"]) as client:
        for text in ("x", None):
            with pytest.raises(BadInput, match="for themselves"):
                client["shop"].update(labels={name: text})
        with pytest.raises(BadInput, match="for themselves"):
            client.create("shop-2", labels={name: "x"})
        client["shop"].update(labels={"mine": "x"})
        assert client["shop"].settings.labels == {"mine": "x"}
    assert "shop-2" not in broker


def test_a_job_cannot_be_forged_by_a_token_that_may_send_to_the_queue_of_jobs(server: BackgroundServer, broker: Broker) -> None:
    assert start(server, queue="secret", action="release").status == 200  # so that there is the queue of jobs
    broker["shop"].send(b"planted")
    plan: dict[str, Any] = {
        "id": "1",
        "queue": "shop",
        "action": "move",
        "filter": {},
        "to": "secret",
        "rate": None,
        "by": "boss",
    }
    text = json.dumps(plan, sort_keys=True).encode()
    label = {**plan, "proof": hashlib.sha256(text).hexdigest(), "started_at": 2**62, "messages": 1, "total": 1}
    with penstock.open(server.url, token=SECRETS["shop"]) as client:
        with pytest.raises(BadInput):
            client["shop"].update(labels={f"{LABEL}1": json.dumps(label)})
        client[JOBS].send(text)
    until(lambda: broker[JOBS].stats().messages == 0)
    assert (broker["shop"].stats().messages, broker["secret"].stats().messages) == (1, 0)


@pytest.mark.parametrize("plan", [{"queue": ["shop"]}, {"queue": 5}, {"id": {}}, {"rate": 0}, {"rate": "x"}, {"to": [1]}])
def test_what_others_write_to_the_queue_of_jobs_breaks_no_list(
    server: BackgroundServer, broker: Broker, plan: dict[str, Any]
) -> None:
    id = start(server, queue="shop", action="release").json["id"]
    broker[JOBS].send(json.dumps({"id": "1", "queue": "shop", "action": "delete", **plan}).encode())
    assert [job["id"] for job in of(server, "boss")("GET", "/penstock/jobs").json["jobs"]] == [id]
    assert of(server, "boss")("DELETE", "/penstock/jobs/1").status == 404
    until(lambda: broker[JOBS].stats().messages == 0)


@pytest.mark.parametrize("wrong", [{"started_at": "x"}, {"messages": None}, {"status": []}, {"queue": 5}, {"filter": "x"}])
def test_what_another_program_writes_as_a_label_breaks_no_list(
    server: BackgroundServer, broker: Broker, wrong: dict[str, Any]
) -> None:
    id = start(server, queue="shop", action="release").json["id"]
    label = json.loads(broker["shop"].settings.labels[LABEL + id])
    broker["shop"].update(labels={f"{LABEL}1": json.dumps({**label, "id": "1", **wrong})})
    boss = of(server, "boss")
    for path in ("/penstock/jobs", "/penstock/jobs?queue=shop"):
        assert [job["id"] for job in boss("GET", path).json["jobs"]] == [id]
    assert start(server, queue="shop", action="release").status == 200


def test_the_order_of_queues_tells_nothing_of_a_hidden_dead_letter_queue(server: BackgroundServer, broker: Broker) -> None:
    broker["secret"].send_many([b"x"] * 7)
    broker.create("shop-2")
    broker["shop"].update(redrive=("secret", 3))
    for sort in ("dead_letters", "-dead_letters"):
        first = of(server, "counter")("GET", f"/penstock/overview?sort={sort}&limit=1").json
        assert json.loads(first["more"])[0] < 0
    assert json.loads(of(server, "boss")("GET", "/penstock/overview?sort=-dead_letters&limit=1").json["more"]) == [7, "shop"]


def test_a_token_that_is_no_text_in_utf_8_is_a_wrong_one(server: BackgroundServer) -> None:
    browser = Browser(server.url)
    assert browser("POST", "/dashboard/session", b'{"token": "\\ud800 and some length"}').status == 401


def test_a_name_of_another_server_may_be_anything(server: BackgroundServer, broker: LocalBroker) -> None:
    broker.create(HISTORY)
    for node in ({"name": "x" * 300}, {**{str(n): n for n in range(20)}, "name": "late"}, {"name": "a", "pid": float("nan")}):
        record = {"node": node, "at": broker.clock(), "rows": {}}
        broker[HISTORY].send(zlib.compress(json.dumps(record).encode()))
    answer = of(server, "boss")("GET", "/penstock/server")
    assert [node["name"] for node in answer.json["nodes"][1:]] == ["x" * 200, "late", "a"]
    assert b"NaN" not in answer.body


@pytest.mark.parametrize("cookie", [False, True])
@pytest.mark.parametrize("changes", [{"secret": "another-secret-of-the-shop"}, {"queues": ["elsewhere"]}, {"scopes": ["send"]}])
def test_a_stream_ends_when_its_token_changes(server: BackgroundServer, cookie: bool, changes: dict[str, Any]) -> None:
    browser = Browser(server.url)
    assert browser.sign_in(SECRETS["shop"]).status == 200
    headers = {"Cookie": browser.cookie} if cookie else {"Authorization": f"Bearer {SECRETS['shop']}"}
    with Follower(server.url, None, None, **headers) as follower:
        follower.first()
        server.app.guard.replace(SETTINGS.tokens)  # the same again
        server.app.guard.replace(read_tokens([TABLES[0], {**TABLES[1], **changes}], "test", ""))
        follower.to_the_end()


@pytest.mark.parametrize("equals", [b"[" * 495 + b"]" * 495, b'{"a":' * 60 + b"1" + b"}" * 60, b"NaN", b"1e999", b'"\\ud800"'])
def test_a_filter_has_only_values_that_can_be_compared_and_shown(
    server: BackgroundServer, broker: Broker, equals: bytes
) -> None:
    broker["shop"].send(b'{"f": %b}' % equals)
    filter = b'"filter": {"field": "f", "equals": %b}' % equals
    boss = of(server, "boss")
    assert boss("POST", "/penstock/queues/shop/select", b"{%b}" % filter).status == 400
    assert boss("POST", "/penstock/jobs", b'{"queue": "shop", "action": "delete", %b}' % filter).status == 400
    assert boss("POST", "/penstock/queues/shop/select", {"by": "field:f"}).status == 200
    assert boss("GET", "/penstock/jobs").json == {"jobs": []}


def test_a_filter_has_lists_in_lists_and_ids_up_to_a_limit() -> None:
    value: Any = 1
    for _ in range(DEEPEST - 1):
        value = [value]
    assert read_filter({"field": "f", "equals": value}).equals == value
    with pytest.raises(BadInput, match="within each other"):
        read_filter({"field": "f", "equals": [value]})
    assert read_filter({"ids": ["x" * LONGEST_ID]}).ids == frozenset({"x" * LONGEST_ID})
    with pytest.raises(BadInput, match="characters each"):
        read_filter({"ids": ["x" * (LONGEST_ID + 1)]})


def test_the_groups_of_a_selection_count_in_the_budget(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "PATIENCE", 60.0)
    broker["shop"].send_many([json.dumps({"f": f"{n:04}" + "x" * 900}).encode() for n in range(1500)])
    with BackgroundServer(broker, replace(SETTINGS, max_memory=8 * 1024 * 1024)) as server:
        boss, counted, more = of(server, "boss"), list[int](), None
        while not counted or more is not None:
            part = boss("POST", "/penstock/queues/shop/select", {"by": "field:f", "after": more}).json
            assert part["count"] == sum(group["count"] for group in part["groups"]) + part["other"]
            counted.append(part["count"])
            more = part["more"]
        assert (sum(counted), len(counted) > 1) == (1500, True)
        until(lambda: server.app.budget.used < 1024 * 1024)


def test_the_list_of_schedules_counts_in_the_budget(broker: LocalBroker) -> None:
    for number in range(60):
        broker.schedule(f"s{number}", queue="shop", every=3600, body=Draft(b"x" * 32768, attributes={"a": "y" * 32767}))
    with BackgroundServer(broker, replace(SETTINGS, max_memory=8 * 1024 * 1024)) as server:
        refused = of(server, "boss")("POST", "/penstock/broker/schedules", {"arguments": {}})
        assert refused.status == 503, refused.body[:200]
        for name in ("boss", "counter"):  # without what is sent they have room
            assert len(of(server, name)("GET", "/penstock/schedules").json["schedules"]) == 60
        assert len(of(server, "counter")("POST", "/penstock/broker/schedules", {"arguments": {}}).json["answer"]) == 60
        until(lambda: server.app.budget.used < 1024 * 1024)


def test_the_key_of_the_sessions_stays_what_it_is(server: BackgroundServer, broker: Broker) -> None:
    browser = Browser(server.url)
    assert browser.sign_in(SECRETS["boss"]).status == 200
    before = broker[QUEUE].settings.labels
    with penstock.open(server.url, token=SECRETS["shop"]) as client, pytest.raises(BadInput):
        client[QUEUE].update(labels={f"{PRIVATE}key": "zz"})
    assert broker[QUEUE].settings.labels == before
    assert browser.sign_in(SECRETS["boss"]).status == 200
