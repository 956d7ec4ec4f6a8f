"""A store of files that are renamed from state to state. What the formats do differently is in the `Format` that it is given.

Penstock's own processes lock a queue while they change names, so that they can check a receipt and act on it. Other programs do
not know that lock; only the renames coordinate us with them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from penstock.clock import Clock, machine_clock
from penstock.message import Settings
from penstock.patience import Patience
from penstock.stores.clock_files import ClockFiles
from penstock.stores.files.layout import Format
from penstock.stores.files.outbox import WRITERS, FileLedger
from penstock.stores.files.queue import FileQueue, Queues
from penstock.stores.files.sidecar import FOLDER
from penstock.stores.files.transactions import FileTransactions
from penstock.stores.ports import Outbox, Store
from penstock.stores.roster import LocalRoster
from penstock.stores.staging import StagedFiles


class FileStore(Store):
    durable = True
    ordered = False
    groups = False
    atomic = False

    def __init__(self, root: str | Path, format: Format, patience: Patience) -> None:
        """``patience``: how long to wait for other processes that hold a lock."""
        self.root = Path(root)
        self.format = format
        self._transactions = FileTransactions(self.root, patience)
        self._reserve = self._transactions.reserve
        self._queues = Queues(self.root, format, self._transactions, lambda damage: self.on_damage(damage))
        staging = StagedFiles(self.root / FOLDER / WRITERS, durable=True, admit=self._reserve.admit)
        ledger = FileLedger(self._queues, staging)
        self._queues.is_inserting = ledger.is_inserting
        self.outbox = Outbox(staging, ledger)
        self.roster = LocalRoster()
        self.uuids = format.uuids(lambda queue: self.queue(queue).ids())
        with self.batch():
            if not self.root.exists():
                self.root.parent.mkdir(parents=True, exist_ok=True)
                self.root.mkdir(0o700, exist_ok=True)
            (self.root / FOLDER / ".reserve").mkdir(parents=True, exist_ok=True)
            format.prepare()
            self._reserve.make()

    def __str__(self) -> str:
        return str(self._transactions)

    def batch(self, *, durable: bool = True) -> AbstractContextManager[None]:
        return self._transactions.batch(durable=durable)

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        return self._find(name).opening.save(settings, create=create)

    def load(self, name: str) -> Settings | None:
        return self._find(name).opening.load()

    def names(self) -> list[str]:
        with self.batch(durable=False):
            return sorted(entry.name for entry in os.scandir(self.format.queues) if entry.is_dir() and entry.name[0] != ".")

    def drop(self, name: str) -> bool:
        return self._find(name).opening.drop()

    def queue(self, name: str) -> FileQueue:
        return self._queues.get(name)

    def _find(self, name: str) -> FileQueue:
        """The queue, which need not exist: it is not remembered."""
        return self._queues.used.get(name) or FileQueue(name, self._queues)

    def version(self) -> int:
        with self._transactions.lock:
            return hash(tuple([queue.stamp() for queue in list(self._queues.used.values())]))

    def traces(self, queues: Sequence[str]) -> list[str]:
        used = [self._queues.used.get(name) for name in queues]
        return [path for queue in used if queue is not None for path in queue.folder.layout.watched]

    def clock(self) -> Clock:
        return machine_clock(ClockFiles(self.root / FOLDER / ".clock", str(self)))

    def close(self) -> None:
        self._transactions.closed = True
        for queue in list(self._queues.used.values()):
            queue.stop_sweep()
