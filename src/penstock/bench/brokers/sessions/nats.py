"""NATS JetStream by nats-py: a work queue on files, with acknowledged publishing and a pull consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import nats
from nats.errors import TimeoutError as NothingCame
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from penstock.bench.brokers.sessions.base import LEASE, QUEUE, Held, Session


class NatsSession(Session):
    def __init__(self, connection: Any, stream: Any, pulls: Any) -> None:
        self._connection, self._stream, self._pulls = connection, stream, pulls

    @classmethod
    async def open(cls, address: str) -> NatsSession:
        connection = await nats.connect(address)
        stream = connection.jetstream(timeout=60)
        await stream.add_stream(
            StreamConfig(name=QUEUE, subjects=[QUEUE], retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.FILE)
        )
        consumer = ConsumerConfig(ack_wait=LEASE, max_ack_pending=10_000)
        return cls(connection, stream, await stream.pull_subscribe(QUEUE, durable=QUEUE, stream=QUEUE, config=consumer))

    async def send(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            await self._stream.publish(QUEUE, bodies[0])
        else:
            await asyncio.gather(*(self._stream.publish(QUEUE, body) for body in bodies))

    async def receive(self, wait: float) -> Held | None:
        try:
            (message,) = await self._pulls.fetch(1, timeout=wait)
        except NothingCame:
            return None
        return Held(message.data, message)

    async def settle(self, held: Held) -> None:
        await held.handle.ack_sync(timeout=60)

    async def empty(self) -> None:
        await self._stream.purge_stream(QUEUE)

    async def close(self) -> None:
        await self._connection.close()
