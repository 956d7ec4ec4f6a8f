"""The memcached server that a benchmark starts for itself, and the limit: the same commands with nothing around them.

send      incr, set the bodies; and for each page that they fill: gets (catalogue, page), cas (page)
receive   gets (catalogue, block, head, tail, page); and for each page: cas (page), get the bodies
delete    for each page: gets (catalogue, page), cas (page), delete the bodies without waiting for the answer
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.bench.workloads import MeasuredQueue, Unverified
from penstock.stores.memcached.formats import PAGE_BYTES, SLOTS
from penstock.testing.servers import MemcachedServer, Missing

PORT = "PENSTOCK_BENCH_MEMCACHED"
"""Tells the processes of a benchmark where the one server is."""
CATALOGUE, BLOCK = bytes(250), bytes(2048)


def address() -> str:
    """The server's address. The first process that asks starts the server, and stops it when it ends."""
    if PORT not in os.environ:
        try:
            server = MemcachedServer("-M", "-m", "3000")
        except Missing as error:
            raise Unverified(str(error)) from None
        atexit.register(server.close)
        os.environ[PORT] = str(server.port)
    return f"127.0.0.1:{os.environ[PORT]}"


def url(path: Path) -> str:
    return f"memcached://{address()}/{path.parent.name[-20:].strip('.')}.{path.name}"


class BareMemcached(MeasuredQueue):
    def __init__(self, path: Path) -> None:
        from pymemcache.client.base import Client

        self._client = Client(address(), no_delay=True, default_noreply=False)
        self._root = f"{path.name}.{os.getpid()}:"
        self._sent = self._received = 0
        values = {"c": CATALOGUE, "b": BLOCK, "tail": b"0", "head": b"0", "p": bytes(PAGE_BYTES)}
        self._client.set_many({self._root + key: value for key, value in values.items()})

    def _key(self, name: object) -> str:
        return f"{self._root}{name}"

    def _cas(self, keys: Sequence[str]) -> None:
        page = self._client.gets_many([self._key(key) for key in keys])[self._key("p")]
        self._client.cas(self._key("p"), *page)

    def send(self, bodies: Sequence[bytes]) -> None:
        self._client.incr(self._key("head"), len(bodies))
        self._client.set_many({self._key(self._sent + place): body for place, body in enumerate(bodies)})
        for _ in range(_pages(len(bodies))):
            self._cas(["c", "p"])
        self._sent += len(bodies)

    def receive(self, limit: int) -> list[Any]:
        numbers = list(range(self._received, min(self._received + limit, self._sent)))
        keys = [self._key(key) for key in ("c", "b", "head", "tail", "p")]
        page = self._client.gets_many(keys)[self._key("p")]
        for start in range(0, len(numbers), SLOTS):
            self._client.cas(self._key("p"), *page)
            self._client.get_many([self._key(number) for number in numbers[start : start + SLOTS]])
            page = self._client.gets_many([self._key("p")])[self._key("p")] if start + SLOTS < len(numbers) else page
        self._received += len(numbers)
        return numbers

    def delete(self, held: list[Any]) -> None:
        for start in range(0, len(held), SLOTS):
            self._cas(["c", "p"])
            self._client.delete_many([self._key(number) for number in held[start : start + SLOTS]], noreply=True)

    def close(self) -> None:
        self._client.close()


def _pages(messages: int) -> int:
    return -(-messages // SLOTS)
