"""Several `penstock serve` on one database: each serves any queue, and when one dies the others continue."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from test_serve import Account, serving

import penstock
from penstock.testing.http import Http
from penstock.testing.servers import DatabaseServer


@pytest.fixture(params=["postgresql", "mariadb"])
def store(request: pytest.FixtureRequest) -> str:
    server: DatabaseServer = request.getfixturevalue(request.param)
    return server.new_url()


def test_either_node_serves_any_queue(store: str) -> None:
    with (
        serving(store) as (_, left),
        serving(store) as (_, right),
        penstock.open(left) as here,
        penstock.open(right) as there,
        ThreadPoolExecutor(1) as pool,
    ):
        orders = here.create("orders", visibility=30)
        sent = orders.send(b"one")
        (message,) = there["orders"].receive()
        assert message.id == sent.id
        assert orders.receive() == []
        assert orders.delete(message)
        assert there["orders"].stats().messages == 0
        waiting = pool.submit(there["orders"].receive, wait=20)
        orders.send(b"two")
        assert [message.body for message in waiting.result()] == [b"two"]


def test_where_one_node_is_killed_the_other_goes_on_and_nothing_is_lost(store: str) -> None:
    account = Account()
    with penstock.open(store) as broker:
        broker.create("orders", visibility=1)
    stop = Event()
    with serving(store) as (_, survivor):
        with serving(store) as (victim, doomed), ThreadPoolExecutor(8) as pool:
            for number in range(8):
                pool.submit(account.work, doomed if number % 2 else survivor, f"c{number}", stop)
            while len(account.sent) < 100:
                stop.wait(0.05)
            victim.kill()
            before = len(account.sent)
            while len(account.sent) < before + 100:
                stop.wait(0.05)
            stop.set()
        http = Http(survivor)
        assert http("POST", "/messages/orders", b"after").status == 201
    with penstock.open(store) as broker:
        left: Counter[str] = Counter()
        while messages := broker["orders"].receive(100, wait=2):
            left.update(message.text for message in messages)
            broker["orders"].delete_many(messages)
    assert account.sent - account.deleting <= left.keys(), "answered sends are lost"
    assert not left.keys() & account.deleted, "deleted messages came back"
    assert set(left.values()) == {1}, "messages are doubled"
