"""The last batch that each writer has published, in a table. The publishing transaction writes it."""

from __future__ import annotations

from collections.abc import Generator

from penstock.guarded import guarded
from penstock.message import FOREVER
from penstock.stores.ports import Ledger, Published
from penstock.stores.sql.database import Database


class SqlLedger(Ledger):
    """Owns the rows of penstock_writer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @guarded
    def publishing(self, writer: str) -> Generator[Published | None]:
        with self._database.joined():
            # Insert the row first, so that of two publishers for a new writer the second waits here.
            self._database.run("enter_writer", {"writer": writer, "forever": FOREVER})
            last = Published(*self._database.rows("lock_writer", {"writer": writer})[0])
            yield last if last.batch >= 0 else None

    def note(self, writer: str, published: Published, keep_until: int) -> None:
        with self._database.joined():
            self._database.run("note_published", {"writer": writer, **published._asdict(), "keep_until": keep_until})

    def forget(self, now: int) -> None:
        if self._database.rows("forgettable", {"now": now}):  # checked without a write lock
            with self._database.joined():
                self._database.run("forget_writers", {"now": now})
