"""What writers stage and publish in memcached.

    PREFIX:writers        [name]
    PREFIX:wNAME          {"published": batch or null, "keep_until", "staged": [[batch, name, parts, staged_at]]}
    PREFIX:wNAME.N.SEG.P  part P of a segment that is staged for batch N

The lock of whoever publishes ends by itself. Each step renews it first: `StoreBusy` if another process may have it by now.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any

from penstock.guarded import guarded
from penstock.message import FOREVER, Entry, Settings
from penstock.stores.marked import insert_marked
from penstock.stores.memcached.catalogue import CachedCatalogue, digest
from penstock.stores.memcached.link import Link
from penstock.stores.memcached.records import mark_key
from penstock.stores.ports import Ledger, Staged, Staging, Step

KEPT = 7 * 86400
"""Seconds after which memcached itself forgets a segment."""


class Writers:
    """The records of writers, each changed by compare-and-swap, and the list of their names."""

    def __init__(self, store: CachedCatalogue) -> None:
        self._store = store
        self._list = f"{store._prefix}:writers"

    def key(self, writer: str) -> str:
        return f"{self._store._prefix}:w{digest(writer.encode())}"

    def link(self, writer: str) -> Link:
        return self._store._link(writer)

    def get(self, writer: str) -> tuple[dict[str, Any], bytes | None]:
        key = self.key(writer)
        raw, token = self.link(writer).gets([key]).get(key, (None, None))
        return ({"published": None, "keep_until": FOREVER, "staged": []}, None) if raw is None else (json.loads(raw), token)

    def change(self, writer: str, change: Callable[[dict[str, Any]], None]) -> None:
        while True:
            known, token = self.get(writer)
            if token is None:
                self._enter(writer, present=True)
            change(known)
            if self.link(writer).cas(self.key(writer), json.dumps(known).encode(), token):
                return

    def remove(self, writer: str) -> None:
        self.link(writer).forget([self.key(writer)])
        self._enter(writer, present=False)  # last: a writer that has a record must be in the list

    def names(self) -> list[str]:
        return list(json.loads(self._store._links[0].get([self._list]).get(self._list, b"[]")))

    def _enter(self, writer: str, *, present: bool) -> None:
        link = self._store._links[0]
        while True:
            raw, token = link.gets([self._list]).get(self._list, (b"[]", None))
            names = set(json.loads(raw)) - {writer} | ({writer} if present else set())
            if link.cas(self._list, json.dumps(sorted(names)).encode(), token):
                return

    def lock(self, writer: str) -> None:
        self._store.reserve(f"writer:{writer}")  # no queue has such a name

    def keep_lock(self, writer: str) -> None:
        self._store._renew(f"writer:{writer}")


class MemcachedStaging(Staging):
    def __init__(self, store: CachedCatalogue) -> None:
        self._store = store
        self._writers = Writers(store)

    def stage(self, writer: str, batch: int, name: str, segment: bytes, now: int) -> None:
        with self._store.batch():
            self._writers.keep_lock(writer)
            link = self._writers.link(writer)
            parts = [segment[at : at + link.piece()] for at in range(0, len(segment), link.piece())]
            link.put({self._part(writer, batch, name, at): part for at, part in enumerate(parts)}, KEPT)

            def change(known: dict[str, Any]) -> None:
                known["staged"] = [found for found in known["staged"] if found[:2] != [batch, name]]
                known["staged"].append([batch, name, len(parts), now])

            self._writers.change(writer, change)

    def staged(self, writer: str | None = None) -> list[Staged]:
        with self._store.batch():
            return [
                Staged(one, batch, name, staged_at)
                for one in (self._writers.names() if writer is None else [writer])
                for batch, name, _, staged_at in self._writers.get(one)[0]["staged"]
            ]

    def fetch(self, writer: str, batch: int, name: str) -> bytes | None:
        with self._store.batch():
            for found in self._writers.get(writer)[0]["staged"]:
                if found[:2] == [batch, name]:
                    keys = [self._part(writer, batch, name, at) for at in range(found[2])]
                    parts = self._writers.link(writer).get(keys) if keys else {}
                    return b"".join(parts[key] for key in keys) if len(parts) == len(keys) else None
            return None

    def unstage(self, writer: str, batch: int, names: Sequence[str] | None = None) -> None:
        with self._store.batch():
            gone: list[str] = []

            def is_meant(found: list[Any]) -> bool:
                return found[0] <= batch if names is None else found[0] == batch and found[1] in names

            def change(known: dict[str, Any]) -> None:
                gone[:] = [
                    self._part(writer, found[0], found[1], at)
                    for found in known["staged"]
                    if is_meant(found)
                    for at in range(found[2])
                ]
                known["staged"] = [found for found in known["staged"] if not is_meant(found)]

            if self._writers.get(writer)[1] is not None:
                self._writers.change(writer, change)
                self._writers.link(writer).forget(gone)

    def _part(self, writer: str, batch: int, name: str, part: int) -> str:
        return f"{self._writers.key(writer)}.{batch}.{digest(name.encode())}.{part}"


class MemcachedLedger(Ledger):
    def __init__(self, store: CachedCatalogue) -> None:
        self._store = store
        self._writers = Writers(store)

    @guarded
    def publishing(self, writer: str) -> Generator[int | None]:
        with self._store.batch():
            self._writers.lock(writer)
            yield self._writers.get(writer)[0]["published"]

    def note(self, writer: str, batch: int, keep_until: int) -> None:
        with self._store.batch():
            self._writers.keep_lock(writer)
            self._writers.change(writer, lambda known: known.update(published=batch, keep_until=keep_until))

    def forget(self, now: int) -> None:
        with self._store.batch():
            for writer in self._writers.names():
                known = self._writers.get(writer)[0]
                if (known["keep_until"] <= now or known["published"] is None) and not known["staged"]:
                    self._writers.remove(writer)

    def insert_once(
        self, step: Step, queue: str, entries: Sequence[Entry], now: int, settings: Settings
    ) -> Callable[[], object] | None:
        with self._store.batch():
            self._writers.keep_lock(step[0])
            return insert_marked(self._store, self._unmark, step, queue, entries, now, settings)

    def _unmark(self, queue: str, marks: Sequence[bytes]) -> None:
        with self._store.batch():
            home = self._store._home(queue)[0]
            home.link.forget([mark_key(home, mark) for mark in marks])
