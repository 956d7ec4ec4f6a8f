"""Connections to MySQL and MariaDB, through PyMySQL.

What these databases lack takes two steps. There is no UPDATE … RETURNING, so rows are locked and read, then changed. There is
no transactional DDL, so an interrupted schema step is run again over what is already there.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import BadInput, BadURL, MissingExtra, StoreBusy, StoreError, StoreFull, StoreReadOnly, StoreUnreachable
from penstock.patience import Patience
from penstock.stores.dbserver.driver import Driver, RowsAndCount, Session
from penstock.stores.mysql.words import TEXTS, WORDS
from penstock.stores.ports import Segment
from penstock.stores.sql.rows import Row
from penstock.stores.sql.statements import parameters_of, read_sql
from penstock.urls import unreadable

try:
    import pymysql
    from pymysql.constants import CLIENT, CR, ER, SERVER_STATUS
    from pymysql.cursors import Cursor
except ImportError as error:
    raise MissingExtra("a mysql: store", "mysql") from error

MIGRATION_LOCK = "penstock schema"
THERE_ALREADY = {ER.TABLE_EXISTS_ERROR, ER.DUP_KEYNAME, ER.DUP_FIELDNAME}
NO_SUCH_THREAD = ER.NO_SUCH_THREAD
LOST = {0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_CONN_HOST_ERROR, CR.CR_CONNECTION_ERROR, ER.SERVER_SHUTDOWN}
LOST |= {1927, 4031}  # killed; idle for too long
BUSY = {ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK, ER.QUERY_INTERRUPTED, 1969, 3024}  # the last two: the statement took too long
FULL = {ER.RECORD_FILE_FULL, ER.DISK_FULL}
READ_ONLY = {ER.OPTION_PREVENTS_STATEMENT, 1792}


class MysqlDriver(Driver):
    """Owns how a connection is opened."""

    # The first is for the next transaction only. At the level of the session, READ COMMITTED, there is no snapshot.
    begin_reading = ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    at_once = frozenset()

    def __init__(self, url: str, patience: Patience, *, statement_timeout: float) -> None:
        self.patience = patience
        self._target = _read_url(url)
        self._statement_timeout = statement_timeout
        self.steps, texts = read_sql(WORDS, TEXTS)
        self.parameters = {name: parameters_of(text) for name, text in texts.items()}
        self.statements = {name: re.sub(r":(\w+)", r"%(\1)s", text.replace("%", "%%")) for name, text in texts.items()}

    def __str__(self) -> str:
        return f"the MySQL database {self._target['database']} at {self._target['host']}:{self._target['port']}"

    # connections

    def open(self) -> Session:
        try:
            connection = pymysql.connect(
                **self._target,
                autocommit=True,
                charset="utf8mb4",
                client_flag=CLIENT.FOUND_ROWS,
                connect_timeout=max(2, round(self.patience.timeout)),
                read_timeout=self._statement_timeout + 5,
                write_timeout=self._statement_timeout + 5,
            )
        except (pymysql.Error, OSError) as error:
            raise self._translate(error, lost=True) from error
        # Identify the session by a lock that ends with the connection: after a server restart, another may have its number.
        session = Session(connection, f"penstock-{secrets.token_hex(16)}")
        try:
            settings = f"SELECT @@innodb_flush_log_at_trx_commit, @@version, GET_LOCK('{session.server_id}', 0)"
            flush, version, _ = self.ask(session, settings)[0][0]
            self.durable = flush == 1
            wait = max(1, math.ceil(self.patience.timeout))
            self.ask(session, f"SET SESSION innodb_lock_wait_timeout = {wait}, sql_mode = 'STRICT_TRANS_TABLES'")
            limit = (
                f"max_statement_time = {self._statement_timeout}"
                if "MariaDB" in version
                else f"max_execution_time = {round(self._statement_timeout * 1000)}"
            )
            self.ask(session, f"SET SESSION {limit}")
            self.ask(session, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        except BaseException:
            self.shut(session)
            raise
        return session

    def shut(self, session: Session) -> None:
        if session.connection.open:
            session.connection.close()

    # statements

    def ask(self, session: Session, text: Any, params: Mapping[str, Any] | None = None) -> RowsAndCount:
        session.asking = True
        try:
            with session.connection.cursor(Cursor) as cursor:  # a caller's own connection may use another cursor class
                changed = cursor.execute(text, params)
                rows = list(cursor.fetchall())
            session.asking = False
            return rows, changed
        except (pymysql.Error, OSError) as error:
            raise self._failed(session, error) from error

    def command(self, session: Session, text: str) -> None:
        self.ask(session, text)

    def ask_many(self, session: Session, name: str, rows: list[Row]) -> None:
        names = self.parameters[name]
        session.asking = True
        try:
            with session.connection.cursor(Cursor) as cursor:
                cursor.executemany(self.statements[name], [dict(zip(names, row, strict=True)) for row in rows])
            session.asking = False
        except (pymysql.Error, OSError) as error:
            raise self._failed(session, error) from error

    def _failed(self, session: Session, error: Exception) -> StoreError:
        session.asking = False
        session.deadlocked |= _code(error) == ER.LOCK_DEADLOCK  # unlike all others, this ends the whole transaction
        return self._translate(error, lost=not session.connection.open)

    def _translate(self, error: Exception, *, lost: bool) -> StoreError:
        code = _code(error)
        text = str(error.args[1] if len(error.args) > 1 else error)
        if code in BUSY:
            return StoreBusy(f"{self} was locked by others, or a statement took too long: {text}")
        if code in FULL:
            return StoreFull(f"{self}: no space left on its disk")
        if code in READ_ONLY:
            return StoreReadOnly(f"{self} is read-only")
        if lost or code in LOST or isinstance(error, OSError):
            return StoreUnreachable(f"{self} cannot be reached: {text}")
        return StoreError(f"{self}: {text}")

    def list_of(self, numbers: list[int]) -> str:
        return json.dumps(numbers)

    def fetch(self, session: Session, fields: dict[str, Any]) -> Segment | None:
        rows, _ = self.ask(session, self.statements["fetch"], fields)
        return rows[0][0] if rows else None

    def reserve_numbers(self, side: Session, count: int) -> int:
        self.command(side, "BEGIN")
        self.ask(side, self.statements["add_to_meta"], {"count": count, "name": "number"})
        last = int(self.ask(side, self.statements["meta"], {"name": "number"})[0][0][0])
        self.command(side, "COMMIT")
        return last

    def end(self, side: Session, lost: Session) -> None:
        for _ in self.patience.tries(0.005):
            number = self.ask(side, f"SELECT IS_USED_LOCK('{lost.server_id}')")[0][0][0]
            if number is None:
                return
            try:
                self.ask(side, f"KILL CONNECTION {number}")
            except StoreError as error:
                if _code(error.__cause__) != NO_SUCH_THREAD:
                    raise
        raise StoreBusy(f"{self}: the lost connection {number} did not end within {self.patience.timeout} s")

    def announce(self, session: Session, *, in_transaction: bool = False) -> None:
        if not in_transaction:  # the counter is in a table without transactions: others would look before the commit
            text = "INSERT INTO penstock_wake (id, value) VALUES (1, 1) ON DUPLICATE KEY UPDATE value = value + 1"
            self.ask(session, text)

    # joining a transaction of the caller's

    def check_joinable(self, connection: object) -> None:
        if not isinstance(connection, pymysql.connections.Connection) or not connection.open:
            raise BadInput(f"a transaction on {self} is joined by an open connection of PyMySQL's, not by {connection!r:.200}")
        if connection.encoding != "utf8":
            raise BadInput(f"{connection!r:.200} cannot spell every name: connect with charset='utf8mb4'")
        status: int = connection.server_status  # type: ignore[attr-defined]
        if connection.get_autocommit() and not status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
            raise BadInput(f"{connection!r:.200} is in no transaction: begin one, or turn its autocommit off")

    def isolation(self, session: Session) -> str:
        names = "'transaction_isolation', 'tx_isolation'"  # the new name and the old: a server knows one, or both
        return str(self.ask(session, f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})")[0][0][1])

    def is_no_table(self, error: BaseException | None) -> bool:
        return _code(error) == ER.NO_SUCH_TABLE

    # the schema

    def lock_schema(self, session: Session) -> None:
        wait = max(1, math.ceil(self.patience.timeout))
        if self.ask(session, f"SELECT GET_LOCK('{MIGRATION_LOCK}', {wait})")[0][0][0] != 1:
            raise StoreBusy(f"{self}: another node has been changing the schema for more than {self.patience.timeout} s")

    def unlock_schema(self, session: Session, *, done: bool) -> None:
        try:
            if done:
                text = "CREATE TABLE IF NOT EXISTS penstock_wake (id INT PRIMARY KEY, value BIGINT) ENGINE = MEMORY"
                self.command(session, text)
        finally:
            self.ask(session, f"SELECT RELEASE_LOCK('{MIGRATION_LOCK}')")

    def has_schema(self, session: Session) -> bool:
        # The meta table is created first and filled at once: while it is empty, there is no schema.
        there = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'penstock_meta'"
        return bool(self.ask(session, there)[0]) and bool(self.ask(session, self.statements["meta"], {"name": "number"})[0])

    def create_meta(self, session: Session) -> None:
        text = "CREATE TABLE IF NOT EXISTS penstock_meta (name VARCHAR(64) PRIMARY KEY, value BIGINT NOT NULL)"
        self.command(session, text)

    def script(self, session: Session, text: str) -> None:
        try:
            self.command(session, text)
        except StoreError as error:
            if _code(error.__cause__) not in THERE_ALREADY:
                raise


def _code(error: BaseException | None) -> int:
    """MySQL's number of an error; 0 if it has none."""
    return int(error.args[0]) if isinstance(error, pymysql.Error) and error.args and isinstance(error.args[0], int) else 0


def _read_url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise unreadable(url, error) from None
    database = unquote(parts.path).removeprefix("/")
    if not parts.hostname or not database or "/" in database or parts.fragment:
        raise BadURL("write mysql://user:password@host:port/database")
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        raise BadURL(f"a mysql: URL has no option {name!r}; there are pool, statement_timeout, timeout")
    return {
        "host": parts.hostname,
        "port": port or 3306,
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password or ""),
        "database": database,
    }
