"""The connections of a store that is a server: as many as there are threads at work, up to a limit, and none across a fork."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition
from typing import Generic, TypeVar

from penstock.errors import StoreBusy, StoreClosed

Connection = TypeVar("Connection")


class Pool(Generic[Connection]):
    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        close: Callable[[Connection], None],
        *,
        size: int,
        timeout: float,
    ) -> None:
        self._name = name
        self._connect = connect
        self._close = close
        self._size = size
        self._timeout = timeout
        self._condition = Condition()
        self._idle: list[Connection] = []
        self._lent: list[Connection] = []
        self._making = 0
        self._parents: list[Connection] = []
        self._closed = False

    def take(self) -> Connection:
        """One that is idle, the last used first, or a new one."""
        give_up_at = time.monotonic() + self._timeout
        with self._condition:
            while not self._idle and len(self._lent) + self._making >= self._size:
                if not self._condition.wait(give_up_at - time.monotonic()):
                    raise StoreBusy(f"{self._name}: all {self._size} connections were in use for more than {self._timeout} s")
            self.check_open()
            if self._idle:
                self._lent.append(self._idle.pop())
                return self._lent[-1]
            self._making += 1
        made: Connection | None = None
        try:
            made = self._connect()
        finally:
            with self._condition:
                self._making -= 1
                if made is not None:
                    self._lent.append(made)
                self._condition.notify()
        return made

    def check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self._name} was closed")

    def give(self, connection: Connection) -> None:
        with self._condition:
            if connection not in self._lent:  # it was lent before a fork, by the parent
                return
            self._lent.remove(connection)
            if not self._closed:
                self._idle.append(connection)
            self._condition.notify()
        if self._closed:
            self._close(connection)

    def drop(self, connection: Connection) -> None:
        """One that is lost, and most likely all that are idle with it."""
        with self._condition:
            idle, self._idle = self._idle, []
            mine = connection in self._lent
            if mine:
                self._lent.remove(connection)
            self._condition.notify()
        for lost in [*idle, *([connection] if mine else [])]:
            self._close(lost)

    def close(self) -> None:
        with self._condition:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection)

    def before_fork(self) -> None:
        self._condition.acquire()
        while self._idle:
            self._close(self._idle.pop())

    def after_fork(self, *, child: bool) -> None:
        if child:
            # Kept, so that nobody closes what the parent goes on using.
            self._parents += self._lent
            self._lent, self._making = [], 0
        self._condition.release()
