"""A queue file as a `Database`: one connection, on which all threads of a process take turns.

WAL with full sync: a commit is on the disk before it is answered. A batch of only claims is committed without waiting for the
disk, because a claim is no promise; the next durable commit syncs it too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from threading import RLock, get_ident
from types import FrameType

import apsw

from penstock.clock import Clock, machine_clock
from penstock.errors import BadInput, QueueNotFound, StoreBusy, StoreError
from penstock.forking import watch
from penstock.guarded import guarded
from penstock.message import Settings
from penstock.patience import Patience
from penstock.stores.callers import find_caller, refuse_handlers
from penstock.stores.clock_files import ClockFiles, clock_folder
from penstock.stores.encoding import unpack_settings
from penstock.stores.ids import Ids
from penstock.stores.sql.database import Answer, Database, Found, Params, migrate
from penstock.stores.sql.rows import Row
from penstock.stores.sql.statements import read_sql
from penstock.stores.sqlite.file import QueueFile
from penstock.stores.sqlite.words import TEXTS, WORDS

NO_NUMBERS = (1, 0)
SPARE = 1000
"""How many message numbers a process reserves in advance."""
RECLAIM_PAGES = 1024
RECLAIM_AT_ONCE = 512
CHANGE_QUEUES = frozenset({"add_queue", "change_queue", "drop_queue", "set_floor"})
CHANGE_QUEUES |= {"fall_asleep", "wake", "confirm", "settle_run", "release_claim"}
"""Statements that change what `look_up` returns."""


class SqliteDatabase(Database):
    """Owns the transactions on one connection, and what a batch knows."""

    durable = True

    def __init__(self, file: QueueFile, statements: dict[str, str], ids: Ids | None = None) -> None:
        self.file = file
        self.uncounted: dict[tuple[int, int], int] = {}
        self.spare = NO_NUMBERS
        """The first and the last of the message numbers that this process has reserved. They are valid until another process
        reserves some, so that numbers stay in the order of sending."""
        self.statements = statements
        self.lock = RLock()
        self._seen: dict[str, Found] = {}
        """The queues looked up in this batch."""
        self._depth = 0
        self._owner = 0
        self._looking = False
        """Whether a read-only transaction is open."""
        self._opener: FrameType | None = None
        """The frame that opened the current transaction."""
        if ids is not None:
            self.ids = ids

    def __str__(self) -> str:
        return str(self.file)

    def connect(self) -> apsw.Connection:
        connection = self.file.connection
        if connection is not None:
            if connection.get_autocommit():
                if self._depth:
                    raise StoreError(f"{self}: the batch is lost; SQLite has rolled it back")
            elif not self._depth and not self._looking:  # nobody is in it: an interrupt came while it was being ended
                self._execute(connection, "ROLLBACK")
            return connection
        return self.file.open(in_batch=self._depth > 0)

    # transactions

    @guarded
    def batch(self, *, durable: bool = True) -> Generator[None]:
        with self.lock:
            connection = self.connect()
            self._refuse_handlers()
            depth, uncounted = self._depth, dict(self.uncounted)
            try:
                if not depth:
                    self._draw_on_reserve()
                    self._seen.clear()
                    self.uncounted.clear()
                    self._set_durable(durable)
                    self._opener = find_caller()
                self._owner = get_ident()
                self._depth = depth + 1  # from here on, signal handlers are refused
                self._execute(connection, f"SAVEPOINT verb{depth}" if depth else "BEGIN IMMEDIATE")
                yield
                self._execute(connection, f"RELEASE verb{depth}" if depth else "COMMIT")
            except BaseException:
                self.uncounted = uncounted
                self.spare = NO_NUMBERS  # perhaps they are not reserved any more
                self._undo(connection, depth)
                raise
            finally:
                self._depth = depth
                if not depth:
                    self._opener = None
                self._seen.clear()

    def joined(self, *, durable: bool = True) -> AbstractContextManager[None]:
        if not self.in_batch():
            return self.batch(durable=durable)
        self._refuse_handlers()
        return nullcontext()

    def in_batch(self) -> bool:
        return self._depth > 0 and self._owner == get_ident()

    def retry(self, verb: Callable[..., Answer], *arguments: object) -> Answer:
        return verb(*arguments)

    @guarded
    def reading(self) -> Generator[None]:
        with self.lock:
            connection = self.connect()
            if self._depth or self._looking:
                yield
                return
            try:
                self._opener = find_caller()
                self._looking = True
                self._execute(connection, "BEGIN")
                yield
            finally:
                self._looking, self._opener = False, None
                if connection is self.file.connection and not connection.get_autocommit():
                    self._execute(connection, "COMMIT")

    def _refuse_handlers(self) -> None:
        if self._depth or self._looking:
            refuse_handlers(self, self._opener)
        elif self.file.pausing is not None:  # a statement of this thread waits; if it fails, it would undo what is done inside
            refuse_handlers(self, self.file.pausing)

    def _draw_on_reserve(self) -> None:
        """If the disk is nearly full: give up the reserve and checkpoint, so that the log starts over and need not grow. A send
        is refused before it gets here."""
        if self.file.reserve.is_needed():
            self.file.reserve.give_up()
            with suppress(StoreError):
                self._execute(self.connect(), "PRAGMA wal_checkpoint(PASSIVE)")

    def _set_durable(self, durable: bool) -> None:
        if durable != self.file.synchronous:
            self.file.synchronous = None  # until the switch is known to be done
            self._execute(self.connect(), f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self.file.synchronous = durable

    def _undo(self, connection: apsw.Connection, depth: int) -> None:
        if connection is not self.file.connection or connection.get_autocommit():
            return  # the connection was dropped, or SQLite rolled back by itself (disk full)
        try:
            connection.execute(f"ROLLBACK TO verb{depth}; RELEASE verb{depth}" if depth else "ROLLBACK")
        except apsw.SQLError:
            if not depth:
                raise  # it was in a transaction a moment ago
            # otherwise there is no such savepoint: we were interrupted before it was made
        except apsw.Error:
            self.file.drop()

    @guarded
    def joining(self, connection: object) -> Generator[Database]:
        if any(base.__module__ == "sqlite3" for base in type(connection).__mro__):
            raise BadInput(
                f"a transaction on {self} cannot be joined by a connection of Python's own sqlite3: that is a second copy of "
                "SQLite in this process, and when one copy closes the file, the locks of the other are gone. Open the file by "
                "apsw.Connection instead"
            )
        if not isinstance(connection, apsw.Connection):
            raise BadInput(f"a transaction on {self} is joined by a connection of apsw's, not by {connection!r:.200}")
        try:
            joined = Path(connection.filename)
        except apsw.ConnectionClosedError:
            raise BadInput(f"a connection that was closed cannot join a transaction on {self}") from None
        if joined.resolve() != self.file.path.resolve():
            raise BadInput(f"a connection to {connection.filename!r} cannot join a transaction on {self}")
        if connection.in_transaction is False:
            raise BadInput("the connection is in no transaction: BEGIN IMMEDIATE one")
        if self.in_batch():
            raise BadInput(f"this thread is in a batch of {self}, which cannot become part of another transaction")
        self.file.check_open()
        # It shares no lock with us: the caller has the file's write lock, for which a thread with our lock may be waiting.
        database = SqliteDatabase(self.file.over(connection), self.statements, self.ids)
        database._depth, database._owner, database._opener = 1, get_ident(), find_caller()
        try:
            with database.batch():
                yield database
        except StoreBusy as error:
            raise StoreBusy(
                f"{self} is locked by others, and the connection that was joined does not wait: BEGIN IMMEDIATE on it, or "
                "give it a busy timeout"
            ) from error

    # statements

    def rows(self, name: str, params: Params) -> list[Row]:
        with self.lock:
            return self._execute(self.connect(), self.statements[name], params)

    def run(self, name: str, params: Params) -> int:
        with self.lock:
            connection = self.connect()
            self._execute(connection, self.statements[name], params)
            if name in CHANGE_QUEUES:
                self._seen.clear()
            return connection.changes()

    def run_alone(self, name: str, params: Params, *, drains: bool) -> int:
        """Outside of a batch: run a statement that is a durable commit by itself. One that drains may use the reserve."""
        with self.lock:
            connection = self.connect()
            self._refuse_handlers()
            if drains:
                self._draw_on_reserve()
            self._set_durable(True)
            self._execute(connection, self.statements[name], params)
            return connection.changes()

    def many(self, name: str, rows: Iterable[Row]) -> None:
        with self.lock:
            self._execute_many(name, rows)

    def _execute_many(self, name: str, rows: Iterable[Row]) -> list[Row]:
        connection = self.connect()
        try:
            return connection.executemany(self.statements[name], rows).fetchall()
        except apsw.Error as error:
            raise self.file.translate(error) from error

    def _execute(self, connection: apsw.Connection, text: str, params: Params = ()) -> list[Row]:
        try:
            return connection.execute(text, params).fetchall()
        except apsw.Error as error:
            raise self.file.translate(error) from error

    def list_of(self, numbers: list[int]) -> str:
        return json.dumps(numbers)

    # queues

    def look_up(self, name: str) -> Found | None:
        in_batch = self.in_batch()
        found = self._seen.get(name) if in_batch else None
        if found is None:
            rows = self.rows("queue", (name,))
            if not rows:
                return None
            number, settings, floor_at, floor_number, wakes_at, last_number = rows[0]
            found = Found(number, unpack_settings(settings), (floor_at, floor_number), wakes_at, last_number)
            if in_batch:
                self._seen[name] = found
        return found

    def find(self, name: str) -> Found:
        found = self.look_up(name)
        if found is None:
            raise QueueNotFound(name)
        return found

    def enter(self, name: str, *, alone: bool) -> Found:  # noqa: ARG002 (a batch keeps all others out)
        return self.find(name)

    def enter_to_claim(self, name: str, settings: Settings | None) -> Found:  # noqa: ARG002
        return self.find(name)

    def reserve(self, name: str) -> None:
        pass  # a batch keeps all others out

    # messages

    def admit(self, size: int) -> None:
        # Counts the log and the file: the reserve must always suffice to checkpoint the log.
        self.file.reserve.admit(3 * size)

    def take_numbers(self, found: Found, count: int) -> int:
        first, last = self.spare
        if first + count - 1 > last or found.last_number != last:
            reserved = count if self.spare == NO_NUMBERS else count + SPARE  # a process that sends once leaves no gap
            last = int(self.rows("reserve_numbers", (reserved,))[0][0])
            first = last - reserved + 1
            self._seen.clear()
        self.spare = (first + count, last)
        return first

    def remove(self, queue: int, keys: Sequence[Row]) -> list[Row]:  # noqa: ARG002
        with self.lock:
            return self._execute_many("delete", keys)

    # the whole file

    def maintain(self) -> bool:
        with self.lock:
            self.file.reserve.make()
            return self._depth == 0 and self._reclaim(self.connect())

    def _reclaim(self, connection: apsw.Connection) -> bool:
        """Return free pages to the disk, some at a time: while they are more than a quarter of the file, and all of them while
        the reserve is given up, because no send may use them then. Whether there may be more; False too if the file has no
        means for this, such as a file that another program has made."""
        reserve, free = self.file.reserve, self.pragma("freelist_count")
        if not free or (reserve.size() != 0 and (free < RECLAIM_PAGES or free * 4 < self.pragma("page_count"))):
            return False
        # They pass through the log, which must have room for them even now.
        self._execute(connection, f"PRAGMA incremental_vacuum({max(1, min(RECLAIM_AT_ONCE, reserve.goal() // 8192))})")
        self._execute(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
        return 0 < self.pragma("freelist_count") < free

    def give_back(self, pages: int) -> bool:
        """Return so many free pages to the disk. Whether there are more; False too if the file has no means for this."""
        with self.lock:
            free = self.pragma("freelist_count")
            self._execute(self.connect(), f"PRAGMA incremental_vacuum({pages})")
            self._execute(self.connect(), "PRAGMA wal_checkpoint(PASSIVE)")
            return 0 < self.pragma("freelist_count") < free

    def pragma(self, name: str) -> int:
        with self.lock:
            return int(self._execute(self.connect(), f"PRAGMA {name}")[0][0])

    def version(self) -> int:
        return self.pragma("data_version")

    def traces(self) -> list[str]:
        return [f"{self.file.path}-wal"]

    def clock(self) -> Clock:
        return machine_clock(ClockFiles(clock_folder(self.file.path), str(self), self.file.path))

    def close(self) -> None:
        with self.lock:
            self.file.close()

    def migrating(self) -> AbstractContextManager[None]:
        return self.batch()

    def has_schema(self) -> bool:
        return bool(self._execute(self.connect(), "SELECT 1 FROM sqlite_schema WHERE name = 'penstock_meta'"))

    def create_meta(self) -> None:
        self.script("CREATE TABLE penstock_meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID")

    def script(self, text: str) -> None:
        self._execute(self.connect(), text)

    def before_fork(self) -> None:
        """SQLite forbids a child to use, or even to close, its parent's connection, and in the child it takes the parent's
        locks for its own. So we close the connection before a fork, and each side opens its own afterwards."""
        self.lock.acquire()
        self.spare = NO_NUMBERS
        if not self._depth:
            self.file.rest()

    def after_fork(self, *, child: bool) -> None:
        if child:  # if there is a connection, the thread that forked is in a batch
            self.file.disown()
        self.lock.release()


def open_database(path: str | Path, patience: Patience) -> SqliteDatabase:
    """Open the file, and bring its schema to the newest step."""
    steps, statements = read_sql(WORDS, TEXTS)
    database = SqliteDatabase(QueueFile(path, patience), statements)
    database.connect()
    database.ids = migrate(database, steps)
    watch(database)
    return database
