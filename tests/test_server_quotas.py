"""The limits of tokens: what is too much gets 429, says which limit it passed, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import penstock
from penstock import Broker
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.http.request_response import Grant, Limits, Refused, Request
from penstock.server.quotas import Bucket, Quotas
from penstock.server.tokens import read_tokens
from penstock.testing.http import Http, HttpAnswer
from penstock.testing.serving import until

SECRET, OTHER = "a-secret-of-some-length", "another-secret-of-some-length"


@contextmanager
def limited(broker: Broker, **limits: float) -> Iterator[tuple[BackgroundServer, Http]]:
    """A server with a token that has these limits for the queues mail-*, and one without limits."""
    tables = [{"name": "shop", "secret": SECRET, "queues": ["mail-*"], **limits}, {"name": "all", "secret": OTHER}]
    settings = ServerSettings(port=0, tokens=read_tokens(tables, "test", ""))
    with BackgroundServer(broker, settings) as server:  # type: ignore[arg-type]
        yield server, as_(server, SECRET)


def as_(server: BackgroundServer, secret: str) -> Http:
    return Http(server.url, {"Authorization": f"Bearer {secret}"})


def is_limited(answer: HttpAnswer, limit: str) -> bool:
    if answer.status != 429:
        return False
    assert f"token 'shop' has reached its limit {limit}" in answer.json["error"]
    assert int(answer.headers["retry-after"]) >= 1
    return True


@pytest.fixture
def broker() -> Iterator[Broker]:
    with penstock.open("memory:") as broker:
        for name in ("mail-in", "mail-out", "other"):
            broker.create(name)
        yield broker


def test_a_bucket_gives_so_many_a_second_and_a_second_s_worth_at_once() -> None:
    bucket = Bucket(10, 0)
    assert [bucket.take(1, 0) for _ in range(10)] == [0] * 10
    assert bucket.take(1, 0) == pytest.approx(0.1)
    assert bucket.take(1, 0.05) == pytest.approx(0.05)
    assert bucket.take(1, 0.1001) == 0
    assert [bucket.take(1, 100) for _ in range(11)] == [0] * 10 + [pytest.approx(0.1)]
    slow = Bucket(0.1, 0)
    assert [slow.take(1, 0), slow.take(1, 0), slow.take(1, 10.1)] == [0, pytest.approx(10), 0]


def test_what_is_more_than_a_second_s_worth_leaves_a_debt() -> None:
    bucket = Bucket(100, 0)
    assert bucket.take(1000, 0) == 0
    assert bucket.take(0, 0) == pytest.approx(9)
    assert bucket.take(1, 8) == pytest.approx(1.01)
    assert bucket.take(1, 9.02) == 0


def test_requests_beyond_the_rate_get_429_on_the_same_connection(broker: Broker) -> None:
    with limited(broker, max_rate=0.02) as (server, http):
        assert http("POST", "/messages/mail-in", b"x").status == 201
        answer = http("POST", "/messages/mail-in", b"x")
        assert is_limited(answer, "max_rate, 0.02")
        assert 1 < int(answer.headers["retry-after"]) <= 50
        assert is_limited(http("GET", "/queues"), "max_rate")
        assert as_(server, OTHER)("POST", "/messages/mail-in", b"x").status == 201
        assert Http(server.url)("GET", "/health").status == 200
        assert "penstock_refused_by_limits_total 2" in as_(server, OTHER)("GET", "/metrics").body.decode()
    assert broker["mail-in"].stats().messages == 2


def test_bytes_beyond_the_rate_get_429(broker: Broker) -> None:
    with limited(broker, max_byte_rate=100) as (server, http):
        assert http("POST", "/messages/mail-in", b"x" * 100_000).status == 201
        assert is_limited(http("POST", "/messages/mail-in", b"x"), "max_byte_rate, 100")
        assert is_limited(as_(server, SECRET)("GET", "/queues"), "max_byte_rate")
    assert broker["mail-in"].stats().messages == 1


def test_connections_are_counted_by_token_until_they_close(broker: Broker) -> None:
    with limited(broker, max_connections=2) as (server, _):
        first, second, third, other = (as_(server, secret) for secret in (SECRET, SECRET, SECRET, OTHER))
        for http in (first, second, first, second, other):
            assert http("GET", "/queues").status == 200
        assert is_limited(third("GET", "/queues"), "max_connections, 2")
        assert first("GET", "/queues").status == 200
        del first
        until(lambda: as_(server, SECRET)("GET", "/queues").status == 200)


def test_a_token_makes_no_more_queues_than_it_may_have(broker: Broker) -> None:
    with limited(broker, max_queues=3) as (server, http):
        assert http("PUT", "/mail-3").status == 201
        for method, path, body in [
            ("PUT", "/mail-4", None),
            ("PUT", "/queues/mail-4", {"retention_timeout": 60, "visibility_timeout": 60}),
            ("POST", "/penstock/broker/create", {"arguments": {"name": "mail-4"}}),
        ]:
            assert is_limited(http(method, path, body), "max_queues, 3")
        assert http("PUT", "/mail-3").status == 200, "it is there"
        assert http("POST", "/penstock/broker/create", {"arguments": {"name": "mail-3", "exist_ok": True}}).status == 200
        assert as_(server, OTHER)("PUT", "/mail-4").status == 201
        assert http("DELETE", "/mail-3").status == 204
        assert http("DELETE", "/mail-4").status == 204
        until(lambda: http("PUT", "/mail-5").status == 201)


def test_a_token_sends_no_more_messages_than_may_wait(broker: Broker) -> None:
    broker["mail-out"].send_many([b"x"] * 6)
    broker["other"].send_many([b"x"] * 100)
    parts = b"".join(b"--b\r\n\r\nx\r\n" for _ in range(5)) + b"--b--\r\n"
    with limited(broker, max_messages=10) as (_, http), penstock.open(_.url, token=SECRET) as remote:
        assert is_limited(
            http("POST", "/messages/mail-in", parts, Content_Type="multipart/mixed; boundary=b"), "max_messages, 10"
        )
        for _ in range(2):
            assert http("POST", "/messages/mail-in", b"x").status == 201
            assert http("POST", "/mail-in/messages", b"x").status == 201
        for _ in range(2):
            assert is_limited(http("POST", "/messages/mail-in", b"x"), "max_messages, 10")
            assert is_limited(http("POST", "/mail-in/messages", b"x"), "max_messages, 10")
            assert is_limited(http("POST", "/penstock/queues/mail-in/sadd", {"arguments": {"member": "x"}}), "max_messages, 10")
            with pytest.raises(penstock.PenstockError, match="max_messages, 10"):
                remote["mail-in"].send_many([b"x"])
        assert broker["mail-in"].stats().messages == 4
        broker["mail-out"].purge()
        until(lambda: http("POST", "/messages/mail-in", b"x").status == 201)
        assert len(remote["mail-in"].send_many([b"x"] * 5)) == 5
        assert is_limited(http("POST", "/messages/mail-in", b"x"), "max_messages, 10")


def test_a_token_receives_no_more_than_may_be_in_flight(broker: Broker) -> None:
    broker["mail-in"].send_many([b"x"] * 20)
    with limited(broker, max_in_flight=3) as (server, http), penstock.open(server.url, token=SECRET) as remote:
        queue = remote["mail-in"]
        messages = queue.receive(10)
        assert len(messages) == 3
        assert is_limited(http("GET", "/messages/mail-in"), "max_in_flight, 3")
        assert is_limited(http("GET", "/mail-in/messages"), "max_in_flight, 3")
        with pytest.raises(penstock.PenstockError, match="max_in_flight, 3"):
            queue.claim("reader", 0, 5)
        assert messages[0].delete()
        assert queue.claim("reader", 0, 5).size == 1
        assert messages[1].release()
        until(lambda: http("GET", "/messages/mail-in").status == 200)
        assert is_limited(http("GET", "/messages/mail-in"), "max_in_flight, 3")
    assert broker["mail-in"].stats().in_flight == 3


def test_what_was_refused_by_the_queue_counts_for_nothing(broker: Broker) -> None:
    with limited(broker, max_messages=3) as (_, http):
        for _ in range(10):
            assert http("POST", "/messages/mail-none", b"x").status == 404
        assert [http("POST", "/messages/mail-in", b"x").status for _ in range(4)] == [201, 201, 201, 429]


def test_what_is_under_way_counts_while_the_store_is_asked(broker: Broker) -> None:
    """Two sends at once, of which each fits alone."""
    grant = Grant("shop", queues=("mail-*",), limits=Limits(max_messages=10))

    class Asked:
        def run(self, act, **_):  # type: ignore[no-untyped-def]
            async def answer():  # type: ignore[no-untyped-def]
                await asyncio.sleep(0)
                return act()

            return answer()

    async def play() -> list[str]:
        quotas = Quotas(broker, Asked(), ())  # type: ignore[arg-type]
        done: list[str] = []

        async def send(count: int) -> None:
            try:
                async with quotas.adding(grant, "max_messages", count):
                    await asyncio.sleep(0.01)
                done.append("sent")
            except Refused:
                done.append("refused")

        await asyncio.gather(*(send(4) for _ in range(5)))
        return done

    assert sorted(asyncio.run(play())) == ["refused"] * 3 + ["sent"] * 2


def test_what_a_token_deletes_makes_room_at_once(broker: Broker) -> None:
    broker["mail-in"].send_many([b"x"] * 5)
    with limited(broker, max_messages=5, max_in_flight=1) as (server, http), penstock.open(server.url, token=SECRET) as remote:
        for _ in range(3):
            id = http("GET", "/messages/mail-in").headers["x-mqs-message-id"]
            assert http("DELETE", f"/messages/{id}").status == 204
            assert http("POST", "/messages/mail-in", b"x").status == 201
            id = http("GET", "/mail-in/messages").headers["x-message-id"]
            assert http("DELETE", f"/mail-in/messages/{id}").status == 204
            assert http("POST", "/messages/mail-in", b"x").status == 201
            assert remote["mail-in"].receive()[0].delete()
            assert http("POST", "/messages/mail-in", b"x").status == 201
            (message,) = remote["mail-in"].receive()
            ((settled,), (more,)) = remote["mail-in"].exchange([message], 1)
            assert (settled, more.delete()) == (True, True)
            assert [http("POST", "/messages/mail-in", b"x").status for _ in range(3)] == [201, 201, 429]


def test_a_token_at_its_limit_does_not_make_the_store_count_all_the_time(broker: Broker) -> None:
    grant, now, asked = Grant("shop", queues=("mail-*",), limits=Limits(max_messages=0)), [0.0], [0]

    class Asked:
        async def run(self, act, **_):  # type: ignore[no-untyped-def]
            asked[0] += act != broker.store.names  # type: ignore[union-attr]
            now[0] += 0.05  # the clock as the store works; both clocks below are this one
            return act()

    async def play() -> None:
        quotas = Quotas(broker, Asked(), (), clock=lambda: now[0])  # type: ignore[arg-type]
        quotas._count = lambda names: ({}, 0.1)  # type: ignore[method-assign, assignment, return-value]
        for _ in range(100):
            with pytest.raises(Refused, match="max_messages"):
                async with quotas.adding(grant, "max_messages", 1):
                    pass
            now[0] += 0.05

    asyncio.run(play())
    assert 2 <= asked[0] <= 4, "a tenth of a second of counting every two seconds"


def test_a_token_without_limits_is_not_counted() -> None:
    quotas = Quotas(None, None, ())  # type: ignore[arg-type]
    request = Request("GET", ("x",), "", {}, b"", 10**9, Grant("all"))
    for _ in range(1000):
        quotas.enter(request)
        quotas.admit(request)
    assert quotas.refused == 0
