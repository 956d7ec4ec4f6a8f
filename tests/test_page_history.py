"""The history of queues: curves, what is written down and when, and that it survives kill -9."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_serve import serving

import penstock
from penstock import Broker
from penstock.broker import LocalBroker
from penstock.message import SECOND
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.page import counting, history, past
from penstock.server.page.curves import RECENT, SPANS, CurveSample, Ring, Span, balance, draw
from penstock.server.page.records import HISTORY, LARGEST, QueueRecord, pack, unpack
from penstock.testing.http import Http
from penstock.testing.servers import PostgresqlServer
from penstock.testing.serving import until

SETTINGS = ServerSettings(port=0, access_log=False)
URLS = {"sqlite": "sqlite:///{}/queue.db", "vsqs": "vsqs:///{}/vsqs", "spool": "spool:///{}/spool"}
STEP = Span(10, 5)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that looks and writes many times in a second."""
    monkeypatch.setattr(history, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(history, "WRITE_EVERY", 0.1)
    monkeypatch.setattr(counting, "UNSEEN_AFTER", 0.0)
    monkeypatch.setattr(past, "FRESH", 0.0)


@pytest.fixture(params=[*URLS, "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        database: PostgresqlServer = request.getfixturevalue("postgresql")
        return database.new_url()
    return URLS[request.param].format(tmp_path)


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with penstock.open(url) as broker:
        broker.create("orders")
        yield broker


def curve(url: str, span: str, queue: str = "orders") -> Any:
    answer = Http(url)("GET", f"/penstock/queues/{queue}/curve?span={span}")
    assert answer.status == 200, answer.body
    return answer.json


def send(url: str, count: int = 1) -> None:
    with penstock.open(url) as client:
        client["orders"].send_many([b"x"] * count)


def written(broker: Broker) -> int:
    return broker[HISTORY].stats().messages if HISTORY in broker else 0


# on a store


@pytest.mark.usefixtures("hasty")
def test_what_changes_is_written_down_and_a_new_server_draws_it(broker: LocalBroker, url: str) -> None:
    with BackgroundServer(broker, SETTINGS) as server, penstock.open(server.url) as client:
        client["orders"].send_many([b"x"] * 10)
        client["orders"].delete_many(client["orders"].receive(4))
        until(lambda: curve(server.url, "hour")["depth"][-1] == 6)
        until(lambda: written(broker) > 0)
    with penstock.open(url) as again:
        assert isinstance(again, LocalBroker)
        again["orders"].send(b"meanwhile")
        with BackgroundServer(again, SETTINGS) as server:
            for span in ("hour", "day"):
                told = curve(server.url, span)
                assert len(told["depth"]) == len(told["rate_in"]) == SPANS[span].steps
                assert told["depth"][-1] == 7
                assert round(sum(rate or 0 for rate in told["rate_in"]) * told["step"]) >= 10  # of the server before
                assert round(sum(rate or 0 for rate in told["rate_out"]) * told["step"]) >= 4
            assert curve(server.url, "minute")["depth"][-1] == 7


@pytest.mark.usefixtures("hasty")
def test_if_nothing_changes_nothing_is_written(tmp_path: Path) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        assert isinstance(broker, LocalBroker)
        broker.create("orders").send(b"x")
        with BackgroundServer(broker, SETTINGS) as server:
            looks = server.app.metrics.commit_sizes
            before = sum(looks.buckets().values())
            until(lambda: sum(looks.buckets().values()) > before + 20)
            assert HISTORY not in broker
            send(server.url)
            until(lambda: written(broker) == 1)
            before = sum(looks.buckets().values())
            until(lambda: sum(looks.buckets().values()) > before + 20)
            assert written(broker) == 1


def test_a_server_that_ran_for_less_than_a_minute_leaves_nothing_behind(tmp_path: Path) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        assert isinstance(broker, LocalBroker)
        broker.create("orders")
        with BackgroundServer(broker, SETTINGS) as server:
            send(server.url)
            assert curve(server.url, "hour")["depth"][-1] == 1
        assert broker.queues().names == ["orders"]


def test_a_server_that_stops_writes_down_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        assert isinstance(broker, LocalBroker)
        broker.create("orders")
        broker.create(HISTORY)
        with BackgroundServer(broker, SETTINGS) as server:
            http = Http(server.url)
            http("GET", "/penstock/overview")
            send(server.url, 3)
            until(lambda: http("GET", "/penstock/overview").json["queues"][0]["messages"] == 3)
        (message,) = broker[HISTORY].peek(9)
        record = unpack(message.body)
        assert record is not None
        assert record.rows["orders"] == (3, 0, 3, 0)


@pytest.mark.usefixtures("hasty")
def test_without_the_page_there_is_no_history(tmp_path: Path) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        assert isinstance(broker, LocalBroker)
        broker.create("orders")
        with BackgroundServer(broker, replace(SETTINGS, page="off")) as server:
            send(server.url)
            assert curve(server.url, "minute")["depth"][-1] == 1
            assert server.app.dialects[1]._data.history._task is None  # type: ignore[attr-defined]


def test_the_history_survives_kill_9(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders")
    program = tmp_path / "sitecustomize.py"
    program.write_text(
        "import penstock.server.page.history as h, penstock.server.page.counting as c\n"
        "h.LOOK_EVERY, h.WRITE_EVERY, c.UNSEEN_AFTER = 0.05, 0.1, 0.0\n"
    )
    hasty = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    with serving(store, PYTHONPATH=hasty) as (process, url), penstock.open(url) as client:
        client["orders"].send_many([b"x"] * 5)
        with penstock.open(store) as broker:
            until(lambda: written(broker) > 0)
        process.kill()
        process.wait()
    with serving(store) as (_, url):
        told = curve(url, "hour")
        assert told["depth"][-1] == 5
        assert round(sum(rate or 0 for rate in told["rate_in"]) * 60) == 5


@pytest.mark.usefixtures("hasty")
def test_garbage_in_the_history_harms_nothing(tmp_path: Path) -> None:
    with penstock.open("memory:") as broker:
        assert isinstance(broker, LocalBroker)
        broker.create("orders").send(b"x")
        bomb = zlib.compress(b"[" * (2 * LARGEST))
        broker.create(HISTORY).send_many([b"garbage", zlib.compress(b"{}"), zlib.compress(b"[]"), bomb, b"x" * 1_000_000])
        with BackgroundServer(broker, SETTINGS) as server:
            assert curve(server.url, "day")["depth"][-1] == 1
            assert Http(server.url)("GET", "/penstock/server").status == 200


def test_what_is_remembered_of_the_past_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "MOST_BYTES", 10_000)
    monkeypatch.setattr(past, "FRESH", 0.0)
    with penstock.open("memory:") as broker:
        assert isinstance(broker, LocalBroker)
        broker.create("orders")
        broker.create(HISTORY).send_many([bytes([number % 256]) * 1000 for number in range(50)])
        with BackgroundServer(broker, SETTINGS) as server:
            curve(server.url, "hour")
            connections = server.app.connections
            until(lambda: 9_000 <= server.app.budget.used - len(connections.open) * connections.cost <= 10_000)
            monkeypatch.setattr(past, "FORGET_AFTER", -1.0)
            data = server.app.dialects[1]._data  # type: ignore[attr-defined]
            data._past.tidy()
            until(lambda: server.app.budget.used == len(connections.open) * connections.cost)


@pytest.mark.usefixtures("hasty")
def test_servers_of_one_database_add_up_and_know_each_other(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    with penstock.open(url) as one, penstock.open(url) as two:
        assert isinstance(one, LocalBroker)
        assert isinstance(two, LocalBroker)
        one.create("orders")
        with BackgroundServer(one, SETTINGS) as first, BackgroundServer(two, SETTINGS) as second:
            data = second.app.dialects[1]._data  # type: ignore[attr-defined]
            data.history.node["name"] = "another machine:1"
            for server in (first, second):
                with penstock.open(server.url) as client:
                    client["orders"].send_many([b"x"] * 5)
                    client["orders"].delete_many(client["orders"].receive(5))
            names = {"another machine:1", first.app.dialects[1]._data.history.node["name"]}  # type: ignore[attr-defined]
            for server in (first, second):
                http = Http(server.url)
                until(lambda http=http: {node["name"] for node in http("GET", "/penstock/server").json["nodes"]} == names)  # type: ignore[misc]

            def came() -> float:
                return sum(rate or 0 for rate in curve(first.url, "hour")["rate_in"]) * 60

            until(lambda: round(came()) == 10)


# the numbers, without a store


def at(step: int, within: float = 0) -> int:
    return int((step * STEP.step + within) * SECOND)


def test_a_curve_goes_on_where_nothing_changes_and_is_unknown_before() -> None:
    told = draw([CurveSample(at(2), 5, 1, 5, 0), CurveSample(at(4, 3), 7, 0, 2, 0)], STEP, at(5, 9))
    assert (told["step"], told["from_at"]) == (10, at(1))
    assert told["depth"] == [None, 5, 5, 7, 7]
    assert told["in_flight"] == [None, 1, 1, 0, 0]
    assert told["rate_in"] == [None, 0.5, 0.0, 0.2, 0.0]
    assert told["rate_out"] == [None, 0.0, 0.0, 0.0, 0.0]


def test_what_a_server_cannot_explain_was_done_by_others() -> None:
    before = CurveSample(at(0), 10, 0, 0, 0)
    for more, came, left in ((5, 5, 0), (-5, 0, 5), (0, 0, 0)):
        told = draw([before, CurveSample(at(1), 10 + more, 0, 0, 0)], STEP, at(5))
        assert (told["rate_in"][0], told["rate_out"][0]) == (came / 10, left / 10)


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(-1000, 1000))
def test_what_came_less_what_left_is_what_there_is_more(came: int, left: int, more: int) -> None:
    balanced = balance(came, left, more)
    assert balanced[0] - balanced[1] == more
    assert balanced[0] >= came
    assert min(balanced) >= 0


@given(st.lists(st.integers(1, 40), max_size=200))
def test_a_ring_keeps_the_last_steps_in_little_room(pauses: list[int]) -> None:
    ring, now, last = Ring(RECENT), 10**9, None
    for number, pause in enumerate(pauses):
        now += pause
        ring.add(CurveSample(now * SECOND, number, 0, 1, 0))
        last = number
    depths = ring.depths(now * SECOND)
    assert len(depths) == RECENT.steps
    assert depths[-1] == last
    known = [depth for depth in depths if depth is not None]
    assert known == sorted(known)
    assert len(list(ring)) <= 2 * RECENT.steps


@given(st.binary(max_size=300))
def test_whatever_another_program_writes_is_no_record(body: bytes) -> None:
    assert unpack(body) is None
    assert unpack(zlib.compress(body)) is None


def test_a_record_is_read_as_it_was_written() -> None:
    record = QueueRecord({"name": "a"}, 5, {"orders": (1, 2, 3, 4), "日本": (0, 0, 0, 0)})
    assert unpack(pack(record)) == record
