"""A store in an SQL database, composed of the parts that are written once for all databases."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager

from penstock.clock import Clock
from penstock.guarded import guarded
from penstock.message import Settings
from penstock.stores.ports import Outbox, Staging, Store
from penstock.stores.sql.catalogue import SqlCatalogue, SqlUuids
from penstock.stores.sql.database import Database
from penstock.stores.sql.ledger import SqlLedger
from penstock.stores.sql.queue import SqlQueue
from penstock.stores.sql.roster import SqlRoster

MakeQueue = Callable[[str, Database], SqlQueue]


class SqlStore(Store):
    """Owns a database. ``make_queue`` gives a queue what its kind of database has beyond others."""

    ordered = True
    groups = True

    def __init__(self, database: Database, staging: Staging, make_queue: MakeQueue) -> None:
        self.database = database
        self.roster = SqlRoster(database)
        self.outbox = Outbox(staging, SqlLedger(database))
        self.uuids = SqlUuids(database)
        self._catalogue = SqlCatalogue(database)
        self._make_queue = make_queue

    def __str__(self) -> str:
        return str(self.database)

    @property
    def durable(self) -> bool:  # type: ignore[override]
        return self.database.durable

    @property
    def writers(self) -> int:  # type: ignore[override]
        return self.database.writers

    def batch(self, *, durable: bool = True) -> AbstractContextManager[None]:
        return self.database.batch(durable=durable)

    @guarded
    def joining(self, connection: object) -> Generator[Store]:
        with self.database.joining(connection) as joined:
            yield SqlStore(joined, self.outbox.staging, self._make_queue)

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        return self._catalogue.save(name, settings, create=create)

    def load(self, name: str) -> Settings | None:
        return self._catalogue.load(name)

    def reserve(self, name: str) -> None:
        self.database.reserve(name)

    def names(self) -> list[str]:
        return self._catalogue.names()

    def drop(self, name: str) -> bool:
        return self._catalogue.drop(name)

    def queue(self, name: str) -> SqlQueue:
        return self._make_queue(name, self.database)

    def version(self) -> int:
        return self.database.version()

    def traces(self, queues: Sequence[str]) -> list[str]:  # noqa: ARG002
        return self.database.traces()

    def listen(self, bell: Callable[[], None]) -> None:
        self.database.listen(bell)

    def clock(self) -> Clock:
        return self.database.clock()

    def close(self) -> None:
        self.database.close()
