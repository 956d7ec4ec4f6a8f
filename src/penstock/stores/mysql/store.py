"""The store on MySQL and MariaDB: as on PostgreSQL, but waiting receivers poll.

There is no NOTIFY, so an announcement is a counter in an in-memory table that waiting receivers poll.
"""

from __future__ import annotations

from penstock.patience import Patience
from penstock.stores.dbserver.database import Listening, ServerDatabase
from penstock.stores.dbserver.store import open_server_store
from penstock.stores.mysql.driver import MysqlDriver
from penstock.stores.sql.store import SqlStore

LOOK_EVERY = 0.05
"""Seconds between two polls for announcements; each is a query."""
LOOK_ANYWAY = 1
"""Seconds after which a waiting receiver looks for messages in any case: the owner of a joined transaction commits it without
an announcement, and a sender may die before it announces."""


class Polling(Listening):
    """Owns what was last seen of the counter."""

    def __init__(self, database: ServerDatabase) -> None:
        self._database = database
        self._version = 0
        self._look_at = 0.0

    def version(self) -> int:
        now = self._database.driver.patience.now()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            driver = self._database.driver
            rows = self._database.side.do(lambda side: driver.ask(side, "SELECT value FROM penstock_wake")[0])
            self._version = (int(rows[0][0]) if rows else 0) << 32 | int(now / LOOK_ANYWAY)
        return self._version

    def close(self) -> None:
        pass


def open_store(url: str, patience: Patience, *, statement_timeout: float = 60, pool: int = 10) -> SqlStore:
    """``patience``: how long to wait for locks, for a free connection, and for an unreachable server; ``statement_timeout``:
    seconds after which the server cancels a statement; ``pool``: the maximum number of connections."""
    driver = MysqlDriver(url, patience, statement_timeout=statement_timeout)
    return open_server_store(driver, pool=pool, listening=Polling)
