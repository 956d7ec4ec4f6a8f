"""What the page shows, as JSON: all queues, one queue, the server, pipelines; and which token sees what of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from test_serve import serving

import penstock
from penstock import BadInput, Broker
from penstock.broker import LocalBroker
from penstock.message import Draft
from penstock.pipeline_reports import MOST, PIPELINES, PipelineBook, PipelineReport, read_report
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.page import counting
from penstock.server.tokens import read_tokens
from penstock.testing.http import Http
from penstock.testing.servers import PostgresqlServer
from penstock.testing.serving import held, until

SETTINGS = ServerSettings(port=0, access_log=False)
SECRET = "a secret of some length"
TOKENS = [
    {"name": "all", "secret": SECRET},
    {"name": "counts", "secret": f"{SECRET} 2", "scopes": ["count"], "queues": ["shop-*"]},
    {"name": "works", "secret": f"{SECRET} 3", "scopes": ["read", "receive", "send"], "queues": ["shop-*"]},
    {"name": "counts all", "secret": f"{SECRET} 4", "scopes": ["count"]},
]
URLS = {"memory": "memory:", "sqlite": "sqlite:///{}/queue.db", "vsqs": "vsqs:///{}/vsqs", "spool": "spool:///{}/spool"}


@pytest.fixture(params=[*URLS, "postgresql"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    if request.param == "postgresql":
        database: PostgresqlServer = request.getfixturevalue("postgresql")
        url = database.new_url()
    else:
        url = URLS[request.param].format(tmp_path)
    with penstock.open(url) as broker:
        yield broker


@pytest.fixture
def memory() -> Iterator[Broker]:
    with penstock.open("memory:") as broker:
        yield broker


@pytest.fixture
def server(broker: LocalBroker) -> Iterator[BackgroundServer]:
    with BackgroundServer(broker, SETTINGS) as server:
        yield server


@pytest.fixture
def tokens(memory: LocalBroker) -> Iterator[BackgroundServer]:
    with BackgroundServer(memory, replace(SETTINGS, tokens=read_tokens(TOKENS, "", ""))) as server:
        yield server


def of(server: BackgroundServer, number: int = 1) -> Http:
    """A client with one of the tokens."""
    return Http(server.url, {"Authorization": f"Bearer {SECRET}{'' if number == 1 else f' {number}'}"})


def rows(answer: Any) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {row["name"]: row for row in answer.json["queues"]}


def test_an_overview_counts_every_queue(server: BackgroundServer, broker: LocalBroker) -> None:
    broker.create("dead", paused=True)
    broker.create("orders", redrive=("dead", 3)).send_many([Draft(b"1"), Draft(b"2"), Draft(b"3", delay=60)])
    broker["orders"].receive(holder="worker")
    http = Http(server.url)
    found = rows(http("GET", "/penstock/overview"))
    assert found.keys() == {"dead", "orders"}
    row = found["orders"]
    assert (row["messages"], row["visible"], row["damaged"]) == (3, 1, 0)
    assert (row["in_flight"], row["delayed"]) in [(1, 1), (2, 0)]  # VSQS has one state for both
    assert (row["dead_letter_queue"], row["dead_letters"], found["dead"]["dead_letter_of"]) == ("dead", 0, ["orders"])
    assert row["oldest_age"] >= 0
    assert (row["paused"], found["dead"]["paused"]) == (False, True)
    assert len(row["curve"]) == 30
    assert row["curve"][-1] == 3
    broker["orders"].send(b"4")  # as any request, or another process
    until(lambda: rows(http("GET", "/penstock/overview"))["orders"]["messages"] == 4)
    broker.delete("dead")
    until(lambda: rows(http("GET", "/penstock/overview")).keys() == {"orders"})


def test_a_summary_tells_settings_holders_readers_and_times(server: BackgroundServer, broker: LocalBroker) -> None:
    queue = broker.create("orders", visibility=60, labels={"team": "sales"})
    queue.send_many([b"1", b"2", b"3", b"4"])
    broker.store.roster.beat("orders", "living", broker.clock())
    queue.claim("spark", 7, 1)
    with penstock.open(server.url) as client:
        (first,) = client["orders"].receive(holder="worker 7")
        first.delete()
        client["orders"].receive(holder="worker 7")
        client["orders"].receive()
        told = Http(server.url)("GET", "/penstock/queues/orders/summary").json
    assert told["settings"]["visibility"] == 60
    assert (told["settings"]["labels"], told["settings"]["redrive"]) == ({"team": "sales"}, None)
    assert told["may"] == ["count", "read", "send", "receive", "admin"]
    holders = {one["holder"]: one for one in told["holders"]}
    assert holders["worker 7"]["messages"] == 1
    lease = holders["worker 7"]["next_expiry_at"] - holders["worker 7"]["oldest_claim_at"]
    assert round(lease / 1_000_000) == 60  # VSQS keeps milliseconds
    assert holders["worker 7"]["receives"] is True
    assert holders["living"] == {"holder": "living", "messages": 0, "registered": True}
    assert holders[None]["messages"] == 1
    (reader,) = told["readers"]
    assert (reader["reader"], reader["epoch"], reader["messages"], reader["settled_epoch"]) == ("spark", 7, 1, None)
    assert told["waiting"]["count"] == 3
    assert told["handling"]["count"] == 1
    assert told["handling"]["p50"] >= 0
    assert told["consumers"] >= 2


def test_an_overview_is_filtered_sorted_and_in_parts(memory: LocalBroker) -> None:
    for number in range(30):
        memory.create(f"queue-{number:02}").send_many([b"x"] * (number % 7))
    memory.create("Other")
    with BackgroundServer(memory, SETTINGS) as server:
        http = Http(server.url)

        def names(query: str) -> list[str]:
            found: list[str] = []
            after = ""
            while True:
                answer = http("GET", f"/penstock/overview?limit=4{query}{after}").json
                assert len(answer["queues"]) <= 4
                found += [row["name"] for row in answer["queues"]]
                if answer["more"] is None:
                    return found
                after = f"&after={quote(answer['more'])}"

        everything = sorted(["Other", *(f"queue-{number:02}" for number in range(30))])
        assert names("") == everything
        assert names("&filter=OTH") == ["Other"]
        assert names("&sort=-name") == everything[::-1]
        depth = {f"queue-{number:02}": number % 7 for number in range(30)} | {"Other": 0}
        assert names("&sort=messages") == sorted(everything, key=lambda name: (depth[name], name))
        assert names("&sort=-messages") == sorted(everything, key=lambda name: (depth[name], name), reverse=True)
        assert names("&sort=-oldest_age")[0] == "queue-01"
        for wrong in (
            "sort=x",
            "limit=0",
            "limit=1001",
            "limit=x",
            "after=x",
            "after=[]",
            "after=[1,%22x%22]",
            "sort=messages&after=[%22x%22,%22x%22]",
            "internal=1",
            "what=1",
            "a&b&c" * 20,
        ):
            answer = http("GET", f"/penstock/overview?{wrong}")
            assert (answer.status, "error" in answer.json) == (400, True), wrong


def test_a_token_sees_what_it_may_count(tokens: BackgroundServer, memory: LocalBroker) -> None:
    for name in ("secret", "shop-dead"):
        memory.create(name)
    memory.create("shop-1", redrive=("secret", 3)).send(b"x")
    assert rows(of(tokens)("GET", "/penstock/overview")).keys() == {"secret", "shop-1", "shop-dead"}
    for number in (2, 3):
        answer = of(tokens, number)("GET", "/penstock/overview")
        assert rows(answer).keys() == {"shop-1", "shop-dead"}
        assert answer.json["total"] == 2
        assert b"secret" not in answer.body
    counts = of(tokens, 2)("GET", "/penstock/queues/shop-1/summary")
    assert (counts.json["holders"], counts.json["readers"], counts.json["may"]) == (None, None, ["count"])
    assert b"secret" not in counts.body
    assert of(tokens, 3)("GET", "/penstock/queues/shop-1/summary").json["holders"] == []
    for path in ("summary", "curve"):
        assert of(tokens, 2)("GET", f"/penstock/queues/secret/{path}").status == 403
        assert of(tokens, 2)("GET", f"/penstock/queues/shop-9/{path}").status == 404


def test_schedules_are_told_to_tokens_that_count_their_queues_without_what_they_send(
    tokens: BackgroundServer, memory: LocalBroker
) -> None:
    for name in ("shop-1", "secret"):
        memory.create(name)
        memory.schedule(f"to-{name}", queue=name, every=3600, body=b"what is sent")
    made = memory.schedules()[1]
    told = of(tokens, 2)("GET", "/penstock/schedules")
    (shown,) = told.json["schedules"]
    assert shown == {
        "name": "to-shop-1",
        "queue": "shop-1",
        "cron": None,
        "every": 3600,
        "zone": "UTC",
        "missed": "once",
        "paused": False,
        "next_at": made.next_at,
        "last_at": None,
        "runs": 0,
    }
    assert 0 < made.next_at - told.json["at"] <= 3600 * 1_000_000  # type: ignore[operator]
    assert [each["name"] for each in of(tokens, 4)("GET", "/penstock/schedules").json["schedules"]] == [
        "to-secret",
        "to-shop-1",
    ]
    assert b"what is" not in of(tokens)("GET", "/penstock/schedules").body


def test_the_server_tells_of_itself_to_tokens_for_all_queues(tokens: BackgroundServer, memory: LocalBroker) -> None:
    memory.create("orders")
    of(tokens)("POST", "/penstock/queues/orders/purge", {"arguments": {}})
    told = of(tokens)("GET", "/penstock/server").json
    assert (told["version"], told["store"]["kind"], told["store"]["durable"]) == (penstock.__version__, "memory", False)
    assert told["connections"] >= 1
    assert 0 < told["memory"]["used"] < told["memory"]["max"]
    assert sum(told["commit_sizes"]["buckets"].values()) == told["commit_sizes"]["count"] > 0
    assert told["latencies"]["penstock"]["p99"] > 0
    assert [node["here"] for node in told["nodes"]] == [True]
    assert [(line["deed"], line["queue"], line["token"]) for line in told["audit"]] == [("purge", "orders", "all")]
    assert of(tokens, 4)("GET", "/penstock/server").status == 200
    assert of(tokens, 2)("GET", "/penstock/server").status == 403


def test_where_the_store_is_is_for_those_who_may_change_all_queues(tmp_path: Path) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        assert isinstance(broker, LocalBroker)
        with BackgroundServer(broker, replace(SETTINGS, tokens=read_tokens(TOKENS, "", ""))) as server:
            assert str(tmp_path) in of(server)("GET", "/penstock/server").json["store"]["place"]
            told = of(server, 4)("GET", "/penstock/server")
            assert told.json["store"]["place"] is None
            assert str(tmp_path).encode() not in told.body


def test_what_is_held_for_an_answer_is_given_back(server: BackgroundServer, broker: LocalBroker) -> None:
    broker.create("orders").send_many([b"x" * 1000] * 40)
    broker["orders"].receive(40)
    http = Http(server.url)
    for path in ("overview", "queues/orders/summary", "queues/orders/curve?span=day", "server", "pipelines"):
        assert http("GET", f"/penstock/{path}").status == 200, path
    until(lambda: held(server) == 0)


def test_holders_are_looked_for_only_for_a_while(memory: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.server.page.data.HELD_SECONDS", 0.0)
    memory.create("orders").send(b"x")
    memory["orders"].receive(holder="worker")
    with BackgroundServer(memory, SETTINGS) as server:
        told = Http(server.url)("GET", "/penstock/queues/orders/summary").json
        assert (told["holders"], told["holders_complete"]) == ([], False)


def test_only_so_many_queues_are_counted(memory: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MOST_QUEUES", 5)
    for number in range(9):
        memory.create(f"queue-{number}")
    with BackgroundServer(memory, SETTINGS) as server:
        http = Http(server.url)
        assert len(rows(http("GET", "/penstock/overview"))) == 5
        memory.delete("queue-0")
        until(lambda: rows(http("GET", "/penstock/overview")).keys() == {f"queue-{number}" for number in range(1, 6)})


def test_a_pipeline_reports_and_the_last_report_counts(server: BackgroundServer, broker: LocalBroker) -> None:
    broker.create("orders")
    http = Http(server.url)
    with penstock.open(server.url) as client:
        client.report("archive", reads=["orders"], rows=10, rate=2.5, lag=3)  # type: ignore[attr-defined]
        client.report("load", writes=["orders"], rows=1)  # type: ignore[attr-defined]
        checks = {"orders.small": {"action": "drop", "rows": 20, "failed": 3}}
        last = {"rows": 20, "last_error": "the disk is full", "finished": True, "checks": checks}
        client.report("archive", reads=["orders"], **last)  # type: ignore[attr-defined]
    found = http("GET", "/penstock/pipelines").json["pipelines"]
    assert [(one["name"], one["source"], one["rows"]) for one in found] == [("archive", "orders", 20), ("load", None, 1)]
    assert (found[0]["last_error"], found[0]["finished"], found[0]["lag"]) == ("the disk is full", True, None)
    assert [one["checks"] for one in found] == [checks, {}]
    broker["orders"].send_many([b"x"] * 4)
    until(lambda: http("GET", "/penstock/pipelines").json["pipelines"][0]["lags"] == {"orders": 4})  # though it reports no more
    assert found[0]["seen_at"] >= found[1]["seen_at"]
    assert broker[PIPELINES].stats().messages == 2
    broker[PIPELINES].send_many([b"garbage", b"{}", b'{"seen_at": "x", "name": "y"}'])
    assert len(http("GET", "/penstock/pipelines").json["pipelines"]) == 2
    assert "penstock.pipelines" not in rows(http("GET", "/penstock/overview"))


def test_reports_survive_a_restart_and_are_bounded(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        assert isinstance(broker, LocalBroker)
        book = PipelineBook(broker)
        for number in range(MOST + 5):
            book.put(PipelineReport(f"pipeline-{number}"))
        assert len(book.all()) == MOST
        assert book.all()[0].name == f"pipeline-{MOST + 4}"
    with serving(store) as (_, url):
        assert len(Http(url)("GET", "/penstock/pipelines").json["pipelines"]) == MOST


def test_a_report_needs_rights_on_its_queues_and_is_shown_to_those_who_may_count_them(
    tokens: BackgroundServer, memory: LocalBroker
) -> None:
    for name in ("shop-1", "secret"):
        memory.create(name)

    def report(number: int, **given: Any) -> int:
        return of(tokens, number)("POST", "/penstock/pipelines/flow", {"arguments": given}).status

    assert report(3, reads=["shop-1"], writes=["shop-1"]) == 200
    assert [report(3, reads=["secret"]), report(3, writes=["secret"]), report(3), report(2, reads=["shop-1"])] == [403] * 4
    assert [report(1, reads=["shop-1", "secret"]), report(1)] == [200] * 2
    shown = [len(of(tokens, number)("GET", "/penstock/pipelines").json["pipelines"]) for number in (1, 2, 3, 4)]
    assert shown == [3, 1, 1, 3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rows": -1}, "rows is -1"),
        ({"rows": 1.5}, "rows is 1.5"),
        ({"rate": True}, "rate is True"),
        ({"rate": 1e300}, "rate is 1e+300"),
        ({"reads": "orders"}, "reads is 'orders'"),
        ({"reads": ["x"] * 21}, "at most 20"),
        ({"reads": ["a/b"]}, "a/b"),
        ({"report": "javascript:alert(1)"}, "http://"),
        ({"what": 1}, "no 'what'"),
        ({"checks": [1]}, "checks is"),
        ({"checks": {f"c{n}": {"action": "drop", "rows": 1, "failed": 0} for n in range(21)}}, "at most 20"),
        ({"checks": {"c": {"action": "drop", "rows": -1, "failed": 0}}}, "rows is -1"),
        ({"checks": {"c": {"action": "warn", "rows": 1, "failed": 0}}}, "one of reject, drop"),
        ({"checks": {"x" * 211: {"action": "drop", "rows": 1, "failed": 0}}}, "at most 210 characters"),
    ],
)
def test_a_report_that_cannot_be_one_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words.replace("+", r"\+")):
        read_report("flow", given)


def test_the_error_in_a_report_is_cut() -> None:
    assert len(read_report("flow", {"last_error": "x" * 100_000}).last_error or "") == 2000
