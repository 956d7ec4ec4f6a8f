"""Move tasks in the SQS dialect, in both protocols, against a live server on each store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_serve import serving

import penstock
from penstock.message import State
from penstock.server import BackgroundServer, read_settings
from penstock.server.jobs.book import JOBS
from penstock.testing.clock import FakeClock
from penstock.testing.http import Http, HttpAnswer
from penstock.testing.servers import PostgresqlServer
from penstock.testing.serving import until
from penstock.testing.sqs_moves import MoveTasks, SqsFifoMoves, SqsMoves, arn, visible
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


RIGHTS = {
    "mover": (["admin", "count"], ["dead", "orders"]),
    "source": (["admin"], ["dead"]),
    "target": (["admin"], ["orders"]),
    "counter": (["count"], ["*"]),
    "operator": (["admin"], ["*"]),
    "sender": (["send", "receive", "read"], ["*"]),
}


def call(url: str, name: str, operation: str, **members: Any) -> HttpAnswer:
    headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
    return Http(url, {"Authorization": f"Bearer {name}-of-some-length"} | headers)("POST", "/", members)


def test_a_task_needs_the_rights_of_a_redrive(tmp_path: Path) -> None:
    """Admin on the source and on the destination; without a destination on all queues, because letters may have died in any."""
    tokens = "".join(
        f"[[token]]\nname = '{name}'\nsecret = '{name}-of-some-length'\nscopes = {scopes}\nqueues = {queues}\n"
        for name, (scopes, queues) in RIGHTS.items()
    )
    (tmp_path / "penstock.toml").write_text(tokens)
    settings = read_settings({"port": 0, "access_log": False}, {}, tmp_path / "penstock.toml")
    with penstock.open("memory:", clock=FakeClock()) as broker, BackgroundServer(broker, settings) as server:
        broker.create("dead")
        broker.create("orders", redrive=("dead", 1))
        broker["dead"].send_many([b"1", b"2", b"3"])
        start = {"SourceArn": arn("dead"), "MaxNumberOfMessagesPerSecond": 1}
        named = {**start, "DestinationArn": arn("orders")}

        def statuses(operation: str, members: dict[str, Any], *names: str) -> dict[str, int]:
            return {name: call(server.url, name, operation, **members).status for name in names or RIGHTS}

        most = ("source", "target", "counter", "sender")
        assert statuses("StartMessageMoveTask", named, *most) == dict.fromkeys(most, 403)
        assert statuses("StartMessageMoveTask", start, "mover", *most) == dict.fromkeys(("mover", *most), 403)
        unknown = {"SourceArn": arn("other")}
        assert statuses("StartMessageMoveTask", unknown, "mover", "operator") == {"mover": 403, "operator": 404}
        assert (JOBS in broker, broker["dead"].settings.labels) == (False, {})
        task = call(server.url, "mover", "StartMessageMoveTask", **named).json
        listing = {"SourceArn": arn("dead")}
        few = ("source", "target", "operator")
        assert statuses("ListMessageMoveTasks", listing, *few) == dict.fromkeys(few, 403)
        assert statuses("ListMessageMoveTasks", listing, "mover", "counter", "sender") == {
            "mover": 200,
            "counter": 200,
            "sender": 200,
        }
        assert statuses("CancelMessageMoveTask", task, "target", "counter", "sender") == {
            "target": 403,
            "counter": 403,
            "sender": 403,
        }
        assert statuses("CancelMessageMoveTask", task, "source") == {"source": 200}


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
        assert (visible(broker, "dead"), visible(broker, JOBS)) == ([], [])


def begin(url: str, rate: int) -> str:
    """A task that is in the middle."""
    tasks = MoveTasks(SqsClient(url, "json"))
    task = tasks.start("orders", MaxNumberOfMessagesPerSecond=rate)
    until(lambda: tasks.last()["ApproximateNumberOfMessagesMoved"] > rate)
    return task


def check_cancelled(store: str) -> None:
    """Some of the messages were moved, and none is lost or doubled."""
    with penstock.open(store) as broker:
        moved, kept = (visible(broker, name) for name in ("orders", "dead"))
        assert moved
        assert kept
        assert sorted(moved + kept, key=int) == LETTERS


@pytest.mark.parametrize("store", ["sqlite", "vsqs", "spool"])
def test_after_a_kill_the_next_server_goes_on(store: str, tmp_path: Path) -> None:
    url = URLS[store].format(tmp_path)
    fill(url)
    with serving(url) as (process, address):
        begin(address, 5)
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
        handle = begin(address, 1)
        process.terminate()
        assert process.wait(60) == 0
    with penstock.open(url) as broker:
        (task,) = broker[JOBS].peek()
        assert (task.state, task.visible_at <= broker.clock()) == (State.QUEUED, True)
        before = len(visible(broker, "orders"))
    with serving(url) as (_, address):
        tasks = MoveTasks(SqsClient(address, "json"))
        assert tasks.last()["ApproximateNumberOfMessagesMoved"] >= before
        until(lambda: tasks.last()["ApproximateNumberOfMessagesMoved"] > before)
        tasks.cancel(handle)
        assert tasks.end()["Status"] == "CANCELLED"
    check_cancelled(url)


def test_where_one_node_is_killed_another_goes_on(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    fill(url)
    with serving(url) as (_, survivor), serving(url) as (victim, doomed):
        begin(doomed, 5)
        victim.kill()
        there = MoveTasks(SqsClient(survivor, "query"))
        assert there.end()["Status"] == "COMPLETED"
        check_moved_once(url)


def test_a_task_is_cancelled_at_any_node(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    fill(url)
    with serving(url) as (_, left), serving(url) as (_, right):
        task = begin(left, 1)
        there = MoveTasks(SqsClient(right, "query"))
        there.cancel(task)
        assert there.end()["Status"] == "CANCELLED"
    check_cancelled(url)
