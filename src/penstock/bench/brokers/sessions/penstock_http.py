"""`penstock serve` in the dialect mqs, by requests over asyncio's streams with no client library between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from penstock.bench.brokers.sessions.base import LEASE, QUEUE, Held, Session

SETTINGS = b'{"retention_timeout": 86400, "visibility_timeout": %d}' % LEASE
BOUNDARY = b"penstock-bench"
PART = b"--" + BOUNDARY + b"\r\nContent-Type: application/octet-stream\r\n\r\n%b\r\n"
MULTIPART = b"Content-Type: multipart/mixed; boundary=" + BOUNDARY + b"\r\n"


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class HttpSession(Session):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> HttpSession:
        url = urlsplit(address)
        session = cls(*await asyncio.open_connection(url.hostname, url.port))
        await session._make()
        return session

    async def _make(self) -> None:
        await self._ask(b"PUT", b"/queues/" + QUEUE.encode(), 201, 409, body=SETTINGS)

    async def _ask(self, method: bytes, path: bytes, *expected: int, headers: bytes = b"", body: bytes = b"") -> Answer:
        length = b"Content-Length: %d\r\n" % len(body) if body else b""
        self._writer.write(b"%b %b HTTP/1.1\r\nHost: 127.0.0.1\r\n%b%b\r\n%b" % (method, path, headers, length, body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        found = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
        answer = Answer(int(first[9:12]), found, await self._reader.readexactly(int(found.get(b"content-length", 0))))
        if answer.status not in expected:
            raise RuntimeError(f"{method!r} {path!r:.80} was answered with {answer.status} {answer.body!r:.200}")
        return answer

    async def send(self, bodies: Sequence[bytes]) -> None:
        path = b"/messages/" + QUEUE.encode()
        if len(bodies) == 1:
            await self._ask(b"POST", path, 201, body=bodies[0])
        else:
            body = b"".join([*(PART % body for body in bodies), b"--", BOUNDARY, b"--\r\n"])
            await self._ask(b"POST", path, 201, headers=MULTIPART, body=body)

    async def receive(self, wait: float) -> Held | None:
        headers = b"X-MQS-MAX-WAIT-TIME: %d\r\n" % wait
        answer = await self._ask(b"GET", b"/messages/" + QUEUE.encode(), 200, 204, headers=headers)
        return None if answer.status == 204 else Held(answer.body, answer.headers[b"x-mqs-message-id"])

    async def settle(self, held: Held) -> None:
        await self._ask(b"DELETE", b"/messages/" + held.handle, 204)

    async def empty(self) -> None:
        await self._ask(b"DELETE", b"/queues/" + QUEUE.encode(), 200)
        await self._make()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
