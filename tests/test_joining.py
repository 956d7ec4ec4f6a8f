"""Business rows and messages commit together: `connection=` joins the caller's transaction."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import apsw
import psycopg
import pymysql
import pytest

import penstock
from penstock.stores.requests import Claiming
from penstock.stores.sqlite.database import SqliteDatabase
from penstock.stores.sqlite.file import QueueFile
from penstock.testing.servers import MariadbServer, PostgresqlServer


class Business:
    """The caller's own connection to the database that the queue is in."""

    def __init__(self, url: str, connection: Any, begin: str | None) -> None:
        self.url = url
        self.connection = connection
        self._begin = begin
        self.execute("CREATE TABLE invoice (number INTEGER)")
        self.commit()

    def execute(self, text: str) -> Any:
        return self.connection.execute(text)

    def begin(self) -> None:
        if self._begin:
            self.execute(self._begin)
        self.execute("INSERT INTO invoice (number) VALUES (17)")

    def commit(self) -> None:
        if not self._begin:
            self.connection.commit()
        elif self.connection.in_transaction:
            self.connection.execute("COMMIT")

    def rollback(self) -> None:
        self.execute("ROLLBACK")

    def invoices(self) -> int:
        count = next(iter(self.execute("SELECT COUNT(*) FROM invoice")))[0]
        self.commit()
        return int(count)


class MariadbBusiness(Business):
    def execute(self, text: str) -> Any:
        with self.connection.cursor(pymysql.cursors.Cursor) as cursor:
            cursor.execute(text)
            return cursor.fetchall()


def connect(url: str, **options: Any) -> Any:
    """A PyMySQL connection with rows as dictionaries, which is common."""
    port, name = re.findall(r":(\d+)/(\w+)", url)[0]
    options = {"cursorclass": pymysql.cursors.DictCursor, "init_command": f"SET SESSION {READ_COMMITTED}"} | options
    return pymysql.connect(host="127.0.0.1", port=int(port), user="root", database=name, **options)


READ_COMMITTED = "TRANSACTION ISOLATION LEVEL READ COMMITTED"


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def business(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Business]:
    if request.param == "sqlite":
        connection = apsw.Connection(str(tmp_path / "shop.db"))
        yield Business(f"sqlite:///{tmp_path}/shop.db", connection, "BEGIN IMMEDIATE")
        connection.close()
    elif request.param == "mariadb":
        url = request.getfixturevalue("mariadb").new_url()
        with connect(url) as connection:
            yield MariadbBusiness(url, connection, None)
    else:
        url = request.getfixturevalue("postgresql").new_url()
        with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as connection:  # as Django's
            yield Business(url, connection, None)


def test_what_is_rolled_back_was_never_sent(business: Business) -> None:
    with penstock.open(business.url) as broker:
        queue = broker.create("orders")
        business.begin()
        queue.send(b"invoice 17", connection=business.connection)
        queue.send_many([b"1", b"2"], connection=business.connection)
        business.rollback()
        assert (business.invoices(), queue.stats().messages) == (0, 0)
        queue.send(b"after")
        assert queue.stats().messages == 1


def test_what_is_committed_is_sent_with_it(business: Business) -> None:
    with penstock.open(business.url) as broker:
        queue = broker.create("orders")
        queue.send(b"before")
        business.begin()
        queue.send(b"invoice 17", connection=business.connection)
        business.commit()
        queue.send(b"after")
        assert business.invoices() == 1
        assert [message.body for message in queue.receive(9)] == [b"before", b"invoice 17", b"after"]


def test_nobody_receives_before_the_commit(business: Business) -> None:
    with penstock.open(business.url) as broker:
        queue = broker.create("orders")
        business.begin()
        queue.send(b"invoice 17", connection=business.connection)
        assert queue.peek() == []
        business.commit()
        assert len(queue.receive(wait=10)) == 1


def test_a_delete_that_is_rolled_back_leaves_the_message_held(business: Business) -> None:
    with penstock.open(business.url) as broker:
        queue = broker.create("orders", history=60)
        queue.send_many([b"1", b"2"])
        one, two = queue.receive(2)
        business.begin()
        assert queue.delete(one, connection=business.connection) is True
        business.rollback()
        assert (queue.stats().in_flight, queue.stats().settled, business.invoices()) == (2, 0, 0)
        business.begin()
        assert queue.delete_many([one, two], connection=business.connection) == [True, True]
        business.commit()
        assert (queue.stats().messages, queue.stats().settled, business.invoices()) == (0, 2, 1)
        assert queue.delete(one) is False


