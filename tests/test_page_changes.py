"""The stream of changes: what it tells on each kind of store, to whom, and how it ends."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streams import Follower
from test_serve import serving

import penstock
from penstock import Broker
from penstock.broker import LocalBroker
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.page import changes, counting
from penstock.server.tokens import read_tokens
from penstock.testing.http import Http
from penstock.testing.servers import PostgresqlServer
from penstock.testing.serving import dial, held, read_answer, until

URLS = {"sqlite": "sqlite:///{}/queue.db", "vsqs": "vsqs:///{}/vsqs", "spool": "spool:///{}/spool"}
SETTINGS = ServerSettings(port=0, access_log=False)
SECRET = "a secret of some length"
TOKENS = [
    {"name": "all", "secret": SECRET},
    {"name": "shop", "secret": f"{SECRET} 2", "scopes": ["count"], "queues": ["shop-*"]},
    {"name": "sender", "secret": f"{SECRET} 3", "scopes": ["send"]},
]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with penstock.open("memory:") as broker:
        broker.create("orders")
        yield broker


@pytest.fixture
def server(broker: LocalBroker) -> Iterator[BackgroundServer]:
    with BackgroundServer(broker, SETTINGS) as server:
        yield server


@pytest.fixture(params=[*URLS, "postgresql"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that other processes can use too."""
    if request.param == "postgresql":
        database: PostgresqlServer = request.getfixturevalue("postgresql")
        return database.new_url()
    return URLS[request.param].format(tmp_path)


def test_first_comes_what_is_there_and_then_what_changes(server: BackgroundServer, broker: Broker) -> None:
    broker.create("dead")
    broker.create("mail", redrive=("dead", 3)).send_many([b"1", b"2", b"3"])
    with Follower(server.url) as stream:
        stream.first()
        assert stream.response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert stream.response.headers["Cache-Control"] == "no-store"
        assert [event["whole"] for _, event in stream.events] == [True]
        assert stream.rows.keys() == {"dead", "mail", "orders"}
        mail = stream.rows["mail"]
        assert (mail["messages"], mail["visible"], mail["in_flight"]) == (3, 3, 0)
        assert (mail["dead_letter_queue"], mail["dead_letters"]) == ("dead", 0)
        assert stream.rows["dead"]["dead_letter_of"] == ["mail"]
        with penstock.open(server.url) as client:
            (message,) = client["mail"].receive(holder="worker 7")
            stream.until(lambda: stream.rows["mail"]["in_flight"] == 1)
            assert all(
                "messages" not in row for _, event in stream.events[1:] for row in event["rows"] if row["name"] == "mail"
            )
            message.delete()
            stream.until(lambda: stream.rows["mail"]["messages"] == 2)
            broker["dead"].send(b"dead")
            stream.until(lambda: stream.rows["mail"]["dead_letters"] == 1)
            client.create("new")
            stream.until(lambda: "new" in stream.rows)
            client.delete("new")
            stream.until(lambda: "new" not in stream.rows)


def test_what_another_process_does_is_told_too(shared: str) -> None:
    with penstock.open(shared) as broker, penstock.open(shared) as other:
        broker.create("orders")
        assert isinstance(broker, LocalBroker)
        with BackgroundServer(broker, SETTINGS) as server, Follower(server.url) as stream:
            stream.first()
            other["orders"].send_many([b"1", b"2"])
            stream.until(lambda: stream.rows["orders"]["messages"] == 2)
            (message,) = other["orders"].receive()
            stream.until(lambda: stream.rows["orders"]["in_flight"] == 1)
            message.delete()
            stream.until(lambda: stream.rows["orders"]["messages"] == 1)
            other["orders"].pause()
            stream.until(lambda: stream.rows["orders"]["paused"])
            other.create("new")
            stream.until(lambda: "new" in stream.rows)
            other.delete("new")
            stream.until(lambda: "new" not in stream.rows)


def test_what_becomes_visible_by_itself_is_told(
    server: BackgroundServer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "WINDOW", 0.0)  # otherwise it is counted anyway, until its rates have fallen
    monkeypatch.setattr(counting, "THROUGH_EVERY", 3600.0)
    with Follower(server.url) as stream:
        stream.first()
        broker["orders"].send(b"later", delay=3)
        stream.until(lambda: stream.rows["orders"]["delayed"] == 1)
        stream.until(lambda: stream.rows["orders"]["visible"] == 1)


