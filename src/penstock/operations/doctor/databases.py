"""Database servers: reachable, settings that keep what was acknowledged, rights, room for connections, the clock.

The connections are those of the stores, so that what they cannot do, the doctor cannot either.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

from penstock.broker import location
from penstock.errors import StoreError
from penstock.operations.doctor.findings import Finding, Visit, compare_clocks, note, ok, wrong
from penstock.operations.doctor.folders import compare_schema
from penstock.patience import Patience
from penstock.stores.dbserver.driver import Driver, Session

FEW_CONNECTIONS = 0.9
CHANGES = (
    "INSERT INTO penstock_message SELECT * FROM penstock_message WHERE 1 = 0",
    "UPDATE penstock_message SET receives = receives WHERE 1 = 0",
    "DELETE FROM penstock_message WHERE 1 = 0",
)
POSTGRESQL = """
SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())::float8, pg_is_in_recovery(),
       coalesce(has_schema_privilege(current_schema(), 'CREATE'), false),
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_connections')::int
"""
POSTGRESQL_SETTINGS = """
SELECT name, reset_val FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit')
"""
MYSQL = """
SELECT @@version, UNIX_TIMESTAMP(NOW(6)), @@read_only, @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite,
       @@log_bin, @@sync_binlog, @@max_connections
"""
FLUSH = "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in the server's configuration"


class Reached(NamedTuple):
    driver: Driver
    session: Session
    visit: Visit

    def ask(self, text: str) -> list[Any]:
        return list(self.driver.ask(self.session, text)[0])


def examine_postgresql(visit: Visit) -> Iterator[Finding]:
    driver = import_module("penstock.stores.postgresql.driver").PostgresqlDriver
    yield from _examine(driver, visit, _postgresql)


def examine_mysql(visit: Visit) -> Iterator[Finding]:
    yield from _examine(import_module("penstock.stores.mysql.driver").MysqlDriver, visit, _mysql)


def _examine(make: Any, visit: Visit, particular: Any) -> Iterator[Finding]:
    driver: Driver = make(location(visit.url)[1], Patience(visit.timeout), statement_timeout=visit.timeout)
    session = driver.open()
    try:
        reached = Reached(driver, session, visit)
        yield from particular(reached)
        yield from _examine_tables(reached)
    finally:
        driver.shut(session)


def _postgresql(reached: Reached) -> Iterator[Finding]:
    ((version, at, copy, creates, connections, most),) = reached.ask(POSTGRESQL)
    yield ok("server", f"{reached.driver}, PostgreSQL {version}")
    yield compare_clocks("the server's clock", at - reached.visit.wall() / 1_000_000)
    settings = dict(reached.ask(POSTGRESQL_SETTINGS))
    if settings["fsync"] != "on":
        yield wrong("sync", "fsync is off: a power cut may lose messages, and damage the database", "fsync = on, and reload it")
    if settings["full_page_writes"] != "on":
        yield wrong(
            "sync", "full_page_writes is off: a power cut may damage the database", "full_page_writes = on, and reload it"
        )
    if settings["synchronous_commit"] in ("off", "local"):
        what = f"synchronous_commit is {settings['synchronous_commit']}; Penstock turns it on for its own connections"
        yield note("sync", what, "transactions of yours that a send joins may be lost")
    if set(settings.values()) == {"on"}:
        yield ok("sync", "commits wait for the disk")
    if copy:
        yield wrong("server", "it is a standby, which can only be read", "give the URL of the primary")
    yield from _examine_connections(connections, most)
    if not creates and not reached.driver.has_schema(reached.session):
        yield wrong("permissions", "this user may not make tables in its schema", "GRANT CREATE ON SCHEMA … TO …")


def _mysql(reached: Reached) -> Iterator[Finding]:
    ((version, at, read_only, flush, doublewrite, log, sync_log, most),) = reached.ask(MYSQL)
    name = "MariaDB" if "MariaDB" in version else "MySQL"
    yield ok("server", f"{reached.driver}, {name} {version}")
    yield compare_clocks("the server's clock", float(at) - reached.visit.wall() / 1_000_000)
    unsafe = False
    if flush != 1:
        unsafe = True
        yield wrong("sync", f"innodb_flush_log_at_trx_commit is {flush}: a power cut may lose messages", FLUSH)
    if str(doublewrite).upper() in ("0", "OFF"):
        unsafe = True
        yield wrong("sync", "innodb_doublewrite is off: a power cut may damage the database", "innodb_doublewrite = on")
    if log and sync_log != 1:
        what = f"sync_binlog is {sync_log}: after a power cut, replicas and backups from the log may differ"
        yield note("sync", what, "sync_binlog = 1")
    if not unsafe:
        yield ok("sync", "commits wait for the disk")
    if read_only not in (0, "0", "OFF"):
        yield wrong("server", "it is read-only", "give the URL of the primary")
    ((_, connections),) = reached.ask("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
    yield from _examine_connections(int(connections), most)


def _examine_connections(used: int, most: int) -> Iterator[Finding]:
    what = f"{used} of {most} connections are in use"
    if used >= most * FEW_CONNECTIONS:
        yield wrong("server", what, "raise max_connections, or give each process fewer (?pool=N)")
    else:
        yield ok("server", what)


def _examine_tables(reached: Reached) -> Iterator[Finding]:
    driver, session, _ = reached
    if not driver.has_schema(session):
        yield note("store", "there is no store yet", "the first program that opens it makes it")
        return
    ((version,),), _ = driver.ask(session, driver.statements["meta"], {"name": "version"})
    yield compare_schema("store", "the store", int(version), max(driver.steps))
    for change in CHANGES:
        try:
            driver.ask(session, f"EXPLAIN {change}")
        except StoreError as error:
            what = f"this user may not {change.split()[0]} messages: {error}"
            yield wrong("permissions", what, "GRANT SELECT, INSERT, UPDATE, DELETE on all tables to it")
            return
    yield ok("permissions", "this user may read and write the store")
