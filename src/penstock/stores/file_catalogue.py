"""The queues of a store of files: its catalogue, its transactions and its errors."""

from __future__ import annotations

import os
import secrets
import time
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from threading import RLock
from types import TracebackType
from typing import Any

from penstock.clock import Clock, machine_clock
from penstock.errors import BadName, QueueNotFound, StoreClosed, StoreError
from penstock.forking import watch
from penstock.message import Settings
from penstock.stores.base import Store
from penstock.stores.beside import FEW, FOLDER, sync_file_system
from penstock.stores.clock_files import ClockFiles
from penstock.stores.disk import is_full, refusal, sync
from penstock.stores.encoding import pack_settings, unpack_settings
from penstock.stores.locks import TIMEOUT, Patience
from penstock.stores.reserve import Reserve
from penstock.stores.shelf import Shelf, Stamp

CLAIMS_EVERY = 1.0
"""Seconds that pass at least before another commit carries along the records of messages that this process has received. With
each commit, it would cost a fifth of the speed where threads send and receive side by side."""
MOST_CLAIMED = 100_000
"""How many such records a process lets lie before it syncs them by themselves."""
RESERVED_FILES, RESERVED_BYTES = 64, 4096
"""What is kept back for those who drain a full disk: files, because each message has one, and the bytes of each."""


class Batch:
    """What `Store.batch` gives: a class and no generator, as every layer counts once a sync has emptied the caches."""

    __slots__ = ("_durable", "_store")

    def __init__(self, store: FileCatalogue, durable: bool) -> None:
        self._store = store
        self._durable = durable

    def __enter__(self) -> None:
        self._store.begin_batch()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._store.end_batch(error, self._durable)


class Visit:
    """A batch on one queue, which another process may drop at any time.

    Not to ``check`` whether it is there is for what looks at its folder anyway: `FileNotFoundError`."""

    __slots__ = ("_check", "_drains", "_durable", "_name", "_shelf", "_store")

    def __init__(self, store: FileCatalogue, durable: bool, name: str, check: bool, drains: bool) -> None:
        self._store = store
        self._durable = durable
        self._name = name
        self._check = check
        self._drains = drains

    def __enter__(self) -> Shelf:
        self._store.begin_batch()
        try:
            if self._drains:
                self._store.draw_on_reserve()
            self._shelf = self._store.open(self._name, check=self._check)
        except BaseException as error:
            self._store.end_batch(error, self._durable)
            raise
        return self._shelf

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if isinstance(error, FileNotFoundError) and self._store.find_lost(self._shelf):
                raise QueueNotFound(self._name) from error
        except BaseException as other:
            error = other
            raise
        finally:
            self._store.end_batch(error, self._durable)


class FileCatalogue(Store):
    durable = True
    ordered = False
    groups = False
    atomic = False
    dated = False

    def __init__(self, root: str | Path, *, timeout: float = TIMEOUT) -> None:
        """``timeout``: how many seconds to wait for other processes that hold a lock."""
        self.root = Path(root)
        self._patience = Patience(timeout)
        self._lock = RLock()
        self._depth = 0
        self._dirty: set[str] = set()
        self._claimed: set[str] = set()
        """The records of messages that we hold, as far as they may not be on the disk yet."""
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
        """The folder whose folders are the queues."""

    @abstractmethod
    def _clear(self, shelf: Shelf) -> None:
        """Remove a queue's messages that lie elsewhere than in its folder."""

    # transactions and errors

    def tell(self, damage: str) -> None:
        self.on_damage(damage)

    def _new_shelf(self, queue: str) -> Shelf:
        shelf = self._shelf(queue)
        shelf.beside.tell = self.tell
        return shelf

    def _translate(self, error: OSError) -> StoreError:
        return refusal(self, error)

    def batch(self, *, durable: bool = True) -> Batch:
        return Batch(self, durable)

    def _queue(self, name: str, *, durable: bool = True, check: bool = True) -> Visit:
        return Visit(self, durable, name, check, drains=False)

    def _draining(self, name: str, *, durable: bool = True, check: bool = True) -> Visit:
        """As `_queue`, to bring a queue closer to being empty: the reserve may be used for it."""
        return Visit(self, durable, name, check, drains=True)

    def draw_on_reserve(self) -> None:
        if self._reserve.is_needed():
            self._reserve.give_up()

    def begin_batch(self) -> None:
        waited = 0.0
        if not self._lock.acquire(blocking=False):
            begun = time.monotonic()
            self._lock.acquire()
            waited = time.monotonic() - begun
        if not self._depth:
            # Otherwise threads that wait behind each other for a process that is frozen would add up their timeouts.
            self._patience.spent = waited
        if self._closed:
            self._lock.release()
            raise StoreClosed(f"{self} was closed")
        self._depth += 1

    def end_batch(self, error: BaseException | None, durable: bool) -> None:
        try:
            if self._claimed:
                self._sync_claims(committing=error is None and durable and self._depth == 1 and bool(self._dirty))
            if error is None and durable and self._depth == 1:
                for folder in self._dirty:
                    with suppress(FileNotFoundError):  # a queue that was dropped
                        sync(folder)
        except OSError as failed:
            error = failed
        finally:
            self._depth -= 1
            if not self._depth:
                self._dirty.clear()
                if error is not None:  # an interrupt may have come before whoever took a lock could note it
                    for shelf in self._shelves.values():
                        shelf.beside.give()
                    for lock in list(self._patience.open):
                        lock.give()
                while self._looked:
                    self._looked.pop().brief.clear()
            self._lock.release()
        if isinstance(error, OSError):
            if is_full(error):  # though there was space, by what the disk said: for the next try
                self._reserve.give_up()
            raise self._translate(error) from error

    def _sync_claims(self, *, committing: bool) -> None:
        """Bring the records of messages that were received to the disk, along with a batch that is synced anyway. They are no
        promise: if the disk refuses them, what was promised is still kept."""
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

    def find_lost(self, shelf: Shelf) -> bool:
        """Whether a file is missing because another process has dropped the queue; then it is forgotten."""
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
        """Tells a queue from one of the same name that was there before; None for one that a stranger made."""
        record = shelf.beside.settings()
        return str(record["born"]) if record else None

    @abstractmethod
    def _recover(self, shelf: Shelf) -> None:
        """Finish what the dead left half done, when a queue is first used. Under the lock."""

    def _other_name(self, shelf: Shelf) -> str | None:
        """The queue whose folder this really is, where the file system does not tell 'A' from 'a'."""
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
        shelf.beside.clear()  # what a drop that was cut short may have left
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
        before = list(record["retentions"]) if record else [[0, Settings().retention]]  # a stranger made this queue
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
            self.draw_on_reserve()
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
            return hash(tuple([_stamp(shelf) for shelf in self._shelves.values()]))

    def clock(self) -> Clock:
        return machine_clock(ClockFiles(self.root / FOLDER / ".clock", str(self)))

    def close(self) -> None:
        self._closed = True

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002
        self._lock.release()


def _unpack(record: Any) -> Settings:
    return unpack_settings(record["settings"]) if record else Settings()  # a stranger made this queue


def _stamp(shelf: Shelf) -> Stamp | None:
    try:
        return shelf.stamp()
    except OSError:  # the queue was dropped, or the disk fails: whoever looks closer is told
        return None
