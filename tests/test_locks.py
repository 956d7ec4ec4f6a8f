"""Batches on a database server lock several queues in one order, so that they cannot deadlock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Thread, current_thread
from typing import Any

import pytest

import penstock
from penstock.message import FOREVER
from penstock.stores.ports import Published
from penstock.testing.servers import DatabaseServer

LOCKING = {"lock_queue", "found", "visible"}
"""The statements that lock rows."""
TOGETHER = 1.0
"""Seconds that a thread waits after its first lock for the other thread to lock something else."""


@pytest.fixture(params=["postgresql", "mariadb"])
def broker(request: pytest.FixtureRequest) -> Iterator[penstock.Broker]:
    server: DatabaseServer = request.getfixturevalue(request.param)
    with penstock.open(server.new_url()) as broker:
        yield broker


def meet(broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]) -> None:
    """Run all of them at once. Each stops after its first lock until all the others hold a lock, or cannot get one."""
    database: Any = broker.store.database  # type: ignore[attr-defined]
    rows, barrier = database.rows, Barrier(len(acts))
    stopped: set[Thread] = set()
    failed: list[BaseException] = []

    def stopping(name: str, params: Any) -> Any:
        answer = rows(name, params)
        thread = current_thread()
        if name in LOCKING and answer and thread in threads and thread not in stopped:
            stopped.add(thread)
            with suppress(BrokenBarrierError):
                barrier.wait(TOGETHER)
        return answer

    def run(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    monkeypatch.setattr(database, "rows", stopping)
    threads = [Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_moves_in_opposite_directions_do_not_wait_for_each_other(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = broker.create("left", groups=True), broker.create("right", groups=True)
    letters = [left.send(b"to the right", group="a"), right.send(b"to the left", group="a")]
    meet(
        broker,
        monkeypatch,
        lambda: left.redrive(to="right", ids=[letters[0].id]),
        lambda: right.redrive(to="left", ids=[letters[1].id]),
    )
    assert [message.body for message in left.peek(9)] == [b"to the left"]
    assert [message.body for message in right.peek(9)] == [b"to the right"]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("groups", [True, False])
def test_a_receive_that_buries_and_a_redrive_do_not_wait_for_each_other(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str], groups: bool
) -> None:
    """With groups, the redrive goes in the opposite direction of the burial; without, in the same."""
    dead = broker.create(names[0], groups=True)
    queue = broker.create(names[1], groups=groups, redrive=(names[0], 1))
    queue.send(b"poison", group="a")
    queue.receive(visibility=0)
    letter = (dead if groups else queue).send(b"letter", group="c")
    meet(
        broker,
        monkeypatch,
        lambda: queue.receive(9),
        lambda: (dead if groups else queue).redrive(to=names[1] if groups else names[0], ids=[letter.id]),
    )
    assert b"poison" in [message.body for message in dead.peek(9)]


def test_publishers_of_one_writer_wait_for_each_other(broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """If MariaDB locked the writer's row for sharing first, each of two publishers would wait until the other lets go of it."""
    store: Any = broker.store  # type: ignore[attr-defined]
    database, ledger = store.database, store.outbox.ledger
    run, barrier = database.run, Barrier(2)
    failed: list[BaseException] = []

    def publish(batch: int) -> None:
        try:
            with ledger.publishing("spark"):
                ledger.note("spark", Published(batch, None), FOREVER)
        except BaseException as error:
            failed.append(error)

    def stopping(name: str, params: Any) -> Any:
        answer = run(name, params)
        if name == "enter_writer":
            with suppress(BrokenBarrierError):
                barrier.wait(TOGETHER)
        return answer

    publish(0)
    monkeypatch.setattr(database, "run", stopping)
    threads = [Thread(target=publish, args=(batch,)) for batch in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
