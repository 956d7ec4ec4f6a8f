"""What a hostile client sends through the dialects costs no more than its bytes, and nobody else's time."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.bridge import verbs
from penstock.broker import Listing, LocalBroker
from penstock.errors import BadMessage, BadName, StoreError
from penstock.message import Draft, Settings
from penstock.policy import MAX_BODY
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.dialects import base, mqs
from penstock.server.dialects.base import Route, Router
from penstock.server.http import multipart
from penstock.server.http.multipart import boundary_of, join_parts, split_parts
from penstock.server.http.request_response import Request
from penstock.server.tokens import read_tokens
from penstock.testing.http import Http
from penstock.testing.mqs import QUEUE
from penstock.testing.serving import held, until

MIXED = "multipart/mixed; boundary=b"
HEADERS = st.dictionaries(
    st.text("abcXYZ-!7", min_size=1, max_size=8).map(str.lower),
    st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=30).map(lambda text: text.strip(" \t")),
    max_size=5,
)


@pytest.fixture
def broker() -> Iterator[LocalBroker]:
    with penstock.open("memory:") as broker:
        assert isinstance(broker, LocalBroker)
        broker.create("orders")
        yield broker


@pytest.fixture
def server(broker: LocalBroker) -> Iterator[BackgroundServer]:
    with BackgroundServer(broker, ServerSettings(port=0, access_log=False)) as server:
        yield server


@pytest.fixture
def http(server: BackgroundServer) -> Http:
    return Http(server.url)


class TestMultipart:
    @settings(deadline=None)
    @given(st.lists(st.tuples(HEADERS, st.binary(max_size=50)), min_size=1, max_size=5))
    def test_what_was_joined_is_split_again(self, parts: list[tuple[dict[str, str], bytes]]) -> None:
        content_type, body = join_parts(parts)
        boundary = boundary_of(content_type)
        assert boundary
        assert [(part.headers, part.body) for part in split_parts(body, boundary, 5)] == parts

    @settings(deadline=None)
    @given(
        st.binary(max_size=200), st.sampled_from([b"", b"--b", b"--b\r\n", b"--b\r\nA:"]), st.sampled_from([b"", b"\r\n--b--"])
    )
    def test_any_bytes_are_parts_or_refused(self, middle: bytes, begin: bytes, end: bytes) -> None:
        try:
            parts = split_parts(begin + middle + end, b"b", 3)
        except BadMessage:
            return
        assert 1 <= len(parts) <= 3

    @pytest.mark.parametrize(
        ("content_type", "boundary"),
        [
            ("text/plain; boundary=b", None),
            ("", None),
            ("Multipart/Mixed;BOUNDARY=b", b"b"),
            ('multipart/mixed; type="a;boundary=x"; boundary="b c" ; charset=utf-8', b"b c"),
            ("multipart/mixed;; boundary=b;", b"b"),
            ("multipart/mixed; boundary=b; boundary=c", b""),
            ("multipart/mixed; boundary=b junk", b""),
            ('multipart/mixed; boundary=""', b""),
            ('multipart/mixed; boundary="b', b""),
            ("multipart/mixed; boundary=" + "b" * 70, b"b" * 70),
            ("multipart/mixed; boundary=" + "b" * 71, b""),
            ("multipart/mixed; boundary=b" + ";" * 255, b""),
        ],
    )
    def test_the_boundary_is_the_one_that_is_given_once(self, content_type: str, boundary: bytes | None) -> None:
        assert boundary_of(content_type) == boundary

    @pytest.mark.parametrize(
        "head",
        [b"A: 1\r\nA: 2", b"a:" + b" " * 4096, b"a: \x01", b"a b: c", b": c", b"\r\n".join([b"a%d:" % n for n in range(33)])],
    )
    def test_heads_that_are_not_plain_are_refused(self, head: bytes) -> None:
        with pytest.raises(BadMessage, match="part 1"):
            split_parts(b"--b\r\n" + head + b"\r\n\r\nx\r\n--b--", b"b", 5)

    def test_hostile_heads_take_no_more_time_than_their_bytes(self) -> None:
        """A header that makes a pattern backtrack takes a quarter of a second of processor time, and here are 200 of them."""
        program = """if True:
            import resource
            from penstock.errors import BadMessage
            from penstock.server.http.multipart import split_parts
            resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
            for end in (b"x", b"\\x01"):
                part = b"--b\\r\\na:" + b" \\t" * 2000 + b"x" + b" \\t" * 40 + end + b"\\r\\n\\r\\n\\r\\n"
                try:
                    split_parts(part * 200 + b"--b--", b"b", 999)
                except BadMessage:
                    pass
        """
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

    def test_too_many_parts_are_refused_before_one_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(multipart, "_read_part", lambda _piece, number: pytest.fail(f"part {number} was read"))
        with pytest.raises(BadMessage, match="more than 999 parts"):
            split_parts(b"--b\r\n\r\n\r\n" * 1000 + b"--b--", b"b", 999)

    def test_large_bodies_are_parsed_beside_the_event_loop(
        self, server: BackgroundServer, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parsing, go_on = Event(), Event()

        def split(*given: bytes) -> list[multipart.Part]:
            parsing.set()
            assert go_on.wait(60)
            return split_parts(*given)  # type: ignore[arg-type]

        monkeypatch.setattr(mqs, "split_parts", split)
        body = b"--b\r\n\r\n" + b"x" * 100_000 + b"\r\n--b--"
        with ThreadPoolExecutor(1) as pool:
            many = pool.submit(Http(server.url), "POST", "/messages/orders", body, Content_Type=MIXED)
            assert parsing.wait(60)
            assert 2 * len(body) < held(server) < 2 * len(body) + 5000
            assert Http(server.url)("GET", "/queues").status == 200
            go_on.set()
            assert many.result().status == 201
        assert broker["orders"].stats().messages == 1


class TestBodies:
    def test_settings_have_a_limit_of_their_own(self, http: Http, broker: LocalBroker) -> None:
        big = b'{"retention_timeout": 60, "visibility_timeout": 5}' + b" " * 70_000
        for method, path in (("PUT", "/queues/new"), ("POST", "/queues/orders")):
            answer = http(method, path, big)
            assert answer.status == 413
            assert "65536" in answer.json["error"]
        assert "new" not in broker
        assert broker["orders"].settings.visibility == 30
        assert http("PUT", "/queues/new", b" " * 60_000 + big[:50]).status == 201

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("PUT", "/orders"),
            ("GET", "/orders/messages"),
            ("GET", "/messages/orders"),
            ("GET", "/queues"),
            ("DELETE", "/queues/orders"),
            ("POST", "/health"),
            ("GET", "/health"),
            ("GET", "/metrics"),
        ],
    )
    def test_a_body_that_is_not_used_is_not_kept(self, server: BackgroundServer, method: str, path: str) -> None:
        before = held(server)
        seen: list[int] = []
        handle = server.app.handle

        def look(request: Request) -> Any:
            seen.append(held(server))
            return handle(request)

        server.app.handle = look  # type: ignore[method-assign]
        assert Http(server.url)(method, path, b"x" * 100_000).status in (200, 204, 405, 413)
        assert all(held < before + 5000 for held in seen)

    def test_a_body_at_the_limit_is_whole_and_one_beyond_is_cut(self, http: Http) -> None:
        for extra in (0, 1):
            sent = http("POST", "/messages/orders", b"x" * (MAX_BODY + extra))
            assert sent.headers.get("x-mqs-truncated") == (str(MAX_BODY + 1) if extra else None)
            assert len(http("GET", "/messages/orders").body) == MAX_BODY


@pytest.mark.parametrize("scheme", ["vsqs", "spool"])
class TestNamesOfFiles:
    """On stores of files, the name of a queue becomes a path."""

    @pytest.fixture
    def broker(self, scheme: str, tmp_path: Path) -> Iterator[LocalBroker]:
        with penstock.open(f"{scheme}:///{tmp_path}/store") as broker:
            assert isinstance(broker, LocalBroker)
            broker.create("orders")
            yield broker

    def test_no_name_leads_out_of_the_store(self, http: Http, broker: LocalBroker, tmp_path: Path) -> None:
        """Not even to find out whether a folder is there, or to read what looks like its settings."""
        secret = tmp_path / "secret"
        secret.mkdir()
        (secret / "settings").write_text("{")
        id = "01976d3e-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
        (secret / id).touch()
        before = sorted(tmp_path.rglob("*"))
        names = [str(secret), f"../../{secret.name}", f"../{secret.name}", "..", ".", "a\0b"]
        for name in names:
            assert name not in broker
            with pytest.raises(BadName):
                broker.store.load(name)
            with pytest.raises(BadName):
                broker.store.queue(name)
            assert broker.store.uuids.id_of(name, id) is None
            for method, path in (
                ("PUT", "/{}"),
                ("GET", "/{}"),
                ("DELETE", "/{}"),
                ("GET", "/{}/messages"),
                ("PUT", "/queues/{}"),
                ("DELETE", f"/{{}}/messages/{id}"),
                ("DELETE", f"/{{}}/messages/{id.replace('7c3d', '5c3d')}"),
            ):
                answer = http(method, path.format(quote(name, safe="")), QUEUE if method == "PUT" else None)
                assert (answer.status, "queue name" in answer.json["error"]) == (400, True)
        assert sorted(tmp_path.rglob("*")) == before

    def test_folders_of_others_that_cannot_be_queues_are_left_alone(self, http: Http, scheme: str, tmp_path: Path) -> None:
        queues = tmp_path / "store" if scheme == "vsqs" else tmp_path / "store" / "queues"
        for name in (b"a:b", b" blank", b"line\nbreak", b"\xff", b".hidden"):
            (queues / os.fsdecode(name)).mkdir()
        assert http("GET", "/queues").json["total"] == 1
        assert [queue["name"] for queue in http("GET", "/queues").json["queues"]] == ["orders"]
        metrics = http("GET", "/metrics")
        assert (metrics.status, b'penstock_queue_messages{queue="orders"} 0' in metrics.body) == (200, True)
        assert http("DELETE", "/queues/orders").status == 200


class TestRouter:
    def test_nothing_that_a_client_sent_is_remembered(self, server: BackgroundServer) -> None:
        """A cache of 1,000 paths or content types would keep megabytes."""
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(300):
            long = f"{number}" + "x" * 16_000
            for router in server.app._routers.values():
                router.find("GET", (long, "messages"))
            boundary_of(f"{MIXED}; x={long}")
        held = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert held < 1_000_000

    def test_a_path_is_found_by_its_method_and_its_fixed_segments(self) -> None:
        async def handle() -> None: ...

        paths = ["GET /a/{x}", "GET /{y}/b", "PUT /a/{x}", "GET /a"]
        routes = [Route(*path.split(), None, handle) for path in paths]  # type: ignore[arg-type]
        router = Router(routes)
        assert router.find("GET", ("a", "b")) == (routes[0], {"x": "b"})
        assert router.find("GET", ("c", "b")) == (routes[1], {"y": "c"})
        assert router.find("GET", ("c", "d")) is None
        assert router.find("POST", ("a",)) is None
        assert router.methods(("a", "x")) == ["GET", "PUT"]
        assert router.methods(("a",) * 10_000) == []


class TestLooks:
    def test_queues_that_others_have_deleted_are_forgotten(
        self, http: Http, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.broker.MOST_QUEUES", 3)
        for number in range(10):
            broker.store.save(f"reply-{number}", Settings(), create=True)
            assert http("GET", f"/queues/reply-{number}").status == 200
            broker.store.drop(f"reply-{number}")
        assert len(broker._queues) <= 3
        assert http("POST", "/messages/orders", b"x").status == 201

    @pytest.mark.parametrize("path", ["/queues/orders", "/queues"])
    def test_requests_that_want_to_know_the_same_share_one_look(
        self, server: BackgroundServer, broker: LocalBroker, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Counting a million messages, or listing all queues, is done once for all that wait."""
        looks: list[int] = []
        for name in ("queue", "queues"):
            verb = getattr(broker, name)
            monkeypatch.setattr(broker, name, lambda *given, verb=verb: looks.append(1) or verb(*given))
        with ThreadPoolExecutor(8) as pool:
            with broker.store.batch():  # blocks the store for everyone else
                first = pool.submit(Http(server.url), "GET", "/health")
                until(lambda: server.app.commits.pending == 1 and not server.app.commits._gathered)
                others = [pool.submit(Http(server.url), "GET", path) for _ in range(7)]
                until(lambda: server.app.commits.pending == 8)
            answers = [other.result() for other in others]
        assert first.result().status == 200
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body for answer in answers}) == 1
        assert looks == [1]


