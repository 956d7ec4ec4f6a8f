"""The settled messages of a queue in an SQL database."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import Held, Message, State
from penstock.stores.ports import START, History
from penstock.stores.sql.database import Database
from penstock.stores.sql.deleting import keys_of
from penstock.stores.sql.rows import to_settled


class SqlHistory(History):
    """Owns the rows of penstock_settled of one queue."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name

    def browse(self, limit: int, *, after: tuple[int, int] = START) -> list[Message]:
        with self._database.reading():
            fields = {"queue": self._database.find(self._name).number, "after_at": after[0], "after_number": after[1]}
            rows = self._database.rows("settled", {**fields, "limit": limit})
        return [to_settled(self._database.ids, self._name, row) for row in rows]

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        with self._database.reading():
            queue = self._database.find(self._name).number
            rows = self._database.rows("scan_settled", {"queue": queue, "start": start, "stop": stop, "limit": limit})
        return [to_settled(self._database.ids, self._name, row) for row in rows]

    def span(self) -> tuple[int, int, int]:
        with self._database.reading():
            queue = self._database.find(self._name).number
            count, first, last = self._database.rows("span_settled", {"queue": queue})[0]
        return count, first or 0, last or 0

    def amend(self, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        with self._database.joined():
            keys = keys_of(self._database, self._database.find(self._name).number, receipts)
            fields = [{"number": number, "queue": queue, "delivery": delivery} for number, queue, delivery in keys]
            return [self._database.run("amend", {**each, "state": int(state), "reason": reason}) > 0 for each in fields]
