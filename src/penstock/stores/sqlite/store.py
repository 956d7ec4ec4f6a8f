"""The embedded store: one SQLite file, through apsw, safe for many threads and processes.

WAL with full sync: a commit is on the disk before it is answered. A batch of only claims is committed without waiting for the
disk, because a claim is no promise; the next durable commit syncs it too. All threads of a process take turns on one
connection, since SQLite has one writer anyway; a forked child opens its own.
"""

from __future__ import annotations

import copy
import json
import sys
import time
import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import RLock, get_ident
from types import FrameType
from typing import ClassVar

import apsw

from penstock.clock import Clock, machine_clock
from penstock.errors import BadInput, StoreBusy, StoreClosed, StoreCorrupt, StoreError, StoreFull, StoreReadOnly
from penstock.forking import watch
from penstock.guarded import guarded
from penstock.message import Entry, Held, Sent, Settings, Settlement
from penstock.stores.callers import find_caller, refuse_handlers
from penstock.stores.clock_files import ClockFiles, clock_folder
from penstock.stores.disk import refusal, sync
from penstock.stores.encoding import pack_settings
from penstock.stores.ports import Outbox, Store
from penstock.stores.reserve import Reserve
from penstock.stores.sql.ledger import SqlLedger
from penstock.stores.sql.messages import insert_row
from penstock.stores.sql.roster import SqlRoster
from penstock.stores.sql.session import PRESENT, Params, Row
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.runs import LATE, NotPlain, SqliteRuns
from penstock.stores.staging import StagedFiles, staging_folder

SAFE_SQLITE = (3, 51, 3)
"""Before this version, connections that write and checkpoint at once could corrupt the file (the WAL-reset bug)."""
RECLAIM_PAGES = 1024
RECLAIM_AT_ONCE = 512
MAPPED = 2**31 - 2**16
"""How much of the file is mapped into memory for scans: SQLite's maximum."""
WAL_BYTES = 16 * 1024 * 1024
RESERVED = 8 * 1024 * 1024
"""Bytes reserved for draining a full disk: twice what can wait in the log for a checkpoint."""
BLOCK = 1000
"""How many message numbers a process reserves at a time."""
NO_BLOCK = (1, 0)
SIZES = (2, 4, 8, 16, 32, 64, 128)
"""The sizes of multi-row inserts: few statements to prepare, and unused rows stay empty."""
NO_ROW = (None,) * 11
MOST_GONE = 1000
"""How many deleted messages a process leaves in the file before it removes their rows itself."""


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_lent: list[Path] = []


@contextmanager
def lend(path: Path) -> Iterator[bool]:
    """For another copy of SQLite in this process. Yields True if no store here has the file open; none will open it inside the
    block. (Closing a file drops all locks that the process has on it, including the other copy's.)"""
    file = path.resolve()
    _lent.append(file)  # before looking; a store opens before it looks here, so one of the two sees the other, without a lock
    try:
        yield not any(store.has_open(file) for store in list(_stores))
    finally:
        _lent.remove(file)


