"""The catalogue of a memcached store: which queues there are, where each is kept, and recovery after a server restart.

    PREFIX:birth          made by the first process that finds it missing: it reveals a restart of the server
    PREFIX:cN             bucket N of 64 of the catalogue: {"birth", "queues": {name: [salt, settings]}, "gone": [[name, salt]]}
    PREFIX:SALT:…         everything else of the queue that was created with these 60 random bits: see `Keyspace`

A queue is kept whole on one server, chosen by its name. A bucket is a single key, so that a queue's entry is complete or
missing. A bucket is never deleted, so one that is missing was evicted or lost in a restart.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any
from zlib import crc32

from penstock.errors import QueueNotFound, StoreError
from penstock.guarded import guarded
from penstock.message import Settings
from penstock.stores.encoding import pack_settings
from penstock.stores.ids import Ids
from penstock.stores.memcached.contents import Contents
from penstock.stores.memcached.link import Items, Link, Servers
from penstock.stores.memcached.records import FAN, SPARES, Keyspace, Report

BUCKETS = 64
CLEARED = 8
"""How many pages of a dropped queue are deleted at once."""
Keys = Callable[[Keyspace], Sequence[str]]


class MemcachedCatalogue:
    """Owns the buckets, and the queues that this process knows."""

    def __init__(self, servers: Servers, report: Report) -> None:
        self.servers = servers
        self._prefix = servers.prefix
        self._report = report
        self._known: dict[str, Contents] = {}

    # finding a queue

    @guarded
    def open(self, name: str, keys: Keys | None = None) -> Generator[tuple[Contents, Items]]:
        """`find`, in a batch."""
        with self.servers.batch():
            yield self.find(name, keys)

    def find(self, name: str, keys: Keys | None = None) -> tuple[Contents, Items]:
        """A queue as it is now, and the values of these of its keys. Raises `QueueNotFound` if it does not exist."""
        known = self._known.get(name)
        found = self._read(name, known, keys)
        contents = self._current(name, found)
        if contents is None:
            raise QueueNotFound(name)
        if contents is not known and keys is not None:
            found = self._read(name, contents, keys)
        return contents, found

    def recall(self, name: str) -> Contents:
        """A queue as this process knows it; it may have been dropped, or have other settings, since."""
        return self._known.get(name) or self.find(name)[0]

    def get(self, name: str) -> Contents | None:
        """A queue as it is now; None if it does not exist."""
        return self._current(name, self._read(name))

    def known(self) -> list[Contents]:
        return list(self._known.values())

    def _read(self, name: str, contents: Contents | None = None, keys: Keys | None = None) -> Items:
        wanted = keys(contents.keys) if contents is not None and keys is not None else ()
        return self.servers.link(name).gets([self._bucket(name), *wanted])

    def _current(self, name: str, found: Items) -> Contents | None:
        raw, _ = found.get(self._bucket(name), (None, b""))
        known = self._known.get(name)
        if raw is None:
            return None if known is None else self._restore(known.keys)
        if known is not None and known.keys.raw == raw:
            return known
        bucket = self._parse(raw)
        entry = bucket["queues"].get(name)
        if entry is None:
            if known is not None and known.keys.birth != bucket["birth"]:
                return self._restore(known.keys)
            self._known.pop(name, None)
            return None
        salt, packed = entry
        if known is None or known.keys.salt != salt:
            known = Contents(self._keyspace(name, salt))
        known.keys.learn(bucket["birth"], packed, raw)
        self._known[name] = known  # only now: an interrupt must not leave one here that has learned nothing
        return known

    def _restore(self, keys: Keyspace) -> Contents | None:
        """Handle a queue that we know but the catalogue does not: it was evicted, or the server restarted empty."""
        salt = keys.salt
        if self._birth(keys.link) != keys.birth:
            salt = Ids.salt()
            keys.report("was restarted or flushed, and all messages of the queue are lost")
            self._keyspace(keys.name, salt).lay(lost=keys.count)
        else:
            keys.report("has evicted its entry in the catalogue; it was restored")

        while True:
            bucket, token = self._load(keys.name)
            if bucket["queues"].setdefault(keys.name, [salt, keys.packed])[0] != salt:
                break  # another process was faster
            if self._write(keys.name, bucket, token):
                break
        self._known.pop(keys.name, None)
        return self.get(keys.name)

    def _keyspace(self, name: str, salt: int) -> Keyspace:
        return Keyspace(name, self._prefix, self.servers.link(name), salt, self._report)

    # buckets

    def _bucket(self, name: str) -> str:
        return f"{self._prefix}:c{crc32(name.encode()) // len(self.servers.links) % BUCKETS}"

    def _parse(self, raw: bytes) -> Any:
        try:
            return json.loads(raw)
        except ValueError:
            raise StoreError(
                f"{self.servers}: the keys with the prefix {self._prefix!r} were not written by Penstock"
            ) from None

    def _birth(self, link: Link) -> str:
        key = f"{self._prefix}:birth"
        while True:
            found = link.get([key]).get(key)
            if found is not None:
                return found.decode(errors="replace")
            link.add(key, secrets.token_hex(8).encode())

    def _load(self, name: str) -> tuple[Any, bytes | None]:
        """A bucket, and the token for writing it."""
        link, key = self.servers.link(name), self._bucket(name)
        raw, token = link.gets([key]).get(key, (b"", None))
        return self._parse(raw) if raw else {"birth": self._birth(link), "queues": {}, "gone": []}, token

    def _write(self, name: str, bucket: Any, token: bytes | None) -> bool:
        return bool(self.servers.link(name).cas(self._bucket(name), json.dumps(bucket).encode(), token))

    def _buckets(self) -> Iterator[Any]:
        keys = [f"{self._prefix}:c{number}" for number in range(BUCKETS)]
        for link in self.servers.links:
            for raw in link.get(keys).values():
                yield self._parse(raw)

    # changing the catalogue

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        packed, salt = pack_settings(settings), Ids.salt()
        self.get(name)  # after a restart, this restores the queue if we knew it
        while True:
            bucket, token = self._load(name)
            entry = bucket["queues"].get(name)
            if (entry is None) != create:
                return False
            if entry is None:
                self._keyspace(name, salt).lay()
            bucket["queues"][name] = [salt if entry is None else entry[0], packed]
            if self._write(name, bucket, token):
                return True

    def names(self) -> list[str]:
        names = {name for bucket in self._buckets() for name in bucket["queues"]}
        missing = self._known.keys() - names  # dropped, or lost
        return sorted(names | {name for name in missing if self.get(name)})

    def drop(self, name: str) -> bool:
        self._known.pop(name, None)
        while True:
            bucket, token = self._load(name)
            entry = bucket["queues"].pop(name, None)
            if entry is None:
                return False
            bucket["gone"].append([name, entry[0]])
            if self._write(name, bucket, token):
                break
        while self._clear(name, entry[0]):
            pass
        return True

    def clear_dropped(self) -> bool:
        """Delete a part of what dropped queues have left. Returns whether there is more."""
        gone = [(name, salt) for bucket in self._buckets() for name, salt in bucket["gone"]]
        return bool(gone) and (self._clear(*gone[0]) or len(gone) > 1)

    def _clear(self, name: str, salt: int) -> bool:
        """Delete a part of what a dropped queue has left. Returns whether there is more. If a process dies here, the name stays
        among those that are gone, and a sweep continues."""
        contents = Contents(self._keyspace(name, salt))
        keys, pages = contents.keys, contents.pages
        found = keys.link.gets(keys.first_reads())
        if keys.key("head") in found:
            survey = pages.survey(found)
            end = min(survey.tail + CLEARED, survey.last + 1)
            for at in range(survey.tail, end):
                pages.remove(range(at, at + 1))
            if end <= survey.last:
                keys.link.put({keys.key("tail"): b"%d" % end})
                return True
            contents.readers.clear()
            spares = [keys.key("spare", number) for number in range(SPARES)]
            block = keys.key("b", survey.last // FAN)
            keys.link.forget([*map(keys.key, ("tail", "stir", "lost")), block, *spares, keys.key("head")])

        while True:
            bucket, token = self._load(name)
            if [name, salt] not in bucket["gone"]:
                return False
            bucket["gone"].remove([name, salt])
            if self._write(name, bucket, token):
                return False
