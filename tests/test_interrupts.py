"""An interrupt between a request to a server and its answer: the answer is not mistaken for that of the next request."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from threading import current_thread, main_thread
from typing import Any

import psycopg
import pymemcache.client.base
import pymysql.connections
import pytest

import penstock
from penstock.stores.dbserver.database import ServerDatabase
from penstock.stores.sql.store import SqlStore

POINTS = 14
DRIVERS = {
    "postgresql": (psycopg.Connection, "wait"),
    "mariadb": (pymysql.connections.Connection, "_read_query_result"),
    "memcached": (pymemcache.client.base, "_readline"),
}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(request: pytest.FixtureRequest, driver: str) -> str:
    return str(request.getfixturevalue(driver).new_url())


@pytest.fixture
def broker(url: str, driver: str) -> Iterator[penstock.Broker]:
    options = {} if driver == "memcached" else {"pool": 2}
    with penstock.open(url, **options) as broker:
        yield broker


VERBS: dict[str, Callable[[penstock.Queue, list[penstock.Message]], object]] = {
    "send": lambda queue, _: queue.send(b"x"),
    "send_many": lambda queue, _: queue.send_many([b"x", penstock.Draft(b"x", attributes={"a": 1})]),
    "receive": lambda queue, _: queue.receive(2),
    "delete": lambda queue, held: queue.delete(held[0]),
    "exchange": lambda queue, held: queue.exchange(held, 2),
    "look": lambda queue, _: (queue.peek(9), queue.stats()),
    "change": lambda queue, _: queue.update(visibility=600),
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_unread_answer_is_nobody_elses(
    broker: penstock.Broker, driver: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = broker.create("orders", visibility=600), broker.create("other", visibility=7)
    where, name = DRIVERS[driver]
    real = getattr(where, name)
    interrupts = 0
    for point in range(POINTS):
        queue.purge()
        queue.send_many([b"1", b"2", b"3", b"4"])
        held = queue.receive(2)
        left = point

        def interrupted(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= current_thread() is main_thread()
            if left == -1 and current_thread() is main_thread():
                raise KeyboardInterrupt
            return real(*arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(where, name, interrupted)
            try:
                VERBS[verb](queue, held)
            except KeyboardInterrupt:
                interrupts += 1
                other.send(b"at once")
                assert other.settings.visibility == 7
        assert [message.body for message in other.receive()] == ([b"at once"] if left < 0 else [])
        other.purge()
        assert broker.queues().names == ["orders", "other"]
        assert ("orders" in broker, "nobody" in broker) == (True, False)
        assert queue.settings.visibility == 600
        assert {message.body for message in queue.peek(9)} <= {b"1", b"2", b"3", b"4", b"x"}
        if isinstance(broker.store, SqlStore) and isinstance(broker.store.database, ServerDatabase):
            assert broker.store.database.pool.lent() == []
    assert interrupts > 0


@pytest.mark.parametrize("driver", ["postgresql"], indirect=True)
def test_an_interrupt_that_the_driver_answers_with_an_error_of_its_own_comes_out_as_itself(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = broker.create("orders", deduplicate=True)
    queue.send_many([b"1", b"2"])
    held = queue.receive(2)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt  # psycopg then finds that its pipeline is still open: AssertionError

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Pipeline, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.delete_many(held)
    assert queue.delete_many(held) == [True, True]
    assert [sent.duplicate for sent in queue.send_many([b"1", b"2"])] == [False, False]


@pytest.mark.parametrize("driver", ["postgresql", "mariadb"], indirect=True)
def test_what_was_taken_by_a_thread_that_was_interrupted_is_lent_to_the_next(broker: penstock.Broker) -> None:
    pool = broker.store.database.pool
    for _ in range(5):  # the pool holds two
        session = pool.take()
        lent = len(pool.lent())
        del session  # the interrupt came before the thread could return it
        gc.collect()
        assert (lent, len(pool.lent())) == (1, 0)
    broker.create("orders").send(b"x")


@pytest.mark.parametrize("driver", ["postgresql", "mariadb"], indirect=True)
def test_the_place_of_a_connection_that_could_not_be_made_is_free_again(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = broker.store.database.pool
    with monkeypatch.context() as patched:
        patched.setattr(pool, "_connect", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        while pool._idle:
            pool.drop(pool.take())
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                pool.take()
    broker.create("orders").send(b"x")


@pytest.mark.parametrize("driver", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("undo", ["ROLLBACK", "ROLLBACK TO"])
def test_a_second_interrupt_while_the_first_is_undone_leaves_no_transaction_open(
    broker: penstock.Broker, url: str, monkeypatch: pytest.MonkeyPatch, undo: str
) -> None:
    queue = broker.create("orders")
    store: Any = broker.store
    driver = store.database.driver
    command = driver.command

    def interrupted(session: Any, text: str) -> None:
        if text.startswith(undo):
            raise KeyboardInterrupt
        command(session, text)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), store.batch():
        patched.setattr(driver, "command", interrupted)
        queue.send(b"never")
        with store.batch():
            queue.send(b"never")
            raise KeyboardInterrupt
    queue.send(b"x")
    with penstock.open(url) as fresh:
        assert [message.body for message in fresh["orders"].peek(9)] == [b"x"]
