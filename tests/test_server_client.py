"""The HTTP client answers like the library, and a lost answer does not duplicate a message."""

from __future__ import annotations

import itertools
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import BadInput, Broker, Draft
from penstock.broker import LocalBroker
from penstock.client.broker import RemoteBroker
from penstock.client.queue import RemoteQueue
from penstock.client.wire import pack
from penstock.clock import system_clock
from penstock.publishing.segments import pack_drafts
from penstock.queue.protocol import Queue
from penstock.queue.queue import LocalQueue
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.tokens import read_tokens
from penstock.testing import FakeClock
from penstock.testing.http import SETTINGS, Http
from penstock.testing.model import Player, configurations, steps
from penstock.testing.publishing import PublishingChapter

serial = itertools.count()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with penstock.open("memory:", clock=FakeClock()) as broker:
        yield broker


@pytest.fixture
def server(broker: Broker) -> Iterator[BackgroundServer]:
    with BackgroundServer(broker, ServerSettings(port=0)) as server:
        yield server


def test_random_calls_through_http_are_answered_as_by_the_library() -> None:
    clocks = FakeClock(), FakeClock()
    with (
        penstock.open("memory:", clock=clocks[0]) as library,
        penstock.open("memory:", clock=clocks[1]) as behind,
        BackgroundServer(behind) as server,
        penstock.open(server.url) as remote,
    ):

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(configurations, st.lists(steps, min_size=5, max_size=20))
        def run(configuration: dict[str, Any], plan: list[tuple[Any, ...]]) -> None:
            suffix = f"-{next(serial)}"
            players = [Player(broker, clock, suffix) for broker, clock in zip((library, remote), clocks, strict=True)]
            for player in players:
                player.start(dict(configuration))
            for step in plan:
                expected, actual = (player.play(step) for player in players)
                assert actual == expected, step
            expected, actual = (player.look() for player in players)
            assert actual == expected

        run()


def test_megabytes_of_attributes_pass_through_http(server: BackgroundServer) -> None:
    attributes = {"text": "é\n" * 200_000, "bytes": bytes(400_000)}
    with penstock.open(server.url) as remote:
        queue = remote.create("orders")
        queue.send_many([Draft(b"x", attributes=attributes)] * 2)
        (message,) = queue.receive()
        for found in (message, *queue.peek(2), *queue.scan(0)):
            assert found.attributes == attributes


def test_local_and_remote_queues_keep_one_protocol_and_share_nothing_else() -> None:
    for protocol, local, remote, of_local, of_remote in [
        (Queue, LocalQueue, RemoteQueue, {"send_batches", "known", "redrive_part", "delete_part", "release_part"}, {"arrow"}),
        (Broker, LocalBroker, RemoteBroker, {"schedule_book"}, {"report"}),
    ]:
        shared = _public(protocol)
        assert _public(remote) == shared | of_remote
        assert _public(local) == shared | of_local
        assert set(local.__mro__) & set(remote.__mro__) == {*protocol.__mro__}


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


class TestPublishing(PublishingChapter):
    """The contract's chapter, with the HTTP client as the broker."""

    @pytest.fixture(params=["memory:", "sqlite"])
    def broker(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
        url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path}/queue.db"
        with (
            penstock.open(url) as behind,
            BackgroundServer(behind, ServerSettings(port=0, access_log=False)) as server,
            penstock.open(server.url) as broker,
        ):
            yield broker

    @pytest.fixture
    def queue(self, broker: Broker) -> Queue:
        return broker.create("orders")


def test_a_publication_whose_answer_is_lost_is_made_once(broker: Broker, server: BackgroundServer) -> None:
    queue = broker.create("orders")
    with penstock.open(server.url) as direct:
        direct.stage("w", 0, "a", pack_drafts("orders", [Draft(b"1")]))
    with Proxy(server.url, lose=1) as proxy, penstock.open(proxy.url) as remote:
        assert remote.publish("w", 0, {"a": 1}) is None
    assert queue.stats().messages == 1


