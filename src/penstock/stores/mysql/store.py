"""The store on MySQL and MariaDB, through PyMySQL: as on PostgreSQL, but waiting receivers poll.

What these databases lack takes two steps. There is no UPDATE … RETURNING, so rows are locked and read, then changed. There is
no NOTIFY, so an announcement is a counter in an in-memory table that waiting receivers poll. There is no transactional DDL, so
an interrupted schema step is run again over what is already there.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections.abc import Generator, Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import BadInput, BadURL, MissingExtra, StoreBusy, StoreError, StoreFull, StoreReadOnly, StoreUnreachable
from penstock.guarded import guarded
from penstock.stores.dbserver.session import Session
from penstock.stores.dbserver.store import SqlServerStore
from penstock.stores.ports import Store
from penstock.stores.sql.session import Params, Row

try:
    import pymysql
    from pymysql.constants import CLIENT, CR, ER, SERVER_STATUS
    from pymysql.cursors import Cursor
except ImportError as error:
    raise MissingExtra("a mysql: store", "mysql") from error

MIGRATION_LOCK = "penstock schema"
LOOK_EVERY = 0.05
"""Seconds between two polls for announcements; each is a query."""
LOOK_ANYWAY = 1
"""Seconds after which a waiting receiver looks for messages in any case: the owner of a joined transaction commits it without
an announcement, and a sender may die before it announces."""
THERE_ALREADY = {ER.TABLE_EXISTS_ERROR, ER.DUP_KEYNAME, ER.DUP_FIELDNAME}
NO_SUCH_THREAD = ER.NO_SUCH_THREAD
LOST = {0, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_CONN_HOST_ERROR, CR.CR_CONNECTION_ERROR, ER.SERVER_SHUTDOWN}
LOST |= {1927, 4031}  # killed; idle for too long
BUSY = {ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK, ER.QUERY_INTERRUPTED, 1969, 3024}  # the last two: the statement took too long
FULL = {ER.RECORD_FILE_FULL, ER.DISK_FULL}
READ_ONLY = {ER.OPTION_PREVENTS_STATEMENT, 1792}


class MysqlStore(SqlServerStore):
    dialect: ClassVar = {
        "serial": "BIGINT AUTO_INCREMENT PRIMARY KEY",
        "integer": "BIGINT",
        "name": "VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "text": "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "key": "VARBINARY(512)",
        "blob": "LONGBLOB",
        "where_grouped": "",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        "for_update": "FOR UPDATE",
        "keep": "LOCK IN SHARE MODE",
        "passing": "",
        "insert_new": "INSERT IGNORE INTO",
        "unless_there": "",
        # `chosen` looks up each number: given a list, the server scans, and locks rows that others hold.
        "present": "penstock_message",
        "removed_later": "",
        "chosen": "JSON_TABLE(:numbers, '$[*]' COLUMNS (chosen BIGINT PATH '$')) AS chosen "
        "STRAIGHT_JOIN penstock_message FORCE INDEX (PRIMARY)",
        "among": "= chosen",
        "later": "GREATEST",
        "as_integer": "",
        "by_ready": "FORCE INDEX (penstock_ready)",
        "ready": "",
        "only_by_name": "",
        "message_held": "penstock_message",
        "penstock_message": "penstock_message",
        "as_blob": "",
    }
    _begin_reading = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"

    def __init__(self, url: str, *, timeout: float = 10, statement_timeout: float = 60, pool: int = 10) -> None:
        """See `PostgresqlStore`."""
        self._target = _read_url(url)
        self._statement_timeout = statement_timeout
        self._version = 0
        self._look_at = 0.0
        place = f"{self._target['host']}:{self._target['port']}"
        super().__init__(f"the MySQL database {self._target['database']} at {place}", timeout=timeout, pool=pool)

    # connections

    def _open(self) -> Session:
        try:
            connection = pymysql.connect(
                **self._target,
                autocommit=True,
                charset="utf8mb4",
                client_flag=CLIENT.FOUND_ROWS,
                connect_timeout=max(2, round(self._timeout)),
                read_timeout=self._statement_timeout + 5,
                write_timeout=self._statement_timeout + 5,
            )
        except (pymysql.Error, OSError) as error:
            raise self._translate(error, lost=True) from error
        # Identify the session by a lock that ends with the connection: after a server restart, another may have its number.
        session = Session(connection, f"penstock-{secrets.token_hex(16)}")
        try:
            settings = f"SELECT @@innodb_flush_log_at_trx_commit, @@version, GET_LOCK('{session.server_id}', 0)"
            flush, sync, _ = self._ask(session, settings)[0][0]
            self.durable = flush == 1
            wait = max(1, math.ceil(self._timeout))
            self._ask(session, f"SET SESSION innodb_lock_wait_timeout = {wait}, sql_mode = 'STRICT_TRANS_TABLES'")
            limit = (
                f"max_statement_time = {self._statement_timeout}"
                if "MariaDB" in sync
                else f"max_execution_time = {round(self._statement_timeout * 1000)}"
            )
            self._ask(session, f"SET SESSION {limit}")
            self._ask(session, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        except BaseException:
            self._shut(session)
            raise
        return session

    def _shut(self, session: Session) -> None:
        if session.connection.open:
            session.connection.close()

    def _prepared(self, text: str) -> str:
        return re.sub(r":(\w+)", r"%(\1)s", text.replace("%", "%%"))

    def _ask(self, session: Session, text: Any, params: Mapping[str, Any] | None = None) -> tuple[list[Row], int]:
        session.asking = True
        try:
            with session.connection.cursor(Cursor) as cursor:  # a caller's own connection may use another cursor class
                changed = cursor.execute(text, params)
                rows = list(cursor.fetchall())
            session.asking = False
            return rows, changed
        except (pymysql.Error, OSError) as error:
            session.asking = False
            raise self._translate(error, lost=not session.connection.open) from error

    def _ask_many(self, session: Session, name: str, rows: list[Mapping[str, Any]]) -> None:
        session.asking = True
        try:
            with session.connection.cursor(Cursor) as cursor:
                cursor.executemany(self._statements[name], rows)
            session.asking = False
        except (pymysql.Error, OSError) as error:
            session.asking = False
            raise self._translate(error, lost=not session.connection.open) from error

    def _end(self, side: Session, lost: Session) -> None:
        give_up_at = time.monotonic() + self._timeout
        while (number := self._ask(side, f"SELECT IS_USED_LOCK('{lost.server_id}')")[0][0][0]) is not None:
            if time.monotonic() > give_up_at:
                raise StoreBusy(f"{self}: the lost connection {number} did not end within {self._timeout} s")
            try:
                self._ask(side, f"KILL CONNECTION {number}")
            except StoreError as error:
                if not isinstance(error.__cause__, pymysql.Error) or error.__cause__.args[0] != NO_SUCH_THREAD:
                    raise
            time.sleep(0.005)

    def _ask_time(self, side: Session) -> int:
        return int(self._ask(side, "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)")[0][0][0])

    def _named(self, name: str, params: Params) -> Mapping[str, Any]:
        named = super()._named(name, params)
        return {**named, "numbers": json.dumps(named["numbers"])} if "numbers" in named else named

    @guarded
    def joining(self, connection: object) -> Generator[Store]:
        if not isinstance(connection, pymysql.connections.Connection) or not connection.open:
            raise BadInput(f"a transaction on {self} is joined by an open connection of PyMySQL's, not by {connection!r:.200}")
        if connection.encoding != "utf8":
            raise BadInput(f"{connection!r:.200} cannot spell every name: connect with charset='utf8mb4'")
        status: int = connection.server_status  # type: ignore[attr-defined]
        if connection.get_autocommit() and not status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
            raise BadInput(f"{connection!r:.200} is in no transaction: begin one, or turn its autocommit off")
        with self._joining(connection):
            yield self

    def _isolation(self, session: Session) -> str:
        names = "'transaction_isolation', 'tx_isolation'"  # the new name and the old: a server knows one, or both
        return str(self._ask(session, f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})")[0][0][1])

    def _is_no_table(self, error: BaseException | None) -> bool:
        return isinstance(error, pymysql.Error) and error.args[0] == ER.NO_SUCH_TABLE

    # the schema

    @guarded
    def _migrating(self) -> Generator[None]:
        with self.batch(durable=False):
            wait = max(1, math.ceil(self._timeout))
            if self._look(f"SELECT GET_LOCK('{MIGRATION_LOCK}', {wait})")[0][0] != 1:
                raise StoreBusy(f"{self}: another node has been changing the schema for more than {self._timeout} s")
            try:
                yield
                self._script("CREATE TABLE IF NOT EXISTS penstock_wake (id INT PRIMARY KEY, value BIGINT) ENGINE = MEMORY")
            finally:
                self._look(f"SELECT RELEASE_LOCK('{MIGRATION_LOCK}')")

    def _script(self, text: str) -> None:
        try:
            super()._script(text)
        except StoreError as error:
            if not isinstance(error.__cause__, pymysql.Error) or error.__cause__.args[0] not in THERE_ALREADY:
                raise

    def _has_schema(self) -> bool:
        # The meta table is created first and filled at once: while it is empty, there is no schema.
        there = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'penstock_meta'"
        return bool(self._look(there)) and bool(self._rows("meta", {"name": "number"}))

    def _create_meta(self) -> None:
        self._script("CREATE TABLE IF NOT EXISTS penstock_meta (name VARCHAR(64) PRIMARY KEY, value BIGINT NOT NULL)")

    # waking

    def _announce(self, side: Session) -> None:
        self._ask(side, "INSERT INTO penstock_wake (id, value) VALUES (1, 1) ON DUPLICATE KEY UPDATE value = value + 1")

    def version(self) -> int:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            rows = self._beside(lambda side: self._ask(side, "SELECT value FROM penstock_wake")[0])
            self._version = (int(rows[0][0]) if rows else 0) << 32 | int(now / LOOK_ANYWAY)
        return self._version

    def _translate(self, error: Exception, *, lost: bool) -> StoreError:
        code = error.args[0] if isinstance(error, pymysql.Error) and error.args else 0
        text = str(error.args[1] if len(error.args) > 1 else error)
        if code == ER.LOCK_DEADLOCK and self._here.work is not None:  # unlike all others, this ends the whole transaction
            self._here.work.undone = True
        if code in BUSY:
            return StoreBusy(f"{self} was locked by others, or a statement took too long: {text}")
        if code in FULL:
            return StoreFull(f"{self}: no space left on its disk")
        if code in READ_ONLY:
            return StoreReadOnly(f"{self} is read-only")
        if lost or code in LOST or isinstance(error, OSError):
            return StoreUnreachable(f"{self} cannot be reached: {text}")
        return StoreError(f"{self}: {text}")


def _read_url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadURL(f"the mysql: URL cannot be read: {error}") from None
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
