"""Whether a queue exists: creating it, opening it for each verb, changing its settings, dropping it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator
from typing import Any

from penstock.errors import BadName, QueueNotFound
from penstock.guarded import guarded
from penstock.message import Settings
from penstock.stores.disk import sync
from penstock.stores.encoding import pack_settings, unpack_settings
from penstock.stores.files.folder import Folder
from penstock.stores.files.layout import Format
from penstock.stores.files.transactions import FileTransactions


class Opening:
    """One queue, which another process may create, change or drop at any time. Owns whether this process has it open."""

    def __init__(self, name: str, folder: Folder, format: Format, transactions: FileTransactions) -> None:
        self.name = name
        self.folder = folder
        self.transactions = transactions
        self.is_open = False
        self._sidecar = folder.sidecar
        self._format = format
        self._born: str | None = None
        self.on_open: list[Callable[[], object]] = []
        """Called under the lock when the queue is first used, and again after it was dropped."""
        self.on_close: Callable[[], object] = lambda: None

    @guarded
    def visit(self, *, durable: bool = True, check: bool = True, drains: bool = False) -> Generator[None]:
        """A batch on this queue.

        Without ``check``, the caller looks into the queue's folder anyway and gets `FileNotFoundError` if it is gone. With
        ``drains``, it may use the disk space kept in reserve."""
        with self.transactions.batch(durable=durable):
            if drains:
                self.transactions.draw_on_reserve()
            self.transactions.visited.add(self.folder)
            self._ensure_open(check=check)
            try:
                yield
            except FileNotFoundError as error:
                if self._is_lost():
                    raise QueueNotFound(self.name) from error
                raise

    def _ensure_open(self, *, check: bool) -> None:
        if self.is_open and (not check or self.folder.is_there()):
            return
        self.close()
        if not self.folder.is_there():
            raise QueueNotFound(self.name)
        with self._sidecar.lock():
            if self._owner() is not None or not self.folder.is_there():
                raise QueueNotFound(self.name)
            self._sidecar.make()
            self._sidecar.keep_copy()
            self._born = self.born()
            for act in self.on_open:
                act()
        self.is_open = True

    def close(self) -> None:
        """The next verb opens the queue again."""
        self.is_open = False
        self.folder.doubt()
        self.on_close()

    def _is_lost(self) -> bool:
        """Whether a file is missing because another process has dropped the queue."""
        if self.folder.is_there() and self.born() == self._born:
            return False
        self.close()
        return True

    def born(self) -> str | None:
        """Identifies this incarnation of a queue name; None if another program made the queue."""
        record = self._sidecar.settings()
        return str(record["born"]) if record else None

    def _owner(self) -> str | None:
        """The queue that really owns this folder, where the file system does not distinguish 'A' from 'a'."""
        record = self._sidecar.settings()
        return None if not record or record["name"] == self.name else str(record["name"])

    def settings(self) -> Settings:
        return _unpack(self._sidecar.settings())

    def load(self) -> Settings | None:
        with self.transactions.batch(durable=False):
            if not self.folder.is_there() or self._owner() is not None:
                return None
            return self.settings()

    def save(self, settings: Settings, *, create: bool) -> bool:
        with self.transactions.batch():
            if not create and not self.folder.is_there():
                return False
            with self._sidecar.lock():
                there, owner = self.folder.is_there(), self._owner()
                if there and owner is not None:
                    if create:
                        raise BadName(
                            f"queue name {self.name!r}: the file system of {self.transactions} does not distinguish it from "
                            f"queue {owner!r}"
                        )
                    return False
                if there == create:
                    return False
                self._create(settings) if create else self._change(settings)
                return True

    def _create(self, settings: Settings) -> None:
        self._sidecar.clear()  # leftovers of an interrupted drop
        self._sidecar.make()
        self._save(settings, secrets.token_hex(8), [[0, settings.retention]])
        for folder in (self._sidecar.folder, self._sidecar.folder.parent, self.transactions.root):
            sync(folder)
        self.folder.layout.folder.mkdir()
        sync(self._format.queues)
        self.close()

    def _change(self, settings: Settings) -> None:
        self._sidecar.make()
        record = self._sidecar.settings()
        retentions = list(record["retentions"]) if record else [[0, Settings().retention]]  # another program made this queue
        if retentions[-1][1] != settings.retention:
            self.folder.doubt()
            self.folder.refresh()
            last = max((self.folder.layout.number(id) for id in self.folder.index), default=0)
            retentions.append([last, settings.retention])
        self._save(settings, record["born"] if record else secrets.token_hex(8), retentions)

    def _save(self, settings: Settings, born: str, retentions: list[list[float]]) -> None:
        self._born = born
        record = {"name": self.name, "born": born, "settings": pack_settings(settings), "retentions": retentions}
        self._sidecar.save_settings(record)

    def drop(self) -> bool:
        with self.transactions.batch():
            self.transactions.draw_on_reserve()
            try:
                self._ensure_open(check=True)
            except QueueNotFound:
                return False
            with self._sidecar.lock():
                if not self.folder.is_there():  # another process was first
                    return False
                self._format.clear(self.name)
                os.rename(self.folder.layout.folder, self._sidecar.make_trash() / "messages")
                sync(self._format.queues)
                self._format.clear(self.name)
                self._sidecar.clear()
            self.close()
            return True


def _unpack(record: Any) -> Settings:
    return unpack_settings(record["settings"]) if record else Settings()  # another program made this queue