def test_a_segment_reaches_only_queues_that_the_token_may_send_to(broker: Broker) -> None:
    for name in ("orders", "secret"):
        broker.create(name)
    table = {"name": "shop", "secret": "s" * 16, "scopes": ["send"], "queues": ["orders"]}
    reader = {"name": "looker", "secret": "r" * 16, "scopes": ["read"], "queues": ["*"]}
    settings = ServerSettings(port=0, access_log=False, tokens=read_tokens([table, reader], "test", ""))
    with BackgroundServer(broker, settings) as server, penstock.open(server.url, token="s" * 16) as remote:
        for name, queue in (("a", "orders"), ("b", "secret")):
            remote.stage("w", 0, name, pack_drafts(queue, [Draft(b"1")]))
        with pytest.raises(BadInput, match="may not send on queue 'secret'"):
            remote.publish("w", 0, {"a": 1, "b": 1})
        assert broker["orders"].stats().messages == 0
        with pytest.raises(BadInput, match="may not send on queue 'secret'"):
            remote.publish("w", 0, {"a": 1}, bad_rows="secret")
        assert remote.publish("w", 0, {"a": 1}) == 1
        with penstock.open(server.url, token="r" * 16) as looker:
            for call in (lambda: looker.stage("w", 1, "a", b""), lambda: looker.publish("w", 1, {})):
                with pytest.raises(BadInput, match="may not send"):
                    call()


@pytest.fixture
def limited(broker: Broker) -> Iterator[str]:
    """A server whose token "s…" may do everything, with mail-* alone; "r…" with all queues, and "o…" may send to mail-*."""
    tables = [
        {"name": "shop", "secret": "s" * 16, "queues": ["mail-*"]},
        {"name": "other", "secret": "o" * 16, "scopes": ["send"], "queues": ["mail-*"]},
        {"name": "root", "secret": "r" * 16},
    ]
    for name in ("mail-dead", "secret"):
        broker.create(name, visibility=0)
    with BackgroundServer(broker, ServerSettings(port=0, access_log=False, tokens=read_tokens(tables, "test", ""))) as server:
        yield server.url


def test_a_dead_letter_queue_must_be_one_of_the_tokens_own(limited: str, broker: Broker) -> None:
    with penstock.open(limited, token="s" * 16) as shop:
        with pytest.raises(BadInput, match="may not admin on queue 'secret'"):
            shop.create("mail-in", redrive=("secret", 1))
        assert "mail-in" not in broker
        queue = shop.create("mail-in", redrive=("mail-dead", 1))
        with pytest.raises(BadInput, match="may not admin on queue 'secret'"):
            queue.update(redrive=penstock.Redrive("secret", 1))
        assert queue.update(visibility=5, redrive=None).redrive is None


def test_a_dead_letter_queue_must_be_one_of_the_tokens_own_in_mqs(limited: str, broker: Broker) -> None:
    http = Http(limited, {"Authorization": f"Bearer {'s' * 16}"})
    body = {"retention_timeout": 60, "visibility_timeout": 60}
    secret = {**body, "redrive_policy": {"max_receives": 1, "dead_letter_queue": "secret"}}
    assert http("PUT", "/queues/mail-in", secret).status == 403
    assert http("PUT", "/queues/mail-in", body).status == 201
    assert http("POST", "/queues/mail-in", secret).status == 403
    assert broker["mail-in"].settings.redrive is None
    broker["mail-in"].update(redrive=("secret", 1))
    assert http("POST", "/queues/mail-in", {**secret, "visibility_timeout": 5}).status == 200  # an existing policy may stay


