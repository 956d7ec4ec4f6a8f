"""Verbs that take part in a commit in a way of their own: small ones in one call with others, long ones in parts."""

from __future__ import annotations

from functools import partial
from itertools import chain, islice
from typing import Any

from penstock.bridge.commits import Commits
from penstock.broker import LocalBroker
from penstock.message import Receipt, Settings

PART = 500
"""Messages of a queue that is being emptied, in one commit."""
FEW = 10
"""Messages that one caller may delete in a call that it shares with others."""


class BridgedVerbs:
    """What the server and `penstock.aopen` both do with the queues of a broker."""

    def __init__(self, broker: LocalBroker, commits: Commits) -> None:
        self._broker = broker
        self._commits = commits

    async def delete_many(self, queue: str, held: Any) -> list[bool]:
        """Delete messages by receipts and ids, as the caller gave them. Few receipts share a call with those of others."""
        if isinstance(held, list) and len(held) <= FEW and all(type(one) is Receipt for one in held):
            gone: list[bool] = await self._commits.share(f"settle {queue}", partial(self._delete_held, queue), held)
            return gone
        return await self._commits.run(lambda: self._broker.queue(queue).delete_many(held))

    def _delete_held(self, queue: str, asked: list[list[Receipt]]) -> list[list[bool]]:
        """In a thread of commits."""
        home = self._broker.queue(queue)
        gone = iter(home.delete_many(list(chain.from_iterable(asked))))
        return [list(islice(gone, len(held))) for held in asked]

    async def purge(self, queue: str) -> int:
        """In parts, so that others need not wait for all of it."""

        def purge() -> int:
            self._broker.queue(queue)
            return self._broker.store.queue(queue).purge(PART)

        purged = part = await self._commits.run(purge)
        while part == PART:
            part = await self._commits.run(purge)
            purged += part
        return purged

    async def delete_queue(self, queue: str) -> Settings:
        await self.purge(queue)
        try:
            return await self._commits.run(lambda: self._broker.delete(queue), alone=True)
        finally:
            self._commits.forget(queue)
