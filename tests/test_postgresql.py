"""The PostgreSQL store keeps the contract, between threads, processes and nodes and through kill -9; and its own features."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import psycopg
import pytest

import penstock
from penstock.broker import LocalBroker, open_local
from penstock.publishing import segments
from penstock.queue import watching
from penstock.stores.postgresql import listener
from penstock.stores.postgresql.driver import CHANNEL, PLANNING, Copy
from penstock.stores.postgresql.listener import NotificationListener, Notifications
from penstock.stores.postgresql.shortcuts import PostgresqlShortcuts
from penstock.testing import SharedStoreContract, StoreContract
from penstock.testing.forked import Forked
from penstock.testing.interrupted import Handled, Interrupted
from penstock.testing.port_model import PortModel
from penstock.testing.servers import PostgresqlServer
from penstock.testing.serving import until


class TestPostgresql(StoreContract, SharedStoreContract, PortModel, Interrupted, Handled, Forked):
    interrupts = (150, 100)
    handled = 150

    @pytest.fixture
    def url(self, postgresql: PostgresqlServer) -> str:
        return postgresql.new_url()


def test_a_steady_cycle_does_not_grow_the_disk(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    with penstock.open(url) as broker, psycopg.connect(url, autocommit=True) as looking:
        queue = broker.create("orders")

        def size() -> int:
            row = looking.execute("SELECT pg_total_relation_size('penstock_message')").fetchone()
            assert row is not None
            return int(row[0])

        def cycle(seconds: float) -> int:
            count, end_at = 0, time.monotonic() + seconds
            while time.monotonic() < end_at:
                queue.send_many([b"x" * 1000] * 100)
                queue.delete_many(queue.receive(100))
                count += 100
            return count

        written = cycle(4)
        settled = size()
        written += cycle(6)
        assert size() < 2 * settled + 8 * 2**20, f"{written} messages of 1 KB were sent"
        kept = "SELECT reltoastrelid FROM pg_class WHERE oid = 'penstock_staged'::regclass"
        for table in ("'penstock_message'::regclass", f"({kept})"):
            (options,) = looking.execute(f"SELECT reloptions FROM pg_class WHERE oid = {table}").fetchone() or ()
            assert "autovacuum_vacuum_threshold=2000" in options


def test_the_marks_of_many_messages_are_removed_together(postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_local(postgresql.new_url()) as broker:
        queue = broker.create("orders", deduplicate=True)
        queue.send_many([b"%d" % number for number in range(50)])
        assert queue.claim("spark", 1, 100).size == 50
        queue.confirm("spark", 1)
        database: Any = broker.store.database  # type: ignore[attr-defined]
        ran: list[str] = []
        run = database.run
        monkeypatch.setattr(database, "run", lambda name, *rest: ran.append(name) or run(name, *rest))
        assert queue.settle("spark", 1) == 50
        assert len(ran) < 10, ran
        assert not any(sent.duplicate for sent in queue.send_many([b"%d" % number for number in range(50)]))
        held = queue.receive(50)
        ran.clear()
        assert queue.delete_many(held) == [True] * 50
        assert len(ran) < 10, ran
        assert not queue.send(b"7").duplicate


def test_messages_are_found_by_their_index_even_where_statistics_say_there_are_none(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    with penstock.open(url) as broker, psycopg.connect(url, autocommit=True) as vacuum:
        statements = broker.store.database.driver.statements
        vacuum.execute("ALTER TABLE penstock_message SET (autovacuum_enabled = off)")
        queue = broker.create("orders")
        queue.send_many([b"x" * 100] * 5000)
        queue.purge()
        vacuum.execute("VACUUM penstock_message")  # when the queue is empty for a moment
        queue.send_many([b"x" * 100] * 5000)
        known = "SELECT reltuples, relpages > 0 FROM pg_class WHERE oid = 'penstock_message'::regclass"
        assert vacuum.execute(known).fetchone() == (0, True)
    seen = set()
    of_the_whole = re.findall(r"-- name: (\w+)", (files("penstock.stores.sql") / "whole.sql").read_text())
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in PLANNING.items():
            connection.execute(f"SET {name} = {value}")  # type: ignore[call-overload]
        for name, text in statements.items():
            if b" penstock_message" not in text or name in of_the_whole:
                continue
            for scan in scans(plan(connection, text.decode())):
                where, index = scan.get("Index Cond", ""), scan.get("Index Name")
                wanted = {
                    "penstock_message_pkey": "(number " in where,
                    "penstock_ready": "(queue = " in where and "(number " not in where,
                    "penstock_group": "(queue = " in where,
                    None: scan["Node Type"] == "Tid Scan",
                }
                assert wanted[index], f"{name} goes through the whole table: {scan}"
                seen.add(index)
    assert seen == {"penstock_message_pkey", "penstock_ready", "penstock_group", None}


@pytest.mark.parametrize(("most", "wanted"), [(2**25, 1), (1000, 4)])
def test_a_publication_copies_on_while_its_messages_are_alike(
    postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch, most: int, wanted: int
) -> None:
    made: list[Copy] = []
    monkeypatch.setattr("penstock.stores.postgresql.shortcuts.COPY_BYTES", most)
    monkeypatch.setattr("penstock.stores.postgresql.driver.Copy", lambda connection: made.append(Copy(connection)) or made[-1])
    with penstock.open(postgresql.new_url()) as broker:
        queue = broker.create("q")
        named = stage(broker, {f"s{part}": [bytes(400), b"%d" % part] for part in range(8)})
        assert broker.publish("w", 0, named) == 16
        assert len(made) == wanted
        assert [message.body for message in queue.peek(99)][1::2] == [b"%d" % part for part in range(8)]
        assert all(message.intact for message in queue.peek(99))


def test_a_copy_ends_where_something_else_comes_between(postgresql: PostgresqlServer) -> None:
    with penstock.open(postgresql.new_url()) as broker:
        queue, other = broker.create("q"), broker.create("other")
        alike = stage(broker, {"a": [b"1", b"2"]}) | stage(broker, {"b": [b"3"]}, "other") | stage(broker, {"c": [b"4"]})
        own = stage(broker, {"d": [penstock.Draft(b"5", delay=0, attributes={"n": 1}), b"6"]})
        assert broker.publish("w", 0, alike | own | stage(broker, {"e": [b"7", b"8"]})) == 8
        assert [message.body for message in queue.peek(9)] == [b"1", b"2", b"4", b"5", b"6", b"7", b"8"]
        assert [message.body for message in other.peek(9)] == [b"3"]


@pytest.mark.parametrize("how", ["refused", "interrupted", "lost"])
@pytest.mark.parametrize("at", [1, 3, 7])
def test_a_copy_that_fails_is_a_publication_that_fails(
    postgresql: PostgresqlServer, monkeypatch: pytest.MonkeyPatch, how: str, at: int
) -> None:
    """In the server, which already has the number; in our own code; or in the connection."""
    with penstock.open(postgresql.new_url()) as broker:
        store, queue = broker.store, broker.create("q")
        insert_alike = PostgresqlShortcuts.insert_alike
        named = stage(broker, {f"s{part}": [b"%d" % part] for part in range(8)})
        pieces: list[int] = []

        def fail(shortcuts: PostgresqlShortcuts, row: tuple[Any, ...], bodies: list[bytes]) -> bool:
            pieces.append(row[0])
            if len(pieces) == at + 1 and how == "interrupted":
                raise KeyboardInterrupt
            if len(pieces) == at + 1 and how == "lost":
                with postgresql.connect() as side:
                    current = store.database.transactions.here.current
                    side.execute("SELECT pg_terminate_backend(%s)", [current.session.server_id[0]])
            return insert_alike(shortcuts, (pieces[0], *row[1:]) if how == "refused" else row, bodies)

        with monkeypatch.context() as patched:
            patched.setattr(PostgresqlShortcuts, "insert_alike", fail)
            with pytest.raises(KeyboardInterrupt if how == "interrupted" else penstock.StoreError):
                broker.publish("w", 0, named)
        assert len(pieces) > at
        assert queue.stats().messages == 0
        assert {found.name for found in store.outbox.staging.staged()} == named.keys()
        assert broker.publish("w", 0, named) == 8
        assert sorted(message.body for message in queue.peek(9)) == [b"%d" % part for part in range(8)]


def stage(broker: penstock.Broker, drafts: dict[str, list[Any]], queue: str = "q") -> dict[str, int]:
    for name, some in drafts.items():
        whole = [draft if isinstance(draft, penstock.Draft) else penstock.Draft(draft) for draft in some]
        broker.stage("w", 0, name, segments.pack_drafts(queue, whole))
    return {name: len(some) for name, some in drafts.items()}


def plan(connection: psycopg.Connection[Any], text: str) -> dict[str, Any]:
    """The server's plan for one of the store's statements, whatever its parameters."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)b", text)))
    for place, name in enumerate(names, 1):
        text = text.replace(f"%({name})b", f"${place}")
    kinds = {"numbers": "bigint[]", "checksums": "bigint[]", "bodies": "bytea[]"}
    kinds |= dict.fromkeys(("name", "reader", "settings", "reason"), "text")
    kinds |= dict.fromkeys(("grp", "mark", "head", "body", "holder"), "bytea")
    types = ", ".join(kinds.get(name, "bigint") for name in names)
    connection.execute(f"PREPARE planned ({types}) AS {text.replace('%%', '%')}")  # type: ignore[call-overload]
    nothing = ", ".join(["NULL"] * len(names))
    found = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE planned ({nothing})").fetchone()  # type: ignore[call-overload]
    connection.execute("DEALLOCATE planned")
    top: dict[str, Any] = found[0][0]["Plan"]
    return top


