"""Listens for other processes' announcements through PostgreSQL's NOTIFY, on its own connection and thread."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from threading import Thread
from typing import Any

from penstock.errors import StoreError
from penstock.stores.dbserver.session import Session

LOOK_EVERY = 1.0
"""Seconds after which a waiting receiver polls: a sender that dies between commit and NOTIFY announces nothing."""


class Listener:
    def __init__(self, connect: Callable[[], Session], shut: Callable[[Session], None], channel: str) -> None:
        self.heard = 0
        self._connect = connect
        self._shut = shut
        self._channel = channel
        self._closed = False
        self._wake, self._woken = socket.socketpair()
        self._thread = Thread(target=self._run, name="penstock listener", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            try:
                session = self._connect()
            except StoreError:
                self._rest(None)
                continue
            try:
                session.connection.execute(f"LISTEN {self._channel}")
                while not self._closed:
                    self.heard += 1
                    self._rest(session.connection)
            except Exception:  # noqa: S110  whatever it is of psycopg's: the connection is of no use any more
                pass
            finally:
                self._shut(session)

    def _rest(self, connection: Any) -> None:
        """Wait until there is a notification, or the pause is over."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if connection is not None:
                selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.select(LOOK_EVERY)
        if connection is not None:
            connection.pgconn.consume_input()
            while connection.pgconn.notifies():
                pass

    def close(self) -> None:
        self._closed = True
        self._wake.send(b"x")
        self._thread.join()
        self._wake.close()
        self._woken.close()