def test_letters_go_back_only_to_queues_that_the_token_may_change(limited: str, broker: Broker) -> None:
    secret, dead, back = broker["secret"], broker["mail-dead"], broker.create("mail-in")
    secret.update(redrive=("mail-dead", 1))
    secret.send(b"x")
    for _ in range(2):
        secret.receive()
    assert dead.stats().messages == 1
    with penstock.open(limited, token="s" * 16) as shop:
        found = shop["mail-dead"].redrive()
        assert (found, found.homeless) == (0, 1)
        with pytest.raises(BadInput, match="allow"):
            shop._line.follow(shop["mail-dead"]._ask("redrive", allow=True))
        with pytest.raises(BadInput, match="may not admin on queue 'secret'"):
            shop["mail-dead"].redrive(to="secret")
        assert (dead.stats().messages, secret.stats().messages) == (1, 0)
        assert shop["mail-dead"].redrive(to="mail-in") == 1
    back.update(redrive=("mail-dead", 1), visibility=0)
    for _ in range(2):
        back.receive()
    secret.send(b"y")
    for _ in range(2):
        secret.receive()
    with penstock.open(limited, token="s" * 16) as shop:
        assert shop["mail-dead"].redrive() == 1  # that of its own queue
    assert [message.body for message in dead.peek(9)] == [b"y"]
    with penstock.open(limited, token="r" * 16) as root:
        assert root["mail-dead"].redrive() == 1


def test_no_token_publishes_as_the_writer_of_another(limited: str, broker: Broker) -> None:
    opened = (penstock.open(limited, token=letter * 16) for letter in "rso")
    with next(opened) as root, next(opened) as shop, next(opened) as other:
        segment = pack_drafts("mail-dead", [Draft(b"1")])
        for remote in (root, shop):
            remote.stage("nightly", 5, "a", segment)
        assert other.publish("nightly", 10**9, {}) == 0
        other.unstage("nightly", 5, ["a"])
        assert [remote.publish("nightly", 5, {"a": 1}) for remote in (root, shop)] == [1, 1]
        assert [remote.publish("nightly", 5, {"a": 1}) for remote in (root, shop)] == [None, None]
        with pytest.raises(BadInput, match="writer name"):
            shop._line.follow(shop._calls._ask("publish", writer="", batch=1, segments={}))  # type: ignore[attr-defined]
    assert broker["mail-dead"].stats().messages == 2


class Proxy:
    """Stands between client and server, and drops the answers that it is told to drop."""

    def __init__(self, url: str, lose: int, *, once: bool = False) -> None:
        """``once``: refuse connections after the first."""
        self._server = urlsplit(url)
        self._lose = lose
        self._once = once
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._once:
                self._listener.close()
            with client, socket.create_connection((self._server.hostname, self._server.port or 0)) as server:
                while data := client.recv(65536):
                    head, _, body = data.partition(b"\r\n\r\n")
                    missing = int(re.findall(rb"Content-Length: (\d+)", head)[0]) - len(body)
                    server.sendall(data)
                    while missing > 0:  # the body comes separately
                        more = client.recv(65536)
                        server.sendall(more)
                        missing -= len(more)
                    answer = server.recv(65536)
                    if self._lose:
                        self._lose -= 1
                        break
                    client.sendall(answer)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # it is closed
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def test_a_send_whose_answer_is_lost_makes_one_message(server: BackgroundServer, broker: Broker) -> None:
    broker.create("orders")
    with Proxy(server.url, lose=2) as proxy, penstock.open(proxy.url) as remote:
        sent = RemoteQueue("orders", remote._line).send_many([b"1", b"2"])  # type: ignore[attr-defined]
    messages = broker["orders"].receive(10)
    assert [(message.id, message.body) for message in messages] == [(sent[0].id, b"1"), (sent[1].id, b"2")]


def test_a_named_claim_whose_answer_is_lost_is_the_same_claim(server: BackgroundServer, broker: Broker) -> None:
    orders = broker.create("orders")
    orders.send_many([b"1", b"2", b"3"])
    for verb, arguments in (("claim", ("reader", 1, 2)), ("confirm", ("reader", 1)), ("settle", ("reader", 1))):
        with Proxy(server.url, lose=1) as proxy, penstock.open(proxy.url) as remote:
            getattr(RemoteQueue("orders", remote._line), verb)(*arguments)  # type: ignore[attr-defined]
    assert [message.body for message in orders.peek(9)] == [b"3"]
    assert orders.settled_epoch("reader") == 1


