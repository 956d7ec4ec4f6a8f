"""The queues of a file store: its catalogue, its transactions and its errors."""

from __future__ import annotations

import os
import secrets
import time
from abc import abstractmethod
from collections.abc import Generator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import RLock
from types import FrameType
from typing import Any

from penstock.clock import Clock, machine_clock
from penstock.errors import BadName, QueueNotFound, StoreClosed, StoreError
from penstock.forking import watch
from penstock.guarded import guarded
from penstock.message import Settings
from penstock.stores.callers import find_caller, refuse_handlers
from penstock.stores.clock_files import ClockFiles
from penstock.stores.disk import is_full, refusal, sync, sync_file_system
from penstock.stores.encoding import pack_settings, unpack_settings
from penstock.stores.files.folder import Shelf, Stamp
from penstock.stores.files.sidecar import FEW, FOLDER
from penstock.stores.legacy import LegacyStore
from penstock.stores.locks import TIMEOUT, Patience
from penstock.stores.reserve import Reserve
from penstock.stores.roster import LocalRoster

CLAIMS_EVERY = 1.0
"""The minimum seconds between two commits that also sync the records of messages this process has received. Doing it with each
commit would cost a fifth of the speed where threads send and receive concurrently."""
MOST_CLAIMED = 100_000
"""How many such records a process leaves unsynced before it syncs them by themselves."""
RESERVED_FILES, RESERVED_BYTES = 64, 4096
"""What is reserved for draining a full disk: files, because each message has one, and bytes per file."""


