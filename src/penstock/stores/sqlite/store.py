"""The embedded store: one SQLite file, through apsw, safe for many threads and processes."""

from __future__ import annotations

from pathlib import Path

from penstock.patience import Patience
from penstock.stores.sql.database import Database
from penstock.stores.sql.queue import SqlQueue
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.database import open_database
from penstock.stores.sqlite.runs import SqliteRuns
from penstock.stores.sqlite.shortcuts import SqliteShortcuts
from penstock.stores.staging import StagedFiles, staging_folder


def open_store(path: str | Path, patience: Patience) -> SqlStore:
    """``patience``: how long to wait for other writers."""
    database = open_database(path, patience)
    staging = StagedFiles(staging_folder(path), durable=False, admit=database.file.reserve.admit, beside=path)
    shortcuts = SqliteShortcuts(database)

    def make_queue(name: str, used: Database) -> SqlQueue:
        runs = SqliteRuns(name, used)
        return SqlQueue(name, used, runs, shortcuts) if used is database else SqlQueue(name, used, runs)

    return SqlStore(database, staging, make_queue)
