"""beanstalkd in its own protocol, which is lines: its Python clients add little to it, and block."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.bench.brokers.sessions.base import LEASE, Held, Session

AT_ONCE = 100


class BeanstalkdSession(Session):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> BeanstalkdSession:
        host, _, port = address.partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def _answer(self, *expected: bytes) -> list[bytes]:
        words = (await self._reader.readline()).split()
        if not words or words[0] not in expected:
            raise RuntimeError(f"beanstalkd has answered {b' '.join(words)!r:.80}")
        return words

    async def send(self, bodies: Sequence[bytes]) -> None:
        self._writer.write(b"".join(b"put 0 0 %d %d\r\n%b\r\n" % (LEASE, len(body), body) for body in bodies))
        for _ in bodies:
            await self._answer(b"INSERTED")

    async def receive(self, wait: float) -> Held | None:
        self._writer.write(b"reserve-with-timeout %d\r\n" % wait)
        return await self._reserved()

    async def _reserved(self) -> Held | None:
        answer = await self._answer(b"RESERVED", b"TIMED_OUT")
        if answer[0] == b"TIMED_OUT":
            return None
        body = await self._reader.readexactly(int(answer[2]) + 2)
        return Held(body[:-2], answer[1])

    async def settle(self, held: Held) -> None:
        self._writer.write(b"delete %b\r\n" % held.handle)
        await self._answer(b"DELETED")

    async def empty(self) -> None:
        """It cannot purge, so the messages are received and deleted."""
        while True:
            self._writer.write(b"reserve-with-timeout 0\r\n" * AT_ONCE)
            held = [one for _ in range(AT_ONCE) if (one := await self._reserved())]
            self._writer.write(b"".join(b"delete %b\r\n" % one.handle for one in held))
            for _ in held:
                await self._answer(b"DELETED")
            if len(held) < AT_ONCE:
                return

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
