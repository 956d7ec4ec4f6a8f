"""A store of your own: queues in a plain dict, with one lock and linear scans. It keeps every promise of the port
`penstock.stores.ports` but ordered groups; tests/test_own_store.py runs the contract on it.

A batch works on copies, and goes back to what was there before if it fails. A store on a real database begins a transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from copy import copy
from functools import partial
from threading import RLock
from typing import NamedTuple

from penstock.errors import BadURL, QueueNotFound, StoreClosed
from penstock.guarded import guarded
from penstock.marks import FOLLOWS
from penstock.message import FOREVER, Counts, Entry, Held, Message, Moved, Sent, Settings, Settlement, State
from penstock.stores import messages
from penstock.stores.ids import Ids
from penstock.stores.memory.outbox import memory_outbox
from penstock.stores.parts import Reader, RecordedHistory, RecordedReaders, scan_of, span_of
from penstock.stores.ports import START, Store, StoredQueue
from penstock.stores.requests import Claimed, Claiming, Marked, Moving, Swept
from penstock.stores.roster import LocalRoster

SLICE = 500
"""How many records one sweep removes."""


class Table(NamedTuple):
    """What one queue holds."""

    settings: Settings
    messages: dict[str, Message]
    marked: dict[str, bytes]  # id -> the mark of this message
    marks: dict[bytes, tuple[str, int]]  # mark -> the id of the message that it belongs to, and how long it counts
    settled: dict[str, tuple[Message, int]]  # id -> a message of the history, and how long it is kept
    readers: dict[str, Reader]

    def ordered(self) -> list[Message]:
        return sorted(self.messages.values(), key=lambda each: (each.visible_at, each.number))

    def message(self, receipt: Held) -> Message | None:
        found = self.messages.get(receipt.id)
        return found if found and receipt.delivery in (None, found.delivery) else None

    def add(self, message: Message, mark: bytes | None, until: int) -> None:
        self.messages[message.id] = message
        if mark is not None:
            self.marked[message.id] = mark
            if until:
                self.marks[mark] = message.id, until

    def remove(self, message: Message) -> None:
        del self.messages[message.id]
        mark = self.marked.pop(message.id, b"")
        if self.marks.get(mark) == (message.id, FOREVER):
            del self.marks[mark]

    def extend(self, receipt: Held, until: int, *, release: bool, error: str | None = None) -> bool:
        message = self.message(receipt)
        if message is None or message.state is not State.CONSUMED:
            return False
        self.messages[message.id] = messages.extended(message, until, release=release, error=error)
        return True

    def delete(self, receipt: Held, settlement: Settlement) -> bool:
        message = self.message(receipt)
        if message is None:
            return False
        self.remove(message)
        if settlement.keep_until is not None:
            self.settled[message.id] = messages.settled(message, settlement), settlement.keep_until
        return True

    def set_aside(self, receipt: Held) -> bool:
        message = self.message(receipt)
        if message is not None:
            self.messages[message.id] = messages.set_aside(message)
        return message is not None


class OwnStore(Store):
    durable, ordered, groups, atomic = False, True, False, True

    def __init__(self) -> None:
        self.roster = LocalRoster()
        self.outbox = memory_outbox(self)
        self.tables: dict[str, Table] = {}
        self.numbers = itertools.count(1)
        self.ids = Ids(Ids.salt())
        self._lock = RLock()
        self._closed = False

    @guarded
    def batch(self, *, durable: bool = True) -> Generator[None]:  # noqa: ARG002
        with self._lock:
            if self._closed:
                raise StoreClosed("this store was closed")
            before = dict(self.tables)
            try:
                yield
            except BaseException:
                self.tables = before
                raise

    @guarded
    def table(self, name: str) -> Generator[Table]:
        """A batch with the table of this queue: a new copy, so that the old one is still there if the batch fails."""
        with self.batch():
            if name not in self.tables:
                raise QueueNotFound(name)
            table = self.tables[name] = Table._make(map(copy, self.tables[name]))
            yield table

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        with self.batch():
            if (name in self.tables) == create:
                return False
            self.tables[name] = Table(settings, {}, {}, {}, {}, {}) if create else self.tables[name]._replace(settings=settings)
            return True

    def load(self, name: str) -> Settings | None:
        with self.batch():
            return self.tables[name].settings if name in self.tables else None

    def names(self) -> list[str]:
        with self.batch():
            return sorted(self.tables)

    def drop(self, name: str) -> bool:
        with self.batch():
            return self.tables.pop(name, None) is not None

    def queue(self, name: str) -> StoredQueue:
        return OwnQueue(self, name)

    def version(self) -> int:
        return 0  # there is no other process

    def close(self) -> None:
        self._closed = True


class OwnQueue(StoredQueue):
    def __init__(self, store: OwnStore, name: str) -> None:
        self.history = RecordedHistory(partial(store.table, name))
        self.readers = RecordedReaders(name, partial(store.table, name))
        self._store = store
        self._name = name

    def insert(self, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        with self._store.table(self._name) as table:
            if settings != table.settings:
                return None
            sent: list[Sent] = []
            for entry in entries:
                follows = entry.mark_until == FOLLOWS and sent and sent[-1].duplicate
                sent.append(self._next(sent[-1]) if follows else self._insert(table, entry, now))
            return sent

    def _next(self, sent: Sent) -> Sent:
        return Sent(self._store.ids.make((self._store.ids.number(sent.id) or 0) + 1), duplicate=True)

    def _insert(self, table: Table, entry: Entry, now: int) -> Sent:
        first, until = table.marks.get(entry.mark or b"", ("", 0))
        if until > now:
            return Sent(first, duplicate=True)
        number = next(self._store.numbers)
        id = self._store.ids.make(number)
        table.add(messages.inserted(entry, self._name, number, id), entry.mark, entry.mark_until)
        return Sent(id)

    def claim(self, claiming: Claiming) -> Claimed | None:
        with self._store.table(self._name) as table:
            if claiming.known is not None and claiming.known != table.settings:
                return None
            receipts, settlement = claiming.deleting or ((), None)
            deleted = [table.delete(receipt, settlement) for receipt in receipts] if settlement else []
            place, of = claiming.share or (0, 1)
            visible = [each for each in table.ordered() if each.visible_at <= claiming.at and each.number % of == place]
            claimed = [messages.claimed(each, claiming) for each in visible[: claiming.limit]]
            table.messages.update((each.id, each) for each in claimed)
            return Claimed(list(map(messages.answered, claimed, visible)), deleted)

    def extend(self, receipts: Sequence[Held], until: int, *, release: bool = False, error: str | None = None) -> list[bool]:
        with self._store.table(self._name) as table:
            return [table.extend(receipt, until, release=release, error=error) for receipt in receipts]

    def delete(self, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None) -> list[bool] | None:
        with self._store.table(self._name) as table:
            if settings is not None and settings != table.settings:
                return None
            return [table.delete(receipt, settlement) for receipt in receipts]

    def move(self, receipts: Sequence[Held], moving: Moving) -> list[Moved]:
        def move(receipt: Held) -> Moved:
            message = table.message(receipt)
            if message is None:
                return Moved.STALE
            mark = table.marked.get(message.id)
            new = moving.readmit(message, mark, moving.death, table.settings, there.settings, moving.now)
            if new.mark_until and there.marks.get(new.mark or b"", ("", 0))[1] == FOREVER:
                return Moved.DUPLICATE
            table.remove(message)
            there.add(messages.moved(message, moving, new), new.mark, new.mark_until)
            return Moved.DONE

        with self._store.table(self._name) as table, self._store.table(moving.target) as there:
            return list(map(move, receipts))

    def set_aside(self, receipts: Sequence[Held]) -> list[bool]:
        with self._store.table(self._name) as table:
            return [table.set_aside(receipt) for receipt in receipts]

    def browse(
        self, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        with self._store.table(self._name) as table:
            found = [each for each in table.ordered() if (each.visible_at, each.number) > after and state in (None, each.state)]
        return [messages.copied(each) for each in found if now is None or each.visible_at <= now][:limit]

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        return scan_of(self._all(), start, stop, limit)

    def span(self) -> tuple[int, int, int]:
        return span_of(self._all())

    def _all(self) -> list[Message]:
        with self._store.table(self._name) as table:
            return list(map(messages.copied, table.messages.values()))

    def marked(self, mark: bytes | None = None) -> Marked:
        with self._store.table(self._name) as table:
            count = sum(until == FOREVER and mark in (None, each) for each, (_, until) in table.marks.items())
            id, _ = table.marks.get(mark or b"", ("", 0))
            return Marked(count, id if id in table.messages else None)

    def count(self, now: int) -> Counts:
        with self._store.table(self._name) as table:
            return messages.counts_of(((each, False) for each in table.messages.values()), now, len(table.settled))

    def due(self) -> int | None:
        return min((each.visible_at for each in self._all() if each.visible_at < FOREVER), default=None)

    def purge(self, limit: int) -> int:
        with self._store.table(self._name) as table:
            claims = [held for reader in table.readers.values() for held in reader.claims.values()]
            held = {receipt.id for each in claims for receipt in each.receipts if table.message(receipt)}
            free = [each for each in table.messages.values() if each.id not in held][:limit]
            for message in free:
                table.remove(message)
            return len(free)

    def sweep(self, now: int) -> Swept:
        with self._store.table(self._name) as table:
            old = [id for id, (_, until) in table.settled.items() if until <= now]
            void = [mark for mark, (_, until) in table.marks.items() if until <= now]
            for id in old[:SLICE]:
                del table.settled[id]
            for mark in void[:SLICE]:
                del table.marks[mark]
            return Swept(max(len(old), len(void)) > SLICE)


def open_own_store(url: str, options: dict[str, object]) -> Store:
    if url != "own:" or options:
        raise BadURL(f"URL {url!r:.200}: this store has no path and no options; write 'own:'")
    return OwnStore()
