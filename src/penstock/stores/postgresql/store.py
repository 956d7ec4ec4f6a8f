"""The store on PostgreSQL: many processes on many machines can share a queue, and NOTIFY wakes waiting receivers."""

from __future__ import annotations

from penstock.patience import Patience
from penstock.stores.dbserver.store import open_server_store
from penstock.stores.postgresql.driver import PostgresqlDriver
from penstock.stores.postgresql.listener import Notifications
from penstock.stores.postgresql.shortcuts import PostgresqlShortcuts
from penstock.stores.sql.store import SqlStore


def open_store(url: str, patience: Patience, *, statement_timeout: float = 60, pool: int = 10) -> SqlStore:
    """``patience``: how long to wait for locks, for a free connection, and for an unreachable server; ``statement_timeout``:
    seconds after which the server cancels a statement; ``pool``: the maximum number of connections."""
    driver = PostgresqlDriver(url, patience, statement_timeout=statement_timeout)
    return open_server_store(
        driver, pool=pool, listening=Notifications, shortcuts=lambda database: PostgresqlShortcuts(database, driver)
    )