def test_a_refused_send_leaves_the_callers_transaction_as_it_was(business: Business) -> None:
    with penstock.open(business.url) as broker:
        queue, gone = broker.create("orders"), broker.create("gone")
        broker.delete("gone")
        business.begin()
        with pytest.raises(penstock.BadMessage):
            queue.send("text", connection=business.connection)  # type: ignore[arg-type]
        with pytest.raises(penstock.QueueNotFound):
            gone.send(b"x", connection=business.connection)
        business.commit()
        assert business.invoices() == 1


def test_duplicates_and_groups_count_in_the_callers_transaction_too(business: Business) -> None:
    with penstock.open(business.url) as broker:
        queue = broker.create("orders", deduplicate=True, groups=True)
        business.begin()
        assert queue.send(b"x", group="a", connection=business.connection).duplicate is False
        assert queue.send(b"x", group="a", connection=business.connection).duplicate is True
        queue.send(b"y", group="a", connection=business.connection)
        business.commit()
        assert queue.send(b"x").duplicate is True
        assert [message.body for message in queue.receive(9)] == [b"x"]


def test_a_connection_that_is_in_no_transaction_is_refused(business: Business) -> None:
    with penstock.open(business.url) as broker:
        queue = broker.create("orders")
        if isinstance(business.connection, psycopg.Connection):
            business.connection.autocommit = True
        elif isinstance(business, MariadbBusiness):
            business.connection.autocommit(True)
        with pytest.raises(penstock.BadInput, match="in no transaction"):
            queue.send(b"x", connection=business.connection)
        assert queue.stats().messages == 0


def test_a_connection_to_elsewhere_is_refused(
    business: Business, tmp_path: Path, postgresql: PostgresqlServer, mariadb: MariadbServer
) -> None:
    with penstock.open(business.url) as broker:
        queue = broker.create("orders")
        with pytest.raises(penstock.BadInput, match="not by 'text'"):
            queue.send(b"x", connection="text")
        if isinstance(business.connection, psycopg.Connection):
            for other in (postgresql.url, postgresql.new_url()):
                with psycopg.connect(other) as connection, pytest.raises(penstock.BadInput, match="no connection to"):
                    queue.send(b"x", connection=connection)
        elif isinstance(business, MariadbBusiness):
            other = mariadb.new_url()
            with connect(other) as connection, pytest.raises(penstock.BadInput, match="no connection to"):
                queue.send(b"x", connection=connection)
            with penstock.open(other), connect(other) as connection, pytest.raises(penstock.BadInput, match="no connection to"):
                queue.send(b"x", connection=connection)
            with connect(business.url, charset="latin1") as connection, pytest.raises(penstock.BadInput, match="utf8mb4"):
                queue.send(b"x", connection=connection)
            with pytest.raises(penstock.BadInput, match="not by"):
                queue.send(b"x", connection=connection)  # the connection is closed
        else:
            connection = apsw.Connection(str(tmp_path / "other.db"))
            with pytest.raises(penstock.BadInput, match=r"other\.db"):
                queue.send(b"x", connection=connection)
            connection.close()
        assert queue.stats().messages == 0


def test_a_connection_is_refused_inside_a_batch(business: Business) -> None:
    with penstock.open(business.url) as broker:
        queue = broker.create("orders")
        business.execute("BEGIN")
        with broker.store.batch(), pytest.raises(penstock.BadInput, match="in a batch"):
            queue.send(b"x", connection=business.connection)
        business.rollback()
        assert queue.stats().messages == 0


