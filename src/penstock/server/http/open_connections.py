"""All connections of a server: their clock, their memory, and how they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Protocol

from penstock.server.budget import Budget
from penstock.server.http.request_response import Request, Response
from penstock.server.settings import ServerSettings

READ_BYTES = 256 * 1024


class Handler(Protocol):
    """What the connections need of the app."""

    settings: ServerSettings
    stopping: bool
    budget: Budget

    def check(self, request: Request) -> int:
        """Admit a request by its head, or raise `Refused`. Returns how many bytes of its body to keep."""

    async def handle(self, request: Request) -> Response: ...

    def note(self, request: Request, response: Response, seconds: float) -> None:
        """Count and log a response."""


class Open(Protocol):
    """What the server does to a connection."""

    ended: bool
    """The client will send nothing more."""

    def tick(self, now: float) -> None: ...

    def close_if_idle(self) -> None: ...

    def abort(self) -> None: ...


class Connections:
    """All connections of a server, and the one timer that closes slow ones."""

    def __init__(self, handler: Handler, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.loop = loop
        self.open: set[Open] = set()
        self.cut = 0
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Shared by all connections, which parse each read at once. If asyncio allocated a new buffer for each read, the system
        would map and unmap its memory each time, and that costs more than the read."""
        self.held: list[tuple[Callable[[Response, bool], None], Response, bool]] | None = None
        """Answers to be written together."""
        self._date = (0, "")
        self._sweeper = loop.create_task(self._sweep())

    def date(self) -> str:
        now = int(time.time())
        if self._date[0] != now:
            self._date = (now, formatdate(now, usegmt=True))
        return self._date[1]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Hold the answers of the block, and write them all at its end. With other work between two writes, the client or proxy
        at the other end would go to sleep and wake up for each of them."""
        held = self.held = []
        try:
            yield
        finally:
            self.held = None
            for write, response, keep_alive in held:
                write(response, keep_alive)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            now = self.loop.time()
            for connection in list(self.open):
                connection.tick(now)

    def close_idle(self) -> None:
        for connection in list(self.open):
            connection.close_if_idle()

    async def finish(self, grace: float) -> None:
        """Wait until everything is answered, at most ``grace`` seconds; then close the remaining connections."""
        give_up_at = self.loop.time() + grace
        while self.open and self.loop.time() < give_up_at:
            self.close_idle()
            await asyncio.sleep(0.01)
        for connection in list(self.open):
            connection.abort()
        self._sweeper.cancel()
