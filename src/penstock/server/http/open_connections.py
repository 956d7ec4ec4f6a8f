"""All connections of a server: how many there may be, their clock, and how they end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Protocol

from penstock.server.budget import Budget
from penstock.server.http.request_response import Refused, Request, Response
from penstock.server.settings import ServerSettings

logger = logging.getLogger("penstock.server")

READ_BYTES = 64 * 1024
TICK = 0.25


class Handler(Protocol):
    """What the connections need of the app."""

    settings: ServerSettings
    stopping: bool
    budget: Budget

    def check(self, request: Request) -> int:
        """Admit a request by its head, or raise `Refused`. Returns how many bytes of its body to keep."""

    async def handle(self, request: Request) -> Response: ...

    def refuse(self, request: Request, refusal: Refused) -> Response:
        """The answer to a request that was refused, in the words of its dialect."""

    def note(self, request: Request, response: Response, seconds: float) -> None:
        """Count and log a response."""


class Open(Protocol):
    """What the server does to a connection."""

    address: str
    ended: bool
    """The client will send nothing more."""

    @property
    def silent_since(self) -> float | None: ...

    def tick(self, now: float) -> None: ...

    def close_if_idle(self) -> None: ...

    def abort(self) -> None: ...


class Connections:
    """All connections of a server, counted from the instant when they are accepted, and the one timer that closes slow ones."""

    def __init__(self, handler: Handler, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.loop = loop
        self.most = handler.settings.max_connections
        self.open: set[Open] = set()
        self._by_address: Counter[str] = Counter()
        self.cost = 0
        """Bytes that each connection takes, however little it sends."""
        self.cut = 0
        self.buffer = memoryview(bytearray(READ_BYTES))
        """Shared by all connections, which use each read at once. If asyncio allocated a new buffer for each read, the system
        would map and unmap its memory each time, and that costs more than the read."""
        self.held: list[Callable[[], None]] | None = None
        """Answers to be written together."""
        self._date = (0, "")
        self._timer = loop.call_later(TICK, self._sweep)

    # who may come in

    def add(self, connection: Open) -> None:
        """Count a connection, or raise `Refused`."""
        self._make_room(connection.address)
        try:
            self.handler.budget.take(self.cost)
        except Refused:
            if not self._cut_silent(self.open):
                raise
            self.handler.budget.take(self.cost)
        self.open.add(connection)
        self._by_address[connection.address] += 1

    def _make_room(self, address: str) -> None:
        """Raise `Refused` if there are too many connections. A connection whose client has not shown what it may do makes room
        for another: silent ones cannot lock the others out."""
        most = self.handler.settings.max_per_address
        if self._by_address[address] >= most:
            crowd, text = [one for one in self.open if one.address == address], f"there are {most} connections from {address}"
        elif len(self.open) >= self.most:
            crowd, text = list(self.open), f"there are {self.most} connections"
        else:
            return
        if not self._cut_silent(crowd):
            raise Refused(503, f"{text}, the limit", {"Retry-After": "1"})

    def _cut_silent(self, crowd: Iterable[Open]) -> bool:
        """Cut the connection that has been silent longest, if there is one."""
        silent = [(since, id(one), one) for one in crowd if (since := one.silent_since) is not None]
        if silent:
            _, _, oldest = min(silent)
            self.cut += 1
            self.remove(oldest)
            oldest.abort()
        return bool(silent)

    def remove(self, connection: Open) -> None:
        if connection in self.open:
            self.open.discard(connection)
            self.handler.budget.give(self.cost)
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

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
            for write in held:
                write()

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(TICK, self._sweep)  # first, so that no error can end it
        now = self.loop.time()
        for connection in list(self.open):
            try:
                connection.tick(now)
            except Exception:
                logger.exception("a defect in Penstock: a connection is closed because its clock cannot be read")
                connection.abort()

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
        self._timer.cancel()