def test_other_lost_answers_are_an_error_that_says_so(server: BackgroundServer, broker: Broker) -> None:
    broker.create("orders").send(b"x")
    with (
        Proxy(server.url, lose=1) as proxy,
        penstock.open(proxy.url) as remote,
        pytest.raises(penstock.OutcomeUnknown, match="unknown"),
    ):
        RemoteQueue("orders", remote._line).receive()  # type: ignore[attr-defined]


CHANGES: dict[str, Callable[[RemoteQueue], object]] = {
    "send": lambda queue: queue.send(b"x"),
    "receive": lambda queue: queue.receive(),
    "delete": lambda queue: queue.delete("an-id"),
    "extend": lambda queue: queue.extend("an-id", 1),
    "release": lambda queue: queue.release("an-id"),
    "fail": lambda queue: queue.fail("an-id"),
    "update": lambda queue: queue.update(visibility=1),
    "purge": lambda queue: queue.purge(),
    "redrive": lambda queue: queue.redrive(to="elsewhere"),
    "sadd": lambda queue: queue.sadd("x"),
    "spop": lambda queue: queue.spop(),
    "claim": lambda queue: queue.claim("reader", 1, 1),
    "confirm": lambda queue: queue.confirm("reader", 1),
    "settle": lambda queue: queue.settle("reader", 1),
    "give_up": lambda queue: queue.give_up("reader"),
}


@pytest.mark.parametrize("verb", CHANGES)
def test_a_lost_answer_is_unknown_though_nobody_listens_any_more(server: BackgroundServer, broker: Broker, verb: str) -> None:
    broker.create("orders")
    broker.create("elsewhere")
    with (
        Proxy(server.url, lose=1, once=True) as proxy,
        penstock.open(proxy.url) as remote,
        pytest.raises(penstock.OutcomeUnknown, match=r"gave no answer .* whether it was done is unknown"),
    ):
        CHANGES[verb](RemoteQueue("orders", remote._line))  # type: ignore[attr-defined]


def test_a_lost_answer_to_who_only_looks_is_no_unknown_outcome(server: BackgroundServer, broker: Broker) -> None:
    broker.create("orders")
    with (
        Proxy(server.url, lose=1, once=True) as proxy,
        penstock.open(proxy.url) as remote,
        pytest.raises(penstock.StoreUnreachable, match="no server at"),
    ):
        RemoteQueue("orders", remote._line).stats()  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [500, 502, 504])
def test_what_a_proxy_says_of_a_server_that_failed_is_unknown(status: int) -> None:
    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as gateway:
        Thread(target=gateway.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{gateway.server_port}"
        with penstock.open(url) as remote, pytest.raises(penstock.OutcomeUnknown, match=f"answered {status}"):
            RemoteQueue("orders", remote._line).purge()  # type: ignore[attr-defined]
        gateway.shutdown()


def test_a_server_that_is_not_there_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with penstock.open(f"http://127.0.0.1:{port}") as remote, pytest.raises(penstock.StoreUnreachable, match="no server at"):
        remote.queues()
    with penstock.open(f"http://127.0.0.1:{port}") as remote, pytest.raises(penstock.StoreUnreachable, match="no server at"):
        RemoteQueue("orders", remote._line).send(b"x")  # type: ignore[attr-defined]


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}", b'"x"', b"null", b'{"answer": {"x": 1}}'])
def test_a_server_that_is_not_penstock_is_a_clear_error(content: bytes) -> None:
    class Foreign(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Foreign) as foreign:
        Thread(target=foreign.serve_forever, args=(0.01,), daemon=True).start()
        with penstock.open(f"http://127.0.0.1:{foreign.server_port}") as remote:
            queue = RemoteQueue("orders", remote._line)  # type: ignore[attr-defined]
            calls: list[Callable[[], object]] = [
                lambda: remote.store,
                remote.queues,
                lambda: queue.settings,
                queue.receive,
                queue.stats,
                lambda: queue._line.follow(queue._calls.look("/scan", {}, accept="application/vnd.apache.arrow.stream")),
            ]
            for call in calls:
                with pytest.raises(penstock.StoreError, match="did not answer like a Penstock server"):
                    call()
        foreign.shutdown()


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_a_cafile_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    cafile = tmp_path / "ca.pem"
    if content is not None:
        cafile.write_bytes(content)
    with pytest.raises(BadInput, match=r"cafile '.*ca\.pem' cannot be read"):
        penstock.open("https://localhost:1", cafile=str(cafile))


