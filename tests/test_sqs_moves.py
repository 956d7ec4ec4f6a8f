"""Move tasks in the SQS dialect, in both protocols, against a live server on each store."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_serve import serving

import penstock
from penstock.message import State
from penstock.server.dialects.sqs.move_book import MOVES
from penstock.testing.servers import PostgresqlServer
from penstock.testing.serving import until
from penstock.testing.sqs_moves import MoveTasks, SqsFifoMoves, SqsMoves, visible
from penstock.testing.sqs_sending import SqsClient

URLS = {"memory": "memory:", "sqlite": "sqlite:///{}/queue.db", "vsqs": "vsqs:///{}/vsqs", "spool": "spool:///{}/spool"}


@pytest.mark.parametrize("store", URLS)
class TestSqsMoves(SqsMoves):
    @pytest.fixture
    def url(self, store: str, tmp_path: Path) -> str:
        return URLS[store].format(tmp_path)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
class TestSqsFifoMoves(SqsFifoMoves):
    @pytest.fixture
    def url(self, store: str, tmp_path: Path) -> str:
        return URLS[store].format(tmp_path)


class TestSqsMovesOnPostgresql(SqsMoves, SqsFifoMoves):
    @pytest.fixture
    def url(self, postgresql: PostgresqlServer) -> str:
        return postgresql.new_url()


LETTERS = [f"{number}" for number in range(40)]


def fill(store: str) -> None:
    """Forty messages in a dead letter queue."""
    with penstock.open(store) as broker:
        broker.create("dead")
        broker.create("orders", redrive=("dead", 1))
        broker["dead"].send_many([letter.encode() for letter in LETTERS])


def check_moved_once(store: str) -> None:
    with penstock.open(store) as broker:
        assert sorted(visible(broker, "orders"), key=int) == LETTERS
        assert (visible(broker, "dead"), visible(broker, MOVES)) == ([], [])


def begin(url: str) -> MoveTasks:
    """A task that is in the middle: its messages take eight seconds."""
    tasks = MoveTasks(SqsClient(url, "json"))
    tasks.start("orders", MaxNumberOfMessagesPerSecond=5)
    until(lambda: tasks.last()["ApproximateNumberOfMessagesMoved"] > 5)
    return tasks


@pytest.mark.parametrize("store", ["sqlite", "vsqs", "spool"])
def test_after_a_kill_the_next_server_goes_on(store: str, tmp_path: Path) -> None:
    url = URLS[store].format(tmp_path)
    fill(url)
    with serving(url) as (process, address):
        begin(address)
        process.kill()
        process.wait()
    with serving(url) as (_, address):
        done = MoveTasks(SqsClient(address, "json")).end()
    assert (done["Status"], done["ApproximateNumberOfMessagesToMove"]) == ("COMPLETED", 40)
    check_moved_once(url)


def test_a_server_that_is_told_to_stop_leaves_the_task_to_another(tmp_path: Path) -> None:
    url = URLS["sqlite"].format(tmp_path)
    fill(url)
    with serving(url) as (process, address):
        begin(address)
        process.terminate()
        assert process.wait(60) == 0
    with penstock.open(url) as broker:
        (task,) = broker[MOVES].peek()
        assert (task.state, task.visible_at <= broker.clock()) == (State.QUEUED, True)
    with serving(url) as (_, address):
        done = MoveTasks(SqsClient(address, "json")).end()
    assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 40)
    check_moved_once(url)


def test_where_one_node_is_killed_another_goes_on(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    fill(url)
    with serving(url) as (_, survivor), serving(url) as (victim, doomed):
        begin(doomed)
        victim.kill()
        there = MoveTasks(SqsClient(survivor, "query"))
        assert there.end()["Status"] == "COMPLETED"
        check_moved_once(url)


def test_a_task_is_cancelled_at_any_node(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    fill(url)
    with serving(url) as (_, left), serving(url) as (_, right):
        task = begin(left).last()["TaskHandle"]
        there = MoveTasks(SqsClient(right, "query"))
        there.cancel(task)
        assert there.end()["Status"] == "CANCELLED"
    with penstock.open(url) as broker:
        moved, kept = (visible(broker, name) for name in ("orders", "dead"))
        assert moved
        assert kept
        assert sorted(moved + kept, key=int) == LETTERS