@pytest.mark.timeout(60)
def test_who_waits_is_woken_by_the_callers_commit(business: Business, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(business.url) as broker, penstock.open(business.url) as other:
        queue = broker.create("orders")
        received: list[penstock.Message] = []
        waiting = Thread(target=lambda: received.extend(other["orders"].receive(wait=600)), daemon=True)
        looked, rest = Event(), other.waiting.rest

        def found_nothing(name: str, events: int, until: float) -> None:
            looked.set()
            rest(name, events, until)

        monkeypatch.setattr(other.waiting, "rest", found_nothing)
        business.begin()
        queue.send(b"invoice 17", connection=business.connection)
        waiting.start()
        looked.wait()
        business.commit()
        waiting.join()
        assert [message.body for message in received] == [b"invoice 17"]


@pytest.mark.parametrize("settings", [{"groups": True}, {"deduplicate": True}])
@pytest.mark.parametrize("business", ["postgresql", "mariadb"], indirect=True)
def test_a_transaction_that_sees_only_the_past_cannot_tell_groups_and_duplicates(
    business: Business, settings: dict[str, bool]
) -> None:
    """It would see a group as empty, or a message as the first of its kind, although others have sent since it began."""
    with penstock.open(business.url) as broker:
        queue, plain = broker.create("orders", **settings), broker.create("plain")
        business.commit()
        level = "TRANSACTION ISOLATION LEVEL REPEATABLE READ"
        business.execute(f"SET SESSION {level}" if isinstance(business, MariadbBusiness) else f"SET {level}")
        business.begin()
        queue.send(b"first", group="a")
        with pytest.raises(penstock.BadInput, match=r"'orders'.*READ COMMITTED"):
            queue.send(b"first", group="a", connection=business.connection)
        (held,) = queue.receive()
        if queue.settings.groups:
            with pytest.raises(penstock.BadInput, match=r"'orders'.*READ COMMITTED"):
                queue.delete(held, connection=business.connection)
        plain.send(b"plain", connection=business.connection)
        business.commit()
        assert (business.invoices(), queue.stats().messages, plain.stats().messages) == (1, 1, 1)


def test_a_store_that_cannot_join_says_so() -> None:
    with penstock.open("memory:") as broker, pytest.raises(penstock.Unsupported, match="SQLite, PostgreSQL and MariaDB"):
        broker.create("orders").send(b"x", connection=object())


def test_the_callers_commit_waits_for_the_disk_as_before(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    with penstock.open(url) as broker, psycopg.connect(url) as connection:
        broker.create("orders").send(b"invoice 17", connection=connection)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_what_a_batch_that_was_undone_had_claimed_does_not_count_in_the_callers_transaction(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(url) as broker, penstock.open(url) as other:
        queue = broker.create("orders")
        queue.send(b"x")
        with pytest.raises(RuntimeError), broker.store.batch():
            broker.store.queue("orders").claim(Claiming(1, 2**61, None))
            raise RuntimeError
        (message,) = other["orders"].receive()
        connection = apsw.Connection(f"{tmp_path}/queue.db")
        connection.execute("BEGIN IMMEDIATE")
        assert queue.delete(message.receipt, connection=connection)
        connection.execute("COMMIT")
        connection.close()


def test_a_joined_send_waits_for_no_thread_that_waits_for_its_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Event()
    wait = QueueFile.wait_for_others

    def tell_and_wait(file: QueueFile, tries: int) -> bool:
        waiting.set()
        return wait(file, tries)

    monkeypatch.setattr(QueueFile, "wait_for_others", tell_and_wait)
    errors: list[Exception] = []

    def send() -> None:
        try:
            queue.send(b"plain")
        except penstock.StoreError as error:
            errors.append(error)

    with penstock.open(f"sqlite:///{tmp_path}/shop.db", timeout=3) as broker:
        queue = broker.create("orders")
        shop = apsw.Connection(f"{tmp_path}/shop.db")
        shop.execute("BEGIN IMMEDIATE")
        other = Thread(target=send)
        other.start()
        waiting.wait()  # it holds the store's lock, and waits for the file's
        queue.send(b"joined", connection=shop)
        shop.execute("COMMIT")
        shop.close()
        other.join()
        assert errors == []
        assert {message.body for message in queue.receive(9)} == {b"joined", b"plain"}


def test_a_connection_of_the_other_copy_of_sqlite_is_refused_and_told_why(tmp_path: Path) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/shop.db") as broker:
        queue = broker.create("orders")
        connection = sqlite3.connect(tmp_path / "other.db")  # never the same file, which is dangerous
        with pytest.raises(penstock.BadInput, match=r"second copy of SQLite.*apsw\.Connection"):
            queue.send(b"x", connection=connection)
        connection.close()
        assert queue.stats().messages == 0


def test_an_interrupted_joined_send_leaves_the_callers_connection_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/shop.db") as broker:
        queue = broker.create("orders")
        shop = apsw.Connection(f"{tmp_path}/shop.db")
        shop.execute("BEGIN IMMEDIATE")

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(SqliteDatabase, "many", interrupt)
            queue.send_many([b"1", b"2"], connection=shop)
        queue.send(b"3", connection=shop)
        shop.execute("COMMIT")
        shop.close()
        assert [message.body for message in queue.receive(9)] == [b"3"]
