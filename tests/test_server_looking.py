"""Looking over HTTP: however much there is, an answer is bounded by its bytes, and the client gets all that it asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Broker, Draft, Queue
from penstock.client.calls import Asking, Calls
from penstock.client.queue import RemoteQueue
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.dialects import native_values
from penstock.testing.http import Http
from penstock.testing.serving import held, until
from penstock.testing.verbs import wrap_verb

MAX_BODY = 64 * 1024
SETTINGS = ServerSettings(port=0, access_log=False, max_body=MAX_BODY)
STORES = ["memory:", "sqlite:///{}/queue.db", "vsqs:///{}/vsqs", "spool:///{}/spool"]
DRAFTS = [Draft(b"%d" % number * 5000, attributes={"number": number}) for number in range(40)]


@pytest.fixture(params=STORES, ids=["memory", "sqlite", "vsqs", "spool"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with penstock.open(request.param.format(tmp_path)) as broker:
        yield broker


@pytest.fixture
def server(broker: Broker) -> Iterator[BackgroundServer]:
    with BackgroundServer(broker, SETTINGS) as server:
        yield server


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of the messages in each answer to a look."""
    sizes: list[int] = []
    look = Calls.look

    def count(self: Calls, path: str, arguments: dict[str, Any], **how: Any) -> Asking[Any]:
        answer = yield from look(self, path, arguments, **how)
        if isinstance(answer.value, list):
            sizes.append(sum(len(message.body) for message in answer.value if isinstance(message, penstock.Message)))
        elif isinstance(answer.value, bytes):
            sizes.append(len(answer.value))
        return answer

    monkeypatch.setattr(Calls, "look", count)
    return sizes


def seen(messages: list[penstock.Message]) -> list[tuple[Any, ...]]:
    return [(each.id, each.body, each.state, each.visible_at, each.attributes, each.blocked) for each in messages]


def fill(queue: Queue) -> None:
    queue.send_many(DRAFTS)
    for message in queue.receive(3):
        message.extend(500)
    for message in queue.receive(12):
        message.delete()


@pytest.mark.parametrize("limit", [1, 7, 25, 100])
def test_what_is_too_much_for_an_answer_comes_in_several(
    broker: Broker, server: BackgroundServer, answers: list[int], limit: int
) -> None:
    queue = broker.create("orders", history=600)
    fill(queue)
    with penstock.open(server.url) as remote:
        there = RemoteQueue("orders", remote._line)  # type: ignore[attr-defined]
        for verb, arguments in (
            ("peek", {}),
            ("settled", {}),
            ("scan", {}),
            ("scan", {"settled": True}),
            ("peek", {"state": "queued"}),
        ):
            answers.clear()
            expected = getattr(queue, verb)(limit=limit, **arguments)
            assert seen(getattr(there, verb)(limit=limit, **arguments)) == seen(expected), (verb, arguments)
            assert max(answers) <= 2 * MAX_BODY
            assert len(answers) > 1 or sum(answers) < 2 * MAX_BODY


def test_a_claim_is_read_in_several_answers(broker: Broker, server: BackgroundServer, answers: list[int]) -> None:
    arrow = pytest.importorskip("penstock.arrow")
    queue = broker.create("orders")
    queue.send_many(DRAFTS)
    queue.claim("reader", 1, 30)
    with penstock.open(server.url) as remote:
        there = remote["orders"]
        assert isinstance(there, RemoteQueue)
        for start, stop in ((0, None), (3, 29), (29, 30), (5, 5)):
            answers.clear()
            assert seen(there.read("reader", 1, start, stop)) == seen(queue.read("reader", 1, start, stop))
            assert max(answers) <= 2 * MAX_BODY
        answers.clear()
        batch = there.arrow("read", arrow.MESSAGE, reader="reader", epoch=1, start=0, stop=30)
        assert batch == arrow.to_batch(queue.read("reader", 1), arrow.MESSAGE)
        assert len(answers) > 1
        scanned = there.arrow("scan", arrow.schema_of(["number", "body"]), start=0, stop=2**62, limit=100)
        assert scanned.column("body").to_pylist() == [message.body for message in queue.scan()]
        with pytest.raises(penstock.ClaimLapsed):
            there.read("reader", 2)
        for wrong in ({"reader": ["r"], "epoch": 1}, {"reader": "r", "epoch": "x"}, {"reader": "r", "epoch": 1, "start": "x"}):
            with pytest.raises(penstock.BadInput):
                there._line.follow(there._look("read", **wrong))