class TestForgedMessages:
    """A message says what its sender wrote, and never what the server would write."""

    FORGED = b"--x\r\nX-MQS-MESSAGE-ID: 00000000-0000-8000-8000-000000000001\r\n\r\nforged\r\n--x--"

    @pytest.mark.parametrize("content_type", ["multipart/mixed; boundary=x", "MULTIPART/Mixed;boundary=x", "multipart/digest"])
    @pytest.mark.parametrize("how", ["MQ-Core", "library", "mqs"])
    def test_a_message_of_parts_is_not_taken_for_several_messages(
        self, http: Http, broker: LocalBroker, content_type: str, how: str
    ) -> None:
        if how == "MQ-Core":
            assert http("POST", "/orders/messages", self.FORGED, Content_Type=content_type).status == 201
        elif how == "library":
            broker["orders"].send(self.FORGED, content_type=content_type)
        else:
            part = b"--b\r\nContent-Type: " + content_type.encode() + b"\r\n\r\n" + self.FORGED + b"\r\n--b--"
            assert http("POST", "/messages/orders", part, Content_Type=MIXED).status == 201
        (id,) = [broker.store.uuids.of("orders", message.id) for message in broker["orders"].peek(9)]
        several = http("GET", "/messages/orders", X_MQS_MAX_MESSAGES="10")
        boundary = boundary_of(several.headers["content-type"])
        assert boundary not in (None, b"", b"x")
        (part,) = split_parts(several.body, boundary, 10)  # type: ignore[assignment]
        assert (part.headers["x-mqs-message-id"], part.headers["content-type"], part.body) == (id, content_type, self.FORGED)  # type: ignore[attr-defined]
        assert broker["orders"].release(broker["orders"].peek()[0].receipt)
        one = http("GET", "/messages/orders")
        assert (one.headers["x-mqs-message-id"], one.headers["content-type"], one.body) == (id, content_type, self.FORGED)

    def test_what_another_program_stored_writes_no_header(self, http: Http, broker: LocalBroker) -> None:
        queue = broker.create("hidden-for-no-time", visibility=0)
        queue.send_many([b"1", b"2"])
        for row in broker.store._tables.by_name["hidden-for-no-time"].rows.values():  # type: ignore[attr-defined]
            row.message.content_type = "text/plain\r\nX-Evil: 1\r\n\r\n"
        for path, several in (
            ("/messages/hidden-for-no-time", "1"),
            ("/hidden-for-no-time/messages", "1"),
            ("/messages/hidden-for-no-time", "2"),
        ):
            answer = http("GET", path, X_MQS_MAX_MESSAGES=several)
            assert answer.status == 200
            assert "x-evil" not in answer.headers
            assert b"X-Evil" not in answer.body

    def test_headers_of_parts_have_no_line_breaks(self) -> None:
        with pytest.raises(ValueError, match="line break"):
            join_parts([({"Content-Type": "a\r\nX-Evil: 1"}, b"")])


