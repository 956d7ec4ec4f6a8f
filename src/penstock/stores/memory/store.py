"""The queues of a memory store, by name."""

from __future__ import annotations

from collections.abc import Generator

from penstock.forking import watch
from penstock.guarded import guarded
from penstock.message import Settings
from penstock.stores.ids import Uuids
from penstock.stores.memory.outbox import memory_outbox
from penstock.stores.memory.queue import MemoryQueue
from penstock.stores.memory.table import Table
from penstock.stores.memory.tables import Tables
from penstock.stores.ports import Store
from penstock.stores.roster import LocalRoster


class MemoryUuids(Uuids):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def homes(self, given: str) -> list[str]:
        with self._tables.lock:
            self._tables.check_open()
            return [name for name, table in self._tables.by_name.items() if given in table.rows]

    def number(self, queue: str, id: str) -> int | None:
        with self._tables.lock:
            row = self._tables.find(queue).rows.get(id)
            return None if row is None else row.message.number


class MemoryStore(Store):
    """A store for one process. Its batch is a lock and undoes nothing: no verb fails once it has begun to change something."""

    durable = False
    groups = True
    atomic = False

    def __init__(self, *, ordered: bool = True, by_arrival: bool = False) -> None:
        """Without ``ordered``, visible messages are claimed in the order of sending, whenever they became visible. With
        ``by_arrival``, a moved message counts from its move instead."""
        self.ordered = ordered
        self.roster = LocalRoster()
        self.outbox = memory_outbox(self, lambda queue, marks: self.queue(queue).unmark(marks))
        self._tables = Tables(by_arrival=by_arrival)
        self.uuids = MemoryUuids(self._tables)
        watch(self)

    @guarded
    def batch(self, *, durable: bool = True) -> Generator[None]:  # noqa: ARG002
        with self._tables.lock:
            self._tables.check_open()
            yield

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        with self.batch():
            table = self._tables.by_name.get(name)
            if (table is None) != create:
                return False
            if table is None:
                self._tables.by_name[name] = Table(settings, ordered=self.ordered)
            else:
                table.settings = settings
            return True

    def load(self, name: str) -> Settings | None:
        self._tables.check_open()
        table = self._tables.by_name.get(name)
        return table.settings if table else None

    def names(self) -> list[str]:
        with self.batch():
            return sorted(self._tables.by_name)

    def drop(self, name: str) -> bool:
        with self.batch():
            return self._tables.by_name.pop(name, None) is not None

    def queue(self, name: str) -> MemoryQueue:
        return MemoryQueue(name, self._tables)

    def version(self) -> int:
        return 0  # there is no other process

    def close(self) -> None:
        self._tables.closed = True

    def before_fork(self) -> None:
        self._tables.lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002
        self._tables.lock.release()
