"""One kept connection to an HTTP server, over asyncio's streams with no client library between."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from urllib.parse import urlsplit


class Unexpected(RuntimeError):
    """A server's answer that is not the one expected."""


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class HttpConnection:
    """Owns its streams, and opens them again if the server closes them after an answer."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @classmethod
    async def open(cls, address: str) -> HttpConnection:
        url = urlsplit(address)
        connection = cls(url.hostname or "", url.port or 80)
        await connection._dial()
        return connection

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self._streams = await asyncio.open_connection(*self._address)
        return self._streams

    async def ask(self, method: bytes, path: bytes, *expected: int, headers: bytes = b"", body: bytes = b"") -> Answer:
        reader, writer = self._streams or await self._dial()
        length = b"Content-Length: %d\r\n" % len(body) if body else b""
        writer.write(b"%b %b HTTP/1.1\r\nHost: 127.0.0.1\r\n%b%b\r\n%b" % (method, path, headers, length, body))
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        found = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
        answer = Answer(int(first[9:12]), found, await reader.readexactly(int(found.get(b"content-length", 0))))
        if found.get(b"connection", b"").lower() == b"close":
            await self.close()
        if answer.status not in expected:
            raise Unexpected(f"{method!r} {path!r:.80} was answered with {answer.status} {answer.body!r:.200}")
        return answer

    async def close(self) -> None:
        if self._streams:
            _, writer = self._streams
            self._streams = None
            writer.close()
            await writer.wait_closed()
