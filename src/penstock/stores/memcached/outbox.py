"""Staging and publishing in memcached.

    PREFIX:writers        [name]
    PREFIX:wNAME          {"published": batch or null, "digest", "keep_until", "staged": [[batch, name, parts, staged_at]]}
    PREFIX:wNAME.N.SEG.P  part P of a segment that is staged for batch N

The publisher's lock expires by itself. Each step first renews it, and raises `StoreBusy` if another process may have it by now.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.guarded import guarded
from penstock.message import FOREVER, Entry, Settings
from penstock.stores.marked import insert_marked
from penstock.stores.memcached.catalogue import MemcachedCatalogue
from penstock.stores.memcached.documents import Documents
from penstock.stores.memcached.formats import digest
from penstock.stores.memcached.link import Servers
from penstock.stores.ports import Ledger, Published, Staged, Staging, Step, Store

KEPT = 7 * 86400
"""Seconds after which memcached itself forgets a segment."""


@dataclass(slots=True)
class WriterDocument:
    published: int | None = None
    digest: str | None = None
    keep_until: int = FOREVER
    staged: list[list[Any]] = field(default_factory=list)


class Writers:
    """Owns what is known about each writer, and its lock."""

    def __init__(self, servers: Servers) -> None:
        prefix = servers.prefix
        self.servers = servers
        self.documents = Documents(WriterDocument, servers.link, f"{prefix}:w", (servers.links[0], f"{prefix}:writers"))

    def lock(self, writer: str) -> None:
        self.servers.lock(f"writer:{writer}")  # no queue has such a name

    def renew(self, writer: str) -> None:
        self.servers.renew(f"writer:{writer}")


class MemcachedStaging(Staging):
    def __init__(self, writers: Writers) -> None:
        self._writers = writers
        self._documents = writers.documents
        self._link = writers.servers.link
        self._batch = writers.servers.batch

    def stage(self, writer: str, batch: int, name: str, segment: bytes, now: int) -> None:
        with self._batch():
            self._writers.renew(writer)
            link = self._link(writer)
            parts = [segment[at : at + link.piece()] for at in range(0, len(segment), link.piece())]
            link.put({self._part(writer, batch, name, at): part for at, part in enumerate(parts)}, KEPT)

            def change(known: WriterDocument) -> None:
                known.staged = [found for found in known.staged if found[:2] != [batch, name]]
                known.staged.append([batch, name, len(parts), now])

            self._documents.change(writer, change)

    def staged(self, writer: str | None = None) -> list[Staged]:
        with self._batch():
            return [
                Staged(one, batch, name, staged_at)
                for one in (self._documents.names() if writer is None else [writer])
                for batch, name, _, staged_at in self._documents.load(one).staged
            ]

    def fetch(self, writer: str, batch: int, name: str) -> bytes | None:
        with self._batch():
            for found in self._documents.load(writer).staged:
                if found[:2] == [batch, name]:
                    keys = [self._part(writer, batch, name, at) for at in range(found[2])]
                    parts = self._link(writer).get(keys)
                    return b"".join(parts[key] for key in keys) if len(parts) == len(keys) else None
            return None

    def unstage(self, writer: str, batch: int, names: Sequence[str] | None = None) -> None:
        gone: list[str] = []

        def change(known: WriterDocument) -> None:
            gone.clear()
            staged, known.staged = known.staged, []
            for found in staged:
                if found[0] <= batch if names is None else found[0] == batch and found[1] in names:
                    gone.extend(self._part(writer, found[0], found[1], at) for at in range(found[2]))
                else:
                    known.staged.append(found)

        with self._batch():
            if self._documents.find(writer) is not None:
                self._documents.change(writer, change)
                self._link(writer).forget(gone)

    def _part(self, writer: str, batch: int, name: str, part: int) -> str:
        return f"{self._documents.key(writer)}.{batch}.{digest(name.encode())}.{part}"


class MemcachedLedger(Ledger):
    def __init__(self, writers: Writers, store: Store, catalogue: MemcachedCatalogue) -> None:
        self._writers = writers
        self._documents = writers.documents
        self._batch = writers.servers.batch
        self._store = store
        self._catalogue = catalogue

    @guarded
    def publishing(self, writer: str) -> Generator[Published | None]:
        with self._batch():
            self._writers.lock(writer)
            known = self._documents.load(writer)
            yield None if known.published is None else Published(known.published, known.digest)

    def note(self, writer: str, published: Published, keep_until: int) -> None:
        def change(known: WriterDocument) -> None:
            known.published, known.digest = published
            known.keep_until = keep_until

        with self._batch():
            self._writers.renew(writer)
            self._documents.change(writer, change)

    def forget(self, now: int) -> None:
        with self._batch():
            for writer in self._documents.names():
                known = self._documents.load(writer)
                if (known.keep_until <= now or known.published is None) and not known.staged:
                    self._documents.forget(writer)

    def insert_once(
        self, step: Step, queue: str, entries: Sequence[Entry], now: int, settings: Settings
    ) -> Callable[[], object] | None:
        with self._batch():
            self._writers.renew(step[0])
            return insert_marked(self._store, self._unmark, step, queue, entries, now, settings)

    def _unmark(self, queue: str, marks: Sequence[bytes]) -> None:
        with self._batch():
            keys = self._catalogue.find(queue)[0].keys
            keys.link.forget([keys.mark(mark) for mark in marks])
