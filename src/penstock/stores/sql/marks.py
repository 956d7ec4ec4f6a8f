"""The marks of a queue, by which duplicates are recognised."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.message import FOREVER
from penstock.stores.requests import Marked
from penstock.stores.sql.database import Database


class SqlMarks:
    """Owns the rows of penstock_mark of one queue, within one batch or read."""

    __slots__ = ("_database", "_queue")

    def __init__(self, database: Database, queue: int) -> None:
        self._database = database
        self._queue = queue

    def first(self, mark: bytes, now: int) -> int | None:
        """The message that makes others with this mark duplicates. If there is none, the mark can be added."""
        found = self._database.rows("mark", {"queue": self._queue, "mark": mark})
        if not found:
            return None
        number: int
        number, until = found[0]
        # A mark that lasts as long as its message must not outlive it, whatever happened to either.
        if until > now and (until != FOREVER or self._exists(number)):
            return number
        self._database.run("unmark", {"queue": self._queue, "mark": mark})
        return None

    def add(self, new: Iterable[tuple[bytes, int, int]]) -> None:
        """Add marks, each with the number of its message and its end, which nobody has."""
        rows = [(self._queue, mark, number, until) for mark, number, until in new]
        if rows:
            self._database.many("add_mark", rows)

    def bearer(self, mark: bytes | None) -> int | None:
        """The message in the queue that carries this mark for as long as it is there."""
        found = self._database.rows("mark", {"queue": self._queue, "mark": mark})
        return found[0][0] if found and found[0][1] == FOREVER and self._exists(found[0][0]) else None

    def of(self, mark: bytes) -> Marked:
        """`StoredQueue.marked`."""
        for number, until in self._database.rows("mark", {"queue": self._queue, "mark": mark}):
            if self._exists(number):
                return Marked(int(until == FOREVER), self._database.ids.make(number))
        return Marked(0)

    def set(self, mark: bytes | None, number: int, until: int) -> None:
        self._database.run("unmark", {"queue": self._queue, "mark": mark})
        fields = {"queue": self._queue, "mark": mark, "number": number, "expires_at": until}
        self._database.run("add_mark", fields)

    def count(self) -> int:
        return int(self._database.rows("count_marked", {"queue": self._queue, "forever": FOREVER})[0][0])

    def _exists(self, number: int) -> bool:
        return bool(self._database.rows("sent_at", {"number": number}))
