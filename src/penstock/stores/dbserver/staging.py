"""Segments that writers have staged, in a table of a database server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

from penstock.errors import StoreError
from penstock.stores.dbserver.database import ServerDatabase
from penstock.stores.dbserver.driver import Session
from penstock.stores.ports import Segment, Staged, Staging
from penstock.stores.sql.database import Answer

AHEAD = 4
"""How many segments to read ahead of the one being published."""


class StagedRows(Staging):
    """Owns the rows of penstock_staged."""

    def __init__(self, database: ServerDatabase) -> None:
        self._database = database

    def stage(self, writer: str, batch: int, name: str, segment: bytes, now: int) -> None:
        with self._database.joined(durable=False):
            self.unstage(writer, batch, [name])
            self._database.run("stage", {"writer": writer, "batch": batch, "name": name, "now": now, "segment": segment})

    def staged(self, writer: str | None = None) -> list[Staged]:
        return [Staged(*row) for row in self._database.rows("staged", {}) if writer in (None, row[0])]

    def fetch(self, writer: str, batch: int, name: str) -> bytes | None:
        rows = self._database.rows("fetch", {"writer": writer, "batch": batch, "name": name})
        return rows[0][0] if rows else None

    @contextmanager
    def fetching(self, writer: str, batch: int, names: Sequence[str]) -> Iterator[Iterator[Segment | None]]:
        """On a connection of its own: while the server works on one segment, this reads the next and deletes it, in a
        transaction that ends as the publication does."""
        session = None
        if len(names) > AHEAD and not self._database.in_batch():  # only the batch itself can see what it has staged
            with suppress(StoreError):  # no more connections are available
                session = self._database.driver.open()
        if session is None:
            yield (self.fetch(writer, batch, name) for name in names)
            return
        with self._taking(session, writer, batch, names) as taken:
            yield taken

    @contextmanager
    def _taking(self, session: Session, writer: str, batch: int, names: Sequence[str]) -> Iterator[Iterator[Segment | None]]:
        driver = self._database.driver

        def take(name: str) -> Callable[[], Segment | None]:
            fields = {"writer": writer, "batch": batch, "name": name}
            with suppress(StoreError):
                segment = driver.fetch(session, fields)
                driver.ask(session, driver.statements["unstage"], fields)
                return lambda: segment
            return lambda: self.fetch(writer, batch, name)  # the connection is lost, and its deletions are rolled back

        try:
            driver.command(session, "BEGIN")
            with closing(_ahead(take, names)) as taken:
                yield (segment() for segment in taken)
            with suppress(StoreError):  # then they stay, and are removed with the rest
                driver.command(session, "COMMIT")
        except BaseException:
            if not session.asking:
                with suppress(StoreError):
                    driver.command(session, "ROLLBACK")
            raise
        finally:
            driver.shut(session)

    def unstage(self, writer: str, batch: int, names: Sequence[str] | None = None) -> None:
        with self._database.joined(durable=False):
            if names is None:
                self._database.run("unstage_all", {"writer": writer, "batch": batch})
            for name in names or ():
                self._database.run("unstage", {"writer": writer, "batch": batch, "name": name})


def _ahead(take: Callable[[str], Answer], names: Sequence[str]) -> Generator[Answer]:
    """What ``take`` returns for each name; a thread fetches some of them in advance."""
    worker = ThreadPoolExecutor(1, "penstock-segments")
    try:
        begun = deque(worker.submit(take, name) for name in names[:AHEAD])
        for place in range(len(names)):
            taken = begun.popleft().result()
            begun.extend(worker.submit(take, name) for name in names[place + AHEAD : place + AHEAD + 1])
            yield taken
    finally:
        worker.shutdown(cancel_futures=True)