class SqliteStore(SqlStore):
    dialect: ClassVar = {
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "integer": "INTEGER",
        "name": "TEXT",
        "text": "TEXT",
        "key": "BLOB",
        "blob": "BLOB",
        "where_grouped": "WHERE grp IS NOT NULL",
        "skip_locked": "",
        "for_update": "",
        "keep": "",
        "passing": "",
        "insert_new": "INSERT OR IGNORE INTO",
        "unless_there": "",
        "among": "IN (SELECT value FROM json_each(:numbers))",
        "later": "MAX",
        "as_integer": "",
        "by_ready": "",
        "ready": "",
        "only_by_name": "",
        "message_held": PRESENT,
        "present": PRESENT,
        "removed_later": """
            CREATE TABLE penstock_gone (number INTEGER PRIMARY KEY);
            CREATE VIEW penstock_present AS SELECT * FROM penstock_message
            WHERE NOT EXISTS (SELECT 1 FROM penstock_gone) OR number NOT IN (SELECT number FROM penstock_gone)
        """,
        "chosen": "penstock_message",
        "penstock_message": "",
        "as_blob": "",
    }

    def __init__(self, path: str | Path, *, timeout: float = 10) -> None:
        """``timeout``: how many seconds to wait for other writers."""
        super().__init__()
        for size in SIZES:
            rows = ", ".join([f"({', '.join('?' * len(NO_ROW))})"] * size)
            self._statements[f"insert_{size}"] = self._statements["insert_together"].replace(":rows", rows)
        if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < SAFE_SQLITE:
            raise StoreError(f"SQLite {apsw.sqlite_lib_version()} can corrupt a queue; install a newer apsw")
        self.path = Path(path)
        self._timeout = timeout
        self._lock = RLock()
        self._depth = 0
        self._owner = 0
        self._looking = False
        """Whether a read-only transaction is open."""
        self._opener: FrameType | None = None
        """The frame that opened the current transaction."""
        self._lent_to_us = False
        """Whether the connection is a caller's, which we must not close."""
        self._connection: apsw.Connection | None = None
        self._parents: apsw.Connection | None = None
        self._closed = False
        self._opening = False
        self._migrated = False
        self._left = 0
        """How many messages we have deleted since the last batch; the next batch removes their rows."""
        self._pausing: FrameType | None = None
        self._reserve = Reserve(self, [f"{path}-reserve"], RESERVED)
        staging = StagedFiles(staging_folder(path), durable=False, admit=self._reserve.admit)
        self.outbox = Outbox(staging, SqlLedger(self))
        self._block = NO_BLOCK
        self._last_packed: tuple[Settings | None, str] = (None, "")
        self._homes: dict[str, int] = {}
        """The numbers of queues, as committed. A number is never reused, so that of a deleted queue finds nothing."""
        _stores.add(self)
        self._connect()
        self._migrate()
        self._migrated = True
        watch(self)

    def __str__(self) -> str:
        return f"the queue file {self.path}"

    def _connect(self) -> apsw.Connection:
        if self._connection is not None:
            if self._connection.get_autocommit():
                if self._depth:
                    raise StoreError(f"{self}: the batch is lost; SQLite has rolled it back")
            elif not self._depth and not self._looking:
                self._end_leftover(self._connection)
            return self._connection
        if self._parents is not None:
            raise StoreError(f"{self}: this process was forked inside a batch, and cannot use the file")
        if self._depth:
            raise StoreError(f"{self}: the batch was lost with its connection")
        if self._closed:
            raise StoreClosed(f"{self} was closed")
        self._opening = True
        try:
            if self.path.resolve() in _lent:
                raise StoreBusy(
                    f"{self} is being read by ADBC in this process, which has a copy of SQLite of its own: wait for it"
                )
            self._connection = self._connect_anew()
            return self._connection
        finally:
            self._opening = False

    def _end_leftover(self, connection: apsw.Connection) -> None:
        """End a transaction that nobody is in: an interrupt came while it was being ended."""
        try:
            connection.execute("ROLLBACK")
        except apsw.Error as error:
            raise self._translate(error) from error

    def has_open(self, file: Path) -> bool:
        return (self._opening or bool(self._connection or self._parents)) and self.path.resolve() == file

    def _connect_anew(self) -> apsw.Connection:
        try:
            fresh = not self.path.exists()
            if not self.path.parent.is_dir():
                raise StoreError(f"{self}: there is no folder {self.path.parent}")
        except OSError as error:
            raise StoreError(f"{self} cannot be reached: {error.strerror}") from error
        try:
            if self._reserve.is_needed():  # otherwise SQLite may lack space for the files that it creates
                self._reserve.give_up()
            connection = apsw.Connection(str(self.path))
            if connection.readonly("main"):
                raise StoreReadOnly(f"{self} is read-only")
            connection.set_busy_handler(self._wait_for_others)
            # Without this, SQLite prepares range statements again for each set of values, which costs more than running them.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only has an effect before the first table
            self._to_wal(connection)
            connection.execute(f"PRAGMA synchronous = FULL; PRAGMA journal_size_limit = {WAL_BYTES}")
            self._reserve.make()
            if (goal := self._reserve.goal()) < RESERVED:  # on a small disk: limit the log to what there is room for
                connection.execute(f"PRAGMA wal_autocheckpoint = {max(10, goal // 8192)}")
        except apsw.Error as error:
            raise self._translate(error) from error
        if fresh:
            try:
                sync(self.path.parent)
            except OSError as error:
                connection.close()
                raise refusal(self, error) from error
        self._homes.clear()  # it may be a different file
        self._synchronous: bool | None = True
        return connection

    def _to_wal(self, connection: apsw.Connection) -> None:
        # SQLite calls no busy handler for this switch, which every process makes when several create one file.
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                mode = connection.pragma("journal_mode", "wal")
                break
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
        if mode != "wal":
            raise StoreError(f"{self}: its file system cannot keep a write-ahead log (mode {mode!r})")

    def _wait_for_others(self, tries: int) -> bool:
        # SQLite's own handler soon sleeps 100 ms a try; a writer here is done within one disk sync.
        pause = 0.0005 if tries < 200 else 0.005
        try:
            self._pausing = sys._getframe()
            if tries == 0:
                self._waiting_since = time.monotonic()
            if time.monotonic() - self._waiting_since > self._timeout:
                return False
            time.sleep(pause)
            return True
        finally:
            self._pausing = None

    def batch(self, *, durable: bool = True) -> AbstractContextManager[None]:
        return self._transaction(durable)

    @guarded
    def _transaction(self, durable: bool, *, remove: bool = True) -> Generator[None]:
        """``remove``: first delete the rows of messages that are gone, so that every statement sees them gone."""
        with self._lock:
            connection = self._connect()
            self._refuse_handlers()
            depth, block, uncounted = self._depth, NO_BLOCK, dict(self._uncounted)
            try:
                if not depth:
                    self._draw_on_reserve()
                    self._forget()
                    self._set_durable(durable)
                    self._opener = find_caller()
                self._owner = get_ident()
                self._depth = depth + 1  # from here on, signal handlers are refused
                self._execute(connection, f"SAVEPOINT verb{depth}" if depth else "BEGIN IMMEDIATE")
                block = self._block
                if remove and not depth:
                    self._remove_gone()
                yield
                block = NO_BLOCK  # until the commit returns, we do not know whether its numbers are used
                self._execute(connection, f"RELEASE verb{depth}" if depth else "COMMIT")
            except BaseException:
                self._block = block
                self._uncounted = uncounted
                self._undo(connection, depth)
                raise
            finally:
                self._depth = depth
                if not depth:
                    self._opener = None
                self._seen.clear()

    def _draw_on_reserve(self) -> None:
        """If the disk is nearly full: give up the reserve and checkpoint, so that the log starts over and need not grow. A send
        is refused before it gets here."""
        if self._reserve.is_needed():
            self._reserve.give_up()
            with suppress(StoreError):
                self._execute(self._connect(), "PRAGMA wal_checkpoint(PASSIVE)")

    def _remove_gone(self) -> None:
        if self._migrated and self._run("remove_gone", ()):
            self._run("forget_gone", ())
        self._left = 0

    def _forget(self) -> None:
        """Drop what was known within a batch."""
        self._seen.clear()
        self._uncounted.clear()

    @guarded
    def joining(self, connection: object) -> Generator[Store]:
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
        if joined.resolve() != self.path.resolve():
            raise BadInput(f"a connection to {connection.filename!r} cannot join a transaction on {self}")
        if connection.in_transaction is False:
            raise BadInput("the connection is in no transaction: BEGIN IMMEDIATE one")
        if self._in_batch():
            raise BadInput(f"this thread is in a batch of {self}, which cannot become part of another transaction")
        if self._closed:
            raise StoreClosed(f"{self} was closed")
        joined_store = self._over(connection)
        try:
            with joined_store.batch():
                joined_store._remove_gone()
                yield joined_store
        except StoreBusy as error:
            raise StoreBusy(
                f"{self} is locked by others, and the connection that was joined does not wait: BEGIN IMMEDIATE on it, or "
                "give it a busy timeout"
            ) from error

    def _over(self, connection: apsw.Connection) -> SqliteStore:
        """This store over a caller's connection, inside the caller's transaction. It shares no lock with us: the caller has the
        file's write lock, for which a thread with our lock may be waiting."""
        store = copy.copy(self)
        store.roster, store.outbox = SqlRoster(store), Outbox(self.outbox.staging, SqlLedger(store))
        store._lock = RLock()
        store._connection, store._lent_to_us = connection, True
        store._depth, store._owner, store._looking, store._opener = 1, get_ident(), False, find_caller()
        # If the caller rolls back, the numbers taken now are free again, so they are not part of our block.
        store._block = NO_BLOCK
        store._seen, store._uncounted, store._homes = {}, {}, {}
        return store

    def _set_durable(self, durable: bool) -> None:
        if durable != self._synchronous:
            self._synchronous = None  # until the switch is known to be done
            self._execute(self._connect(), f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._synchronous = durable

    def _undo(self, connection: apsw.Connection, depth: int) -> None:
        if connection is not self._connection or connection.get_autocommit():
            return  # the connection was dropped, or SQLite rolled back by itself (disk full)
        try:
            connection.execute(f"ROLLBACK TO verb{depth}; RELEASE verb{depth}" if depth else "ROLLBACK")
        except apsw.SQLError:
            if not depth:
                raise  # it was in a transaction a moment ago
            # otherwise there is no such savepoint: we were interrupted before it was made
        except apsw.Error:
            self._drop_connection()

    @guarded
    def _reading(self) -> Generator[None]:
        with self._lock:
            connection = self._connect()
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
                if connection is self._connection and not connection.get_autocommit():
                    self._execute(connection, "COMMIT")

    def _refuse_handlers(self) -> None:
        if self._depth or self._looking:
            refuse_handlers(self, self._opener)
        elif self._pausing is not None:  # a statement of this thread waits; if it fails, it would undo what is done inside it
            refuse_handlers(self, self._pausing)

    def _in_batch(self) -> bool:
        return self._depth > 0 and self._owner == get_ident()

    def _rows(self, name: str, params: Params) -> list[Row]:
        with self._lock:
            return self._execute(self._connect(), self._statements[name], params)

    def _run(self, name: str, params: Params) -> int:
        with self._lock:
            connection = self._connect()
            self._execute(connection, self._statements[name], params)
            return connection.changes()

    def _many(self, name: str, rows: Iterable[Row]) -> list[Row]:
        with self._lock:
            connection = self._connect()
            try:
                return connection.executemany(self._statements[name], rows).fetchall()
            except apsw.Error as error:
                raise self._translate(error) from error

    def _script(self, text: str) -> None:
        self._execute(self._connect(), text)

    def _execute(self, connection: apsw.Connection, text: str, params: Params = ()) -> list[Row]:
        try:
            return connection.execute(text, params).fetchall()
        except apsw.Error as error:
            raise self._translate(error) from error

    def _pragma(self, name: str) -> int:
        with self._lock:
            return int(self._execute(self._connect(), f"PRAGMA {name}")[0][0])

    def _take_numbers(self, count: int) -> int:
        """Take numbers from the block that this process has reserved, as long as no other process has reserved one since. So
        numbers stay in the order of sending, and not every send writes the counter."""
        first, last = self._block
        if first + count - 1 > last or self._meta("number") != last:
            reserved = count if (first, last) == NO_BLOCK else count + BLOCK  # a process that sends once leaves no gap
            last = int(self._rows("reserve_numbers", (reserved,))[0][0])
            first = last - reserved + 1
        self._block = (first + count, last)
        return first

    def insert(self, queue: str, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        sent = None
        # Counts the log and the file: the reserve must always suffice to checkpoint the log.
        self._reserve.admit(3 * sum([len(entry.body) for entry in entries]))
        if len(entries) == 1:
            sent = self._insert_alone(queue, entries[0], settings)
        elif len(entries) <= SIZES[-1] and not any(entry.mark or (settings.groups and entry.group) for entry in entries):
            sent = self._insert_together(queue, entries, settings)
        return sent or super().insert(queue, entries, now, settings)

    def _insert_alone(self, queue: str, entry: Entry, settings: Settings) -> list[Sent] | None:
        """One message with one statement, which changes nothing if what we know of the queue has changed. Python takes most of
        its time, as the caches are cold after each wait for the disk: so it is short."""
        with self._lock:
            # Forget the block until there is an answer: before that, we do not know whether the number is used.
            (number, last), self._block = self._block, NO_BLOCK
            at, line, connection = entry.visible_at, entry.group, self._connection
            if number > last or self._depth or connection is None or entry.mark or (line is not None and settings.groups):
                self._block = (number, last)
                return None
            if not connection.get_autocommit():
                self._connect()
            self._refuse_handlers()
            self._set_durable(True)
            home, packed = self._known(queue, settings)
            row = insert_row(number, home, at, None if line is None else line.encode(), entry)
            self._execute(connection, self._statements["insert_alone"], (*row, packed, at + LATE, last))
            if not connection.changes():
                self._block = (number, last)
                self._homes.pop(queue, None)
                return None
            self._block = (number + 1, last)
            return [Sent(self._ids.make(number))]

    def _insert_together(self, queue: str, entries: Sequence[Entry], settings: Settings) -> list[Sent] | None:
        """Like `_insert_alone`, for many. Around each statement Python lets other threads run, and this one must wait for its
        turn again. So there is one statement for any number of messages."""
        with self._lock:
            count = len(entries)
            (first, last), self._block = self._block, NO_BLOCK  # as above
            if self._depth or first + count - 1 > last:
                self._block = (first, last)
                return None
            rows = [
                insert_row(number, 0, entry.visible_at, None if entry.group is None else entry.group.encode(), entry)
                for number, entry in enumerate(entries, first)
            ]
            self._refuse_handlers()
            self._set_durable(True)
            size = 1 << (count - 1).bit_length()
            known = (*self._known(queue, settings), min(entry.visible_at for entry in entries) + LATE, last)
            if not self._run(f"insert_{size}", (*chain(*rows), *NO_ROW * (size - count), *known)):
                self._block = (first, last)
                self._homes.pop(queue, None)
                return None
            self._block = (first + count, last)
            return [Sent(self._ids.make(number)) for number in range(first, first + count)]

    def insert_bodies(self, queue: str, bodies: Sequence[bytes], like: Entry, settings: Settings) -> bool:
        self._reserve.admit(3 * sum(map(len, bodies)))
        return super().insert_bodies(queue, bodies, like, settings)

    def delete(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None
    ) -> list[bool] | None:
        if settings is not None and settlement.keep_until is None and not self._depth:
            if len(receipts) == 1:
                if self._delete_alone(queue, receipts[0], settings):
                    return [True]
            elif self._delete_plain(queue, receipts):
                return [True] * len(receipts)
        return super().delete(queue, receipts, settlement, settings)

    def _delete_alone(self, queue: str, receipt: Held, settings: Settings) -> bool:
        """One message with one statement, which changes nothing unless the case is simple."""
        with self._lock:
            connection = self._connect()
            self._refuse_handlers()
            self._draw_on_reserve()
            self._set_durable(True)
            home, packed = self._known(queue, settings)
            number = self._number(receipt)
            self._execute(connection, self._statements["delete_alone"], (number, receipt.delivery, home, packed))
            if not connection.changes():
                self._homes.pop(queue, None)
                return False
            self._leave_gone(1)
            return True

    def _leave_gone(self, count: int) -> None:
        """Leave deleted rows to the next batch, unless that would have too much to do."""
        self._left += count
        if self._left > MOST_GONE:
            with suppress(StoreError), self.batch(durable=False):  # the messages are deleted even if this fails
                pass

    def _known(self, queue: str, settings: Settings) -> tuple[int, str]:
        """A queue's number, and these settings as the catalogue stores them; mostly the same as in the last call."""
        if self._last_packed[0] is not settings:
            self._last_packed = (settings, pack_settings(settings))
        home = self._homes.get(queue)
        if home is None:  # we are in no batch, so this reads committed data
            home = self._homes[queue] = self._queue(queue)[0]
        return home, self._last_packed[1]

    def _delete_plain(self, queue: str, receipts: Sequence[Held]) -> bool:
        """Delete many messages without looking at each. If not all of them are plain and ours, none is touched."""
        with suppress(NotPlain), self._lock:
            with self._transaction(True, remove=False):
                home, settings = self._queue(queue)
                numbers = self._numbers(receipts)
                keys = [(number, home, receipt.delivery) for number, receipt in zip(numbers, receipts, strict=True)]
                connection = self._connect()
                before = connection.total_changes()
                self._many("delete_plain", keys)
                if settings.history or connection.total_changes() - before < len(keys):
                    raise NotPlain
            self._leave_gone(len(keys))
            return True
        return False

    # named claims

    @property
    def _runs(self) -> SqliteRuns:
        return SqliteRuns(self)

    def due(self, queue: str) -> int | None:
        with self._reading():
            return self._runs.due(self._queue(queue)[0])

    def tidy(self, queue: str) -> bool:
        """Remove some messages that readers have settled but that are still stored. Returns whether there are more."""
        return self._runs.tidy(queue)

    def _list(self, numbers: list[int]) -> str:
        return json.dumps(numbers)

    def _has_schema(self) -> bool:
        return bool(self._execute(self._connect(), "SELECT 1 FROM sqlite_schema WHERE name = 'penstock_meta'"))

    def _create_meta(self) -> None:
        self._script("CREATE TABLE penstock_meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID")

    def sweep(self, queue: str, now: int) -> bool:
        more = super().sweep(queue, now)
        more = self.tidy(queue) or more
        with self._lock:
            self._reserve.make()
            if self._left and not self._depth:
                with self.batch(durable=False):
                    pass
            return more or (self._depth == 0 and self._reclaim(self._connect()))

    def _reclaim(self, connection: apsw.Connection) -> bool:
        """Return free pages to the disk, some at a time, while they are more than a quarter of the file."""
        free, pages = self._pragma("freelist_count"), self._pragma("page_count")
        if free < RECLAIM_PAGES or free * 4 < pages:
            return False
        self._execute(connection, f"PRAGMA incremental_vacuum({RECLAIM_AT_ONCE})")
        self._execute(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
        return free > RECLAIM_AT_ONCE

    def map_file(self) -> None:
        """For scans of most of the file: pages are read without copying."""
        with self._lock:
            self._execute(self._connect(), f"PRAGMA mmap_size = {MAPPED}")

    def version(self) -> int:
        return self._pragma("data_version")

    def clock(self) -> Clock:
        return machine_clock(ClockFiles(clock_folder(self.path), str(self)))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _translate(self, error: apsw.Error) -> StoreError:
        match error:
            case apsw.BusyError() | apsw.LockedError():
                return StoreBusy(f"{self} was locked by others for more than {self._timeout} s")
            case apsw.FullError():
                return StoreFull(f"{self}: no space left on its disk")
            case apsw.ReadOnlyError():
                return StoreReadOnly(f"{self} is read-only")
            case apsw.CorruptError() | apsw.NotADBError():
                return StoreCorrupt(f"{self} is damaged or no SQLite file ({error}); restore it from a backup")
            case apsw.CantOpenError():
                return StoreError(f"{self} cannot be opened ({error}); check its folder and rights")
            case apsw.IOError():
                # A retry of a failed sync may succeed although the data is lost: continue with a new connection.
                self._drop_connection()
        return StoreError(f"{self}: {error}")

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not self._lent_to_us:
            connection.close(force=True)

    def before_fork(self) -> None:
        """SQLite forbids a child to use, or even to close, its parent's connection, and in the child it takes the parent's
        locks for its own. So we close the connection before a fork, and each side opens its own afterwards."""
        self._lock.acquire()
        self._block = NO_BLOCK
        if not self._depth and self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    def after_fork(self, *, child: bool) -> None:
        if child and self._connection is not None:  # the thread that forked is in a batch
            self._parents, self._connection = self._connection, None
        self._lock.release()
