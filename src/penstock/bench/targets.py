"""All targets by name: Penstock's stores, the limits, the peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import penstock
from penstock.bench.limits import Append, BareFiles, BareSqlite
from penstock.bench.memcached import BareMemcached
from penstock.bench.memcached import url as memcached_url
from penstock.bench.peers import Huey, LiteQueue, PersistFiles, PersistQueue
from penstock.bench.workloads import ACKED, NOTHING, ONCE, MeasuredQueue, Target, Verb

BARE = "bare sqlite3"
BARE_FILES = "bare files"
BARE_MEMCACHED = "bare memcached"


class Penstock(MeasuredQueue):
    def __init__(self, url: str) -> None:
        self._broker = penstock.open(url)
        # Longer than any measurement, so that no claim lapses during one.
        self._queue = self._broker.create("bench", exist_ok=True, visibility=3600)

    def send(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            self._queue.send(bodies[0])
        else:
            self._queue.send_many(bodies)

    def receive(self, limit: int) -> list[Any]:
        return self._queue.receive(limit)

    def delete(self, held: list[Any]) -> None:
        if len(held) == 1:
            self._queue.delete(held[0])
        else:
            self._queue.delete_many(held)

    def receive_once(self, limit: int) -> int:
        return len(self._queue.receive(limit, mode=penstock.Mode.AT_MOST_ONCE))

    def close(self) -> None:
        self._broker.close()


def _open(url: str, path: Path) -> MeasuredQueue:
    return Penstock(memcached_url(path) if url == "memcached:" else url.format(path=quote(str(path))))


@dataclass(frozen=True, slots=True)
class MeasuredStore:
    """A store to measure: its URL, with a placeholder for a new path, and the target that is its limit."""

    url: str
    shared: bool = True
    durable: bool = True
    limit: str | None = None
    module: str | None = None

    def target(self, name: str) -> Target:
        return Target(
            name,
            partial(_open, self.url),
            ACKED | ONCE,
            ACKED | ONCE,
            shared=self.shared,
            durable=self.durable,
            limit=self.limit,
            module=self.module,
        )


STORES = {
    "penstock sqlite": MeasuredStore("sqlite:///{path}", limit=BARE),
    "penstock vsqs": MeasuredStore("vsqs:///{path}", limit=BARE_FILES),
    "penstock spool": MeasuredStore("spool:///{path}", limit=BARE_FILES),
    "penstock memcached": MeasuredStore("memcached:", durable=False, limit=BARE_MEMCACHED, module="pymemcache"),
    "penstock memory": MeasuredStore("memory:", shared=False, durable=False),
}

LIMITS = (
    Target(BARE, BareSqlite, ACKED | ONCE, ACKED | ONCE, limit=BARE),
    Target(
        BARE_FILES,
        BareFiles,
        frozenset({Verb.SEND}),
        frozenset({Verb.SEND}),
        shared=False,
        limit=BARE_FILES,
        note="singly create, write, fsync, rename, fsync the folder; in batches one syncfs between the writes and the renames",
    ),
    Target(
        BARE_MEMCACHED,
        BareMemcached,
        ACKED,
        ACKED,
        durable=False,
        limit=BARE_MEMCACHED,
        module="pymemcache",
        note="as many round trips as the store needs, of the same commands, sizes and client, with nothing around them",
    ),
    Target(
        "append+fdatasync",
        Append,
        frozenset({Verb.SEND}),
        frozenset({Verb.SEND}),
        limit=BARE,
        note="the bodies alone, at the end of a plain file",
    ),
)

PEERS = (
    Target(
        "litequeue",
        LiteQueue,
        ACKED,
        ACKED - {Verb.RECEIVE},
        peer=True,
        limit=BARE,
        module="litequeue",
        note="put, pop, done; it ships with synchronous=NORMAL and was set to FULL. In batches put and done run inside its "
        "transaction(); pop cannot. done only marks; prune() runs outside the timing.",
    ),
    Target(
        "persist-queue",
        PersistQueue,
        ACKED,
        NOTHING,
        shared=False,
        peer=True,
        limit=BARE,
        module="persistqueue",
        note="SQLiteAckQueue's put, get, ack; it leaves synchronous as SQLite was built, and was set to FULL. It has no "
        "batches. ack only marks; clear_acked_data() runs outside the timing. Not for several processes: its claim is a SELECT "
        "and then an UPDATE without a condition.",
    ),
    Target(
        "persist-queue files",
        PersistFiles,
        ONCE,
        NOTHING,
        shared=False,
        peer=True,
        limit=BARE_FILES,
        module="persistqueue",
        note="its Queue of files: put, get, task_done with autosave. It syncs nothing but full chunks; as it forgets whatever "
        "its info file does not know of, a put is followed by an fsync of chunk, info and folder, a get by one of info and "
        "folder. It has no batches and no ack.",
    ),
    Target(
        "huey",
        Huey,
        ONCE,
        NOTHING,
        peer=True,
        limit=BARE,
        module="huey",
        note="SqliteHuey's storage: enqueue, dequeue; opened with fsync=True, which is FULL. It has no batches and no ack: "
        "dequeue deletes, so it is compared in the rows send, receive-once and cycle-once.",
    ),
)

TARGETS = {target.name: target for target in (*(s.target(name) for name, s in STORES.items()), *LIMITS, *PEERS)}
OURS = next(iter(STORES))
"""The store that the acceptance lines are about."""
