"""The consumers of each queue, in a table."""

from __future__ import annotations

from penstock.errors import QueueNotFound
from penstock.stores.ports import Roster
from penstock.stores.sql.database import Database


class SqlRoster(Roster):
    """Owns the rows of penstock_consumer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def beat(self, queue: str, consumer: str, now: int) -> None:
        with self._database.joined(durable=False):
            fields = {"queue": self._database.find(queue).number, "consumer": consumer, "now": now}
            if not self._database.run("beat", fields):
                self._database.run("enroll", fields)

    def strike(self, queue: str, before: int) -> None:
        with self._database.joined(durable=False):
            self._database.run("strike", {"queue": self._database.find(queue).number, "before": before})

    def living(self, queue: str) -> list[str]:
        rows = self._database.rows("living", {"name": queue})  # one round trip: a consumer asks before each receive
        if not rows:
            raise QueueNotFound(queue)
        return [name for (name,) in rows if name is not None]

    def leave(self, queue: str, consumer: str) -> None:
        with self._database.joined(durable=False):
            self._database.run("leave", {"queue": self._database.find(queue).number, "consumer": consumer})
