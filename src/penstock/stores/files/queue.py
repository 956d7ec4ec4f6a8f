"""One queue of a file store: the verbs, and the parts that do their work.

folder    the picture of its files           marks     what makes a message a duplicate
layout    their names, by the format         sending   adds messages
sidecar   what the format has no room for    holding   receipts: claim, extend, delete, move
opening   whether the queue exists           sweeping  clears up
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from penstock.errors import BadName, StoreError
from penstock.message import (
    FOREVER,
    Counts,
    Entry,
    Held,
    Message,
    Moved,
    Receipt,
    Sent,
    Settings,
    Settlement,
    State,
)
from penstock.stores.files.folder import Folder
from penstock.stores.files.history import FileHistory
from penstock.stores.files.holding import HeldFiles
from penstock.stores.files.layout import Format, Stamp
from penstock.stores.files.marks import FileMarks
from penstock.stores.files.opening import Opening
from penstock.stores.files.readers import FileReaders
from penstock.stores.files.records import ASIDE, Extra
from penstock.stores.files.sending import FileSending
from penstock.stores.files.sidecar import Sidecar
from penstock.stores.files.sweeping import Sweeping
from penstock.stores.files.transactions import FileTransactions
from penstock.stores.ports import START, StoredQueue
from penstock.stores.requests import Claimed, Claiming, Marked, Moving, Swept

MOST_FOREIGN = 100
"""The maximum number of foreign files that are named."""


class Queues:
    """What the queues of one store share. Owns those that are in use, so that each has one picture of its folder."""

    def __init__(self, root: Path, format: Format, transactions: FileTransactions, on_damage: Callable[[str], object]) -> None:
        self.root = root
        self.format = format
        self.transactions = transactions
        self.on_damage = on_damage
        self.is_inserting: Callable[[str], bool] = lambda _queue: False
        """Whether a writer's journal has drafts of this queue that are yet to be published."""
        self.used: dict[str, FileQueue] = {}

    def get(self, name: str) -> FileQueue:
        found = self.used.get(name)
        return found if found is not None else self.used.setdefault(name, FileQueue(name, self))


