"""Copies of a queue file: taken while others use it, changed while nobody does, and put back into one that others use."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from penstock.guarded import guarded
from penstock.patience import Patience
from penstock.stores.sql.database import migrate
from penstock.stores.sql.statements import read_sql
from penstock.stores.sqlite.database import SqliteDatabase
from penstock.stores.sqlite.file import QueueFile
from penstock.stores.sqlite.runs import SqliteRuns
from penstock.stores.sqlite.words import TEXTS, WORDS

PAGES = 1024
"""How many pages are copied between two chances to stop."""


def take(path: Path, target: Path) -> None:
    """Copy a queue file that others may be writing, as it is at one instant. The copy is not synced.

    A read transaction keeps that state; without one, SQLite would begin again after each commit of others."""
    with _connected(path) as source, _connected(target) as copy:
        source.execute("BEGIN; SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()
        copy.execute("PRAGMA synchronous = OFF")
        _copy(copy, source)


def integrity(path: Path, most: int) -> list[str]:
    """What SQLite itself finds wrong with a queue file."""
    with _connected(path) as connection:
        told = [str(line) for (line,) in connection.execute(f"PRAGMA integrity_check({most})")]
    return [] if told == ["ok"] else told


def put(path: Path, source: Path) -> None:
    """Replace what is in a queue file that others may have open, in one transaction."""
    with _connected(path) as target, _connected(source) as copy:
        _copy(target, copy)


def _copy(target: apsw.Connection, source: apsw.Connection) -> None:
    with target.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(PAGES)


@contextmanager
def _connected(path: Path) -> Iterator[apsw.Connection]:
    file = QueueFile(path, Patience())
    try:
        with closing(apsw.Connection(str(path))) as connection:
            connection.set_busy_handler(file.wait_for_others)
            yield connection
    except apsw.Error as error:
        raise file.translate(error) from error


@guarded
def alone(path: Path) -> Generator[SqliteDatabase]:
    """A queue file that nobody else uses, with the newest schema. It is one file, without a log or a reserve beside it, so that
    it can be read where nothing can be written. It is not synced."""
    steps, statements = read_sql(WORDS, TEXTS)
    with _connected(path) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = OFF")
        database = SqliteDatabase(QueueFile(path, Patience()).over(connection), statements)
        database.ids = migrate(database, steps)
        yield database


def without_runs(database: SqliteDatabase) -> None:
    """In a batch: turn what only SQLite can keep into what every SQL database can: runs into lists, and no claim asleep."""
    for (name,) in database.rows("queues", {}):
        runs = SqliteRuns(name, database)
        runs.touch(database.find(name), until=0)
        runs.floor(database.find(name), 2**62)
