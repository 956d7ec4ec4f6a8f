"""Starting and stopping the service: listen, report the URL, wait for SIGTERM or Ctrl-C, finish, exit."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Self, TextIO

from penstock.broker import LocalBroker
from penstock.errors import BadSetting
from penstock.server.access_log import AccessLog
from penstock.server.app import DIALECTS, App, Dialects
from penstock.server.auth import is_loopback
from penstock.server.http.listening import Listener, bind, raise_limit_of_files, room_for_connections
from penstock.server.log_writer import LogWriter
from penstock.server.settings import ServerSettings
from penstock.server.workers import Worker

logger = logging.getLogger("penstock.server")

FLUSH_EVERY = 0.5
SWITCH_EVERY = 0.0001
"""Seconds after which the commit thread gets the interpreter from the event loop, which releases it and takes it back at
each system call. With Python's 5 ms, a commit waits longer for the loop than for the disk."""
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
"""As in glibc's malloc.h."""
LARGE = 64 * 1024


class Server:
    """A service on one port. ``await start()``, then ``await stop()``."""

    def __init__(
        self,
        broker: LocalBroker,
        settings: ServerSettings,
        *,
        log: TextIO | None = None,
        dialects: Dialects = DIALECTS,
        worker: Worker | None = None,
    ) -> None:
        """``worker``: which of several processes this is."""
        self._worker = worker
        self._dialects = dialects
        self._broker = broker
        self._settings = settings
        self.writer = LogWriter(log)
        self._log = AccessLog(self.writer if log is not None and settings.access_log else None)
        self._tls = _tls(settings)
        self.url = ""

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.app = App(self._broker, self._settings, loop, self._log, self._dialects)
        settings = self._settings
        self.app.connections.most = room_for_connections(settings.max_connections)
        self._listener = Listener(self.app.connections, self._tls)
        worker = self._worker
        if worker is None:
            sockets, self.url = bind(settings)
        else:
            sockets = list(worker.sockets)
            self.app.gauges |= {"worker": worker.number, "workers": worker.count}
        self._listener.listen(sockets, alone=worker is None)
        self._loop = loop
        self._flush()
        self.app.start()

    def reload(self, settings: ServerSettings) -> None:
        """Take over new tokens and keys, and a certificate that was renewed in its files. Other settings stay. If anything is
        wrong with the new ones, it raises `BadSetting`, and the old tokens stay."""
        _tls(self._settings)  # a trial: a context that fails to load new files has half of them
        self.app.guard.replace(settings.tokens, settings.sqs_keys)
        if self._tls is not None:
            self._tls.load_cert_chain(self._settings.tls_cert, self._settings.tls_key)

    def _flush(self) -> None:
        self._flusher = self._loop.call_later(FLUSH_EVERY, self._flush)  # first, so that no error can end it
        self._log.flush()

    async def stop(self) -> None:
        """Stop accepting connections and requests, finish those that have begun, and give back messages that no client got."""
        self._listener.close()
        await self.app.stop()
        self._flusher.cancel()
        self._log.flush()
        self.writer.close()


def _tls(settings: ServerSettings) -> ssl.SSLContext | None:
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise BadSetting(f"tls_cert {settings.tls_cert!r} and tls_key {settings.tls_key!r} cannot be used: {error}") from None
    if settings.tls_client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except (OSError, ssl.SSLError) as error:
            raise BadSetting(f"tls_client_ca {settings.tls_client_ca!r} cannot be used: {error}") from None
    return context


def serve(
    broker: LocalBroker,
    settings: ServerSettings,
    *,
    started: Callable[[str], None],
    dialects: Dialects = DIALECTS,
    read_again: Callable[[], ServerSettings] | None = None,
    worker: Worker | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, as the only task of this process; call ``started`` with the URL.

    On SIGHUP, take over the tokens that ``read_again`` returns. ``worker``: one of several processes; if its parent is gone, it
    stops too."""

    async def run() -> None:
        server = Server(broker, settings, log=sys.stderr, dialects=dialects, worker=worker)
        await server.start()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, _reload, server, read_again or (lambda: settings))
        if worker is None:
            started(server.url)
        else:
            loop.add_reader(worker.parent, _leave, loop, worker.parent, stop)
            worker.started()
        with server.writer.taking_logging():
            if settings.tokens and not settings.tls_cert and not is_loopback(settings.host):
                logger.warning(
                    "tokens travel unencrypted to %s: set tls_cert and tls_key, or let a proxy speak TLS", settings.host
                )
            await stop.wait()
            await server.stop()

    sys.setswitchinterval(SWITCH_EVERY)
    raise_limit_of_files()
    return_large_blocks()
    asyncio.run(run())


def _leave(loop: asyncio.AbstractEventLoop, parent: int, stop: asyncio.Event) -> None:
    loop.remove_reader(parent)
    stop.set()


def return_large_blocks() -> None:
    """Let glibc give blocks from `LARGE` bytes back to the system as soon as they are free. By itself it raises this limit to
    32 MiB once it has seen blocks that large, and then keeps several times what the budget counts. And let all threads share
    one arena: each would keep what it has freed. Arrow shall use it too."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _reload(server: Server, read_again: Callable[[], ServerSettings]) -> None:
    try:
        settings = read_again()
        server.reload(settings)
    except BadSetting as error:
        logger.warning("after SIGHUP, the old tokens stay: %s", error)
    else:
        keys = f" and {len(settings.sqs_keys)} SQS keys" if settings.sqs_keys else ""
        logger.warning("after SIGHUP, there are %d tokens%s", len(settings.tokens), keys)


class BackgroundServer:
    """A server in a thread of this process, for tests and for programs with other work to do.

    with BackgroundServer(broker) as server:
        print(server.url)
    """

    def __init__(self, broker: LocalBroker, settings: ServerSettings | None = None, *, log: TextIO | None = None) -> None:
        self._server = Server(broker, settings or ServerSettings(port=0), log=log)
        self._ready = Event()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="penstock-server", daemon=True)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def app(self) -> App:
        return self._server.app

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # the loop has already ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            await self._server.start()
        except BaseException as error:
            self._error = error
            return
        finally:
            self._ready.set()
        await self._stop.wait()
        await self._server.stop()