def scans(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a plan that look for messages."""
    if node.get("Relation Name") == "penstock_message" and "Scan" in node["Node Type"]:
        yield node
    for part in node.get("Plans", ()):
        yield from scans(part)


def test_a_server_that_does_not_sync_is_not_called_durable(postgresql: PostgresqlServer) -> None:
    with penstock.open(postgresql.new_url()) as broker:  # the tests' server runs with fsync=off
        assert broker.store.durable is False


def test_commits_wait_for_the_disk_whatever_the_default_is(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER ROLE penstock SET synchronous_commit = off")
        try:
            with penstock.open(url) as broker:
                assert broker.store.database._look("SHOW synchronous_commit") == [("on",)]  # type: ignore[attr-defined]
        finally:
            connection.execute("ALTER ROLE penstock RESET synchronous_commit")


def test_settings_that_are_spelled_otherwise_are_the_same_settings(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    with penstock.open(url) as broker, psycopg.connect(url, autocommit=True) as connection:
        queue = broker.create("orders")
        connection.execute("UPDATE penstock_queue SET settings = ' ' || settings")
        queue.send(b"1")
        queue.send_many([b"2", b"3"])
        held = queue.receive(2) + queue.receive(2)
        assert [message.body for message in held] == [b"1", b"2", b"3"]
        assert queue.delete_many(held) == [True] * 3


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://127.0.0.1/x?timeout=soon", "timeout is 'soon'"),
        ("postgresql://127.0.0.1/x?pool=0", "between 1 and 1000"),
        ("postgresql://127.0.0.1/x?statement_timeout=-1", "statement_timeout"),
        ("postgresql://127.0.0.1:port/x", "cannot be read"),
        ("postgresql://127.0.0.1/x?colour=red", "colour"),
        ("mysql://127.0.0.1", "mysql://user:password@host:port/database"),
        ("mysql://127.0.0.1/x?colour=red", "'colour'"),
        ("mysql://127.0.0.1:port/x", "cannot be read"),
    ],
)
def test_a_malformed_url_is_named_without_its_password(url: str, words: str) -> None:
    with pytest.raises(penstock.BadURL) as caught:
        penstock.open(url.replace("//", "//me:secret@"))
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "module", "extra"), [("postgresql", "psycopg", "postgres"), ("mysql", "pymysql", "mysql")])
def test_a_missing_driver_names_its_extra(scheme: str, module: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules['{module}'] = None\nimport penstock\n"
        f"try:\n    penstock.open('{scheme}://127.0.0.1/x')\nexcept penstock.MissingExtra as error:\n    print(error)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert answer == f'a {scheme}: store needs an optional library: pip install "penstock[{extra}]"\n'


@pytest.fixture
def exchanging(postgresql: PostgresqlServer) -> Iterator[tuple[penstock.Queue, list[penstock.Message], str]]:
    """A queue with two messages, held by a connection that has exchanged before, and its URL."""
    url = postgresql.new_url()
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(8)])
        yield queue, queue.exchange(queue.receive(2), 2)[1], url


def wait_for_a_lock(url: str) -> None:
    """Wait until a session of this database waits for another session's lock."""
    waiting = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(url, autocommit=True) as looking:
        while looking.execute(waiting).fetchone() == (0,):
            time.sleep(0.01)


@pytest.mark.timeout(120)
def test_an_exchange_that_is_interrupted_leaves_no_connection_in_its_middle(
    exchanging: tuple[penstock.Queue, list[penstock.Message], str],
) -> None:
    queue, held, url = exchanging
    with psycopg.connect(url) as side:
        side.execute("SELECT 1 FROM penstock_message WHERE number = %s FOR UPDATE", (held[0].number,))

        def interrupt() -> None:
            wait_for_a_lock(url)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
            side.rollback()

        interrupting = threading.Thread(target=interrupt)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # test workers ignore it
        try:
            interrupting.start()
            with pytest.raises(KeyboardInterrupt):
                queue.exchange(held, 2)
        finally:
            interrupting.join()
            signal.signal(signal.SIGINT, before)
    assert queue.exchange(queue.receive(1), 1)[0] == [True]


def test_a_deletion_whose_session_is_swept_meanwhile_says_what_it_did(
    exchanging: tuple[penstock.Queue, list[penstock.Message], str],
) -> None:
    queue, held, url = exchanging
    answers: list[list[bool]] = []
    with psycopg.connect(url) as side:
        side.execute("DELETE FROM penstock_session")
        deleting = threading.Thread(target=lambda: answers.append(queue.delete_many(held)))
        deleting.start()
        wait_for_a_lock(url)
        side.commit()
        deleting.join()
    assert (answers, queue.stats().messages) == ([[True, True]], 4)


def test_settings_that_change_in_the_middle_of_an_exchange_leave_nothing_taken_by_nobody(
    exchanging: tuple[penstock.Queue, list[penstock.Message], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, held, url = exchanging
    queue.update(deduplicate=True)
    queue.send_many([b"a", b"b", b"c"])
    queue.delete_many([*held, *queue.receive(4)])
    held = queue.receive(1)  # it has a mark, so the statement for plain messages does not delete it
    stored: Any = queue._opened.stored
    rest = stored._delete_rest

    def changed(*arguments: Any) -> Any:
        monkeypatch.setattr(stored, "_delete_rest", rest)
        with penstock.open(url) as other:
            other["orders"].update(visibility=60)
        return rest(*arguments)

    monkeypatch.setattr(stored, "_delete_rest", changed)
    answers, taken = queue.exchange(held, 2)
    assert (answers, len(taken)) == ([True], 2)
    assert queue.stats().in_flight == 2


def test_a_connection_whose_last_commit_cannot_be_resolved_is_not_lent_for_ever(
    exchanging: tuple[penstock.Queue, list[penstock.Message], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, held, _ = exchanging
    database: Any = queue._opened.store.database

    def lost(*_: object) -> None:
        raise penstock.StoreUnreachable("gone")

    def unknown(*_: object) -> None:
        raise penstock.OutcomeUnknown("and nobody knows")

    with monkeypatch.context() as patch, pytest.raises(penstock.OutcomeUnknown):
        patch.setattr(database.driver, "ask_together", lost)
        patch.setattr(database.transactions, "_was_committed", unknown)
        queue.exchange(held, 2)
    assert database.pool.lent() == []


def test_an_error_that_the_server_did_not_report_is_a_lost_connection(
    exchanging: tuple[penstock.Queue, list[penstock.Message], str],
) -> None:
    """psycopg may see that a socket is closed while libpq still takes the connection for a good one."""
    queue, _, _ = exchanging
    driver: Any = queue._opened.store.database.driver
    session = driver.open()
    with pytest.raises(penstock.StoreUnreachable), driver._translating(session):
        raise psycopg.OperationalError("connection socket closed")
    assert session.connection.closed


class TestNotifications:
    """No look now and then helps here: they come so seldom that it would take minutes."""

    @pytest.fixture(autouse=True)
    def seldom(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watching, "LOOK_EVERY", 100.0)
        monkeypatch.setattr(listener, "LOOK_EVERY", 100.0)

    def wait_and_listen(self, broker: LocalBroker) -> NotificationListener:
        """Have a thread wait until a message comes. Returns when others' messages would wake it."""
        threading.Thread(target=lambda: broker["orders"].receive(wait=90), daemon=True).start()
        until(lambda: (found := notifications(broker)._listener) is not None and found.heard > 0)
        heard = notifications(broker)._listener
        assert heard is not None
        return heard

    def test_a_message_of_another_process_wakes_by_its_notification(self, postgresql: PostgresqlServer) -> None:
        url = postgresql.new_url()
        with open_local(url) as broker, penstock.open(url) as other:
            broker.create("orders", visibility=600)  # who waits looks again when a message comes back
            for _ in range(3):
                self.wait_and_listen(broker)
                until(lambda: not broker.waiting.is_empty())
                other["orders"].send(b"x")
                until(broker.waiting.is_empty)

    def test_the_announcements_of_a_process_cost_it_no_look(self, postgresql: PostgresqlServer) -> None:
        url = postgresql.new_url()
        with open_local(url) as broker, open_local(url) as other, psycopg.connect(url, autocommit=True) as witness:
            broker.create("orders")
            busy, heard = broker.create("busy"), self.wait_and_listen(broker)
            witness.execute(f"LISTEN {CHANNEL}")
            before = heard.heard
            for _ in range(5):
                busy.send(b"x")
                assert list(witness.notifies(timeout=60, stop_after=1))
            assert heard.heard == before
            other["busy"].send(b"x")
            until(lambda: heard.heard == before + 1)
            other["orders"].send(b"x")
            until(broker.waiting.is_empty)


def notifications(broker: LocalBroker) -> Notifications:
    found = broker.store.database._listening  # type: ignore[attr-defined]
    assert isinstance(found, Notifications)
    return found
