"""Queues in this process's memory: the executable specification. Every other store must give the same answers.

Its batch is a lock and undoes nothing: no verb here fails once it has begun to change something. If a verb is interrupted, the
next one repairs its changes from the rows, which are authoritative.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from bisect import insort
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from types import FrameType

from penstock.errors import QueueNotFound, StoreBusy, StoreClosed
from penstock.forking import watch
from penstock.guarded import guarded
from penstock.message import (
    FOREVER,
    Claim,
    Counts,
    Death,
    Entry,
    Held,
    Message,
    Moved,
    Receipt,
    Sent,
    Settings,
    Settlement,
    State,
)
from penstock.policy import key_of, next_delivery, readmit, same_settings
from penstock.stores.legacy import LegacyStore
from penstock.stores.memory_outbox import MemoryLedger, MemoryStaging
from penstock.stores.ports import START, Claiming, Ids, Outbox, Readers
from penstock.stores.roster import LocalRoster


@dataclass(slots=True)
class _Row:
    message: Message
    mark: bytes | None
    blocked: bool = False
    mark_until: int = 0


@dataclass(slots=True)
class _Held:
    claim: Claim
    receipts: list[Receipt]


@dataclass(slots=True)
class _Reader:
    settled: int | None = None
    claims: dict[int, _Held] = field(default_factory=dict)


@dataclass(slots=True)
class _Queue:
    settings: Settings
    rows: dict[int, _Row] = field(default_factory=dict)
    heap: list[tuple[int, int]] = field(default_factory=list)  # (visible_at, number); an entry is void if its row disagrees
    groups: dict[str, list[int]] = field(default_factory=dict)  # the one whose turn it is, then those blocked behind it
    marks: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # mark -> (number, until)
    history: dict[int, tuple[Message, int]] = field(default_factory=dict)
    readers: dict[str, _Reader] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)  # by arrival: id -> number
    moving: tuple[int, _Queue, int] | None = None  # (number, target queue, number there)


class MemoryStore(LegacyStore):
    durable = False
    groups = True
    atomic = False

    def __init__(self, *, ordered: bool = True, by_arrival: bool = False) -> None:
        """Without ``ordered``, visible messages are claimed in the order of sending, whenever they became visible. With
        ``by_arrival``, a moved message counts from its move instead."""
        self.roster = LocalRoster()
        self.outbox = Outbox(MemoryStaging(self), MemoryLedger(self, self._unmark))
        self.ordered = ordered
        self.by_arrival = by_arrival
        self._lock = RLock()
        self._queues: dict[str, _Queue] = {}
        self._torn: list[_Queue] = []
        """The queues that a verb is changing, or was changing when it was interrupted."""
        self._changing: FrameType | None = None
        self._numbers = itertools.count(1)
        self._ids = Ids(Ids.salt())
        self._closed = False
        watch(self)

    @guarded
    def batch(self, *, durable: bool = True) -> Generator[None]:  # noqa: ARG002
        with self._lock:
            self._check_open()
            yield

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the memory store was closed")

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        with self.batch():
            queue = self._queues.get(name)
            if (queue is None) != create:
                return False
            if queue is None:
                self._queues[name] = _Queue(settings)
            else:
                queue.settings = settings
            return True

    def load(self, name: str) -> Settings | None:
        self._check_open()
        queue = self._queues.get(name)
        return queue.settings if queue else None

    def names(self) -> list[str]:
        with self.batch():
            return sorted(self._queues)

    def drop(self, name: str) -> bool:
        with self._lock:
            return self._queues.pop(name, None) is not None

    def insert(self, queue: str, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        with self._lock:
            home = self._home(queue)
            if not same_settings(home.settings, settings):
                return None
            self._change(home)
            sent = [self._insert(home, queue, entry, now) for entry in entries]
            self._torn.clear()
            return sent

    def _insert(self, home: _Queue, queue: str, entry: Entry, now: int) -> Sent:
        if entry.mark is not None:
            first, until = home.marks.get(entry.mark, (0, 0))
            if until > now:
                there = home.rows.get(first)  # a message moved by arrival keeps its id but not its number
                return Sent(there.message.id if there else self._ids.make(first), duplicate=True)
        number = next(self._numbers)
        message = Message(
            id=self._ids.make(number),
            number=number,
            queue=queue,
            body=entry.body,
            content_type=entry.content_type,
            attributes=entry.attributes,
            state=State.QUEUED,
            receives=0,
            delivery=0,
            sent_at=entry.sent_at,
            visible_at=entry.visible_at,
            expires_at=entry.expires_at,
            deadline_at=entry.deadline_at,
            visibility=entry.visibility,
            group=entry.group,
            key=key_of(entry.mark),
        )
        self._arrive(home, _Row(message, entry.mark, mark_until=entry.mark_until))
        if entry.mark is not None:
            home.marks[entry.mark] = (number, entry.mark_until)
        return Sent(message.id)

    def claim(self, queue: str, claiming: Claiming) -> list[Message] | None:
        limit, now = claiming.limit, claiming.at
        place, of = claiming.share or (0, 1)
        with self._lock:
            home = self._home(queue)
            if claiming.known not in (None, home.settings):
                return None
            self._change(home)
            rows: list[_Row] = []
            numbers: set[int] = set()
            others: list[tuple[int, int]] = []
            if not self.ordered:
                visible = (row for row in home.rows.values() if row.message.visible_at <= now and not row.blocked)
                rows = heapq.nsmallest(limit, visible, key=lambda row: row.message.number)
            while self.ordered and len(rows) < limit and (due := self._first(home)) is not None and due <= now:
                first = heapq.heappop(home.heap)
                if first[1] % of != place:
                    others.append(first)
                    continue
                if first[1] not in numbers:  # the heap has it twice if it became visible twice at the same instant
                    numbers.add(first[1])
                    rows.append(home.rows[first[1]])
            for other in others:
                heapq.heappush(home.heap, other)
            claimed = [self._take(home, row, now, claiming.until, claiming.holder) for row in rows]
            self._torn.clear()
            return claimed

    def _take(self, home: _Queue, row: _Row, now: int, until: int | None, holder: str | None) -> Message:
        before = row.message
        after = replace(
            before,
            state=State.CONSUMED,
            receives=before.receives + 1,
            delivery=next_delivery(before.delivery, now),
            holder=holder,
            visible_at=before.visible_at if until is None else until,  # not hidden: an interrupt may prevent the settlement
            received_at=now,
            first_received_at=before.first_received_at or now,
        )
        self._show(home, row, after)
        visible_at = FOREVER if until is None else until
        return replace(_copy(after), visible_at=visible_at, lapsed=before.state is State.CONSUMED)

    def extend(self, queue: str, receipts: Sequence[Held], until: int, *, release: bool = False) -> list[bool]:
        with self._lock:
            home = self._home(queue)
            self._change(home)
            extended = [self._extend(home, receipt, until, release) for receipt in receipts]
            self._torn.clear()
            return extended

    def _extend(self, home: _Queue, receipt: Held, until: int, release: bool) -> bool:
        row = self._find(home, receipt)
        if row is None or row.message.state is not State.CONSUMED:
            return False
        state, holder = (State.QUEUED, None) if release else (State.CONSUMED, row.message.holder)
        self._show(home, row, replace(row.message, visible_at=until, state=state, holder=holder))
        return True

    def delete(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None
    ) -> list[bool] | None:
        with self._lock:
            home = self._home(queue)
            if settings is not None and not same_settings(home.settings, settings):
                return None
            self._change(home)
            deleted = [self._delete(home, receipt, settlement) for receipt in receipts]
            self._torn.clear()
            return deleted

    def _delete(self, home: _Queue, receipt: Held, settlement: Settlement) -> bool:
        row = self._find(home, receipt)
        if row is None:
            return False
        if settlement.keep_until is not None:
            message = replace(row.message, state=settlement.state, settled_at=settlement.settled_at, reason=settlement.reason)
            home.history[message.number] = (message, settlement.keep_until)
        self._leave(home, row)
        return True

    def amend(self, queue: str, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        with self._lock:
            home = self._home(queue)
            return [self._amend(home, receipt, state, reason) for receipt in receipts]

    def _amend(self, home: _Queue, receipt: Held, state: State, reason: str | None) -> bool:
        number = home.moved.get(receipt.id) or self._ids.number(receipt.id) or 0
        message, until = home.history.get(number, (None, 0))
        if message is None or receipt.delivery not in (None, message.delivery):
            return False
        home.history[number] = (replace(message, state=state, reason=reason), until)
        return True

    def move(
        self,
        queue: str,
        receipts: Sequence[Held],
        target: str,
        now: int,
        expires_at: int,
        deaths: Sequence[Death | None],
    ) -> list[Moved]:
        with self._lock:
            home, there = self._home(queue), self._home(target)
            self._change(home, there)
            pairs = zip(receipts, deaths, strict=True)
            moved = [self._move(home, receipt, target, there, now, expires_at, death) for receipt, death in pairs]
            self._torn.clear()
            return moved

    def _move(
        self, home: _Queue, receipt: Held, target: str, there: _Queue, now: int, expires_at: int, death: Death | None
    ) -> Moved:
        row = self._find(home, receipt)
        if row is None:
            return Moved.STALE
        mark, mark_until, deadline_at = readmit(row.message, row.mark, death, home.settings, there.settings, now)
        if mark is not None and mark_until and there.marks.get(mark, (0, 0))[1] == FOREVER:
            return Moved.DUPLICATE
        number = row.message.number
        if self.by_arrival:
            number = there.moved[row.message.id] = next(self._numbers)
        message = replace(
            row.message,
            number=number,
            queue=target,
            state=State.QUEUED,
            receives=0,
            visible_at=now,
            moved_at=now,
            expires_at=expires_at,
            deadline_at=deadline_at,
            key=key_of(mark),
            death=death,
            holder=None,
        )
        home.moving = (row.message.number, there, number)
        if mark is not None and mark_until:
            there.marks[mark] = (number, mark_until)  # before the row is there: `_mend` removes a mark without its message
        self._arrive(there, _Row(message, mark, mark_until=mark_until))
        self._leave(home, row)
        home.moving = None
        return Moved.DONE

    def set_aside(self, queue: str, receipts: Sequence[Held]) -> list[bool]:
        with self._lock:
            home = self._home(queue)
            self._change(home)
            rows = [self._find(home, receipt) for receipt in receipts]
            for row in rows:
                if row is not None:
                    self._pass_turn(home, row)
                    self._show(home, row, replace(row.message, state=State.DAMAGED, visible_at=FOREVER, holder=None))
            self._torn.clear()
            return [row is not None for row in rows]

    def browse(
        self, queue: str, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        with self._lock:
            rows = [
                row
                for row in self._home(queue).rows.values()
                if (state is None or row.message.state is state)
                and (now is None or (row.message.visible_at <= now and not row.blocked))
                and self._order(row) > ((False, *after) if self.ordered else (False, after[1]))
            ]
            rows = heapq.nsmallest(limit, rows, key=self._order)
            return [_copy(row.message) for row in rows]

    def settled(self, queue: str, limit: int) -> list[Message]:
        with self._lock:
            history = (_copy(message) for message, _ in self._home(queue).history.values())
            return heapq.nsmallest(limit, history, key=lambda message: (message.settled_at, message.number))

    def marked(self, queue: str, mark: bytes) -> bool:
        with self._lock:
            return self._home(queue).marks.get(mark, (0, 0))[1] == FOREVER

    def count_marked(self, queue: str) -> int:
        with self._lock:
            return sum(until == FOREVER for _, until in self._home(queue).marks.values())

    def count(self, queue: str, now: int) -> Counts:
        with self._lock:
            home = self._home(queue)
            visible = in_flight = delayed = blocked = damaged = 0
            for row in home.rows.values():
                message = row.message
                if message.state is State.DAMAGED:
                    damaged += 1
                elif row.blocked:
                    blocked += 1
                elif message.visible_at <= now:
                    visible += 1
                elif message.state is State.CONSUMED:
                    in_flight += 1
                else:
                    delayed += 1
            oldest = home.rows[min(home.rows)].message.sent_at if home.rows else None
            return Counts(len(home.rows), visible, in_flight, delayed, blocked, damaged, len(home.history), oldest)

    def due(self, queue: str) -> int | None:
        with self._lock:
            return self._first(self._home(queue))

    def purge(self, queue: str, limit: int) -> int:
        with self._lock:
            home = self._home(queue)
            held = {
                row.message.number
                for reader in home.readers.values()
                for held in reader.claims.values()
                for receipt in held.receipts
                if (row := self._find(home, receipt))
            }
            self._change(home)
            rows = [row for number, row in home.rows.items() if number not in held][:limit]
            for row in rows:
                self._leave(home, row)
            self._torn.clear()
            return len(rows)

    def sweep(self, queue: str, now: int) -> bool:
        with self._lock:
            home = self._home(queue)
            for number in [number for number, (_, until) in home.history.items() if until <= now]:
                del home.history[number]
            for mark in [mark for mark, (_, until) in home.marks.items() if until <= now]:
                del home.marks[mark]
            return False

    def readers(self, queue: str) -> Readers:
        return _Readers(self, queue)

    def _unmark(self, queue: str, marks: Sequence[bytes]) -> None:
        """Forget marks that are no longer needed, before they expire."""
        with self._lock:
            for mark in marks:
                self._home(queue).marks.pop(mark, None)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:  # noqa: ARG002
        self._lock.release()

    def version(self) -> int:
        return 0

    def close(self) -> None:
        self._closed = True

    def _order(self, row: _Row) -> tuple[int, ...]:
        """The order of delivery, blocked messages last."""
        instant = (row.message.visible_at,) if self.ordered else ()
        return (row.blocked, *instant, row.message.number)

    def _home(self, name: str) -> _Queue:
        self._check_open()
        if self._torn:
            frame: FrameType | None = sys._getframe()
            while frame is not None:
                if frame is self._changing:
                    raise StoreBusy(
                        "the memory store is in the middle of a call of this very thread, which a signal handler has "
                        "interrupted; nothing was done. Use the store after the handler has returned, or from another thread"
                    )
                frame = frame.f_back
            self._mend()
        try:
            return self._queues[name]
        except KeyError:
            raise QueueNotFound(name) from None

    def _change(self, *homes: _Queue) -> None:
        self._changing = sys._getframe(1)
        self._torn += homes

    def _mend(self) -> None:
        """After an interrupt: rebuild everything else in these queues from their rows."""
        for home in self._torn:
            if home.moving is not None:
                number, there, arrived = home.moving
                if arrived in there.rows:
                    home.rows.pop(number, None)
                home.moving = None
        for home in self._torn:
            rows = sorted(home.rows.values(), key=lambda row: row.message.number)
            home.marks = {m: known for m, known in home.marks.items() if known[1] < FOREVER or known[0] in home.rows}
            if rows and rows[-1].mark is not None and rows[-1].mark_until:
                home.marks[rows[-1].mark] = (rows[-1].message.number, rows[-1].mark_until)
            home.groups = {}
            for row in rows if home.settings.groups else ():
                if row.message.group is not None and row.message.state is not State.DAMAGED:
                    turns = home.groups.setdefault(row.message.group, [])
                    turns.insert(0 if not row.blocked else len(turns), row.message.number)
            for turns in home.groups.values():
                home.rows[turns[0]].blocked = False
            for reader in home.readers.values():
                for held in reader.claims.values():
                    for row in filter(None, (self._find(home, receipt) for receipt in held.receipts)):
                        if row.message.visible_at == FOREVER and not held.claim.confirmed:
                            row.message = replace(row.message, visible_at=held.claim.lapses_at)
            home.heap = [(row.message.visible_at, row.message.number) for row in rows if not row.blocked]
            heapq.heapify(home.heap)
        self._torn.clear()

    def _find(self, home: _Queue, receipt: Held) -> _Row | None:
        row = home.rows.get(home.moved.get(receipt.id) or self._ids.number(receipt.id) or 0)
        return row if row and receipt.delivery in (None, row.message.delivery) else None

    def _first(self, home: _Queue) -> int | None:
        """When the first message is due, skipping void entries at the head of the heap."""
        while home.heap:
            visible_at, number = home.heap[0]
            row = home.rows.get(number)
            if row and row.message.visible_at == visible_at and not row.blocked:
                return visible_at
            heapq.heappop(home.heap)
        return None

    def _show(self, home: _Queue, row: _Row, message: Message) -> None:
        row.message = message
        if message.visible_at < FOREVER:
            heapq.heappush(home.heap, (message.visible_at, message.number))

    def _arrive(self, home: _Queue, row: _Row) -> None:
        turns: list[int] = []
        if home.settings.groups and row.message.group is not None:
            turns = home.groups.setdefault(row.message.group, [])
            row.blocked = bool(turns)
        home.rows[row.message.number] = row  # from here on the message is in the queue: see `_mend`
        if home.settings.groups and row.message.group is not None:
            insort(turns, row.message.number, lo=min(1, len(turns)))
        if not row.blocked:
            self._show(home, row, row.message)

    def _leave(self, home: _Queue, row: _Row) -> None:
        del home.rows[row.message.number]
        if row.mark is not None and home.marks.get(row.mark) == (row.message.number, FOREVER):
            del home.marks[row.mark]
        self._pass_turn(home, row)

    def _pass_turn(self, home: _Queue, row: _Row) -> None:
        """Take the row out of its group's line. If it was first, free the next by number."""
        turns = home.groups.get(row.message.group or "", [])
        if row.message.number not in turns:
            return
        turns.remove(row.message.number)
        if not turns:
            del home.groups[row.message.group or ""]
        elif not row.blocked:
            following = home.rows[turns[0]]
            following.blocked = False
            self._show(home, following, following.message)


