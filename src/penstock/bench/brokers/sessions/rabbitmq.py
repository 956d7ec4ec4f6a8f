"""RabbitMQ by aio-pika: publisher confirms; a consumer with a prefetch of one, since `basic.get` is slower."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from penstock.bench.brokers.sessions.base import QUEUE, Held, Session


class RabbitmqSession(Session):
    def __init__(self, connection: Any, channel: Any, queue: Any) -> None:
        self._connection, self._channel, self._queue = connection, channel, queue
        self._arrived: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
        self._consumer: str | None = None

    @classmethod
    async def quorum(cls, address: str) -> RabbitmqSession:
        return await cls._open(address, "quorum")

    @classmethod
    async def classic(cls, address: str) -> RabbitmqSession:
        return await cls._open(address, "classic")

    @classmethod
    async def _open(cls, address: str, kind: str) -> RabbitmqSession:
        connection = await aio_pika.connect(address)
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=1)
        name = f"{QUEUE}-{kind}"
        return cls(connection, channel, await channel.declare_queue(name, durable=True, arguments={"x-queue-type": kind}))

    async def send(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            await self._publish(bodies[0])
        else:
            await asyncio.gather(*map(self._publish, bodies))

    async def _publish(self, body: bytes) -> None:
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self._channel.default_exchange.publish(message, routing_key=self._queue.name)

    async def receive(self, wait: float) -> Held | None:
        if self._consumer is None:
            self._consumer = await self._queue.consume(self._arrived.put)
        try:
            async with asyncio.timeout(wait):
                message = await self._arrived.get()
        except TimeoutError:
            return None
        return Held(message.body, message)

    async def settle(self, held: Held) -> None:
        await held.handle.ack()  # AMQP has no answer to it

    async def rest(self) -> None:
        if self._consumer is not None:
            await self._queue.cancel(self._consumer)
            self._consumer = None
        while not self._arrived.empty():
            await self._arrived.get_nowait().nack(requeue=True)

    async def empty(self) -> None:
        await self._queue.purge()

    async def close(self) -> None:
        await self._connection.close()
