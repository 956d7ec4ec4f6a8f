"""Connections to PostgreSQL, through psycopg.

Commits wait for the disk whatever the server's default is. Claims do too: unlike with an embedded store, clients survive a
crash of the server, and a lost claim would leave two of them with the same receipt.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from penstock.errors import BadInput, MissingExtra, StoreBusy, StoreError, StoreFull, StoreReadOnly, StoreUnreachable
from penstock.patience import Patience
from penstock.stores.dbserver.driver import Driver, RowsAndCount, Session
from penstock.stores.ports import Segment
from penstock.stores.postgresql.copying import HEADER, TRAILER, copy_rows, read_value
from penstock.stores.postgresql.words import TEXTS, WORDS
from penstock.stores.sql.rows import INSERTED, Row
from penstock.stores.sql.statements import parameters_of, read_sql
from penstock.urls import unreadable

try:
    import psycopg
    from psycopg import errors, sql
    from psycopg.abc import Buffer
    from psycopg.copy import LibpqWriter
    from psycopg.generators import copy_to
    from psycopg.pq import PipelineStatus, TransactionStatus
    from psycopg.rows import tuple_row

    from penstock.stores.postgresql.prepared import Prepared, ask_together, command
except ImportError as error:
    raise MissingExtra("a postgresql: store", "postgres") from error

MIGRATION_LOCK = 0x70656E73746F636B
"""The advisory lock for schema changes: 'penstock' in ASCII."""
CHANNEL = "penstock"
PLANNING = {"enable_bitmapscan": "off", "enable_seqscan": "off", "jit": "off", "plan_cache_mode": "force_generic_plan"}
"""Every statement uses an index, in its order. With statistics that are always outdated, the planner would sometimes read and
sort a whole queue to find its first messages."""
OFTEN = frozenset({"insert_with_token", "insert_many_with_token", "delete_with_token", "claim_at_once", "living"})
"""The statements of a busy queue."""
COPY = f"COPY penstock_message ({', '.join(INSERTED)}, state, receives, delivery) FROM STDIN (FORMAT BINARY)".encode()
PART = 128 * 1024
SURPRISES = (AssertionError, ValueError)
"""What psycopg raises when it gets more answers than it asked for, as when a server panics, or when it was interrupted."""
TUNED = {
    # A queue's rows live for seconds: vacuum by their number, not by their share of a table that is mostly dead rows.
    "penstock_message": "autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000, "
    "autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 20000, vacuum_truncate = off",
    # Staged segments are read once and deleted: make room for the next batch soon.
    "penstock_staged": "toast.autovacuum_vacuum_scale_factor = 0.0, toast.autovacuum_vacuum_threshold = 2000, "
    "toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = off",
    # One small row per connection, written with every commit: keep room for its next version on the same page.
    "penstock_session": "autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000, fillfactor = 10",
}


class Writer(LibpqWriter):
    """Waits until each chunk is sent. The driver's own writer buffers without limit what the server does not accept yet, and
    moves the whole buffer whenever some of it is sent."""

    def write(self, data: Buffer) -> None:
        whole = memoryview(data)
        for start in range(0, len(whole), PART):
            self.connection.wait(copy_to(self._pgconn, whole[start : start + PART], flush=True))


class Copy:
    """Messages being inserted by a COPY that continues until it is ended, or fails."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.size = 0
        self._open = ExitStack()
        cursor = psycopg.Cursor(connection)
        self._copy = self._open.enter_context(cursor.copy(COPY, writer=Writer(cursor)))
        self.write([HEADER])

    def write(self, parts: Iterable[bytes]) -> None:
        with self._open:
            for part in parts:
                self._copy.write(part)
                self.size += len(part)
            self._open = self._open.pop_all()

    def end(self) -> None:
        with self._open:
            self._copy.write(TRAILER)


