"""All rows of an SQL database, in parts: to copy them into another database, and to make a copy a store of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from penstock.message import SECOND
from penstock.stores.sql.database import Database, read_meta
from penstock.stores.sql.rows import Row

TABLES = ("queue", "message", "settled", "mark", "reader", "claim", "held", "writer")
"""What a copy has. Living consumers, connections to a server and staged segments are not in it."""
BODIES, ROWS = 64, 1000
"""How many rows are in memory at a time: with a message's body, and without."""
JUMP, HOUR = 2**32, 3600 * SECOND
"""How many message numbers a restored store leaves out for each hour since the backup, in which they may have been given out:
consumers may remember the ids of messages that they have processed."""


def copy_rows(source: Database, target: Database) -> None:
    """Copy everything into an empty database, in a batch of it and a read of the source."""
    for queue in _copy(source, target, "queues", 0, ROWS):
        deque(_copy(source, target, "marks", b"", ROWS, queue[0]), maxlen=0)
        deque(_copy(source, target, "readers", "", ROWS, queue[0]), maxlen=0)
    deque(_copy(source, target, "messages", 0, BODIES), maxlen=0)
    deque(_copy(source, target, "settled", 0, BODIES), maxlen=0)
    deque(_copy(source, target, "writers", "", ROWS), maxlen=0)
    for claim in _copy(source, target, "claims", 0, ROWS):
        deque(_copy(source, target, "held", -1, ROWS, claim[0]), maxlen=0)
    for name in ("salt", "number"):
        target.run("change_meta", {"name": name, "value": read_meta(source, name)})


def _copy(source: Database, target: Database, kind: str, after: Any, size: int, parent: int | None = None) -> Iterator[Row]:
    """Each row, once it is copied. The first column is what the rows are read by."""
    while True:
        fields = {"after": after, "limit": size} | ({} if parent is None else {"parent": parent})
        rows = source.rows(f"all_{kind}", fields)
        if rows:
            target.many(f"load_{kind}", rows)
            yield from rows
            after = rows[-1][0]
        if len(rows) < size:
            return


def empty(database: Database) -> None:
    """In a batch: remove everything that a copy has."""
    for table in TABLES:
        database.script(f"DELETE FROM penstock_{table}")


def make_own(database: Database, taken_at: int, now: int, last_number: int = 0) -> None:
    """In a batch: make a copy of a store's rows, taken at an instant, a store of its own: no receipt from before is valid.

    Messages that somebody had received are visible. Named claims keep theirs. New messages get numbers that were never given
    out; ``last_number``: the last one of the store that is replaced."""
    for statement in ("void_visible", "void_held", "void_messages", "void_runs"):
        database.run(statement, {"now": now})
    database.script("DELETE FROM penstock_consumer")
    number = read_meta(database, "number") + JUMP * (1 + (now - taken_at) // HOUR)
    database.run("change_meta", {"name": "number", "value": max(number, last_number)})
