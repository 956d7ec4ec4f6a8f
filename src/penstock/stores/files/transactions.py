"""The batches of a file store. A batch is not atomic: it decides when what it has changed is synced to the disk."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from threading import RLock
from types import FrameType

from penstock.errors import StoreClosed, StoreError
from penstock.forking import watch
from penstock.guarded import guarded
from penstock.patience import Patience
from penstock.stores.callers import find_caller, refuse_handlers
from penstock.stores.disk import is_full, refusal, sync, sync_file_system
from penstock.stores.files.folder import Folder
from penstock.stores.files.sidecar import FEW, FOLDER
from penstock.stores.locks import Locks
from penstock.stores.reserve import Reserve

CLAIMS_EVERY = 1.0
"""The minimum seconds between two commits that also sync the records of messages this process has received. Doing it with each
commit would cost a fifth of the speed where threads send and receive concurrently."""
MOST_CLAIMED = 100_000
"""How many such records a process leaves unsynced before it syncs them by themselves."""
RESERVED_FILES, RESERVED_BYTES = 64, 4096
"""What is reserved for draining a full disk: files, because each message has one, and bytes per file."""


class FileTransactions:
    """Owns the lock that keeps a store's threads apart, what a batch has yet to sync, and the disk space kept in reserve."""

    def __init__(self, root: Path, patience: Patience) -> None:
        self.root = root
        self.patience = patience
        self.locks = Locks(patience)
        pieces = [f"{root}/{FOLDER}/.reserve/{number:02}" for number in range(RESERVED_FILES)]
        self.reserve = Reserve(self, pieces, RESERVED_BYTES)
        self.lock = RLock()
        self.closed = False
        self.dirty: set[str] = set()
        """The folders to sync when the batch ends."""
        self.claimed: set[str] = set()
        """The records of messages that we hold and that may not be on the disk yet."""
        self.visited: set[Folder] = set()
        """The folders of the queues that the batch has used."""
        self._claims_synced = -CLAIMS_EVERY
        self._depth = 0
        self._torn = False
        """Whether a batch is open, or has failed and was not cleaned up."""
        self._opener: FrameType | None = None
        """The frame that opened the current batch."""
        watch(self)

    def __str__(self) -> str:
        return f"the folder {self.root}"

    def translate(self, error: OSError) -> StoreError:
        return refusal(self, error)

    @guarded
    def batch(self, *, durable: bool = True) -> Generator[None]:
        begun = self.patience.now()
        with self.lock:
            waited = self.patience.now() - begun
            refuse_handlers(self, self._opener)
            if self.closed:
                raise StoreClosed(f"{self} was closed")
            depth = self._depth
            try:
                if not depth:
                    self._opener = find_caller()  # from here on, signal handlers are refused
                    if self._torn:
                        self._clear_up()
                    self._torn = True
                    # Otherwise threads that queue up behind a frozen process would add up their timeouts.
                    self.locks.spent = waited
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
                        self.reserve.give_up()
                    raise self.translate(error) from error
                raise
            finally:
                self._depth = depth
                if not depth:
                    self._opener = None

    def _commit(self, durable: bool) -> None:
        if self.claimed:
            self._sync_claims(committing=durable and bool(self.dirty))
        if durable:
            for folder in self.dirty:
                with suppress(FileNotFoundError):  # the queue was dropped
                    sync(folder)

    def _sync_claims(self, *, committing: bool) -> None:
        """Sync the records of received messages, along with a batch that is synced anyway. They are no promise: if the disk
        refuses them, everything promised is still kept."""
        now = self.patience.now()
        if not (committing and now >= self._claims_synced + CLAIMS_EVERY) and len(self.claimed) <= MOST_CLAIMED:
            return
        claimed, self.claimed, self._claims_synced = self.claimed, set(), now
        with suppress(OSError):
            if len(claimed) >= FEW:
                sync_file_system(self.root)
                return
            for path in [*claimed, *{os.path.dirname(path) for path in claimed}]:
                with suppress(FileNotFoundError):  # deleted by another process
                    sync(path)

    def _clear_up(self) -> None:
        """After a failed batch: an interrupt may have come before the code that took a lock could record it."""
        for folder in self.visited:
            folder.end_batch(failed=True)
        for lock in list(self.locks.open):
            lock.give()
        self._forget()

    def _forget(self) -> None:
        """Drop what was known within a batch."""
        self.dirty.clear()
        while self.visited:
            self.visited.pop().end_batch()
        self._torn = False

    def draw_on_reserve(self) -> None:
        """Called by verbs that drain a queue, which is how a full disk gets free again."""
        if self.reserve.is_needed():
            self.reserve.give_up()

    def before_fork(self) -> None:
        self.lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002
        self.lock.release()
