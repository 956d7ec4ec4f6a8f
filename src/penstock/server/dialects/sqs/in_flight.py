"""How many messages of a queue are in flight, which SQS limits."""

from __future__ import annotations

from penstock.server.dialects.base import Core

MOST = 120_000
MOST_QUEUES = 10_000


class InFlight:
    """Owns, for each queue, the last count and what this server has received since. The store is only asked to count if these
    together come to the limit: mostly after as many messages as the limit is."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.limit = MOST
        self._taken: dict[str, int] = {}

    async def is_full(self, queue: str) -> bool:
        if self._taken.get(queue, 0) < self.limit:
            return False
        stats = await self._core.look(f"in flight {queue}", lambda: self._core.broker.queue(queue).stats())
        self._taken[queue] = stats.in_flight
        return stats.in_flight >= self.limit

    def received(self, queue: str, count: int) -> None:
        if len(self._taken) >= MOST_QUEUES and queue not in self._taken:
            self._taken.clear()
        self._taken[queue] = self._taken.get(queue, 0) + count
