"""Queues behind the memcached protocol (SimpleMessageQueue): not durable, shared by all processes that reach the server.

    memcached://host:port[,host:port…]/prefix

    store ─► queue ─► sending  moving  sweeping  readers ─► catalogue ─► contents ─► pages  records  reader_records
      └────► outbox  clock ─► link

`link` has this process's connections, the open batch and the locks. The catalogue finds the contents of a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from penstock.clock import Clock, machine_clock
from penstock.message import Settings
from penstock.patience import Patience
from penstock.stores.memcached.catalogue import MemcachedCatalogue
from penstock.stores.memcached.clock import MemcachedClock
from penstock.stores.memcached.link import Servers
from penstock.stores.memcached.outbox import MemcachedLedger, MemcachedStaging, Writers
from penstock.stores.memcached.queue import MemcachedQueue, MemcachedUuids
from penstock.stores.ports import Outbox, Store, StoredQueue
from penstock.stores.roster import LocalRoster

LOOK_SECONDS = 0.04
"""Asking a server costs ten times a look at a file, so only every second look of a waiting receiver asks it."""


class MemcachedStore(Store):
    durable = False
    ordered = False
    groups = False
    atomic = False

    def __init__(self, servers: Sequence[tuple[str, int]], prefix: str, patience: Patience) -> None:
        self.roster = LocalRoster()
        self._servers = Servers(servers, prefix, patience)
        self._catalogue = MemcachedCatalogue(self._servers, lambda damage: self.on_damage(damage))
        self.uuids = MemcachedUuids(self._catalogue)
        writers = Writers(self._servers)
        self.outbox = Outbox(MemcachedStaging(writers), MemcachedLedger(writers, self, self._catalogue))
        self._looked = 0.0
        self._version = 0

    def __str__(self) -> str:
        return str(self._servers)

    def batch(self, *, durable: bool = True) -> AbstractContextManager[None]:  # noqa: ARG002
        return self._servers.batch()

    def queue(self, name: str) -> StoredQueue:
        return MemcachedQueue(self._catalogue, name)

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        with self._servers.batch():
            return self._catalogue.save(name, settings, create=create)

    def load(self, name: str) -> Settings | None:
        with self._servers.batch():
            contents = self._catalogue.get(name)
            return None if contents is None else contents.keys.settings

    def reserve(self, name: str) -> None:
        self._servers.lock(name)

    def names(self) -> list[str]:
        with self._servers.batch():
            return self._catalogue.names()

    def drop(self, name: str) -> bool:
        with self._servers.batch():
            return self._catalogue.drop(name)

    def version(self) -> int:
        with self._servers.batch():
            now = self._servers.patience.now()
            if now - self._looked >= LOOK_SECONDS:
                self._looked = now
                self._version = hash(tuple(contents.keys.look() for contents in self._catalogue.known()))
            return self._version

    def clock(self) -> Clock:
        return machine_clock(MemcachedClock(self._servers))

    def close(self) -> None:
        self._servers.close()