def test_rates_rise_and_fall(server: BackgroundServer, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "THROUGH_EVERY", 3600.0)
    with Follower(server.url) as stream, penstock.open(server.url) as client:
        stream.first()
        client["orders"].send_many([b"x"] * 100)
        stream.until(lambda: (stream.rows["orders"]["rate_in"] or 0) > 0)
        assert stream.rows["orders"]["rate_out"] in (None, 0)
        client["orders"].delete_many(client["orders"].receive(100))
        stream.until(lambda: (stream.rows["orders"]["rate_out"] or 0) > 0)
        stream.until(lambda: stream.rows["orders"]["rate_in"] == stream.rows["orders"]["rate_out"] == 0)


def test_a_stream_of_one_queue_tells_of_that_queue_only(server: BackgroundServer, broker: Broker) -> None:
    broker.create("mail-日本")
    with Follower(server.url, "mail-日本") as stream:
        stream.first()
        broker["orders"].send(b"x")
        broker["mail-日本"].send(b"x")
        stream.until(lambda: stream.rows["mail-日本"]["messages"] == 1)
        broker.delete("mail-日本")
        stream.until(lambda: not stream.rows)
        assert {row["name"] for _, event in stream.events for row in event["rows"]} == {"mail-日本"}
    with Follower(server.url, "none") as stream:
        assert stream.status == 404


def test_many_queues_come_in_parts(server: BackgroundServer, broker: Broker) -> None:
    names = {f"queue-{number:04}-{'x' * 80}" for number in range(500)}
    for name in names:
        broker.create(name)
    with Follower(server.url) as stream:
        stream.first()
        assert stream.rows.keys() == {*names, "orders"}
        assert len(stream.events) > 1
        assert [event["whole"] for _, event in stream.events] == [True, *[False] * (len(stream.events) - 1)]


def test_a_token_hears_only_of_queues_that_it_may_count(broker: LocalBroker) -> None:
    for name in ("shop-dead", "secret-dead", "secret"):
        broker.create(name)
    broker.create("shop-1", redrive=("shop-dead", 3))
    broker.create("shop-2", redrive=("secret-dead", 3))
    broker["secret"].update(redrive=("shop-dead", 3))
    settings = replace(SETTINGS, tokens=read_tokens(TOKENS, "", ""))
    with BackgroundServer(broker, settings) as server:
        with Follower(server.url, Authorization=f"Bearer {SECRET} 2") as stream:
            stream.first()
            assert stream.rows.keys() == {"shop-1", "shop-2", "shop-dead"}
            assert (stream.rows["shop-1"]["dead_letter_queue"], stream.rows["shop-1"]["dead_letters"]) == ("shop-dead", 0)
            assert (stream.rows["shop-2"]["dead_letter_queue"], stream.rows["shop-2"]["dead_letters"]) == (None, None)
            assert stream.rows["shop-dead"]["dead_letter_of"] == ["shop-1"]
            broker["secret"].send(b"x")
            broker["secret-dead"].send(b"x")
            broker["shop-1"].send(b"x")
            stream.until(lambda: stream.rows["shop-1"]["messages"] == 1)
            broker.create("secret-2")
            broker.delete("secret-2")
            broker["shop-2"].send(b"x")
            stream.until(lambda: stream.rows["shop-2"]["messages"] == 1)
            assert "secret" not in str(stream.events)
        for secret, queue, status in ((f"{SECRET} 2", "orders", 403), (f"{SECRET} 3", None, 403), ("wrong", None, 401)):
            with Follower(server.url, queue, Authorization=f"Bearer {secret}") as stream:
                assert stream.status == status


def test_a_stream_ends_when_its_token_no_longer_counts(broker: LocalBroker) -> None:
    settings = replace(SETTINGS, tokens=read_tokens(TOKENS, "", ""))
    with (
        BackgroundServer(broker, settings) as server,
        Follower(server.url, Authorization=f"Bearer {SECRET}") as stays,
        Follower(server.url, Authorization=f"Bearer {SECRET} 2") as ends,
    ):
        stays.first()
        ends.first()
        server.app.guard.replace(read_tokens(TOKENS[:1], "", ""))
        ends.to_the_end()
        broker["orders"].send(b"x")
        stays.until(lambda: stays.rows["orders"]["messages"] == 1)


