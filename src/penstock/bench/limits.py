"""The limits of the machine: bare SQLite with the same rows, and a plain file.

CREATE TABLE message (id INTEGER PRIMARY KEY, queue, visible_at, receives, sent_at, body), INDEX (queue, visible_at)

send      BEGIN IMMEDIATE; INSERT …; COMMIT
receive   UPDATE … WHERE id IN (SELECT … ORDER BY visible_at LIMIT n) RETURNING id, body; in a commit of its own
delete    BEGIN IMMEDIATE; DELETE …; COMMIT
once      DELETE … WHERE id IN (SELECT … ORDER BY visible_at LIMIT n) RETURNING id, body
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.bench.workloads import MeasuredQueue, Unverified
from penstock.stores.disk import sync_file_system

WAIT = 60
"""Seconds to wait for other processes that write."""
HIDDEN = 3600 * 1_000_000
FULL = 2


def equalise(connection: sqlite3.Connection) -> None:
    """Give a connection Penstock's settings: full sync, and deleted bytes left as they are (Debian's build wipes them)."""
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA secure_delete = OFF").fetchall()


def read_settings(connection: sqlite3.Connection) -> str:
    """The settings as read back from the connection; `Unverified` if it does not sync every commit to a write-ahead log."""
    journal, synchronous, secure = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "secure_delete")
    )
    if (journal, synchronous) != ("wal", FULL):
        raise Unverified(f"journal_mode is {journal} and synchronous is {synchronous}, not wal and {FULL} (FULL)")
    return f"journal_mode={journal}, synchronous={synchronous} (FULL), secure_delete={secure}"


class BareSqlite(MeasuredQueue):
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, timeout=WAIT, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL").fetchall()
        equalise(self._connection)
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS message (id INTEGER PRIMARY KEY, queue INTEGER NOT NULL, visible_at INTEGER NOT NULL, "
            "receives INTEGER NOT NULL, sent_at INTEGER NOT NULL, body BLOB NOT NULL)"
        )
        self._connection.execute("CREATE INDEX IF NOT EXISTS ready ON message (queue, visible_at)")

    def send(self, bodies: Sequence[bytes]) -> None:
        now = time.time_ns() // 1000
        self._many(
            "INSERT INTO message (queue, visible_at, receives, sent_at, body) VALUES (1, ?, 0, ?, ?)",
            [(now, now, body) for body in bodies],
        )

    def receive(self, limit: int) -> list[Any]:
        now = time.time_ns() // 1000
        return self._connection.execute(
            "UPDATE message SET visible_at = ?, receives = receives + 1 WHERE id IN "
            "(SELECT id FROM message WHERE queue = 1 AND visible_at <= ? ORDER BY visible_at LIMIT ?) RETURNING id, body",
            (now + HIDDEN, now, limit),
        ).fetchall()

    def delete(self, held: list[Any]) -> None:
        self._many("DELETE FROM message WHERE id = ?", [(row[0],) for row in held])

    def receive_once(self, limit: int) -> int:
        now = time.time_ns() // 1000
        rows = self._connection.execute(
            "DELETE FROM message WHERE id IN "
            "(SELECT id FROM message WHERE queue = 1 AND visible_at <= ? ORDER BY visible_at LIMIT ?) RETURNING id, body",
            (now, limit),
        )
        return len(rows.fetchall())

    def _many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(statement, rows)
        self._connection.execute("COMMIT")

    def settings(self) -> str:
        return read_settings(self._connection)

    def close(self) -> None:
        self._connection.close()


class BareFiles(MeasuredQueue):
    """Each message is a file: create, write, fsync, rename, fsync the folder; a batch syncs the whole file system once."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self._path = path
        self._folder = os.open(path, os.O_RDONLY)
        self._number = 0

    def send(self, bodies: Sequence[bytes]) -> None:
        names = []
        for body in bodies:
            self._number += 1
            names.append(str(self._path / str(self._number)))
            handle = os.open(f"{names[-1]}.new", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            os.write(handle, body)
            if len(bodies) == 1:
                os.fsync(handle)
            os.close(handle)
        if len(bodies) > 1:
            sync_file_system(self._path)
        for name in names:
            os.rename(f"{name}.new", name)
        os.fsync(self._folder)

    def tidy(self) -> None:
        for name in os.listdir(self._path):
            os.unlink(self._path / name)

    def close(self) -> None:
        os.close(self._folder)


class Append(MeasuredQueue):
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def send(self, bodies: Sequence[bytes]) -> None:
        os.write(self._file, b"".join(bodies))
        os.fdatasync(self._file)

    def tidy(self) -> None:
        os.ftruncate(self._file, 0)

    def close(self) -> None:
        os.close(self._file)