class _Readers(Readers):
    def __init__(self, store: MemoryStore, queue: str) -> None:
        self._store = store
        self._queue = queue

    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        with self._store._lock:
            claims = self._home().readers.setdefault(reader, _Reader()).claims
            claims[epoch] = _Held(
                Claim(reader, epoch, len(receipts), False, lapses_at),
                [Receipt(self._queue, receipt.id, receipt.delivery) for receipt in receipts],
            )

    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        with self._store._lock:
            known = self._home().readers.get(reader, _Reader())
            return known.settled, [known.claims[epoch].claim for epoch in sorted(known.claims)]

    def names(self) -> list[str]:
        with self._store._lock:
            return sorted(self._home().readers)

    def confirm(self, reader: str, epoch: int) -> None:
        with self._store._lock:
            home = self._home()
            held = home.readers[reader].claims[epoch]
            self._store._change(home)
            for receipt in held.receipts:
                self._store._extend(home, receipt, FOREVER, release=False)
            held.claim = replace(held.claim, confirmed=True, lapses_at=FOREVER)
            self._store._torn.clear()

    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._store._lock:
            home = self._home()
            rows = (self._store._find(home, receipt) for receipt in home.readers[reader].claims[epoch].receipts[start:stop])
            return [_copy(row.message) for row in rows if row is not None]

    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        store = self._store
        with store._lock:
            home = self._home()
            known = home.readers.setdefault(reader, _Reader())
            store._change(home)
            done = [number for number in sorted(known.claims) if number <= epoch]
            rows = ((receipt, store._find(home, receipt)) for number in done for receipt in known.claims[number].receipts)
            # Messages found damaged when they were read have been set aside, and stay.
            whole = [receipt for receipt, row in rows if row is None or row.message.state is not State.DAMAGED]
            gone = sum(store._delete(home, receipt, settlement) for receipt in whole)
            settled = max(epoch, known.settled if known.settled is not None else epoch)
            left = {number: held for number, held in known.claims.items() if number not in done}
            known.settled, known.claims = settled, left  # an interrupt comes before both or after both
            store._torn.clear()
            return gone

    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        store = self._store
        with store._lock:
            home = self._home()
            known = home.readers.get(reader, _Reader())
            store._change(home)
            undone = list(known.claims.values()) if epoch is None else [known.claims[epoch]]
            given = sum(store._extend(home, receipt, now, release=True) for held in undone for receipt in held.receipts)
            if epoch is None:
                home.readers.pop(reader, None)
            else:
                del known.claims[epoch]
            store._torn.clear()
            return given

    def _home(self) -> _Queue:
        return self._store._home(self._queue)


def _copy(message: Message) -> Message:
    """A copy that the caller may change."""
    return replace(message, attributes=dict(message.attributes))
