"""The queues of a memcached store: where each is kept, transactions, locks, and recovery after a server restart.

    PREFIX:birth          made by the first process that finds it missing: it reveals a restart of the server
    PREFIX:cN             bucket N of 64 of the catalogue: {"birth", "queues": {name: [born, settings]}, "gone": [[name, born]]}
    PREFIX:lock:NAME      a lock: a token and an expiry
    PREFIX:BORN:…         everything else of the queue that was created with these 60 random bits: see `Home`

A queue is kept whole on one server, chosen by its name. A bucket is a single key, so that a queue's entry is complete or
missing. A bucket is never deleted, so one that is missing was evicted or lost in a restart.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from threading import RLock
from types import FrameType
from typing import Any
from zlib import crc32

from penstock.clock import Clock, machine_clock
from penstock.errors import QueueNotFound, StoreBusy, StoreClosed, StoreError
from penstock.forking import watch
from penstock.guarded import guarded
from penstock.message import Settings
from penstock.stores.callers import find_caller, refuse_handlers
from penstock.stores.encoding import pack_settings, unpack_settings
from penstock.stores.legacy import LegacyStore
from penstock.stores.memcached.clock import CachedClock
from penstock.stores.memcached.formats import PAGE_BYTES
from penstock.stores.memcached.link import Found, Link
from penstock.stores.ports import Ids
from penstock.stores.roster import LocalRoster

logger = logging.getLogger("penstock")

BUCKETS = 64
LOCK_SECONDS = 5
"""A lock whose holder died expires after this. Holders write by compare-and-swap, so being late does no harm."""
LOCK_POLL = 0.003
SPARES = 3
"""Page-sized items that are given up when memory runs out, so that a full queue can still be emptied."""


class Home:
    """A queue as this process knows it, and the names of its keys.

    head   the last number given out               pN   page N: the slots of 64 numbers (`penstock.stores.memcached.formats`)
    tail   the first page that is not all gone     bN   for each of 256 pages, an instant before which it has nothing visible
    stir   changes when something is visible early mN   the record of message N; mN.1, mN.2 …: its further parts
    lost   how many messages the server lost       hN   how and when message N was settled, where history is kept
    kMARK  the number that carries a mark          readers, rNAME, rNAME.EPOCH: the named claims
    spareN what is given up when memory runs out   iID  the number of a message that was moved here with its id
    vN     the queue that message N is being moved to
    """

    def __init__(self, name: str, prefix: str, link: Link, birth: str, born: int, packed: str) -> None:
        self.name = name
        self.link = link
        self.birth = birth
        self.born = born
        self.packed = packed
        self.settings: Settings = unpack_settings(packed)
        self.ids = Ids(born)
        self.root = f"{prefix}:{born:015x}:"
        self.raw = b""
        self.tail = 0
        """The first page, as far as this process knows; it only grows."""
        self.news: dict[str, bytes] = {}
        self.echo = 0
        self.page = 0
        """Where the last message was claimed."""
        self.seen = -1
        """The last page known to exist: if it is missing, it was evicted."""
        self.there = 0
        """How many messages there are, as far as this process knows."""
        self.swept = 0

    def key(self, kind: str, number: int | str = "") -> str:
        return f"{self.root}{kind}{number}"


class CachedCatalogue(LegacyStore):
    durable = False
    ordered = False
    groups = False
    atomic = False

    def __init__(self, servers: Sequence[tuple[str, int]], prefix: str, *, timeout: float = 3) -> None:
        self.roster = LocalRoster()
        self._prefix = prefix
        self._timeout = timeout
        self._links = [Link(host, port, timeout) for host, port in servers]
        self._lock = RLock()
        self._depth = 0
        self._opener: FrameType | None = None
        self._homes: dict[str, Home] = {}
        self._locks: dict[str, tuple[Link, bytes]] = {}
        self._parsed: dict[bytes, Any] = {}
        self._closed = False
        watch(self)

    def __str__(self) -> str:
        return f"memcached at {','.join(link.name for link in self._links)}"

    def clock(self) -> Clock:
        return machine_clock(CachedClock(self.batch, self._links[0], self._prefix, str(self)))

    # transactions and locks

    @guarded
    def batch(self, *, durable: bool = True) -> Generator[None]:  # noqa: ARG002
        with self._lock:
            if self._closed:
                raise StoreClosed(f"{self} was closed")
            depth = self._depth
            if depth:
                refuse_handlers(self, self._opener)
            try:
                self._depth = depth + 1
                if not depth:
                    self._opener = find_caller()  # from here on, signal handlers are refused: they would read our answers
                yield
            finally:
                try:
                    if not depth:
                        self._give_locks()
                finally:
                    self._depth = depth
                    if not depth:
                        self._opener = None

    def _give_locks(self) -> None:
        while self._locks:
            key, (link, token) = self._locks.popitem()
            with suppress(StoreError):  # it expires
                link.delete_if(key, token.__eq__)  # if it is still ours

    def reserve(self, name: str) -> None:
        """SimpleMessageQueue's lock. It keeps others out of the same steps; each write is a compare-and-swap all the same."""
        key = f"{self._prefix}:lock:{digest(name.encode())}"
        if key in self._locks or not self._depth:
            return
        link, token = self._link(name), secrets.token_bytes(16)
        give_up_at = time.monotonic() + LOCK_SECONDS + self._timeout
        while not link.add(key, token, LOCK_SECONDS):
            if link.get([key]).get(key) == token:  # the answer was lost, but the lock is ours
                break
            if time.monotonic() > give_up_at:
                raise StoreBusy(f"{self}: queue {name!r} was locked by others for {LOCK_SECONDS + self._timeout:g} s")
            time.sleep(LOCK_POLL)
        self._locks[key] = link, token

    def _renew(self, name: str) -> None:
        """Extend a lock, if we have it. Raises `StoreBusy` if it had expired, since others may have it."""
        key = f"{self._prefix}:lock:{digest(name.encode())}"
        if key not in self._locks:
            return
        link, token = self._locks[key]
        found, seen = link.gets([key]).get(key, (b"", b""))
        if found != token or not link.cas(key, token, seen, LOCK_SECONDS):
            raise StoreBusy(
                f"{self}: what was done under the lock {name!r} took longer than {LOCK_SECONDS} s, and others go on"
            )

    # where things are

    def _link(self, name: str) -> Link:
        return self._links[crc32(name.encode()) % len(self._links)]

    def _bucket(self, name: str) -> str:
        return f"{self._prefix}:c{crc32(name.encode()) // len(self._links) % BUCKETS}"

    def _parse(self, raw: bytes) -> Any:
        found = self._parsed.get(raw)
        if found is None:
            if len(self._parsed) > 4 * BUCKETS:
                self._parsed.clear()
            try:
                found = self._parsed[raw] = json.loads(raw)
            except ValueError:
                raise StoreError(f"{self}: what is under the prefix {self._prefix!r} is not Penstock's") from None
        return found

    def _home(self, name: str, keys: Callable[[Home], Sequence[str]] | None = None) -> tuple[Home, Found]:
        """A queue as it is now, and the values of these of its keys. Raises `QueueNotFound` if it does not exist."""
        home = self._homes.get(name)
        found = self._look(name, home, keys)
        now = self._known(name, found)
        if now is None:
            raise QueueNotFound(name)
        if now is not home and keys is not None:
            found = self._look(name, now, keys)
        return now, found

    def _look(self, name: str, home: Home | None, keys: Callable[[Home], Sequence[str]] | None) -> Found:
        wanted = keys(home) if home is not None and keys is not None else ()
        return self._link(name).gets([self._bucket(name), *wanted])

    def _known(self, name: str, found: Found) -> Home | None:
        raw, _ = found.get(self._bucket(name), (None, b""))
        home = self._homes.get(name)
        if raw is None:
            return None if home is None else self._restore(home)
        if home is not None and home.raw == raw:
            return home
        bucket = self._parse(raw)
        entry = bucket["queues"].get(name)
        if entry is None:
            if home is not None and home.birth != bucket["birth"]:
                return self._restore(home)
            self._homes.pop(name, None)
            return None
        born, packed = entry
        if home is None or home.born != born:
            home = self._homes[name] = Home(name, self._prefix, self._link(name), bucket["birth"], born, packed)
        home.packed, home.settings, home.raw = packed, unpack_settings(packed), raw
        return home

    def _restore(self, home: Home) -> Home | None:
        """Handle a queue that we know but the catalogue does not: it was evicted, or the server restarted empty."""
        birth = self._birth(home.link)
        restarted = birth != home.birth
        born = Ids.salt() if restarted else home.born
        if restarted:
            logger.error(
                "%s has lost queue %r with all its messages (it was restarted or flushed); it was made anew",
                home.link,
                home.name,
            )
            self._lay(home.link, born, home.there)
        else:
            logger.error("%s has evicted the catalogue's record of queue %r; it was restored", home.link, home.name)

        def put_back(bucket: Any) -> bool:
            if home.name in bucket["queues"]:
                return False  # another process was faster
            bucket["queues"][home.name] = [born, home.packed]
            return True

        self._change(home.name, put_back)
        self._homes.pop(home.name, None)
        return self._known(home.name, self._look(home.name, None, None))

    def _birth(self, link: Link) -> str:
        key = f"{self._prefix}:birth"
        while True:
            found = link.get([key]).get(key)
            if found is not None:
                return found.decode(errors="replace")
            link.add(key, secrets.token_hex(8).encode())

    def _change(self, name: str, change: Callable[[Any], bool]) -> bool:
        """Change a bucket of the catalogue. Returns False if there was nothing to change."""
        link, key = self._link(name), self._bucket(name)
        while True:
            raw, token = link.gets([key]).get(key, (b"", None))
            bucket = json.loads(raw) if raw else {"birth": self._birth(link), "queues": {}, "gone": []}
            if not change(bucket):
                return False
            if link.cas(key, json.dumps(bucket).encode(), token):
                return True

    def _lay(self, link: Link, born: int, lost: int = 0) -> None:
        """Write the counters of a new queue."""
        root = f"{self._prefix}:{born:015x}:"
        counters = {f"{root}head": b"0", f"{root}tail": b"0", f"{root}stir": b"0", f"{root}lost": b"%d" % lost}
        link.put(counters | {f"{root}spare{number}": bytes(PAGE_BYTES) for number in range(SPARES)})

    # the catalogue

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        with self.batch():
            packed, born = pack_settings(settings), Ids.salt()
            self._known(name, self._look(name, None, None))  # after a restart, this restores the queues that we knew
            laid = False

            def change(bucket: Any) -> bool:
                nonlocal laid
                entry = bucket["queues"].get(name)
                if (entry is None) != create:
                    return False
                if entry is not None:
                    entry[1] = packed
                    return True
                if not laid:
                    self._lay(self._link(name), born)
                    laid = True
                bucket["queues"][name] = [born, packed]
                return True

            return self._change(name, change)

    def load(self, name: str) -> Settings | None:
        with self.batch():
            home = self._known(name, self._look(name, self._homes.get(name), None))
            return None if home is None else home.settings

    @abstractmethod
    def _claim_keys(self, home: Home) -> Sequence[str]: ...

    def names(self) -> list[str]:
        with self.batch():
            names = {name for bucket in self._buckets() for name in bucket["queues"]}
            missing = self._homes.keys() - names  # dropped, or lost
            return sorted(names | {name for name in missing if self._known(name, self._look(name, None, None))})

    def _buckets(self) -> Iterator[Any]:
        keys = [f"{self._prefix}:c{number}" for number in range(BUCKETS)]
        for link in self._links:
            for raw in link.get(keys).values():
                yield self._parse(raw)

    def drop(self, name: str) -> bool:
        with self.batch():
            born = 0

            def change(bucket: Any) -> bool:
                nonlocal born
                entry = bucket["queues"].pop(name, None)
                if entry is None:
                    return False
                born = entry[0]
                bucket["gone"].append([name, born])
                return True

            dropped = self._change(name, change)
            self._homes.pop(name, None)
            if dropped:
                self._bury(name, born)
            return dropped

    def _bury(self, name: str, born: int) -> None:
        """Delete what a dropped queue has left. If we die here, its name stays among the gone, and a sweep continues."""
        self._clear(Home(name, self._prefix, self._link(name), "", born, pack_settings(Settings())))

        def change(bucket: Any) -> bool:
            with suppress(ValueError):
                bucket["gone"].remove([name, born])
                return True
            return False

        self._change(name, change)

    @abstractmethod
    def _clear(self, home: Home) -> None: ...

    # life

    def close(self) -> None:
        self._closed = True
        for link in self._links:
            link.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        for link in self._links:
            link.drop_connection()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002
        self._lock.release()


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:40]