def test_a_connection_may_have_any_descriptor(server: BackgroundServer, broker: Broker) -> None:
    broker.create("orders")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 4096 else 4096, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with penstock.open(server.url) as remote:
            for _ in range(2):  # the second call reuses the first one's connection
                assert remote["orders"].stats().messages == 0
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_restarted_server_is_found_again(broker: Broker) -> None:
    with BackgroundServer(broker, ServerSettings(port=0)) as server:
        port = urlsplit(server.url).port or 0
        remote = penstock.open(server.url)
        queue = remote.create("orders")
    with BackgroundServer(broker, ServerSettings(port=port)):
        assert queue.send(b"x").duplicate is False
        assert queue.receive()[0].delete()
    remote.close()
    with pytest.raises(penstock.StoreClosed):
        queue.stats()


@pytest.mark.parametrize(
    "url", ["http://", "http://host/path", "http://host:99999", "http://user:secret@host", "http://host?x=1"]
)
def test_a_malformed_url_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(penstock.BadURL) as caught:
        penstock.open(url)
    assert "secret" not in str(caught.value)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(penstock.BadURL, match="colour"):
        penstock.open("http://localhost:1", colour="red")


def test_a_token_sent_again_makes_no_second_message_even_when_the_first_is_gone(broker: Broker) -> None:
    queue = broker.create("orders")
    first = queue.send_many([b"1", b"2"], token="a")
    for message in queue.receive(2):
        message.delete()
    assert queue.send_many([b"1", b"2"], token="a") == first
    assert queue.stats().messages == 0
    assert queue.send_many([b"1", b"2"], token="b") != first
    assert isinstance(broker.clock, FakeClock)
    broker.clock.advance(601)
    assert queue.send_many([b"1"], token="a")[0].id not in {sent.id for sent in first}


@pytest.mark.parametrize("token", ["", "x" * 257, 5, "\ud800"])
def test_a_bad_token_is_refused(broker: Broker, token: Any) -> None:
    queue = broker.create("orders")
    with pytest.raises(penstock.BadMessage, match="token"):
        queue.send_many([b"1"], token=token)
    assert queue.stats().messages == 0


def test_producers_and_consumers_work_over_http(server: BackgroundServer) -> None:
    with penstock.open(server.url) as remote:
        queue = remote.create("orders")
        with remote.producer("orders", batch_size=10) as producer:
            for number in range(25):
                producer.push(b"%d" % number)
        consumer = remote.consumer("orders", batch_size=10)
        seen: list[bytes] = []

        @consumer.process
        def handle(payload: bytes, message: penstock.Message) -> None:
            seen.append(payload)

        assert consumer.run(until_empty=True).processed == 25
        assert seen == [b"%d" % number for number in range(25)]
        assert queue.stats().messages == 0
        with pytest.raises(penstock.BadInput, match="colour"):
            remote.consumer("orders", colour="red")