def test_what_a_reader_holds_is_seen_in_several_answers(tmp_path: Path, answers: list[int]) -> None:
    """On SQLite, a claim may hide messages without touching them."""
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker, BackgroundServer(broker, SETTINGS) as server:
        queue = broker.create("orders")
        queue.send_many(DRAFTS)
        queue.claim("one", 1, 15, visible_by=broker.clock())
        queue.claim("two", 1, 15)
        queue.confirm("two", 1)
        with penstock.open(server.url) as remote:
            for state in (None, "consumed", "queued"):
                answers.clear()
                found = remote["orders"].peek(100, state=state)
                assert sorted(seen(found)) == sorted(seen(queue.peek(100, state=state)))
                assert max(answers) <= 2 * MAX_BODY


@pytest.mark.parametrize("store", STORES[:2])
def test_blocked_messages_come_last_in_several_answers(store: str, tmp_path: Path) -> None:
    with penstock.open(store.format(tmp_path)) as broker, BackgroundServer(broker, SETTINGS) as server:
        queue = broker.create("orders", groups=True)
        queue.send_many([Draft(bytes(9000), group=f"{number % 3}", delay=number % 5) for number in range(30)])
        local = queue.peek(100)
        assert [message.blocked for message in local] == [False] * 3 + [True] * 27
        with penstock.open(server.url) as remote:
            assert seen(remote["orders"].peek(100)) == seen(local)
        assert seen(queue.peek(100, after=local[9].place)) == seen(local[10:])


def test_no_slice_holds_more_than_it_must(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limits: list[int] = []

    def note(scan: Any, _: str, start: int, stop: int, limit: int) -> Any:
        limits.append(limit)
        return scan(start, stop, limit)

    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker, BackgroundServer(broker) as server:
        broker.create("large").send_many([bytes(500_000)] * 20)
        broker.create("small").send_many([b"x"] * 2000)
        wrap_verb(monkeypatch, broker, "scan", note)
        with penstock.open(server.url) as remote:
            assert len(remote["large"].scan()) == 20
            assert max(limits) <= 4
            limits.clear()
            assert len(remote["small"].scan()) == 2000
            assert len(limits) < 80  # each has room for the largest messages


def test_a_program_that_speaks_json_is_told_how_to_go_on(broker: Broker, server: BackgroundServer) -> None:
    broker.create("orders").send_many(DRAFTS)
    http, found, arguments = Http(server.url), [], {"limit": 30}
    while arguments:
        answer = http("POST", "/penstock/queues/orders/peek", {"arguments": arguments})
        assert len(answer.body) < 3 * MAX_BODY
        found += [message["Message"]["number"] for message in answer.json["answer"]]
        arguments = arguments | answer.json["more"] if "more" in answer.json else {}
    assert found == [message.number for message in broker["orders"].peek(30)]


@pytest.mark.parametrize("after", [[1], "x", [1, "x"], [1, -1], [2**70, 1], 5])
def test_a_place_that_cannot_be_one_is_refused(server: BackgroundServer, broker: Broker, after: Any) -> None:
    broker.create("orders")
    for verb in ("peek", "settled"):
        body = {"arguments": {"limit": 1, "after": after}}
        assert Http(server.url)("POST", f"/penstock/queues/orders/{verb}", body).status == 400


def test_what_is_refused_by_its_head_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    monkeypatch.setattr(native_values, "read_json", lambda body: parsed.append(len(body)) or json.loads(body))
    many = b'{"arguments": {"drafts": [' + b"[],[]," * 100_000 + b"[]]}}"
    settings = ServerSettings(port=0, access_log=False)
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        http = Http(server.url)
        for path, status in (("queues/orders/shuffle", 404), ("broker/shuffle", 404), ("queues/orders/send_many", 404)):
            assert http("POST", f"/penstock/{path}", many).status == status
        assert parsed == [], "there is no such verb, or no such queue"
        broker.create("orders")
        assert http("POST", "/penstock/queues/orders/send_many", many).status == 400
        assert parsed == [len(many)]
        huge = b'{"arguments": {"drafts": [' + b"[],[]," * 300_000 + b"[]]}}"
        answer = http("POST", "/penstock/queues/orders/send_many", huge)
        assert (answer.status, "values in the body, the limit is" in answer.json["error"]) == (413, True)
        until(lambda: held(server) == 0)


def test_decoded_values_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServerSettings(port=0, access_log=False, max_memory=4 * 1024 * 1024)
    with penstock.open("memory:") as broker, BackgroundServer(broker, settings) as server:
        broker.create("orders")
        http = Http(server.url)
        answer = http("POST", "/penstock/queues/orders/send_many", b'{"arguments": {"drafts": [' + b"[]," * 50_000 + b"[]]}}")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert http("POST", "/penstock/queues/orders/send_many", {"arguments": {"drafts": [[]] * 100}}).status == 400
        until(lambda: held(server) == 0)
