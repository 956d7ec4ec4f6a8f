"""The connections of an event loop to a server: pooled and reused, one for each call that is under way.

The verbs, the rules for lost answers and the parser are those of `penstock.client`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, cast

from penstock.client.calls import Asking, Attempt, Calls, Lost, Unreached, Value
from penstock.client.connections import STALE
from penstock.client.http import AnswerReader, BadAnswer, HttpResponse, Reading
from penstock.errors import BadInput, PenstockError

logger = logging.getLogger("penstock")

Undo = Callable[[Any], Coroutine[Any, Any, None]]
"""Gives back what a verb has answered."""


class AsyncConnection(asyncio.Protocol):
    """Owns a socket. One request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._socket = sock
        self._transport: asyncio.Transport | None = None
        self._reader = AnswerReader()
        self._reading: Reading[HttpResponse] | None = None
        self._answer: asyncio.Future[HttpResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._ended = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._read(data)

    def eof_received(self) -> None:
        self._ended = True
        self._read(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._fail(error or ConnectionResetError("the server closed the connection"))

    @property
    def usable(self) -> bool:
        """Whether the server takes another request on this connection."""
        return self._reader.keeps and not self._ended and self._reading is None

    def ask(self, request: bytes, timeout: float) -> asyncio.Future[HttpResponse]:
        """Send a request. The future gets its answer, or OSError or `BadAnswer`."""
        assert self._transport is not None
        self._answer = answer = self._loop.create_future()
        self._reading = self._reader.read()
        next(self._reading)
        self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(timeout, self._look, timeout)
        self._transport.write(request)
        return answer

    def _look(self, timeout: float) -> None:
        """Whether something came within the time."""
        left = self._heard_at + timeout - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look, timeout)
        else:
            self._fail(TimeoutError("timed out"))

    def _read(self, data: bytes) -> None:
        if self._reading is None:
            self._ended = True  # nobody has asked for this
            self.close()
            return
        try:
            self._reading.send(data)
        except StopIteration as end:
            self._end()
            assert self._answer is not None
            if not self._answer.done():
                self._answer.set_result(end.value)
        except BadAnswer as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._end()
        self._ended = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _end(self) -> None:
        self._reading = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop_sending(self) -> None:
        """Tell the server that nobody waits any more; what it has answered already can still be read."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connect(
    loop: asyncio.AbstractEventLoop, host: str, port: int, timeout: float, tls: ssl.SSLContext | None
) -> AsyncConnection:
    """Raises OSError if there is no connection."""
    error = OSError(f"{host} has no address")
    async with asyncio.timeout(timeout):
        for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            plain = socket.socket(family, kind, protocol)
            try:
                plain.setblocking(False)
                await loop.sock_connect(plain, address)
                make = partial(AsyncConnection, loop, plain)
                _, made = await loop.create_connection(make, sock=plain, ssl=tls, server_hostname=None if tls is None else host)
                return made
            except OSError as refusal:  # the next address may be another
                plain.close()
                error = refusal
            except BaseException:
                plain.close()
                raise
    raise error


class AsyncLine:
    """The connections to one server. Each call has a connection to itself; beside long polls, as many calls are under way as
    connections are kept. Owns the tasks that give back what cancelled calls have taken."""

    def __init__(self, loop: asyncio.AbstractEventLoop, url: str, **options: Any) -> None:
        """The options are those of `Calls`."""
        self.calls = Calls(url, **options)
        self._loop = loop
        self._idle: list[AsyncConnection] = []
        self._polls: set[AsyncConnection] = set()
        self._turns = asyncio.Semaphore(self.calls.connections)
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self) -> None:
        if self._closed:
            raise self.calls.closed()
        if asyncio.get_running_loop() is not self._loop:
            raise BadInput("this broker was opened in another event loop; open one in each")

    async def follow(self, asking: Asking[Value], undo: Undo | None = None) -> Value:
        """Do what a verb asks for, and return its answer. With ``undo``: if the caller is cancelled when the request was sent,
        the answer is read all the same, and undone."""
        try:
            step = next(asking)
            while True:
                if isinstance(step, Attempt):
                    try:
                        response = await self._ask(step, asking, undo)
                    except (Lost, Unreached) as error:
                        step = asking.throw(error)
                    else:
                        step = asking.send(response)
                else:
                    await asyncio.sleep(step.seconds)
                    step = next(asking)
        except StopIteration as end:
            answer: Value = end.value
            return answer

    async def _ask(self, step: Attempt, asking: Asking[Any], undo: Undo | None) -> HttpResponse:
        if not step.waits:
            async with self._turns:
                return await self._ask_on(await self._take(step.timeout), step, asking, undo)
        connection = await self._take(step.timeout)
        self._polls.add(connection)
        try:
            return await self._ask_on(connection, step, asking, undo)
        finally:
            self._polls.discard(connection)

    async def _ask_on(self, connection: AsyncConnection, step: Attempt, asking: Asking[Any], undo: Undo | None) -> HttpResponse:
        answer = connection.ask(step.request, step.timeout)
        try:
            response = await (answer if undo is None else asyncio.shield(answer))
        except (OSError, BadAnswer) as error:
            connection.close()
            if self._closed and step.waits:
                raise self.calls.closed() from error
            raise Lost(f"gave no answer ({type(error).__name__}: {error})") from error
        except BaseException:
            if undo is None:
                connection.close()
            else:
                self.begin(self._undo(connection, answer, asking, undo))
            raise
        self._give(connection)
        return response

    async def _undo(
        self, connection: AsyncConnection, answer: asyncio.Future[HttpResponse], asking: Asking[Any], undo: Undo
    ) -> None:
        """The caller has left. If the server has not answered yet, it gives back by itself what it has claimed."""
        connection.stop_sending()
        try:
            response = await answer
        except (OSError, BadAnswer):
            return
        finally:
            connection.close()
        try:
            asking.send(response)
        except StopIteration as end:
            await undo(end.value)
        except (PenstockError, Lost):
            return  # nothing was done
        else:
            asking.close()  # it would ask for more

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this beside all callers, before the line is closed."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.warning("could not give back at once what a cancelled task has taken: %s", error)

    async def _take(self, timeout: float) -> AsyncConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and self._loop.time() - connection.idle_since < STALE:
                return connection
            connection.close()
        try:
            return await connect(self._loop, self.calls.host, self.calls.port, timeout, self.calls.tls)
        except OSError as error:
            raise Unreached(self.calls.url, error if str(error) else TimeoutError("timed out")) from error

    def _give(self, connection: AsyncConnection) -> None:
        if connection.usable and not self._closed and len(self._idle) < self.calls.connections:
            connection.idle_since = self._loop.time()
            self._idle.append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        """Long polls end; what cancelled tasks have taken is given back."""
        self._closed = True
        for connection in self._polls:
            connection.stop_sending()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for connection in self._idle:
            connection.close()
        self._idle.clear()
