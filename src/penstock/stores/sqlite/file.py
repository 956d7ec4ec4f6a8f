"""The connection to a queue file: opened in WAL mode, replaced after an I/O error, never carried across a fork.

Closing a file drops all locks that the process has on it. So no second copy of SQLite in this process may have the file open
(`lend`).
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import apsw

from penstock.errors import StoreBusy, StoreClosed, StoreCorrupt, StoreError, StoreFull, StoreReadOnly
from penstock.patience import Patience
from penstock.stores.disk import make_private, refusal, sync
from penstock.stores.reserve import Reserve

SAFE_SQLITE = (3, 51, 3)
"""Before this version, connections that write and checkpoint at once could corrupt the file (the WAL-reset bug)."""
WAL_BYTES = 16 * 1024 * 1024
RESERVED = 8 * 1024 * 1024
"""Bytes reserved for draining a full disk: twice what can wait in the log for a checkpoint."""

_files: weakref.WeakSet[QueueFile] = weakref.WeakSet()
_lent: list[Path] = []


@contextmanager
def lend(path: Path) -> Iterator[bool]:
    """For another copy of SQLite in this process. Yields True if no store here has the file open; none will open it inside the
    block."""
    file = path.resolve()
    _lent.append(file)  # before looking; a store opens before it looks here, so one of the two sees the other, without a lock
    try:
        yield not any(each.has_open(file) for each in list(_files))
    finally:
        _lent.remove(file)


class QueueFile:
    """Owns the connection to one file, and the space reserved beside it."""

    def __init__(self, path: str | Path, patience: Patience) -> None:
        if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < SAFE_SQLITE:
            raise StoreError(f"SQLite {apsw.sqlite_lib_version()} can corrupt a queue; install a newer apsw")
        self.path = Path(path)
        self.connection: apsw.Connection | None = None
        self.synchronous: bool | None = True
        """Whether commits wait for the disk; None while that is being changed."""
        self.pausing: FrameType | None = None
        """The frame in which this process waits for another writer."""
        self.reserve = Reserve(self, [f"{path}-reserve"], RESERVED)
        self._patience = patience
        self._parents: apsw.Connection | None = None
        self._opening = False
        self._closed = False
        self._is_callers = False
        _files.add(self)

    def __str__(self) -> str:
        return f"the queue file {self.path}"

    def has_open(self, file: Path) -> bool:
        return (self._opening or bool(self.connection or self._parents)) and self.path.resolve() == file

    def check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self} was closed")

    def open(self, *, in_batch: bool) -> apsw.Connection:
        """Open a connection, unless a batch was on the last one."""
        if self._parents is not None:
            raise StoreError(f"{self}: this process was forked inside a batch, and cannot use the file")
        if in_batch:
            raise StoreError(f"{self}: the batch was lost with its connection")
        self.check_open()
        self._opening = True
        try:
            if self.path.resolve() in _lent:
                raise StoreBusy(
                    f"{self} is being read by ADBC in this process, which has a copy of SQLite of its own: wait for it"
                )
            self.connection = self._connect()
            self.synchronous = True
            return self.connection
        finally:
            self._opening = False

    def _connect(self) -> apsw.Connection:
        try:
            fresh = not self.path.exists()
            if not self.path.parent.is_dir():
                raise StoreError(f"{self}: there is no folder {self.path.parent}")
        except OSError as error:
            raise StoreError(f"{self} cannot be reached: {error.strerror}") from error
        try:
            if self.reserve.is_needed():  # otherwise SQLite may lack space for the files that it creates
                self.reserve.give_up()
            if fresh:
                with suppress(OSError):  # SQLite will say what is wrong
                    make_private(self.path)
            connection = apsw.Connection(str(self.path))
            if connection.readonly("main"):
                raise StoreReadOnly(f"{self} is read-only")
            connection.set_busy_handler(self.wait_for_others)
            # Without this, SQLite prepares range statements again for each set of values, which costs more than running them.
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only has an effect before the first table
            self._to_wal(connection)
            connection.execute(f"PRAGMA synchronous = FULL; PRAGMA journal_size_limit = {WAL_BYTES}")
            self.reserve.make()
            if (goal := self.reserve.goal()) < RESERVED:  # on a small disk: limit the log to what there is room for
                connection.execute(f"PRAGMA wal_autocheckpoint = {max(10, goal // 8192)}")
        except apsw.Error as error:
            raise self.translate(error) from error
        if fresh:
            try:
                sync(self.path.parent)
            except OSError as error:
                connection.close()
                raise refusal(self, error) from error
        return connection

    def _to_wal(self, connection: apsw.Connection) -> None:
        # SQLite calls no busy handler for this switch, which every process makes when several create one file.
        for _ in self._patience.tries(0.005):
            try:
                mode = connection.pragma("journal_mode", "wal")
            except apsw.BusyError as error:
                busy = error
                continue
            if mode != "wal":
                raise StoreError(f"{self}: its file system cannot keep a write-ahead log (mode {mode!r})")
            return
        raise busy

    def wait_for_others(self, tries: int) -> bool:
        # SQLite's own handler soon sleeps 100 ms a try; a writer here is done within one disk sync.
        patience, pause = self._patience, 0.0005 if tries < 200 else 0.005
        try:
            self.pausing = sys._getframe()
            if tries == 0:
                self._waiting_since = patience.now()
            if patience.now() - self._waiting_since > patience.timeout:
                return False
            patience.pause(pause)
            return True
        finally:
            self.pausing = None

    def translate(self, error: apsw.Error) -> StoreError:
        match error:
            case apsw.BusyError() | apsw.LockedError():
                return StoreBusy(f"{self} was locked by others for more than {self._patience.timeout} s")
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
                self.drop()
        return StoreError(f"{self}: {error}")

    def drop(self) -> None:
        """Give up the connection after an error."""
        connection, self.connection = self.connection, None
        if connection is not None and not self._is_callers:
            connection.close(force=True)

    def rest(self) -> None:
        """Close the connection; the next call opens another."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        self._closed = True
        self.rest()

    def disown(self) -> None:
        """In a child whose parent was in a batch: SQLite forbids the child to use, or even to close, that connection."""
        if self.connection is not None:
            self._parents, self.connection = self.connection, None

    def over(self, connection: apsw.Connection) -> QueueFile:
        """This file by a caller's connection, which we do not close."""
        file = copy.copy(self)
        file.connection, file._is_callers = connection, True
        return file