class TestManyQueues:
    """What looks at many queues does so in slices, and at no more of them than it must."""

    @pytest.fixture(params=["memory:", "sqlite:///{}/queue.db", "vsqs:///{}/store", "spool:///{}/store"])
    def broker(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalBroker]:
        with penstock.open(request.param.format(tmp_path)) as broker:
            assert isinstance(broker, LocalBroker)
            for name in ("a", "b", "c", "orders"):
                broker.create(name)
            yield broker

    @pytest.fixture
    def visited(self, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The queues that a request looks up."""
        names: list[str] = []
        find = broker.queue
        monkeypatch.setattr(broker, "queue", lambda name: names.append(name) or find(name))  # type: ignore[func-returns-value]
        return names

    def test_an_id_is_looked_for_only_where_it_can_be(self, http: Http, broker: LocalBroker, visited: list[str]) -> None:
        id = http("POST", "/messages/orders", b"x").headers["x-mqs-message-id"]
        number = f"{(int(id[-1], 16) + 1) % 16:x}"
        visited.clear()
        for unknown in (str(uuid4()), id[:-1] + number):
            assert http("DELETE", f"/messages/{unknown}").status == 404
        assert visited in ([], ["orders"])  # an id of vsqs says which queue it is from
        visited.clear()
        assert http("DELETE", f"/messages/{id}").status == 204
        assert visited == ["orders"]
        assert broker["orders"].stats().messages == 0

    def test_a_message_that_another_node_served_is_found_in_any_state(self, http: Http, broker: LocalBroker) -> None:
        queue = broker["orders"]
        queue.send_many([Draft(b"ready"), Draft(b"delayed", delay=60), Draft(b"held")])
        for message in queue.peek(9):
            if message.body == b"held":
                queue.delete(message)
        queue.send(b"held")
        ids = [broker.store.uuids.of("orders", message.id) for message in queue.peek(9)]
        queue.receive(9)
        assert [http("DELETE", f"/messages/{id}").status for id in ids] == [204] * 3
        assert queue.stats().messages == 0

    def test_a_token_deletes_only_where_it_may_receive(self, broker: LocalBroker) -> None:
        tokens = read_tokens([{"secret": "s" * 16, "scopes": ["receive"], "queues": ["b"]}], "test", "")
        ids = {name: broker.store.uuids.of(name, broker[name].send(b"x").id) for name in "ab"}
        with BackgroundServer(broker, ServerSettings(port=0, access_log=False, tokens=tokens)) as server:
            http = Http(server.url, {"Authorization": f"Bearer {'s' * 16}"})
            assert http("DELETE", f"/messages/{ids['a']}").status == 404
            assert http("DELETE", f"/messages/{ids['b']}").status == 204
        assert [broker[name].stats().messages for name in "ab"] == [1, 0]

    @pytest.mark.parametrize("path", ["/metrics", "/queues"])
    def test_others_get_their_turn_between_two_queues(
        self, server: BackgroundServer, broker: LocalBroker, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(base, "SLICE", 0)
        begun, sent = Event(), Event()

        def visit(name: str) -> None:
            if name == "a":
                begun.set()
                until(lambda: server.app.commits.pending == 2)  # the listing, and the send behind it
            elif name == "c":  # "b" may share the commit of the send
                assert sent.wait(60)

        load, find = broker.store.load, broker.queue
        if path == "/metrics":
            monkeypatch.setattr(broker, "queue", lambda name: visit(name) or find(name))  # type: ignore[func-returns-value]
        else:
            monkeypatch.setattr(broker.store, "load", lambda name: visit(name) or load(name))  # type: ignore[func-returns-value]
        with ThreadPoolExecutor(1) as pool:
            listing = pool.submit(Http(server.url), "GET", path)
            assert begun.wait(60)
            assert Http(server.url)("POST", "/messages/orders", b"x").status == 201
            sent.set()
            assert listing.result().status == 200

    def test_all_listings_together_have_one_slice_of_a_commit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_end: float) -> list[int]:
            raise StoreError("no")

        asked = [lambda _end, number=number: [number] for number in range(3)]
        assert base.slices(asked) == [[0], [1], [2]]  # type: ignore[arg-type]
        monkeypatch.setattr(base, "SLICE", 0)
        assert base.slices(asked) == [[0], [], []]  # type: ignore[arg-type]
        failed, *others = base.slices([refuse, *asked])  # type: ignore[list-item]
        assert isinstance(failed, StoreError)
        assert others == [[], [], []]

    def test_queues_that_vanish_meanwhile_are_left_out(
        self, http: Http, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listing = broker.queues
        monkeypatch.setattr(
            broker, "queues", lambda *some, **more: Listing(5, ["a", "gone", *listing(*some, **more).names[1:]])
        )
        assert [queue["name"] for queue in http("GET", "/queues").json["queues"]] == ["a", "b", "c", "orders"]
        assert http("GET", "/metrics").status == 200

    def test_a_listing_is_bounded(self, http: Http, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mqs, "MOST_LISTED", 3)
        for query in ("", "?limit=1000000"):
            listed = http("GET", f"/queues{query}").json
            assert (listed["total"], [queue["name"] for queue in listed["queues"]]) == (4, ["a", "b", "c"])
        assert [queue["name"] for queue in http("GET", "/queues?offset=3").json["queues"]] == ["orders"]

    @pytest.mark.parametrize("path", ["/queues/orders", "/orders", "delete", "purge"])
    def test_the_messages_of_a_deleted_queue_go_in_parts(
        self, server: BackgroundServer, broker: LocalBroker, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verbs, "PART", 10)
        broker["orders"].send_many([b"x"] * 35)
        kind = type(broker.store.queue("orders"))
        purged: list[int] = []
        purge = kind.purge
        monkeypatch.setattr(kind, "purge", lambda self, limit: purged.append(purge(self, limit)) or purged[-1])  # type: ignore[func-returns-value]
        with penstock.open(server.url) as remote:
            if path == "purge":
                assert remote["orders"].purge() == 35
                assert purged == [10, 10, 10, 5]
                return
            if path == "delete":
                assert remote.delete("orders").visibility == 30
            else:
                assert Http(server.url)("DELETE", path).status in (200, 204)
        assert "orders" not in broker
        assert purged == [10, 10, 10, 5, 0]

    def test_health_checks_share_a_commit(self, server: BackgroundServer, broker: LocalBroker) -> None:
        handle, begun = server.app.handle, []

        def count(request: Request) -> Any:
            begun.append(request)
            return handle(request)

        server.app.handle = count  # type: ignore[method-assign]
        with ThreadPoolExecutor(8) as pool:
            with broker.store.batch():  # blocks the store for everyone else
                checks = [pool.submit(Http(server.url), "GET", "/health") for _ in range(8)]
                until(lambda: len(begun) == 8)
                assert server.app.commits.pending == 1
            assert [check.result().status for check in checks] == [200] * 8

    def test_a_health_check_of_a_store_that_stands_still_ends(self, broker: LocalBroker) -> None:
        with BackgroundServer(broker, ServerSettings(port=0, access_log=False, request_timeout=0.2)) as server:
            http = Http(server.url)
            with broker.store.batch():  # blocks the store for everyone else
                for _ in range(2):
                    answer = http("GET", "/health")
                    assert (answer.status, "0.2 seconds" in answer.json["error"]) == (503, True)
            until(lambda: http("GET", "/health").status == 200)
