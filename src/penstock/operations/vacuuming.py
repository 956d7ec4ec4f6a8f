"""Giving disk space back: first of what no longer counts (old history, marks, what dead processes have left), then of what is
free.

    SQLite       free pages, some at a time, and the log
    PostgreSQL   VACUUM of our tables, which gives back what is free at their end
    MariaDB      OPTIMIZE TABLE: each table is written anew, beside its users
    files        what was removed and is not yet unlinked
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from penstock.broker import LocalBroker, open_local
from penstock.operations.places import StorePlace, database_of, find
from penstock.queue.retention import Retention
from penstock.stores.dbserver.database import ServerDatabase
from penstock.stores.files.spool import Spool
from penstock.stores.files.store import FileStore
from penstock.stores.sql.whole import TABLES
from penstock.stores.sqlite.database import SqliteDatabase

SLICE = 512
"""How many pages SQLite gives back in one transaction."""


class Vacuumed(NamedTuple):
    """How many bytes were given back, as far as the store can tell, and how many free ones it keeps."""

    freed: int | None
    kept: int | None = None


def vacuum(url: str) -> Vacuumed:
    """Give back the disk space that the store at ``url`` does not need, while others use it."""
    place = find(url, "vacuum")
    place.check_exists()
    with open_local(url) as broker:
        for name in broker.queues().names:
            retention = Retention(name, broker.store, broker.store.queue(name), broker.waiting, broker.clock)
            while retention.slice():
                pass
        return KINDS[place.kind](place, broker)


def _sqlite(place: StorePlace, broker: LocalBroker) -> Vacuumed:
    database = cast(SqliteDatabase, database_of(broker))
    files = [place.path, place.path.with_name(f"{place.path.name}-wal")]
    before = sum(file.stat().st_size for file in files if file.exists())
    while database.give_back(SLICE):
        pass
    after = sum(file.stat().st_size for file in files if file.exists())
    return Vacuumed(max(0, before - after), database.pragma("freelist_count") * database.pragma("page_size"))


def _postgresql(place: StorePlace, broker: LocalBroker) -> Vacuumed:  # noqa: ARG001
    before = _ask(broker, SIZE)
    for table in TABLES:
        _ask(broker, f"VACUUM (TRUNCATE) penstock_{table}")
    return Vacuumed(max(0, before - _ask(broker, SIZE)))


def _mysql(place: StorePlace, broker: LocalBroker) -> Vacuumed:  # noqa: ARG001
    for table in TABLES:
        _ask(broker, f"OPTIMIZE TABLE penstock_{table}")
    return Vacuumed(None)


def _ask(broker: LocalBroker, text: str) -> int:
    """On the side connection, which is in no transaction."""
    database = cast(ServerDatabase, database_of(broker))
    rows, _ = database.side.do(lambda side: database.driver.ask(side, text))
    return int(rows[0][0]) if rows and isinstance(rows[0][0], int) else 0


SIZE = (
    f"SELECT ({' + '.join(f'pg_total_relation_size({table!r})' for table in (f'penstock_{name}' for name in TABLES))})::bigint"
)


def _files(place: StorePlace, broker: LocalBroker) -> Vacuumed:  # noqa: ARG001
    format = cast(FileStore, broker.store).format
    if isinstance(format, Spool):
        format.reap()
    return Vacuumed(None)


KINDS: dict[str, Callable[[StorePlace, LocalBroker], Vacuumed]] = {
    "sqlite": _sqlite,
    "postgresql": _postgresql,
    "mysql": _mysql,
    "vsqs": _files,
    "spool": _files,
}
