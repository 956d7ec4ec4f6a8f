"""A connection that a process keeps for what must happen outside of every batch: announcements, numbers, lost commits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from typing import Any

from penstock.errors import StoreClosed, StoreError, StoreUnreachable
from penstock.stores.dbserver.driver import Driver, Session
from penstock.stores.sql.database import Answer

CONNECT_PAUSE = 0.1


class Connector:
    """Opens and closes connections; while the server is unreachable, it retries for a while."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.closed = False

    def connect(self) -> Session:
        for _ in self._driver.patience.tries(CONNECT_PAUSE):
            try:
                return self._driver.open()
            except StoreUnreachable as error:
                unreachable = error
                if self.closed:
                    break
        raise unreachable

    def close(self, session: Session) -> None:
        """Close a connection, and if it still works, delete its row."""
        if session.number and not session.asking:
            with suppress(StoreError):
                self._driver.ask(session, self._driver.statements["close_session"], {"session": session.number})
        self._driver.shut(session)


class SideConnection:
    """Owns that connection."""

    def __init__(self, driver: Driver, connector: Connector) -> None:
        self.lock = RLock()
        self._driver = driver
        self._connector = connector
        self._session: Session | None = None

    @property
    def server_id(self) -> Any:
        """The server's id for the connection, if there is one now."""
        session = self._session
        return None if session is None else session.server_id

    def do(self, act: Callable[[Session], Answer]) -> Answer:
        """Retries if the connection had been lost."""
        with self.lock:
            if self._session is not None and self._session.asking:  # a signal handler runs during a query on it
                session = self._connector.connect()
                try:
                    return act(session)
                finally:
                    self._driver.shut(session)
            fresh = self._session is None
            if self._session is None:
                if self._connector.closed:
                    raise StoreClosed(f"{self._driver} was closed")
                self._session = self._connector.connect()
            try:
                return act(self._session)
            except BaseException as error:
                self._connector.close(self._session)
                self._session = None
                if fresh or not isinstance(error, StoreUnreachable):
                    raise
            return self.do(act)

    def close(self) -> None:
        with self.lock:
            if self._session is not None:
                self._connector.close(self._session)
                self._session = None