class FileCatalogue(LegacyStore):
    durable = True
    ordered = False
    groups = False
    atomic = False

    def __init__(self, root: str | Path, *, timeout: float = TIMEOUT) -> None:
        """``timeout``: how many seconds to wait for other processes that hold a lock."""
        self.roster = LocalRoster()
        self.root = Path(root)
        self._patience = Patience(timeout)
        self._lock = RLock()
        self._depth = 0
        self._torn = False
        """Whether a batch is open, or has failed and was not cleaned up."""
        self._opener: FrameType | None = None
        """The frame that opened the current batch."""
        self._dirty: set[str] = set()
        self._claimed: set[str] = set()
        """The records of messages that we hold and that may not be on the disk yet."""
        self._claims_synced = -CLAIMS_EVERY
        self._shelves: dict[str, Shelf] = {}
        self._looked: list[Shelf] = []
        self._closed = False
        pieces = [f"{self.root}/{FOLDER}/.reserve/{number:02}" for number in range(RESERVED_FILES)]
        self._reserve = Reserve(self, pieces, RESERVED_BYTES)
        watch(self)
        with self.batch():
            (self.root / FOLDER / ".reserve").mkdir(parents=True, exist_ok=True)
            self._prepare()
            self._reserve.make()

    def __str__(self) -> str:
        return f"the folder {self.root}"

    # what each format does its own way

    @abstractmethod
    def _prepare(self) -> None:
        """Make the folders that all queues share."""

    @abstractmethod
    def _shelf(self, queue: str) -> Shelf: ...

    @abstractmethod
    def _queue_folder(self) -> Path:
        """The folder that contains a folder per queue."""

    @abstractmethod
    def _clear(self, shelf: Shelf) -> None:
        """Remove a queue's messages that are outside its folder."""

    # transactions and errors

    def tell(self, damage: str) -> None:
        self.on_damage(damage)

    def _new_shelf(self, queue: str) -> Shelf:
        shelf = self._shelf(queue)
        shelf.beside.tell = self.tell
        return shelf

    def _translate(self, error: OSError) -> StoreError:
        return refusal(self, error)

    @guarded
    def batch(self, *, durable: bool = True) -> Generator[None]:
        begun = time.monotonic()
        with self._lock:
            waited = time.monotonic() - begun
            refuse_handlers(self, self._opener)
            if self._closed:
                raise StoreClosed(f"{self} was closed")
            depth = self._depth
            try:
                if not depth:
                    self._opener = find_caller()  # from here on, signal handlers are refused
                    if self._torn:
                        self._clear_up()
                    self._torn = True
                    # Otherwise threads that queue up behind a frozen process would add up their timeouts.
                    self._patience.spent = waited
                self._depth = depth + 1
                yield
                self._commit(durable and not depth)
                if not depth:
                    self._forget()
            except BaseException as error:
                if not depth:
                    self._clear_up()
                if isinstance(error, OSError):
                    if is_full(error):  # the disk reported space but is full: free some for the next try
                        self._reserve.give_up()
                    raise self._translate(error) from error
                raise
            finally:
                self._depth = depth
                if not depth:
                    self._opener = None

    def _commit(self, durable: bool) -> None:
        if self._claimed:
            self._sync_claims(committing=durable and bool(self._dirty))
        if durable:
            for folder in self._dirty:
                with suppress(FileNotFoundError):  # the queue was dropped
                    sync(folder)

    def _clear_up(self) -> None:
        """After a failed batch: an interrupt may have come before the code that took a lock could record it."""
        for shelf in self._shelves.values():
            shelf.beside.give()
            shelf.check_picture(looked=shelf in self._looked)
        for lock in list(self._patience.open):
            lock.give()
        self._forget()

    def _forget(self) -> None:
        """Drop what was known within a batch."""
        self._dirty.clear()
        while self._looked:
            self._looked.pop().brief.clear()
        self._torn = False

    @guarded
    def _visit(self, name: str, durable: bool, check: bool, drains: bool) -> Generator[Shelf]:
        with self.batch(durable=durable):
            if drains:
                self._draw_on_reserve()
            shelf = self.open(name, check=check)
            try:
                yield shelf
            except FileNotFoundError as error:
                if self._find_lost(shelf):
                    raise QueueNotFound(name) from error
                raise

    def _queue(self, name: str, *, durable: bool = True, check: bool = True) -> AbstractContextManager[Shelf]:
        """A batch on one queue, which another process may drop at any time.

        Without ``check``, the caller looks into the queue's folder anyway and gets `FileNotFoundError` if it is gone."""
        return self._visit(name, durable, check, drains=False)

    def _draining(self, name: str, *, durable: bool = True, check: bool = True) -> AbstractContextManager[Shelf]:
        """Like `_queue`, for verbs that drain a queue: they may use the reserve."""
        return self._visit(name, durable, check, drains=True)

    def _draw_on_reserve(self) -> None:
        if self._reserve.is_needed():
            self._reserve.give_up()

    def _sync_claims(self, *, committing: bool) -> None:
        """Sync the records of received messages, along with a batch that is synced anyway. They are no promise: if the disk
        refuses them, everything promised is still kept."""
        now = time.monotonic()
        if not (committing and now >= self._claims_synced + CLAIMS_EVERY) and len(self._claimed) <= MOST_CLAIMED:
            return
        claimed, self._claimed, self._claims_synced = self._claimed, set(), now
        with suppress(OSError):
            if len(claimed) >= FEW:
                sync_file_system(self.root)
                return
            for path in [*claimed, *{os.path.dirname(path) for path in claimed}]:
                with suppress(FileNotFoundError):  # deleted by another process
                    sync(path)

    def _find_lost(self, shelf: Shelf) -> bool:
        """Whether a file is missing because another process has dropped the queue; if so, forget the queue."""
        if shelf.is_there() and self._born(shelf) == shelf.born:
            return False
        self._shelves.pop(shelf.queue, None)
        return True

    def open(self, name: str, *, check: bool = True) -> Shelf:
        shelf = self._shelves.get(name)
        if shelf is not None and (not check or shelf.is_there()):
            return shelf
        self._shelves.pop(name, None)
        shelf = self._new_shelf(name)
        if not shelf.is_there():
            raise QueueNotFound(name)
        with shelf.beside.lock():
            if self._other_name(shelf) is not None or not shelf.is_there():
                raise QueueNotFound(name)
            shelf.beside.make()
            shelf.beside.keep_copy()
            shelf.born = self._born(shelf)
            self._recover(shelf)
        self._shelves[name] = shelf
        return shelf

    def _born(self, shelf: Shelf) -> str | None:
        """Identifies this incarnation of a queue name; None if another program made the queue."""
        record = shelf.beside.settings()
        return str(record["born"]) if record else None

    @abstractmethod
    def _recover(self, shelf: Shelf) -> None:
        """When a queue is first used: finish what processes that died left half done. Needs the lock."""

    def _other_name(self, shelf: Shelf) -> str | None:
        """The queue that really owns this folder, where the file system does not distinguish 'A' from 'a'."""
        record = shelf.beside.settings()
        return None if not record or record["name"] == shelf.queue else str(record["name"])

    # the catalogue

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        with self.batch():
            shelf = self._new_shelf(name)
            if not create and not shelf.is_there():
                return False
            with shelf.beside.lock():
                there, other = shelf.is_there(), self._other_name(shelf)
                if there and other is not None:
                    if create:
                        raise BadName(f"queue name {name!r}: the file system of {self} does not tell it from queue {other!r}")
                    return False
                if there == create:
                    return False
                self._create_queue(shelf, settings) if create else self._change_queue(shelf, settings)
                return True

    def _create_queue(self, shelf: Shelf, settings: Settings) -> None:
        shelf.beside.clear()  # leftovers of an interrupted drop
        shelf.beside.make()
        shelf.born = secrets.token_hex(8)
        self._save_settings(shelf, settings, [[0, settings.retention]])
        for folder in (shelf.beside.folder, shelf.beside.folder.parent, self.root):
            sync(folder)
        shelf.folder.mkdir()
        sync(self._queue_folder())

    def _change_queue(self, shelf: Shelf, settings: Settings) -> None:
        shelf.beside.make()
        record = shelf.beside.settings()
        shelf.born = record["born"] if record else secrets.token_hex(8)
        before = list(record["retentions"]) if record else [[0, Settings().retention]]  # another program made this queue
        if before[-1][1] != settings.retention:
            shelf.refresh()
            before.append([max((shelf.number(id) for id in shelf.index), default=0), settings.retention])
        self._save_settings(shelf, settings, before)

    def _save_settings(self, shelf: Shelf, settings: Settings, retentions: list[list[float]]) -> None:
        record = {"name": shelf.queue, "born": shelf.born, "settings": pack_settings(settings), "retentions": retentions}
        shelf.beside.save_settings(record)

    def load(self, name: str) -> Settings | None:
        with self.batch(durable=False):
            shelf = self._shelves.get(name) or self._new_shelf(name)
            if not shelf.is_there():
                return None
            record = shelf.beside.settings()
            return None if record and record["name"] != name else _unpack(record)

    def _settings(self, shelf: Shelf) -> Settings:
        return _unpack(shelf.beside.settings())

    def names(self) -> list[str]:
        with self.batch(durable=False):
            return sorted(entry.name for entry in os.scandir(self._queue_folder()) if entry.is_dir() and entry.name[0] != ".")

    def drop(self, name: str) -> bool:
        with self.batch():
            self._draw_on_reserve()
            try:
                shelf = self.open(name)
            except QueueNotFound:
                return False
            with shelf.beside.lock():
                if not shelf.is_there():  # another process was first
                    return False
                self._clear(shelf)
                os.rename(shelf.folder, shelf.beside.gone() / "messages")
                sync(self._queue_folder())
                self._clear(shelf)
                shelf.beside.clear()
            self._shelves.pop(name, None)
            return True

    # life

    def version(self) -> int:
        with self._lock:
            return hash(tuple([_stamp(shelf) for shelf in list(self._shelves.values())]))

    def clock(self) -> Clock:
        return machine_clock(ClockFiles(self.root / FOLDER / ".clock", str(self)))

    def close(self) -> None:
        self._closed = True

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002
        self._lock.release()


def _unpack(record: Any) -> Settings:
    return unpack_settings(record["settings"]) if record else Settings()  # another program made this queue


def _stamp(shelf: Shelf) -> Stamp | None:
    try:
        return shelf.stamp()
    except OSError:  # the queue was dropped, or the disk fails: a closer look reports it
        return None
