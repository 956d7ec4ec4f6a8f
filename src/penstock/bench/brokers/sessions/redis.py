"""Redis by redis-py: a stream with a group of consumers, which is what Redis has with acknowledgements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import ResponseError

from penstock.bench.brokers.sessions.base import QUEUE, Held, Session


class RedisSession(Session):
    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    async def open(cls, address: str) -> RedisSession:
        # Without a limit: newer versions give up after some seconds, also on a consumer that waits for longer.
        session = cls(redis.asyncio.Redis.from_url(address, single_connection_client=True, socket_timeout=None))
        await session._make()
        return session

    async def _make(self) -> None:
        try:
            await self._client.xgroup_create(QUEUE, QUEUE, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def send(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            await self._client.xadd(QUEUE, {b"body": bodies[0]})
            return
        async with self._client.pipeline(transaction=False) as pipeline:
            for body in bodies:
                pipeline.xadd(QUEUE, {b"body": body})
            await pipeline.execute()

    async def receive(self, wait: float) -> Held | None:
        found = await self._client.xreadgroup(QUEUE, QUEUE, {QUEUE: ">"}, count=1, block=int(wait * 1000) or None)
        if not found:
            return None
        ((_, ((number, fields),)),) = found
        return Held(fields[b"body"], number)

    async def settle(self, held: Held) -> None:
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.xack(QUEUE, QUEUE, held.handle)
            pipeline.xdel(QUEUE, held.handle)
            await pipeline.execute()

    async def empty(self) -> None:
        await self._client.delete(QUEUE)
        await self._make()

    async def close(self) -> None:
        await self._client.aclose()