def test_at_most_once_a_remote_consumer_tells_the_history(broker: Broker, server: BackgroundServer) -> None:
    with penstock.open(server.url) as remote:
        remote.create("orders", mode="at_most_once", history=60).send_many([b"good", b"bad"])
        consumer = remote.consumer("orders")

        @consumer.process
        def handle(payload: bytes, message: penstock.Message) -> None:
            assert payload == b"good", "no such customer"

        consumer.run(until_empty=True)
    ends = {(message.text, message.state.name, (message.reason or "")[:14]) for message in broker["orders"].settled()}
    assert ends == {("good", "PROCESSED", ""), ("bad", "FAILED", "AssertionError")}


def test_leases_and_deadlines_of_a_remote_consumer_go_by_the_servers_clock() -> None:
    clock = FakeClock(system_clock() - 86_400_000_000)
    with (
        penstock.open("memory:", clock=clock) as broker,
        BackgroundServer(broker, SETTINGS) as server,
        penstock.open(server.url) as remote,
    ):
        queue = remote.create("orders", visibility=30)
        with remote.producer("orders") as producer:
            producer.push(b"1", deadline=60)
        deadline_at = queue.peek()[0].deadline_at
        assert deadline_at is not None
        assert 0 <= deadline_at - clock.now - 60_000_000 < 60_000_000, "our clock is a day ahead"
        consumer = remote.consumer("orders")
        consumer.process(lambda payload, message: None)
        assert consumer.run(until_empty=True).processed == 1


def test_a_server_cannot_join_a_transaction(server: BackgroundServer) -> None:
    with penstock.open(server.url) as remote:
        queue = remote.create("orders")
        with pytest.raises(penstock.Unsupported, match="transaction"):
            queue.send(b"x", connection=object())
        sent = queue.send(b"x")
        with pytest.raises(penstock.Unsupported, match="transaction"):
            queue.delete(sent.id, connection=object())
        assert queue.stats().messages == 1


def test_messages_travel_as_arrow(server: BackgroundServer) -> None:
    arrow = pytest.importorskip("penstock.arrow")
    with penstock.open(server.url) as remote:
        queue = remote.create("orders")
        queue.send_many([penstock.Draft(b"\0\xff", attributes={"a": 1, "b": b"x"}), penstock.Draft(b"two", deadline=5)])
        queue.claim("reader", 1, 9)
        assert isinstance(queue, RemoteQueue)
        arguments = {"reader": "reader", "epoch": 1, "start": 0, "stop": 2}
        assert queue.arrow("read", arrow.MESSAGE, **arguments) == arrow.to_batch(queue.read("reader", 1), arrow.MESSAGE)
        some = arrow.schema_of(["number", "body"])
        assert queue.arrow("scan", some, start=0, stop=2**62, limit=1).column("body").to_pylist() == [b"\0\xff"]
        assert queue.arrow("scan", some, start=0, stop=1, limit=1).num_rows == 0
        with pytest.raises(penstock.ClaimLapsed):
            queue.arrow("read", some, **{**arguments, "epoch": 2})
        with pytest.raises(penstock.BadInput, match="no column 'price'"):
            queue.arrow("scan", arrow.pa.schema([("price", arrow.pa.int64())]), start=0, stop=9, limit=1)


def test_columns_that_are_no_names_are_refused(server: BackgroundServer, broker: Broker) -> None:
    arrow = pytest.importorskip("penstock.arrow")
    broker.create("orders")
    body = {"arguments": {"columns": [["a"]]}}
    answer = Http(server.url)("POST", "/penstock/queues/orders/scan", body, Accept=arrow.CONTENT_TYPE)
    assert (answer.status, "no column" in answer.json["error"]) == (400, True)


