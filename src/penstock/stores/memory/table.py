"""What one queue of a memory store holds, and the transitions of one message."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from penstock.message import BLOCKED, FOREVER, Entry, Held, Message, Settings, Settlement, State
from penstock.stores import messages
from penstock.stores.parts import Reader
from penstock.stores.requests import Claiming

Key = TypeVar("Key", bytes, str)
Value = TypeVar("Value")
SLICE = 500
"""How many expired records one sweep removes."""


@dataclass(slots=True)
class MemoryRow:
    message: Message
    mark: bytes | None
    mark_until: int
    blocked: bool = False


class Expiring(Generic[Key, Value]):
    """Records that are kept until an instant. Owns them, and the order in which they expire."""

    def __init__(self) -> None:
        self.records: dict[Key, tuple[Value, int]] = {}
        self._heap: list[tuple[int, Key]] = []  # an entry is void if its record disagrees

    def put(self, key: Key, value: Value, until: int) -> None:
        if until < FOREVER:
            if len(self._heap) > 2 * len(self.records) + SLICE:
                heap = [(kept_until, kept) for kept, (_, kept_until) in self.records.items() if kept_until < FOREVER]
                heapq.heapify(heap)
                self._heap = heap
            heapq.heappush(self._heap, (until, key))  # before the record: an interrupt must not leave one that never expires
        self.records[key] = value, until

    def sweep(self, now: int) -> bool:
        """Remove some of the expired records. Returns whether there are more."""
        for _ in range(SLICE):
            if not self._heap or self._heap[0][0] > now:
                return False
            until, key = self._heap[0]
            if key in self.records and self.records[key][1] == until:
                del self.records[key]
            heapq.heappop(self._heap)
        return True


class Table:
    """The messages, marks, history and readers of one queue.

    ``rows`` is authoritative. After an interrupt, `mend` rebuilds the order of delivery and the turns of the groups from it."""

    def __init__(self, settings: Settings, *, ordered: bool) -> None:
        self.settings = settings
        self.rows: dict[str, MemoryRow] = {}
        self.marks: Expiring[bytes, str] = Expiring()
        """The id of the message that a mark belongs to. Until FOREVER: the mark goes with the message."""
        self.history: Expiring[str, Message] = Expiring()
        self.readers: dict[str, Reader] = {}
        self._ordered = ordered
        self._heap: list[tuple[int, int, str]] = []
        """(visible_at, number, id) of each message that is not blocked. An entry is void if its row disagrees."""
        self._groups: dict[str, list[tuple[int, str]]] = {}
        """For each group (number, id) of the message whose turn it is, then of those that are blocked behind it."""
        self._moving: tuple[str, Table] | None = None

    # finding

    def find(self, receipt: Held) -> MemoryRow | None:
        """None if the receipt is stale."""
        row = self.rows.get(receipt.id)
        return row if row and receipt.delivery in (None, row.message.delivery) else None

    def message(self, receipt: Held) -> Message | None:
        row = self.find(receipt)
        return row.message if row else None

    @property
    def settled(self) -> dict[str, tuple[Message, int]]:
        return self.history.records

    def order(self, row: MemoryRow) -> tuple[int, ...]:
        """The order of delivery, blocked messages last."""
        return (row.blocked, row.message.visible_at if self._ordered else 0, row.message.number)

    def position(self, visible_at: int, number: int) -> tuple[int, ...]:
        """The place of a message (`Message.place`) in this order."""
        blocked = visible_at >= BLOCKED
        return (blocked, visible_at - BLOCKED * blocked if self._ordered else 0, number)

    def due(self) -> int | None:
        while self._heap:
            visible_at, _, id = self._heap[0]
            row = self.rows.get(id)
            if row and row.message.visible_at == visible_at and not row.blocked:
                return visible_at
            heapq.heappop(self._heap)
        return None

    def first_visible(self, claiming: Claiming) -> list[MemoryRow]:
        """The messages that a claim takes. They lose their place in the order: `show` them again."""
        limit, now = claiming.limit, claiming.at
        if not self._ordered:
            visible = (row for row in self.rows.values() if row.message.visible_at <= now and not row.blocked)
            return heapq.nsmallest(limit, visible, key=lambda row: row.message.number)
        place, of = claiming.share or (0, 1)
        found: dict[str, MemoryRow] = {}  # the heap names a message twice if it became visible twice at the same instant
        others: list[tuple[int, int, str]] = []
        while len(found) < limit and (due := self.due()) is not None and due <= now:
            first = heapq.heappop(self._heap)
            _, number, id = first
            if number % of == place:
                found[id] = self.rows[id]
                if claiming.together:
                    found.update((row.message.id, row) for row in self._behind(found[id], limit - len(found), now))
            else:
                others.append(first)
        for other in others:
            heapq.heappush(self._heap, other)
        return list(found.values())

    def _behind(self, first: MemoryRow, limit: int, now: int) -> Iterator[MemoryRow]:
        """The messages behind the first of a group, up to one that is hidden."""
        turns = self._groups.get(first.message.group or "", [])
        for _, id in turns[1 : limit + 1]:
            row = self.rows[id]
            if row.message.visible_at > now:
                break
            yield row

    def held_ids(self) -> Iterator[str]:
        """The messages of named claims."""
        for reader in self.readers.values():
            for held in reader.claims.values():
                yield from (receipt.id for receipt in held.receipts if self.find(receipt))

    # transitions

    def insert(self, entry: Entry, queue: str, number: int, id: str) -> None:
        message = messages.inserted(entry, queue, number, id)
        self._add(MemoryRow(message, entry.mark, entry.mark_until))
        if entry.mark is not None:
            self.marks.put(entry.mark, id, entry.mark_until)

    def claim(self, row: MemoryRow, claiming: Claiming) -> Message:
        before = row.message
        after = messages.claimed(before, claiming)
        # Without `until`, an interrupt may prevent the settlement: the message stays visible.
        self.show(row, after if claiming.until is not None else replace(after, visible_at=before.visible_at))
        return messages.answered(after, before)

    def extend(self, receipt: Held, until: int, *, release: bool, error: str | None = None) -> bool:
        row = self.find(receipt)
        if row is None or row.message.state is not State.CONSUMED:
            return False
        self.show(row, messages.extended(row.message, until, release=release, error=error))
        return True

    def delete(self, receipt: Held, settlement: Settlement) -> bool:
        row = self.find(receipt)
        if row is None:
            return False
        if settlement.keep_until is not None:
            self.history.put(row.message.id, messages.settled(row.message, settlement), settlement.keep_until)
        self.remove(row)
        return True

    def move(self, row: MemoryRow, target: Table, moved: MemoryRow) -> None:
        """Replace a row of this table by ``moved`` in another."""
        self._moving = (row.message.id, target)
        if moved.mark is not None and moved.mark_until:
            target.marks.put(moved.mark, moved.message.id, moved.mark_until)  # first: `mend` removes a mark without its message
        target._add(moved)
        self.remove(row)
        self._moving = None

    def set_aside(self, receipt: Held) -> bool:
        row = self.find(receipt)
        if row is None:
            return False
        self.show(row, messages.set_aside(row.message))
        self._pass_turn(row)
        row.blocked = False
        return True

    def show(self, row: MemoryRow, message: Message) -> None:
        """Change a message; if it is not blocked, it has a place in the order."""
        row.message = message
        if message.visible_at < FOREVER and not row.blocked:
            heapq.heappush(self._heap, (message.visible_at, message.number, message.id))

    def remove(self, row: MemoryRow) -> None:
        id = row.message.id
        del self.rows[id]
        if row.mark is not None and self.marks.records.get(row.mark) == (id, FOREVER):
            del self.marks.records[row.mark]
        self._pass_turn(row)

    def _add(self, row: MemoryRow) -> None:
        message = row.message
        turns: list[tuple[int, str]] | None = None
        if self.settings.groups and message.group is not None:
            turns = self._groups.setdefault(message.group, [])
            row.blocked = bool(turns)
        self.rows[message.id] = row  # from here on the message is in the queue: see `mend`
        if turns is not None:
            insort(turns, (message.number, message.id), lo=min(1, len(turns)))
        self.show(row, message)

    def _pass_turn(self, row: MemoryRow) -> None:
        """Take a message out of its group's line. If it was first, free the next."""
        group, place = row.message.group or "", (row.message.number, row.message.id)
        turns = self._groups.get(group, [])
        if place not in turns:
            return
        turns.remove(place)
        if not turns:
            del self._groups[group]
        elif not row.blocked:
            following = self._free_next(turns)
            self.show(following, following.message)

    def _free_next(self, turns: list[tuple[int, str]]) -> MemoryRow:
        """Give the turn to the next by number. But one that was moved here does not overtake those that are in hand."""
        following = self.rows[turns[0][1]]
        if following.message.moved_at is not None and not following.message.receives:
            received = (turn for turn in turns if self.rows[turn[1]].message.state is State.CONSUMED)
            turn = next(received, turns[0])
            turns.remove(turn)
            turns.insert(0, turn)
            following = self.rows[turn[1]]
        following.blocked = False
        return following

    # after an interrupt

    def finish_move(self) -> None:
        """A message that is in both tables has arrived."""
        if self._moving is not None:
            id, target = self._moving
            if id in target.rows:
                self.rows.pop(id, None)
            self._moving = None

    def mend(self) -> None:
        """Rebuild everything else from the rows."""
        rows = sorted(self.rows.values(), key=lambda row: row.message.number)
        for mark, (id, until) in list(self.marks.records.items()):
            if until == FOREVER and id not in self.rows:
                del self.marks.records[mark]
        if rows and rows[-1].mark is not None and rows[-1].mark_until:  # the interrupted insert may not have come this far
            self.marks.put(rows[-1].mark, rows[-1].message.id, rows[-1].mark_until)
        self._groups = {}
        for row in rows if self.settings.groups else ():
            if row.message.group is not None and row.message.state is not State.DAMAGED:
                turns = self._groups.setdefault(row.message.group, [])
                turns.insert(len(turns) if row.blocked else 0, (row.message.number, row.message.id))
        for turns in self._groups.values():
            if self.rows[turns[0][1]].blocked:
                self._free_next(turns)
        for reader in self.readers.values():
            for held in reader.claims.values():
                for row in filter(None, map(self.find, held.receipts)):
                    if row.message.visible_at == FOREVER and not held.claim.confirmed:
                        row.message = replace(row.message, visible_at=held.claim.lapses_at)
        self._heap = [(row.message.visible_at, row.message.number, row.message.id) for row in rows if not row.blocked]
        heapq.heapify(self._heap)