def test_a_client_that_hangs_up_is_noticed(server: BackgroundServer) -> None:
    for shut in (True, False):
        with Follower(server.url) as stream:
            stream.first()
            assert held(server) > 0
            if shut:
                opened = dial(server.url)
                opened.sendall(b"GET /penstock/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert opened.recv(1)
                opened.shutdown(socket.SHUT_WR)
                until(lambda: len(server.app.connections.open) == 1)
                opened.close()
        until(lambda: not server.app.connections.open)
        assert held(server) == 0


def test_a_client_that_does_not_read_holds_no_backlog_and_gets_the_newest(
    server: BackgroundServer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"queue-{number:03}-{'x' * 100}" for number in range(300)]
    for name in names:
        broker.create(name)
    with Follower(server.url) as reads, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        address = server.url.removeprefix("http://").split(":")
        before = set(server.app.connections.open)
        slow.connect((address[0], int(address[1])))
        until(lambda: len(server.app.connections.open) == 2)
        (held_back,) = [one for one in server.app.connections.open if one not in before]
        until(lambda: held_back._transport is not None)  # type: ignore[attr-defined]
        accepted = held_back._transport.get_extra_info("socket")  # type: ignore[attr-defined]
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # or the kernel takes megabytes
        slow.sendall(b"GET /penstock/changes HTTP/1.0\r\nHost: localhost\r\n\r\n")
        reads.first()
        for turn in range(6):
            for name in names:
                broker[name].send(b"x")
            reads.until(lambda turn=turn: all(reads.rows[name]["messages"] == turn + 1 for name in names))  # type: ignore[misc]
        until(lambda: held_back._transport.get_write_buffer_size() > 0)  # type: ignore[attr-defined]
        waiting = held_back._transport.get_write_buffer_size()  # type: ignore[attr-defined]
        assert waiting <= 70_000  # one piece at most, though there were hundreds of kilobytes to tell
        data = b""
        slow.settimeout(60)
        while b'"messages": 6' not in data[-200_000:] or data.count(b"event: rows") < 3:
            data += slow.recv(65536)
        assert data.startswith(b"HTTP/1.1 200")
        assert b"Transfer-Encoding" not in data
        told = data.count(b'"whole":true') + data.count(b'"whole":false')
        assert told < len(reads.events)  # it was told less often


def test_a_client_that_takes_nothing_any_more_is_cut(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1000):
        broker.create(f"queue-{number:04}-{'x' * 100}")
    with BackgroundServer(broker, replace(SETTINGS, read_timeout=0.5)) as server, socket.socket() as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        address = server.url.removeprefix("http://").split(":")
        stuck.connect((address[0], int(address[1])))
        stuck.sendall(b"GET /penstock/changes?internal=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
        stuck.recv(1)
        until(lambda: not server.app.connections.open)
        assert server.app.connections.cut == 1
        assert held(server) == 0


def test_neither_the_time_of_a_request_nor_of_idleness_ends_a_stream(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "HEARTBEAT", 0.5)
    settings = replace(SETTINGS, request_timeout=0.1, idle_timeout=0.1, read_timeout=0.1)
    with BackgroundServer(broker, settings) as server, Follower(server.url) as stream:
        stream.first()
        stream.until(lambda: stream.heartbeats >= 3)
        broker["orders"].send(b"x")
        stream.until(lambda: stream.rows["orders"]["messages"] == 1)


def test_http_1_0_gets_the_stream_until_the_connection_closes(server: BackgroundServer, broker: Broker) -> None:
    with dial(server.url) as client:
        client.sendall(b"GET /penstock/changes HTTP/1.0\r\n\r\n")
        data = b""
        while b'"left":0}\n\n' not in data:
            data += client.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        assert b"chunked" not in head
        assert b"Content-Length" not in head
        assert body.startswith(b"retry: 1000\n\nevent: rows\ndata: {")


def test_head_gets_no_stream(server: BackgroundServer) -> None:
    with dial(server.url) as client:
        client.sendall(b"HEAD /penstock/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 405")


def test_there_is_a_limit_of_streams(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MOST_STREAMS", 2)
    with Follower(server.url) as one, Follower(server.url) as two:
        one.first()
        two.first()
        with Follower(server.url) as refused:
            assert refused.status == 503
    until(lambda: not server.app.connections.open)
    with Follower(server.url) as three:
        assert three.status == 200


def test_a_server_that_stops_ends_its_streams(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with serving(store, "--access-log", "off") as (process, url), dial(url) as client:
        client.sendall(b"GET /penstock/changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        data = client.recv(65536)
        while b'"left":0}' not in data:
            data += client.recv(65536)
        process.send_signal(signal.SIGTERM)
        assert read_answer(client).endswith(b"0\r\n\r\n")  # an end, and not a connection that was cut
        assert process.wait(60) == 0


def test_a_stream_over_tls(broker: LocalBroker, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "1", *subject],
        check=True,
        capture_output=True,
    )
    settings = replace(SETTINGS, tls_cert=str(cert), tls_key=str(key))
    with BackgroundServer(broker, settings) as server:
        for _ in range(2):
            with Follower(server.url, tls=ssl.create_default_context(cafile=cert)) as stream:
                stream.first()
                before = stream.rows["orders"]["messages"]
                broker["orders"].send(b"x")
                stream.until(lambda: stream.rows["orders"]["messages"] == before + 1)  # noqa: B023
            until(lambda: not server.app.connections.open)


def test_each_of_several_workers_tells_what_any_of_them_does(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders")
    with serving(store, "--access-log", "off", "--workers", "2") as (_, url):
        streams = [Follower(url) for _ in range(6)]  # both have some, most likely; each must hear all
        for stream in streams:
            stream.first()
        with penstock.open(url) as client:
            client["orders"].send_many([b"x"] * 3)
        for stream in streams:
            stream.until(lambda stream=stream: stream.rows["orders"]["messages"] == 3)  # type: ignore[misc]
            stream.__exit__(None, None, None)


def test_a_job_is_told_until_it_has_ended(server: BackgroundServer, broker: Broker) -> None:
    broker["orders"].send_many([b"x"] * 50)
    with Follower(server.url) as stream, Follower(server.url, "orders") as one:
        stream.first()
        id = Http(server.url)("POST", "/penstock/jobs", {"queue": "orders", "action": "delete", "filter": {}}).json["id"]
        for each in (stream, one):
            each.until(lambda each=each: each.jobs.get(id, {}).get("status") == "completed")  # type: ignore[misc]
            assert each.jobs[id]["done"] == 50
        stream.until(lambda: stream.rows["orders"]["messages"] == 0)


def test_internal_queues_are_told_only_on_request(server: BackgroundServer, broker: Broker) -> None:
    broker.create("penstock.history")
    with Follower(server.url) as stream:
        stream.first()
        assert stream.rows.keys() == {"orders"}
    told = Http(server.url)("GET", "/penstock/overview?internal=true").json
    assert [row["name"] for row in told["queues"]] == ["orders", "penstock.history"]


def test_a_store_that_fails_ends_no_stream(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise penstock.StoreError("the disk is gone")

    with BackgroundServer(broker, SETTINGS) as server, Follower(server.url) as stream:
        stream.first()
        with monkeypatch.context() as patch:
            patch.setattr(counting.Counting, "_count_one", fail)
            patch.setattr(broker, "queues", fail)
            broker["orders"].send(b"x")
            asks = Http(server.url)
            until(lambda: asks("GET", "/penstock/overview").status == 503)
        stream.until(lambda: stream.rows["orders"]["messages"] == 1)


def test_a_defect_in_a_stream_ends_that_stream_only(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with BackgroundServer(broker, SETTINGS) as server, Follower(server.url) as good, Follower(server.url, "orders") as bad:
        good.first()
        bad.first()
        whole = changes.Stream._tells

        def tells(stream: changes.Stream, name: str) -> bool:
            assert stream.queue is None
            return whole(stream, name)

        monkeypatch.setattr(changes.Stream, "_tells", tells)
        broker["orders"].send(b"x")
        good.until(lambda: good.rows["orders"]["messages"] == 1)
        bad.to_the_end()
        assert len(server.app.connections.open) == 1
        broker["orders"].send(b"x")
        good.until(lambda: good.rows["orders"]["messages"] == 2)
