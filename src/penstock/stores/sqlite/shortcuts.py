"""Plain messages by one statement, which SQLite commits by itself.

A transaction of several statements would cost half as much again for each send and each delete. Each statement here changes
nothing unless the case is simple and the queue is as the caller knows it; then the usual way is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from penstock.message import Entry, Held, Sent, Settings, Settlement
from penstock.stores.encoding import pack_settings
from penstock.stores.sql.rows import INSERTED, insert_rows, numbers_of
from penstock.stores.sql.shortcuts import Shortcuts
from penstock.stores.sqlite.database import NO_NUMBERS, SqliteDatabase
from penstock.stores.sqlite.runs import LATE

SIZES = (2, 4, 8, 16, 32, 64, 128)
"""The sizes of inserts: few statements to prepare; the rows that are left over are empty."""
NO_ROW = (None,) * len(INSERTED)
MOST_BYTES = 1024 * 1024
"""Of several messages in one statement: SQLite copies what it is given, and keeps that until the statement is used again."""


def add_sizes(statements: dict[str, str]) -> None:
    """Add the insert statement of each size."""
    row = f"({', '.join('?' * len(NO_ROW))})"
    for size in SIZES:
        statements[f"insert_{size}"] = statements["insert_together"].replace(":rows", ", ".join([row] * size))


class SqliteShortcuts(Shortcuts):
    """One for all queues of a store."""

    __slots__ = ("_database",)

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        add_sizes(database.statements)

    def insert(self, queue: str, entries: Sequence[Entry], settings: Settings) -> list[Sent] | None:
        count, database = len(entries), self._database
        if not 0 < count <= SIZES[-1] or settings.groups or [entry for entry in entries if entry.mark is not None]:
            return None
        if count > 1 and sum([len(entry.body) for entry in entries]) > MOST_BYTES:
            return None
        with database.lock:
            # Until there is an answer, the numbers may be used or not.
            (first, last), database.spare = database.spare, NO_NUMBERS
            if first + count - 1 > last or database.in_batch():
                database.spare = (first, last)
                return None
            earliest = min([entry.visible_at for entry in entries]) + LATE
            size = 1 << (count - 1).bit_length()
            rows = insert_rows(first, 0, entries)  # the statement finds the queue's number
            one = (first, *rows[0][2:])
            params = one if count == 1 else (*chain.from_iterable(rows), *NO_ROW * (size - count))
            known = (queue, pack_settings(settings), earliest, last)
            done = database.run_alone(f"insert_{size}", params + known, drains=False)
            database.spare = (first + done, last)
            make = database.ids.make
            return [Sent(make(number)) for number in range(first, first + count)] if done else None

    def delete(self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings) -> set[int] | None:
        if settlement.keep_until is not None or not receipts or self._database.in_batch():
            return None
        numbers = numbers_of(self._database.ids, receipts)
        delivery, packed = receipts[0].delivery, pack_settings(settings)
        if len(numbers) == 1:
            done = self._database.run_alone("delete_alone", (numbers[0], delivery, queue, packed), drains=True)
            return set(numbers) if done else None
        if any(receipt.delivery != delivery for receipt in receipts):  # they were not received together
            return None
        known = (self._database.list_of(numbers), len(numbers), delivery, queue, packed)
        return set(numbers) if self._database.run_alone("delete_alike", known, drains=True) else None
