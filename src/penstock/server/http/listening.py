"""Accepts connections. Each is counted from here on, before its TLS handshake, and one too many is told so and closed."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import StoreError
from penstock.server.http.connection import Connection
from penstock.server.http.conversation import unread
from penstock.server.http.open_connections import Connections
from penstock.server.http.request_response import Refused, answer_error, render
from penstock.server.settings import ServerSettings

logger = logging.getLogger("penstock.server")

BACKLOG = 1024
MOST_AT_ONCE = 16
"""Connections accepted in one turn of the loop. Each may cut another one, whose descriptor is free only in the turn after, and
meanwhile it is one of those of the store."""
FILES_OF_THE_STORE = 64
"""Descriptors that connections leave free."""
PLAIN_BYTES, TLS_BYTES = 8 * 1024, 100 * 1024
"""What a connection takes, with a long poll that rests."""
TRY_AGAIN = 1.0
REPORT_EVERY = 60.0


def bind(settings: ServerSettings) -> tuple[list[socket.socket], str]:
    """The sockets on which to listen, and the URL of the first. Raises `StoreError` if the address cannot be had."""
    sockets: list[socket.socket] = []
    host, port = settings.host.strip("[]"), settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
    except OSError as error:
        for listening in sockets:
            listening.close()
        raise StoreError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}") from None
    host, port = sockets[0].getsockname()[:2]
    return sockets, f"{'https' if settings.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class Tls(SSLProtocol):
    """asyncio's TLS, with a smaller buffer: its 256 KiB would be most of what a connection costs. (The class is not documented.
    It works so in Python 3.11, 3.12 and 3.13.)"""

    max_size = 32 * 1024


class Listener:
    """Owns the listening sockets, and one descriptor to spare: with it, a connection can still be refused when none is left."""

    def __init__(self, connections: Connections, tls: ssl.SSLContext | None) -> None:
        self._all = connections
        self._loop = connections.loop
        self._tls = tls
        self._timeout = connections.handler.settings.read_timeout if tls is not None else None
        self._sockets: list[socket.socket] = []
        self._at_once = MOST_AT_ONCE
        connections.cost = PLAIN_BYTES if tls is None else TLS_BYTES
        self._spare = -1
        self._reported_at = -REPORT_EVERY

    def listen(self, sockets: Sequence[socket.socket], *, alone: bool) -> None:
        """Accept from these, ``alone`` or beside other processes: those get their share if each takes one at a time."""
        self._at_once = MOST_AT_ONCE if alone else 1
        self._sockets = list(sockets)
        self._spare = os.open(os.devnull, os.O_RDONLY)
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets = []
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(self._at_once):
            try:
                client, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._report(error)
                self._use_spare(listening)
                return
            connection = Connection(self._all, address[0])
            try:
                self._all.add(connection)
            except Refused as refusal:
                self._turn_away(client, refusal)
                continue
            connection.handshake = self._loop.create_task(self._connect(client, connection))
            connection.handshake.add_done_callback(partial(self._connected, client, connection))

    async def _connect(self, client: socket.socket, connection: Connection) -> None:
        client.setblocking(False)
        if self._tls is None:
            await self._loop.connect_accepted_socket(lambda: connection, client)
            return
        done = self._loop.create_future()
        limit: Any = self._timeout
        tls = Tls(self._loop, connection, self._tls, done, server_side=True, ssl_handshake_timeout=limit)
        transport, _ = await self._loop.connect_accepted_socket(lambda: tls, client)
        try:
            await done
        except BaseException:
            transport.abort()
            raise

    def _connected(self, client: socket.socket, connection: Connection, handshake: asyncio.Task[None]) -> None:
        if handshake.cancelled() or handshake.exception() is not None:
            # It left, spoke no TLS, took too long, or made room for another, perhaps before the handshake began.
            self._all.remove(connection)
            client.close()

    def _turn_away(self, client: socket.socket, refusal: Refused) -> None:
        """Say why, as far as that takes no time and no memory. Over TLS, nothing can be said without a handshake."""
        answer = answer_error(refusal.status, str(refusal), refusal.headers)
        with client, suppress(OSError):
            client.setblocking(False)
            if self._tls is None:
                client.send(render(answer, keep_alive=False, date=self._all.date()) + answer.body)
                client.shutdown(socket.SHUT_WR)
                client.recv_into(self._all.buffer)  # with bytes unread, the kernel would discard the answer
        self._all.handler.note(unread(), answer, 0)

    def _use_spare(self, listening: socket.socket) -> None:
        try:
            os.close(self._spare)
            self._spare = -1
            client, _ = listening.accept()
            self._turn_away(client, Refused(503, "the server has no descriptor left", {"Retry-After": "1"}))
            self._spare = os.open(os.devnull, os.O_RDONLY)
        except OSError:  # another thread took it, or the whole system has none
            self._loop.remove_reader(listening)
            self._loop.call_later(TRY_AGAIN, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            with suppress(OSError):
                if self._spare < 0:
                    self._spare = os.open(os.devnull, os.O_RDONLY)
            self._loop.add_reader(listening, self._accept, listening)

    def _report(self, error: OSError) -> None:
        if self._loop.time() - self._reported_at >= REPORT_EVERY:
            self._reported_at = self._loop.time()
            logger.error("connections are refused: %s", error.strerror)


def room_for_connections(wanted: int) -> int:
    """How many connections this process may have, so that the store can still open its files."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        used = FILES_OF_THE_STORE
    room = max(1, most - used - FILES_OF_THE_STORE)
    if most == resource.RLIM_INFINITY or room >= wanted:
        return wanted
    logger.warning(
        "this process may open %d files (ulimit -n), so it takes %d connections and not %d (max_connections)",
        most,
        room,
        wanted,
    )
    return room


def raise_limit_of_files() -> None:
    """As far as the system allows it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
