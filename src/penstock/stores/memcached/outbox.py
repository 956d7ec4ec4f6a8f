"""Staging and publishing in memcached.

    PREFIX:writers        [name]
    PREFIX:wNAME          {"published": batch or null, "keep_until", "staged": [[batch, name, parts, staged_at]]}
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
from penstock.stores.memcached.catalogue import CachedCatalogue, digest
from penstock.stores.memcached.listed import ListedRecords
from penstock.stores.memcached.records import mark_key
from penstock.stores.ports import Ledger, Staged, Staging, Step

KEPT = 7 * 86400
"""Seconds after which memcached itself forgets a segment."""


@dataclass(slots=True)
class Writer:
    published: int | None = None
    keep_until: int = FOREVER
    staged: list[list[Any]] = field(default_factory=list)


def _writers(store: CachedCatalogue) -> ListedRecords[Writer]:
    prefix = store._prefix
    return ListedRecords(lambda _: Writer(), store._link, f"{prefix}:w", store._links[0], f"{prefix}:writers")


def _lock(writer: str) -> str:
    return f"writer:{writer}"  # no queue has such a name


class MemcachedStaging(Staging):
    def __init__(self, store: CachedCatalogue) -> None:
        self._store = store
        self._writers = _writers(store)

    def stage(self, writer: str, batch: int, name: str, segment: bytes, now: int) -> None:
        with self._store.batch():
            self._store._renew(_lock(writer))
            link = self._store._link(writer)
            parts = [segment[at : at + link.piece()] for at in range(0, len(segment), link.piece())]
            link.put({self._part(writer, batch, name, at): part for at, part in enumerate(parts)}, KEPT)

            def change(known: Writer) -> None:
                known.staged = [found for found in known.staged if found[:2] != [batch, name]]
                known.staged.append([batch, name, len(parts), now])

            self._writers.change(writer, change)

    def staged(self, writer: str | None = None) -> list[Staged]:
        with self._store.batch():
            return [
                Staged(one, batch, name, staged_at)
                for one in (self._writers.names() if writer is None else [writer])
                for batch, name, _, staged_at in self._writers.load(one)[0].staged
            ]

    def fetch(self, writer: str, batch: int, name: str) -> bytes | None:
        with self._store.batch():
            for found in self._writers.load(writer)[0].staged:
                if found[:2] == [batch, name]:
                    keys = [self._part(writer, batch, name, at) for at in range(found[2])]
                    parts = self._store._link(writer).get(keys) if keys else {}
                    return b"".join(parts[key] for key in keys) if len(parts) == len(keys) else None
            return None

    def unstage(self, writer: str, batch: int, names: Sequence[str] | None = None) -> None:
        with self._store.batch():
            gone: list[str] = []

            def is_meant(found: list[Any]) -> bool:
                return found[0] <= batch if names is None else found[0] == batch and found[1] in names

            def change(known: Writer) -> None:
                gone[:] = [
                    self._part(writer, found[0], found[1], at)
                    for found in known.staged
                    if is_meant(found)
                    for at in range(found[2])
                ]
                known.staged = [found for found in known.staged if not is_meant(found)]

            if self._writers.load(writer)[1] is not None:
                self._writers.change(writer, change)
                self._store._link(writer).forget(gone)

    def _part(self, writer: str, batch: int, name: str, part: int) -> str:
        return f"{self._writers.key(writer)}.{batch}.{digest(name.encode())}.{part}"


class MemcachedLedger(Ledger):
    def __init__(self, store: CachedCatalogue) -> None:
        self._store = store
        self._writers = _writers(store)

    @guarded
    def publishing(self, writer: str) -> Generator[int | None]:
        with self._store.batch():
            self._store.reserve(_lock(writer))
            yield self._writers.load(writer)[0].published

    def note(self, writer: str, batch: int, keep_until: int) -> None:
        with self._store.batch():
            self._store._renew(_lock(writer))

            def change(known: Writer) -> None:
                known.published, known.keep_until = batch, keep_until

            self._writers.change(writer, change)

    def forget(self, now: int) -> None:
        with self._store.batch():
            for writer in self._writers.names():
                known = self._writers.load(writer)[0]
                if (known.keep_until <= now or known.published is None) and not known.staged:
                    self._writers.forget(writer)

    def insert_once(
        self, step: Step, queue: str, entries: Sequence[Entry], now: int, settings: Settings
    ) -> Callable[[], object] | None:
        with self._store.batch():
            self._store._renew(_lock(step[0]))
            return insert_marked(self._store, self._unmark, step, queue, entries, now, settings)

    def _unmark(self, queue: str, marks: Sequence[bytes]) -> None:
        with self._store.batch():
            home = self._store._home(queue)[0]
            home.link.forget([mark_key(home, mark) for mark in marks])
