"""The queues that a Python user might pick instead, through their public API and with the same sync.

We touch their connections only to set `PRAGMA synchronous` and to read it back. Finished messages that they keep are pruned
outside the timing, which is in their favour.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.bench.limits import WAIT, equalise, read_settings
from penstock.bench.workloads import MeasuredQueue

PRUNE_OVER = 2000


class LiteQueue(MeasuredQueue):
    def __init__(self, path: Path) -> None:
        from litequeue import LiteQueue as Queue

        self._queue = Queue(path, timeout=WAIT)
        equalise(self._queue.conn)

    def send(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            self._queue.put(bodies[0].decode())
            return
        with self._queue.transaction("IMMEDIATE"):
            for body in bodies:
                self._queue.put(body.decode())

    def receive(self, limit: int) -> list[Any]:
        popped = (self._queue.pop() for _ in range(limit))
        return [message.message_id for message in popped if message is not None]

    def delete(self, held: list[Any]) -> None:
        if len(held) == 1:
            self._queue.done(held[0])
            return
        with self._queue.transaction("IMMEDIATE"):
            for message_id in held:
                self._queue.done(message_id)

    def settings(self) -> str:
        return read_settings(self._queue.conn)

    def tidy(self) -> None:
        self._queue.prune()

    def close(self) -> None:
        self._queue.close()


class PersistQueue(MeasuredQueue):
    def __init__(self, path: Path) -> None:
        from persistqueue import SQLiteAckQueue
        from persistqueue.exceptions import Empty

        self._queue = SQLiteAckQueue(str(path), timeout=WAIT)
        self._empty = Empty
        self._connection: sqlite3.Connection = self._queue._conn
        equalise(self._connection)

    def send(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._queue.put(body)

    def receive(self, limit: int) -> list[Any]:
        try:
            return [self._queue.get(block=False, raw=True)["pqid"] for _ in range(limit)]
        except self._empty:  # only a batch could lose messages here, and this peer has none
            return []

    def delete(self, held: list[Any]) -> None:
        for number in held:
            self._queue.ack(id=number)

    def fill(self, bodies: Sequence[bytes]) -> None:
        self._connection.execute("PRAGMA synchronous = OFF")
        self.send(bodies)
        self._connection.execute("PRAGMA synchronous = FULL")

    def settings(self) -> str:
        return read_settings(self._connection)

    def tidy(self) -> None:
        self._queue.clear_acked_data(max_delete=PRUNE_OVER, keep_latest=0)

    def close(self) -> None:
        self._queue.close()


class PersistFiles(MeasuredQueue):
    def __init__(self, path: Path) -> None:
        from persistqueue import Queue
        from persistqueue.exceptions import Empty

        self._path = path
        self._queue = Queue(str(path), autosave=True)
        self._empty = Empty

    def send(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._queue.put(body)
            os.fsync(self._queue.headf.fileno())
            self._sync_info()

    def _sync_info(self) -> None:
        """On opening it truncates what its info file does not know of, so a put is lost unless that file is on disk."""
        for path in (self._path / "info", self._path):
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)

    def receive_once(self, limit: int) -> int:
        try:
            for _ in range(limit):
                self._queue.get(block=False)
                self._queue.task_done()
                self._sync_info()
        except self._empty:
            return 0
        return limit

    def fill(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._queue.put(body)

    def close(self) -> None:
        self._queue.headf.close()
        self._queue.tailf.close()


class Huey(MeasuredQueue):
    def __init__(self, path: Path) -> None:
        from huey import SqliteHuey

        self._storage = SqliteHuey(filename=str(path), fsync=True, timeout=WAIT).storage
        equalise(self._storage.conn)

    def send(self, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            self._storage.enqueue(body)

    def receive_once(self, limit: int) -> int:
        return sum(self._storage.dequeue() is not None for _ in range(limit))

    def fill(self, bodies: Sequence[bytes]) -> None:
        self._storage.conn.execute("PRAGMA synchronous = OFF")
        self.send(bodies)
        self._storage.conn.execute("PRAGMA synchronous = FULL")

    def settings(self) -> str:
        return read_settings(self._storage.conn)

    def close(self) -> None:
        self._storage.close()
