"""Listens for other processes' announcements through PostgreSQL's NOTIFY, on its own connection and thread."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from threading import Thread
from typing import Any

from penstock.errors import StoreError
from penstock.stores.dbserver.database import Listening, ServerDatabase
from penstock.stores.dbserver.driver import Driver
from penstock.stores.postgresql.driver import CHANNEL

LOOK_EVERY = 1.0
"""Seconds after which a waiting receiver polls: a sender that dies between commit and NOTIFY announces nothing."""


class Notifications(Listening):
    """Owns a listener from the moment that somebody waits."""

    def __init__(self, database: ServerDatabase) -> None:
        self._database = database
        self._asked = False
        self._listener: NotificationListener | None = None

    def version(self) -> int:
        """The number of notifications heard. A process that asks a second time is waiting: from then on there is a listener."""
        if not self._asked:
            self._asked = True
            return 0
        if self._listener is None:
            with self._database.side.lock:
                if self._listener is None:
                    self._database.pool.check_open()
                    self._listener = NotificationListener(self._database.driver, self._is_ours, self._ring)
        listener = self._listener
        return 0 if listener is None else listener.heard

    def _is_ours(self, backend: int) -> bool:
        """Whether this process has announced it, which needs no look: its own receivers are told without the server."""
        ours = self._database.side.server_id
        return ours is not None and ours[0] == backend

    def _ring(self) -> None:
        if self.bell is not None:
            self.bell()

    def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


class NotificationListener:
    """Owns a connection that listens, and its thread."""

    def __init__(self, driver: Driver, is_ours: Callable[[int], bool], ring: Callable[[], None]) -> None:
        """``is_ours``: whether the server's process of this number announces for us."""
        self.heard = 0
        self._driver = driver
        self._is_ours = is_ours
        self._ring = ring
        self._closed = False
        self._wake, self._woken = socket.socketpair()
        self._thread = Thread(target=self._run, name="penstock listener", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            try:
                session = self._driver.open()
            except StoreError:
                self._rest(None)
                continue
            try:
                session.connection.execute(f"LISTEN {CHANNEL}")
                news = True
                while not self._closed:
                    if news:
                        self.heard += 1
                        self._ring()
                    news = self._rest(session.connection)
            except Exception:  # noqa: S110  whatever it is of psycopg's: the connection is of no use any more
                pass
            finally:
                self._driver.shut(session)

    def _rest(self, connection: Any) -> bool:
        """Wait until there is a notification, or the pause is over. Whether a receiver must look."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            if connection is not None:
                selector.register(connection.fileno(), selectors.EVENT_READ)
            news = not selector.select(LOOK_EVERY)
        if connection is not None:
            connection.pgconn.consume_input()
            while notification := connection.pgconn.notifies():
                news = news or not self._is_ours(notification.be_pid)
        return news

    def close(self) -> None:
        self._closed = True
        self._wake.send(b"x")
        self._thread.join()
        self._wake.close()
        self._woken.close()
