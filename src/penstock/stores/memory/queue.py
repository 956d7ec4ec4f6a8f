"""The verbs of one queue in memory."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from penstock.message import FOREVER, Counts, Entry, Held, Message, Moved, Sent, Settings, Settlement, State
from penstock.stores import messages
from penstock.stores.memory.table import MemoryRow, Table
from penstock.stores.memory.tables import Tables
from penstock.stores.parts import RecordedHistory, RecordedReaders, scan_of, span_of
from penstock.stores.ports import START, StoredQueue
from penstock.stores.requests import Claimed, Claiming, Marked, Moving, Swept


class MemoryQueue(StoredQueue):
    """Finds the table of its name anew in each verb. Owns nothing: the queue may be dropped and created again."""

    def __init__(self, name: str, tables: Tables) -> None:
        self.readers = RecordedReaders(name, partial(tables.changing, name))
        self.history = RecordedHistory(partial(tables.changing, name))
        self._name = name
        self._tables = tables

    def insert(self, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        with self._tables.lock:
            table = self._tables.find(self._name)
            if table.settings != settings:
                return None
            self._tables.change(table)
            sent = [self._insert(table, entry, now) for entry in entries]
            self._tables.done()
            return sent

    def _insert(self, table: Table, entry: Entry, now: int) -> Sent:
        if entry.mark is not None:
            first, until = table.marks.records.get(entry.mark, ("", 0))
            if until > now:
                return Sent(first, duplicate=True)
        number = next(self._tables.numbers)
        id = self._tables.ids.make(number)
        table.insert(entry, self._name, number, id)
        return Sent(id)

    def claim(self, claiming: Claiming) -> Claimed | None:
        with self._tables.lock:
            table = self._tables.find(self._name)
            if claiming.known is not None and claiming.known != table.settings:
                return None
            self._tables.change(table)
            receipts, settlement = claiming.deleting or ((), None)
            deleted = [table.delete(receipt, settlement) for receipt in receipts] if settlement is not None else []
            rows = table.first_visible(claiming)
            claimed = [table.claim(row, claiming) for row in rows]
            self._tables.done()
            return Claimed(claimed, deleted)

    def extend(self, receipts: Sequence[Held], until: int, *, release: bool = False, error: str | None = None) -> list[bool]:
        with self._tables.lock:
            table = self._tables.find(self._name)
            self._tables.change(table)
            extended = [table.extend(receipt, until, release=release, error=error) for receipt in receipts]
            self._tables.done()
            return extended

    def delete(self, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None) -> list[bool] | None:
        with self._tables.lock:
            table = self._tables.find(self._name)
            if settings is not None and table.settings != settings:
                return None
            self._tables.change(table)
            deleted = [table.delete(receipt, settlement) for receipt in receipts]
            self._tables.done()
            return deleted

    def move(self, receipts: Sequence[Held], moving: Moving) -> list[Moved]:
        with self._tables.lock:
            table, there = self._tables.find(self._name), self._tables.find(moving.target)
            self._tables.change(table, there)
            moved = [self._move(table, receipt, there, moving) for receipt in receipts]
            self._tables.done()
            return moved

    def _move(self, table: Table, receipt: Held, there: Table, moving: Moving) -> Moved:
        row = table.find(receipt)
        if row is None:
            return Moved.STALE
        new = moving.readmit(row.message, row.mark, moving.death, table.settings, there.settings, moving.now)
        if new.mark is not None and new.mark_until and there.marks.records.get(new.mark, ("", 0))[1] == FOREVER:
            return Moved.DUPLICATE
        message = messages.moved(row.message, moving, new)
        if self._tables.by_arrival:
            message.number = next(self._tables.numbers)
        table.move(row, there, MemoryRow(message, new.mark, new.mark_until))
        return Moved.DONE

    def set_aside(self, receipts: Sequence[Held]) -> list[bool]:
        with self._tables.lock:
            table = self._tables.find(self._name)
            self._tables.change(table)
            aside = [table.set_aside(receipt) for receipt in receipts]
            self._tables.done()
            return aside

    def browse(
        self, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        with self._tables.lock:
            table = self._tables.find(self._name)
            start = table.position(*after)
            rows = [
                row
                for row in table.rows.values()
                if (state is None or row.message.state is state)
                and (now is None or (row.message.visible_at <= now and not row.blocked))
                and table.order(row) > start
            ]
            first = heapq.nsmallest(limit, rows, key=table.order)
            return [replace(messages.copied(row.message), blocked=row.blocked) for row in first]

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        if stop == start + 1 and not self._tables.by_arrival:  # one message, whose number tells its id
            with self._tables.lock:
                row = self._tables.find(self._name).rows.get(self._tables.ids.make(start))
                return [] if row is None else [replace(messages.copied(row.message), blocked=row.blocked)][:limit]
        return scan_of(self._all(start, stop), start, stop, limit)

    def span(self) -> tuple[int, int, int]:
        return span_of(self._all())

    def _all(self, start: int = 0, stop: int = FOREVER) -> list[Message]:
        with self._tables.lock:
            rows = [row for row in self._tables.find(self._name).rows.values() if start <= row.message.number < stop]
            return [replace(messages.copied(row.message), blocked=row.blocked) for row in rows]

    def marked(self, mark: bytes | None = None) -> Marked:
        with self._tables.lock:
            table = self._tables.find(self._name)
            if mark is None:
                return Marked(sum(until == FOREVER for _, until in table.marks.records.values()))
            id, until = table.marks.records.get(mark, ("", 0))
            return Marked(int(until == FOREVER), id if id in table.rows else None)

    def count(self, now: int) -> Counts:
        with self._tables.lock:
            table = self._tables.find(self._name)
            rows = ((row.message, row.blocked) for row in table.rows.values())
            return messages.counts_of(rows, now, len(table.history.records))

    def due(self) -> int | None:
        with self._tables.lock:
            return self._tables.find(self._name).due()

    def purge(self, limit: int) -> int:
        with self._tables.lock:
            table = self._tables.find(self._name)
            held = set(table.held_ids())
            self._tables.change(table)
            rows = [row for id, row in table.rows.items() if id not in held][:limit]
            for row in rows:
                table.remove(row)
            if table.settings.groups:
                known = table.marks.records
                for mark in [mark for mark, (_, until) in known.items() if until < FOREVER]:
                    del known[mark]
            self._tables.done()
            return len(rows)

    def sweep(self, now: int) -> Swept:
        with self._tables.lock:
            table = self._tables.find(self._name)
            more = [table.history.sweep(now), table.marks.sweep(now)]
            return Swept(any(more))

    def unmark(self, marks: Sequence[bytes]) -> None:
        """Forget marks that are no longer needed, before they expire."""
        with self._tables.lock:
            known = self._tables.find(self._name).marks.records
            for mark in marks:
                known.pop(mark, None)
