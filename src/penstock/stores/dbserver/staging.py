"""Segments that writers have staged, in a table of a database server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

from penstock.errors import StoreError
from penstock.stores.dbserver.session import Answer, ServerSession
from penstock.stores.ports import Segment, Staged, Staging

AHEAD = 4
"""How many segments to read ahead of the one being published."""


class StagedRows(Staging):
    def __init__(self, server: ServerSession) -> None:
        self._server = server

    def stage(self, writer: str, batch: int, name: str, segment: bytes, now: int) -> None:
        with self._server._joined(durable=False):
            self.unstage(writer, batch, [name])
            self._server._run("stage", {"writer": writer, "batch": batch, "name": name, "now": now, "segment": segment})

    def staged(self, writer: str | None = None) -> list[Staged]:
        return [Staged(*row) for row in self._server._rows("staged", {}) if writer in (None, row[0])]

    def fetch(self, writer: str, batch: int, name: str) -> bytes | None:
        rows = self._server._rows("fetch", {"writer": writer, "batch": batch, "name": name})
        return rows[0][0] if rows else None

    @contextmanager
    def fetching(self, writer: str, batch: int, names: Sequence[str]) -> Iterator[Iterator[Segment | None]]:
        """On a connection of its own: while the server works on one segment, this reads the next and deletes it, in a
        transaction that ends as the publication does."""
        server, session = self._server, None
        if len(names) > AHEAD and not server._in_batch():  # only the batch itself can see what it has staged
            with suppress(StoreError):  # no more connections are available
                session = server._open()
        if session is None:
            with super().fetching(writer, batch, names) as fetched:
                yield fetched
            return

        def take(name: str) -> Callable[[], Segment | None]:
            fields = {"writer": writer, "batch": batch, "name": name}
            with suppress(StoreError):
                segment = server._fetch(session, fields)
                server._ask(session, server._statements["unstage"], fields)
                return lambda: segment
            return lambda: self.fetch(writer, batch, name)  # the connection is lost, and its deletions are rolled back

        try:
            server._command(session, "BEGIN")
            with closing(_ahead(take, names)) as taken:
                yield (segment() for segment in taken)
            with suppress(StoreError):  # then they stay, and are removed with the rest
                server._command(session, "COMMIT")
        except BaseException:
            if not session.asking:
                with suppress(StoreError):
                    server._command(session, "ROLLBACK")
            raise
        finally:
            server._shut(session)

    def unstage(self, writer: str, batch: int, names: Sequence[str] | None = None) -> None:
        with self._server._joined(durable=False):
            if names is None:
                self._server._run("unstage_all", {"writer": writer, "batch": batch})
            for name in names or ():
                self._server._run("unstage", {"writer": writer, "batch": batch, "name": name})


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
