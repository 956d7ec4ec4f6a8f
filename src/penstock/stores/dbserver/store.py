"""The store on a database server, composed of the driver of that server and of what all SQL databases share."""

from __future__ import annotations

from collections.abc import Callable

from penstock.stores.dbserver.database import Listening, ServerDatabase
from penstock.stores.dbserver.driver import Driver
from penstock.stores.dbserver.sleepers import Sleepers
from penstock.stores.dbserver.staging import StagedRows
from penstock.stores.sql.database import Database
from penstock.stores.sql.queue import SqlQueue
from penstock.stores.sql.shortcuts import NO_SHORTCUTS, Shortcuts
from penstock.stores.sql.store import SqlStore


def open_server_store(
    driver: Driver,
    *,
    pool: int,
    listening: Callable[[ServerDatabase], Listening],
    shortcuts: Callable[[ServerDatabase], Shortcuts] = lambda _: NO_SHORTCUTS,
) -> SqlStore:
    database = ServerDatabase(driver, pool=pool, listening=listening)
    known = shortcuts(database)

    def make_queue(name: str, database: Database) -> SqlQueue:
        return SqlQueue(name, database, Sleepers(name, database), known)

    return SqlStore(database, StagedRows(database), make_queue)
