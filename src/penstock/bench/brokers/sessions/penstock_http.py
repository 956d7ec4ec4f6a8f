"""`penstock serve` in the dialect mqs, by plain requests."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.bench.brokers.sessions.base import LEASE, QUEUE, Held, Session
from penstock.bench.brokers.sessions.http_connection import HttpConnection

SETTINGS = b'{"retention_timeout": 86400, "visibility_timeout": %d}' % LEASE
BOUNDARY = b"penstock-bench"
PART = b"--" + BOUNDARY + b"\r\nContent-Type: application/octet-stream\r\n\r\n%b\r\n"
MULTIPART = b"Content-Type: multipart/mixed; boundary=" + BOUNDARY + b"\r\n"


class HttpSession(Session):
    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._ask = connection.ask

    @classmethod
    async def open(cls, address: str) -> HttpSession:
        session = cls(await HttpConnection.open(address))
        await session._make()
        return session

    async def _make(self) -> None:
        await self._ask(b"PUT", b"/queues/" + QUEUE.encode(), 201, 409, body=SETTINGS)

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
        await self._connection.close()