class PostgresqlDriver(Driver):
    """Owns how a connection is opened, and the statements that each connection prepares."""

    begin_reading = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)
    at_once = frozenset({"queue", "claim_at_once"})

    def __init__(self, url: str, patience: Patience, *, statement_timeout: float) -> None:
        try:
            known = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise unreadable(url, str(error).strip()) from None
        if not str(known.get("port") or "0").replace(",", "").isdigit():
            raise unreadable(url, f"port {known['port']!r:.80} is no number")
        self.patience = patience
        self._url, self._options = url, known.get("options", "")
        self._settings = {
            "lock_timeout": round(patience.timeout * 1000),
            "statement_timeout": round(statement_timeout * 1000),
            "idle_in_transaction_session_timeout": round(statement_timeout * 1000),
            **PLANNING,
        }
        place = known.get("host") or "localhost"
        self._name = f"the PostgreSQL database {known.get('dbname', '')} at {place}:{known.get('port') or 5432}"
        self.steps, texts = read_sql(WORDS, TEXTS)
        self.parameters = {name: parameters_of(text) for name, text in texts.items()}
        self.statements = {name: _with_placeholders(text) for name, text in texts.items()}
        self._often = {self.statements[name]: Prepared(name, self.statements[name]) for name in OFTEN}

    def __str__(self) -> str:
        return self._name

    # connections

    def open(self) -> Session:
        settings = " ".join(f"-c {name}={value}" for name, value in self._settings.items())
        try:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                prepare_threshold=2,
                connect_timeout=max(2, round(self.patience.timeout)),
                application_name="penstock",
                client_encoding="UTF8",
                options=f"{self._options} {settings}",
                keepalives_idle=30,
                tcp_user_timeout=60_000,
            )
        except psycopg.Error as error:
            raise self._translate(error, lost=True) from error
        try:
            row = connection.execute(
                # Use the function: the view around it loads half the catalogue into every new backend.
                "SELECT pid, backend_start::text, current_setting('synchronous_commit'), current_setting('fsync') "
                "FROM pg_stat_get_activity(pg_backend_pid())"
            ).fetchone()
            assert row is not None
            pid, started, commit, fsync = row
            if commit in ("off", "local"):
                connection.execute("SET synchronous_commit = on")
            self.durable = fsync == "on"
        except psycopg.Error as error:
            connection.close()
            raise self._translate(error, lost=True) from error
        return Session(connection, (pid, started))

    def shut(self, session: Session) -> None:
        session.connection.close()

    # statements

    def ask(self, session: Session, text: Any, params: Mapping[str, Any] | None = None) -> RowsAndCount:
        if session.copy is not None:
            self.end_copy(session)
        session.asking, handled = True, sys.exc_info()[1]
        try:
            often = self._often.get(text)
            if often is not None and params is not None and session.server_id is not None:  # None: the caller's own connection
                answer = often.ask(session.connection, session.prepared, params)
            else:
                cursor = psycopg.Cursor(session.connection, row_factory=tuple_row).execute(text, params, binary=True)
                # Not connection.cursor(), of any kind if it is a caller's; nor cursor.description, an object for each column.
                rows = cursor.fetchall() if cursor.pgresult and cursor.pgresult.nfields else []
                answer = rows, cursor.rowcount
            session.asking = False
            return answer
        except psycopg.Error as error:
            raise self._failed(session, error, handled) from error

    def ask_together(self, session: Session, asked: list[tuple[str, Mapping[str, Any]]]) -> list[RowsAndCount]:
        """Run statements of `OFTEN` in a transaction of their own, in one round trip."""
        with self._translating(session):
            prepared = [(self._often[self.statements[name]], params) for name, params in asked]
            return ask_together(session.connection, session.prepared, prepared)

    def command(self, session: Session, text: str) -> None:
        """Not by a cursor, which discards all prepared statements of the connection after a ROLLBACK or an ALTER."""
        if session.server_id is None:  # the caller's: its prepared statements are not ours
            self.ask(session, text)
            return
        self.end_copy(session)
        with self._translating(session):
            command(session.connection, text)

    def ask_many(self, session: Session, name: str, rows: list[Row]) -> None:
        if name == "insert" and len(rows) > 1:
            self.copy(session, copy_rows(rows))
            self.end_copy(session)
            return
        self.end_copy(session)
        names = self.parameters[name]
        with self._translating(session), psycopg.Cursor(session.connection) as cursor:
            cursor.executemany(self.statements[name], [dict(zip(names, row, strict=True)) for row in rows])

    def list_of(self, numbers: list[int]) -> list[int]:
        return numbers

    def copy(self, session: Session, parts: Iterable[bytes]) -> None:
        """Insert rows by a COPY, and leave it open: another call continues it without a wait, any other statement ends it."""
        copy, session.copy = session.copy, None
        with self._translating(session):
            copy = copy or Copy(session.connection)
            copy.write(parts)
        session.copy = copy

    def end_copy(self, session: Session) -> None:
        copy, session.copy = session.copy, None
        if copy is not None:
            with self._translating(session):
                copy.end()

    @contextmanager
    def _translating(self, session: Session) -> Iterator[None]:
        session.asking, handled = True, sys.exc_info()[1]
        try:
            yield
            session.asking = False
        except (psycopg.Error, *SURPRISES) as error:
            raise self._failed(session, error, handled) from error

    def _failed(self, session: Session, error: Exception, handled: BaseException | None) -> BaseException:
        """The exception to raise for one of psycopg's. If psycopg raised it while ending an interrupted statement, that is the
        interrupt, and the session stays in the middle of a statement."""
        before = error.__context__
        while before is not None and before is not handled:
            if not isinstance(before, Exception):
                return before
            before = before.__context__
        pgconn = session.connection.pgconn
        session.asking = (
            pgconn.transaction_status is TransactionStatus.ACTIVE or pgconn.pipeline_status is not PipelineStatus.OFF
        )
        # An error without a code is not the server's: psycopg may see that the socket is gone before libpq does.
        surprised = not isinstance(error, psycopg.Error)
        lost = (
            surprised or session.connection.closed or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None)
        )
        if lost:
            session.connection.close()
        return self._translate(error, lost=lost)

    def _translate(self, error: Exception, *, lost: bool) -> StoreError:
        text = str(error).strip().replace("\n", " ")
        if lost:  # whatever the server said before: the commit may have been made
            return StoreUnreachable(f"{self} cannot be reached: {text}")
        match error:
            case errors.LockNotAvailable() | errors.DeadlockDetected():
                return StoreBusy(f"{self} was locked by others for more than {self.patience.timeout} s: {text}")
            case errors.QueryCanceled():
                return StoreBusy(f"{self}: a statement took too long: {text}")
            case errors.DiskFull():
                return StoreFull(f"{self}: no space left on its disk")
            case errors.ReadOnlySqlTransaction():
                return StoreReadOnly(f"{self} is read-only")
        return StoreError(f"{self}: {text}")

    def fetch(self, session: Session, fields: dict[str, Any]) -> Segment | None:
        text = sql.SQL("COPY (SELECT segment FROM penstock_staged WHERE {}) TO STDOUT (FORMAT BINARY)").format(
            sql.SQL(" AND ").join(sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in fields.items())
        )
        with self._translating(session), session.connection.cursor() as cursor, cursor.copy(text) as copy:
            return read_value(copy)

    def reserve_numbers(self, side: Session, count: int) -> int:
        return int(self.ask(side, self.statements["reserve_numbers"], {"count": count})[0][0][0])

    def end(self, side: Session, lost: Session) -> None:
        pid, started = lost.server_id
        fields = {"pid": pid, "started": started}
        living = b"FROM pg_stat_activity WHERE pid = %(pid)s AND backend_start::text = %(started)s"
        self.ask(side, b"SELECT pg_terminate_backend(pid) " + living, fields)
        for _ in self.patience.tries(0.005):
            if not self.ask(side, b"SELECT 1 " + living, fields)[0]:
                return
        raise StoreBusy(f"{self}: the lost connection {pid} did not end within {self.patience.timeout} s")

    def announce(self, session: Session, *, in_transaction: bool = False) -> None:
        if in_transaction:
            self.ask(session, f"NOTIFY {CHANNEL}")
        else:
            # A NOTIFY is a commit, but need not wait for the disk: a crash of the server disconnects all listeners anyway.
            self.command(session, f"SELECT set_config('synchronous_commit', 'off', true), pg_notify('{CHANNEL}', '')")

    # joining a transaction of the caller's

    def check_joinable(self, connection: object) -> None:
        if not isinstance(connection, psycopg.Connection) or connection.closed:
            raise BadInput(f"a transaction on {self} is joined by an open connection of psycopg's, not by {connection!r:.200}")
        if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
            raise BadInput(f"{connection!r:.200} is in no transaction: begin one, or turn its autocommit off")

    def isolation(self, session: Session) -> str:
        return str(self.ask(session, "SHOW transaction_isolation")[0][0][0])

    def is_no_table(self, error: BaseException | None) -> bool:
        return isinstance(error, errors.UndefinedTable)

    # the schema

    def lock_schema(self, session: Session) -> None:
        self.command(session, f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")

    def unlock_schema(self, session: Session, *, done: bool) -> None:
        if done:  # the lock ends with the transaction
            for table, settings in TUNED.items():
                self.command(session, f"ALTER TABLE {table} SET ({settings})")
            # Compression costs too much.
            self.command(session, "ALTER TABLE penstock_staged ALTER COLUMN segment SET STORAGE EXTERNAL")

    def has_schema(self, session: Session) -> bool:
        # Not to_regclass: its cache may miss a table that another node created while we waited for the lock.
        text = "SELECT 1 FROM pg_tables WHERE tablename = 'penstock_meta' AND schemaname = ANY(current_schemas(false))"
        return bool(self.ask(session, text)[0])

    def create_meta(self, session: Session) -> None:
        self.command(session, "CREATE TABLE penstock_meta (name TEXT PRIMARY KEY, value BIGINT NOT NULL)")

    def script(self, session: Session, text: str) -> None:
        self.command(session, text)


def _with_placeholders(text: str) -> bytes:
    return re.sub(r"(?<!:):(\w+)", r"%(\1)b", text.replace("%", "%%")).encode()