class FileQueue(StoredQueue):
    def __init__(self, name: str, queues: Queues) -> None:
        if name in ("", ".", "..") or "/" in name or "\0" in name:  # no name may lead to a folder outside the store's
            raise BadName(f"queue name {name!r:.80}: it cannot be the name of a folder")
        self.name = name
        self._queues = queues
        self._transactions = transactions = queues.transactions
        self.sidecar = Sidecar(queues.root, name, transactions.locks, queues.on_damage)
        self.folder = Folder(queues.format.layout(name, self.sidecar), self.sidecar, transactions.patience)
        self.opening = Opening(name, self.folder, queues.format, transactions)
        self.marks = FileMarks(self.opening)
        self.sending = FileSending(self.opening, self.marks)
        self.history: FileHistory = FileHistory(self.opening)
        self.holding = HeldFiles(self.opening, self.marks, self.history)
        self.readers: FileReaders = FileReaders(self.opening, self.holding)
        self._sweeping = Sweeping(
            self.folder, self.holding, self.marks, self.history, self.readers, lambda: queues.is_inserting(name)
        )
        self.opening.on_open = [self.readers.recover, self._enter]
        self.opening.on_close = self._leave

    def _enter(self) -> None:
        self._queues.used[self.name] = self

    def _leave(self) -> None:
        if self._queues.used.get(self.name) is self:
            del self._queues.used[self.name]

    def insert(self, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        return self.sending.insert(entries, now, settings)

    def claim(self, claiming: Claiming) -> Claimed | None:
        if claiming.deleting is None:
            claimed = self._claim(claiming)
            return None if claimed is None else Claimed(claimed)
        deleted = self.delete(*claiming.deleting, claiming.known)
        if deleted is None:
            return None
        try:
            return Claimed(self._claim(claiming) or [], deleted)
        except StoreError:
            return Claimed([], deleted)  # the deletion is done; the next claim will report the error

    def _claim(self, claiming: Claiming) -> list[Message] | None:
        with self.opening.visit(durable=False, check=False, drains=True):
            if claiming.known is not None and self.opening.settings() != claiming.known:
                return None
            if claiming.until is None:
                return self.holding.look(claiming)
            with self.folder.changing() as section:
                self.folder.refresh(eager=False, stamp=section.before)
                return self.holding.claim(claiming, claiming.until)

    def extend(self, receipts: Sequence[Held], until: int, *, release: bool = False, error: str | None = None) -> list[bool]:
        with self.opening.visit(drains=True), self.folder.changing():
            return [self.holding.extend(receipt, until, release=release, error=error) for receipt in receipts]

    def delete(self, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None) -> list[bool] | None:
        with self.opening.visit(check=False, drains=True):
            if settings is not None and self.opening.settings() != settings:
                return None
            with self.folder.changing(hidden=any(receipt.id not in self.folder.brief for receipt in receipts)):
                return [self.holding.delete(receipt, settlement) for receipt in receipts]

    def move(self, receipts: Sequence[Held], moving: Moving) -> list[Moved]:
        there = self if moving.target == self.name else self._queues.get(moving.target)
        with self.opening.visit(drains=True), there.opening.visit(), ExitStack() as stack:
            # Always in the same order; and a queue's lock cannot be taken twice.
            for queue in sorted({self, there}, key=lambda queue: queue.name):
                stack.enter_context(queue.folder.changing())
            return [self.holding.move(receipt, there.holding, moving) for receipt in receipts]

    def set_aside(self, receipts: Sequence[Held]) -> list[bool]:
        with self.opening.visit(), self.folder.changing():
            return [self.holding.extend(receipt, FOREVER, aside=True) for receipt in receipts]

    def browse(
        self, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        with self.opening.visit(durable=False):
            self.folder.refresh()
            index, number = self.folder.index, self.folder.layout.number
            found: list[Message] = []
            for place, id in sorted((number(id), id) for id, hidden in index.items() if now is None or hidden <= now):
                if place > after[1] and len(found) < limit:
                    message = self.folder.read(id, index[id])
                    if message is not None and (state is None or message.state is state):
                        found.append(message)
            return found

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        found: list[Message] = []
        with self.opening.visit(durable=False):
            self.folder.refresh()
            index, number = self.folder.index, self.folder.layout.number
            for place, id in sorted((place, id) for id in index if start <= (place := number(id)) < stop):
                if len(found) < limit or place == found[-1].number:
                    message = self.folder.read(id, index[id])
                    found += [] if message is None else [message]
        return found

    def span(self) -> tuple[int, int, int]:
        with self.opening.visit(durable=False):
            self.folder.refresh()
            numbers = [self.folder.layout.number(id) for id in self.folder.index]
        return len(numbers), min(numbers, default=0), max(numbers, default=0)

    def marked(self, mark: bytes | None = None) -> Marked:
        with self.opening.visit(durable=False):
            if mark is None:
                return Marked(self.marks.count())
            return Marked(int(self.marks.is_marked(mark)), self.marks.bearer(mark))

    def count(self, now: int) -> Counts:
        with self.opening.visit(durable=False):
            self.folder.refresh()
            index = self.folder.index
            visible = in_flight = aside = 0
            for id, hidden in index.items():
                if hidden <= now:
                    visible += 1
                    continue
                received = self.folder.received(id)
                if received is None:
                    in_flight += not self.folder.is_delayed(Extra.unpack(self.sidecar.read_json("head", id)), hidden)
                else:
                    in_flight += not received.released
                    aside += received.released == ASIDE
            first = min(index, key=self.folder.layout.number, default=None)
            oldest = None if first is None else self.folder.read(first, index[first])
            return Counts(
                messages=len(index),
                visible=visible,
                in_flight=in_flight,
                delayed=len(index) - visible - in_flight - aside,
                blocked=0,
                damaged=aside + self.sidecar.damaged(),
                settled=len(self.history.names()),
                oldest_at=None if oldest is None else oldest.sent_at,
                foreign=self._foreign(),
            )

    def _foreign(self) -> list[str]:
        return sorted(os.path.relpath(path, self._queues.root) for path in self.folder.foreign)[:MOST_FOREIGN]

    def due(self) -> int | None:
        with self.opening.visit(durable=False):
            self.folder.refresh()
            if self.folder.first_ready() is not None:
                return 0
            first = self.folder.first_hidden()
            return None if first is None or first[0] >= FOREVER else first[0]

    def purge(self, limit: int) -> int:
        with self.opening.visit(drains=True):
            self.folder.refresh()
            held = self.readers.held_ids()
            ids = [id for id in self.folder.index if id not in held][:limit]
            with self.folder.changing():
                return sum(self.holding.delete(Receipt(self.name, id, None), None) for id in ids)

    def sweep(self, now: int) -> Swept:
        with self.opening.visit(drains=True):
            with self.folder.changing():
                more = self._sweeping.slice(now)
            if not more:
                self._transactions.reserve.make()
            return Swept(more, self._foreign())

    # for the store

    def stop_sweep(self) -> None:
        self._sweeping.stop()

    def ids(self) -> list[str]:
        with self.opening.visit(durable=False):
            self.folder.refresh()
            return list(self.folder.index)

    def stamp(self) -> Stamp | None:
        """A value that changes when the messages or the settings do."""
        try:
            return *self.folder.layout.stamp(), *self.sidecar.stamp()
        except OSError:  # the queue was dropped, or the disk fails: a closer look reports it
            return None
