"""The connections of a store on a server: as many as there are active threads, up to a limit, and none across a fork.

An interrupt (Ctrl-C, or any exception from a signal handler) may come between any two steps here, even when a connection has
been taken but not yet handed to its thread. So the pool does not count lent connections, but keeps weak references: a
connection that nobody references is no longer lent.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, RLock
from typing import Generic, TypeVar
from weakref import ref

from penstock.errors import StoreBusy, StoreClosed
from penstock.patience import Patience

Connection = TypeVar("Connection")
LOOK_EVERY = 0.5
"""Seconds after which a thread that waits for a connection checks again: nobody announces connections that were lost."""


class Place:
    """Stands for a connection that is being opened."""


class Pool(Generic[Connection]):
    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        close: Callable[[Connection], None],
        *,
        size: int,
        patience: Patience,
    ) -> None:
        self._name = name
        self._connect = connect
        self._close = close
        self._size = size
        self._patience = patience
        self._lock = RLock()  # taken directly, not by the condition, whose own `with` an interrupt can leave locked
        self._condition = Condition(self._lock)
        self._idle: list[Connection] = []
        self._lent: list[ref[Connection]] = []
        self._making: list[ref[Place]] = []
        self._parents: list[Connection] = []
        self._closed = False

    def take(self) -> Connection:
        """An idle connection, the last used first, or a new one."""
        patience = self._patience
        give_up_at = patience.now() + patience.timeout
        place = Place()
        with self._lock:
            while not self._idle and len(self.lent()) + len(self._in_making()) >= self._size:
                left = give_up_at - patience.now()
                if left <= 0:
                    raise StoreBusy(
                        f"{self._name}: all {self._size} connections were in use for more than {patience.timeout} s"
                    )
                self._condition.wait(min(left, LOOK_EVERY))
            self.check_open()
            if self._idle:
                return self._lend(self._idle.pop())
            self._making = [*self._in_making(), ref(place)]
        try:
            made = self._connect()
            with self._lock:
                return self._lend(made)
        finally:
            del place
            with self._lock:
                self._condition.notify()

    def _lend(self, connection: Connection) -> Connection:
        self._lent = [*(known for known in self._lent if known() is not None), ref(connection)]
        return connection

    def lent(self) -> list[Connection]:
        """The connections that are in use."""
        return [connection for known in self._lent if (connection := known()) is not None]

    def _in_making(self) -> list[ref[Place]]:
        return [known for known in self._making if known() is not None]

    def check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self._name} was closed")

    def give(self, connection: Connection) -> None:
        with self._lock:
            if not self._take_back(connection):
                return
            if not self._closed:
                self._idle.append(connection)
        if self._closed:
            self._close(connection)

    def drop(self, connection: Connection, *, alone: bool = False) -> None:
        """Drop a lost connection, and most likely all idle ones with it; with ``alone``, drop only this one."""
        with self._lock:
            mine = self._take_back(connection)
            idle: list[Connection] = []
            if not alone:
                idle, self._idle = self._idle, []
        for lost in [*idle, *([connection] if mine else [])]:
            self._close(lost)

    def _take_back(self, connection: Connection) -> bool:
        """False if the parent lent it before a fork, or if it was already given back."""
        left = [known for known in self._lent if known() is not connection]
        lent = len(left) < len(self._lent)
        self._lent = left
        self._condition.notify()
        return lent

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection)

    def before_fork(self) -> None:
        self._lock.acquire()
        while self._idle:
            self._close(self._idle.pop())

    def after_fork(self, *, child: bool) -> None:
        if child:
            # Keep references, so that the garbage collector does not close what the parent still uses.
            self._parents += self.lent()
            self._lent, self._making = [], []
        self._lock.release()