@pytest.mark.parametrize("store", ["memory:", "sqlite:///{}/queue.db", "vsqs:///{}/vsqs", "spool:///{}/spool"])
@pytest.mark.parametrize("wrong", [{"id": 5}, {"id": ["1"]}, {"delivery": 2**70}, {"delivery": "x"}, {"queue": ["orders"]}])
def test_a_message_that_cannot_be_one_is_refused_as_a_receipt_is(store: str, wrong: dict[str, Any], tmp_path: Path) -> None:
    with penstock.open(store.format(tmp_path)) as broker, BackgroundServer(broker, ServerSettings(port=0)) as server:
        broker.create("orders").send(b"x")
        packed = pack(broker["orders"].receive()[0])
        http = Http(server.url)
        bad = {"Message": packed["Message"] | wrong}
        verbs = {"delete_many": {"messages": [bad]}, "fail": {"message": bad}, "release": {"message": bad}}
        for verb, arguments in (verbs | {"extend": {"message": bad, "visibility": 5}}).items():
            assert http("POST", f"/penstock/queues/orders/{verb}", {"arguments": arguments}).status == 400
        answer = http("POST", "/penstock/queues/orders/delete_many", {"arguments": {"messages": [packed]}})
        assert answer.json == {"answer": [True]}


def test_metrics_count_what_came_to_pass_and_not_what_was_tried(server: BackgroundServer, broker: Broker) -> None:
    broker.create("orders", deduplicate=True)
    with penstock.open(server.url) as remote:
        queue = remote["orders"]
        queue.send_many([b"1", b"1", b"2"])
        (sent,) = queue.send_many([b"1"])
        assert queue.delete_many([sent.id, sent.id, "98", "99"]) == [True, False, False, False]
    lines = Http(server.url)("GET", "/metrics").body.decode().splitlines()
    assert 'penstock_messages_total{deed="sent",queue="orders"} 2' in lines
    assert 'penstock_messages_total{deed="deleted",queue="orders"} 1' in lines


def test_a_server_without_arrow_names_the_extra(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("penstock.arrow")
    with penstock.open(server.url) as remote:
        queue = remote.create("orders")
        assert isinstance(queue, RemoteQueue)
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        monkeypatch.delitem(sys.modules, "penstock.arrow")
        with pytest.raises(penstock.PenstockError, match=r"penstock\[arrow\]"):
            queue.arrow("scan", arrow.MESSAGE, start=0, stop=9, limit=1)


def test_a_client_receives_messages_of_a_group_together(server: BackgroundServer, broker: Broker) -> None:
    broker.create("lines", groups=True).send_many([penstock.Draft(b"%d" % number, group="a") for number in range(4)])
    with penstock.open(server.url) as remote:
        lines = remote["lines"]
        first, second = lines.receive(2, together=True)
        assert (first.body, second.body) == (b"0", b"1")
        assert lines.receive(2, together=True) == []
        assert (first.delete(), second.release()) == (True, True)
        assert [message.body for message in lines.receive()] == [b"1"], "without it, one of each group"
        with pytest.raises(penstock.BadInput, match="together must be True or False, not 1"):
            lines.receive(together=1)  # type: ignore[arg-type]
    answer = Http(server.url)("POST", "/penstock/queues/lines/receive", {"arguments": {"together": "yes"}})
    assert (answer.status, "together must be True or False" in answer.json["error"]) == (400, True)


def test_an_exchange_that_is_refused_settles_nothing(server: BackgroundServer, broker: Broker) -> None:
    broker.create("shift").send(b"x")
    with penstock.open(server.url) as remote:
        held = remote["shift"].receive()
        with pytest.raises(penstock.BadMessage, match="limit 0"):
            remote["shift"].exchange(held, 0)
        assert remote["shift"].stats().in_flight == 1


FORKED = """
import os, sys, penstock
broker = penstock.open(sys.argv[1])
ours, theirs = broker["parent"], broker["child"]
ours.send(b"warm")
child = os.fork()
queue = ours if child else theirs
wrong = 0
for number in range(100):
    queue.send(b"x")
    wrong += sum(message.queue != queue.name for message in queue.receive())
if not child:
    os._exit(wrong)
sys.exit(wrong + os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_has_its_own_connections(broker: Broker, server: BackgroundServer) -> None:
    for name in ("parent", "child"):
        broker.create(name)
    done = subprocess.run([sys.executable, "-c", FORKED, server.url], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [broker[name].stats().messages for name in ("parent", "child")] == [101, 100]
