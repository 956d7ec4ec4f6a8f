"""Penstock's own library: in front of a server it is the client, on a file the embedded queue.

Its calls block, so every session has a thread; all of a process share one broker, as threads of a program do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import penstock
from penstock import Broker
from penstock.bench.brokers.sessions.base import LEASE, QUEUE, Held, Session


@cache
def broker_at(address: str) -> Broker:
    return penstock.open(address)


class LibrarySession(Session):
    threaded = True

    def __init__(self, broker: Broker) -> None:
        self._queue = broker.create(QUEUE, exist_ok=True, visibility=LEASE)

    @classmethod
    async def open(cls, address: str) -> LibrarySession:
        return cls(broker_at(address))

    async def send(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            self._queue.send(bodies[0])
        else:
            self._queue.send_many(bodies)

    async def receive(self, wait: float) -> Held | None:
        found = self._queue.receive(wait=wait)
        return Held(found[0].body, found[0]) if found else None

    async def settle(self, held: Held) -> None:
        self._queue.delete(held.handle)

    async def empty(self) -> None:
        self._queue.purge()

    async def close(self) -> None:
        """The broker serves the other sessions too, until the process ends."""
