"""The two formats of the memcached store: pages of slots, and message records.

page      64 slots in columns, little endian: visible_at, received_at, first_received_at, delivery (8 bytes each), receives
          (4 bytes), status (1 byte); then, if any of them has a holder, 64 bytes with each slot's holder (0: none), and
          the names of the holders, each with its length before it. A page with nothing left is a tombstone. If all
          of its slots are GONE, it is empty; with a VOID slot it stays whole, so that a late sender sees that it is VOID
          Older versions stored a delivery in 4 bytes, after receives, and no holders: such pages are read, and rewritten
status    a message's state, or one of the three below; 0x80: it has a mark as long as it lasts; 0x40: its record has parts,
          or it was moved: what goes with it is in the record; 0x20: it is being moved to another queue; 0x10: its handler has
          failed, and a note of its own says how
record    HEADER, then head, group, mark, body; all immutable parts of a message, and its initial slot.
          If it was received and then moved here, mark_until is the negated delivery
mark      what makes an equal message a duplicate; for a message that was moved: "m", its id (36 bytes), where it came from and,
          if it has a mark of its own, a space, "+" if that lasts as long as the message is here or "-" if not, and the mark

A slot is EMPTY (its number is given out, the message is not there yet), then holds a message, then is GONE. A slot whose sender
did not come is VOID; if the sender comes after all, it takes another number.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from penstock.marks import key_of
from penstock.message import FOREVER, Entry, Message, State, next_delivery
from penstock.stores.encoding import Head, checksum, pack_head, unpack_head

SLOTS = 64
NEVER = 2**63 - 1
EMPTY, GONE, VOID = 15, 14, 13
STATE, FAILED, MOVING, PARTED, MARKED = 0x0F, 0x10, 0x20, 0x40, 0x80
LIVE = frozenset((State.QUEUED, State.CONSUMED, State.DAMAGED))
SETTLED = frozenset((State.PROCESSED, State.FAILED))
NONE = -1
HEADER = struct.Struct("<8qIIIHHI")
PAGE_BYTES = SLOTS * 37
OLD_PAGE_BYTES = SLOTS * 33
NAMES_BYTES = 320
"""The limit for holders' names in a page: with more, memcached would put it into a class of bigger items, which may be full."""


class Record(NamedTuple):
    """The immutable record of a message, stored under its number."""

    sent_at: int
    visible_at: int
    expires_at: int
    deadline_at: int | None = None
    moved_at: int | None = None
    received_at: int | None = None
    first_received_at: int | None = None
    mark_until: int = 0
    delivery: int = 0
    head: bytes | None = None
    group: str | None = None
    mark: bytes | None = None
    body: bytes = b""
    intact: bool = True

    @classmethod
    def of(cls, entry: Entry) -> Record:
        return cls(
            entry.sent_at,
            entry.visible_at,
            entry.expires_at,
            entry.deadline_at,
            mark_until=entry.mark_until,
            head=pack_head(Head(entry.content_type, entry.attributes, entry.visibility, retry=entry.retry)),
            group=entry.group,
            mark=entry.mark,
            body=entry.body,
        )

    def pack(self) -> bytes:
        head, mark = self.head or b"", self.mark or b""
        group = self.group.encode() if self.group else b""
        instants = (self.deadline_at, self.moved_at, self.received_at, self.first_received_at)
        header = HEADER.pack(
            self.sent_at,
            self.visible_at,
            self.expires_at,
            *[NONE if instant is None else instant for instant in instants],
            -self.delivery if self.delivery else self.mark_until,
            0,
            checksum(self.body, self.head, group or None, self.mark, self.sent_at, self.deadline_at),
            len(head),
            len(group),
            len(mark),
            len(self.body),
        )
        return b"".join((header, head, group, mark, self.body))

    @classmethod
    def size(cls, start: bytes) -> int:
        """The length of the record that begins with this part."""
        if len(start) < HEADER.size:
            return len(start)
        return int(HEADER.size + sum(HEADER.unpack_from(start)[-4:]))

    @classmethod
    def unpack(cls, packed: bytes) -> Record:
        if len(packed) < HEADER.size:
            return cls(0, 0, 0, body=packed, intact=False)
        sent_at, visible_at, expires_at, *rest = HEADER.unpack_from(packed)
        instants = [None if at == NONE else at for at in rest[:4]]
        mark_until, delivery, check, *sizes, _ = rest[4:]
        if mark_until < 0:
            mark_until, delivery = 0, -mark_until
        ends = list(accumulate(sizes, initial=HEADER.size))
        head, group, mark = (packed[start:end] or None for start, end in pairwise(ends))
        body = packed[ends[-1] :]
        intact = check == checksum(body, head, group, mark, sent_at, instants[0])
        if not intact:
            head = group = None
        text = group.decode() if group else None
        return cls._make((sent_at, visible_at, expires_at, *instants, mark_until, delivery, head, text, mark, body, intact))

    @property
    def moved_id(self) -> str | None:
        """The id of a message that was moved here with its id."""
        return self.mark[1:37].decode() if self.mark and self.mark[:1] == b"m" else None

    @property
    def note(self) -> bytes:
        """For a message that was moved here: the key of the note about its move."""
        return (self.mark or b"").split(b" ", 1)[0]

    @property
    def own_mark(self) -> bytes | None:
        if self.mark is None or self.mark[:1] != b"m":
            return self.mark
        return self.mark.partition(b" ")[2][1:] or None

    @property
    def is_marked(self) -> bool:
        """Whether its own mark lasts as long as the message is in the queue."""
        if self.mark is None or self.mark[:1] != b"m":
            return self.mark is not None and self.mark_until == FOREVER
        return self.mark.partition(b" ")[2][:1] == b"+"


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:40]


def moved_mark(id: str, born: int, number: int, own: bytes | None, *, lasts: bool) -> bytes:
    note = b"m%b%x.%d" % (id.encode(), born, number)
    return note if own is None else b"%b %b%b" % (note, b"+" if lasts else b"-", own)


class Page:
    """A page as it was read, to be changed and written back by compare-and-swap."""

    __slots__ = ("delivery", "first", "holders", "received", "receives", "states", "visible")

    def __init__(self, packed: bytes) -> None:
        if len(packed) == OLD_PAGE_BYTES:
            receives, deliveries, states = packed[1536:1792], array("I", packed[1792:2048]), packed[2048:]
            packed = packed[:1536] + array("q", deliveries).tobytes() + receives + states
        elif len(packed) < PAGE_BYTES:
            packed = _filled(GONE)
        self.visible = array("q", packed[:512])
        self.received = array("q", packed[512:1024])
        self.first = array("q", packed[1024:1536])
        self.delivery = array("q", packed[1536:2048])
        self.receives = array("I", packed[2048:2304])
        self.states = bytearray(packed[2304:PAGE_BYTES])
        self.holders = _unpack_holders(packed[PAGE_BYTES:]) if len(packed) > PAGE_BYTES else {}

    @classmethod
    def new(cls, number: int, state: int = EMPTY) -> Page:
        page = cls(_filled(state))
        if number == 0:
            page.states[0] = GONE  # numbers begin at 1
        return page

    def pack(self) -> bytes:
        if self.states.count(GONE) == SLOTS:
            return b""
        columns = (self.visible, self.received, self.first, self.delivery, self.receives)
        holders = _pack_holders(self.holders) if self.holders else b""
        return b"".join([column.tobytes() for column in columns] + [bytes(self.states), holders])

    def is_dead(self) -> bool:
        states = self.states
        return states.count(GONE) + states.count(VOID) == SLOTS

    def is_sealed(self) -> bool:
        return EMPTY not in self.states

    def state(self, slot: int) -> int:
        return self.states[slot] & STATE

    def is_live(self, slot: int) -> bool:
        return self.states[slot] & STATE in LIVE

    def live(self) -> list[int]:
        if self.states.count(GONE) == SLOTS:
            return []
        return [slot for slot, state in enumerate(self.states) if state & STATE in LIVE]

    def ready(self, now: int) -> list[int]:
        return [slot for slot, visible_at in enumerate(self.visible) if visible_at <= now]

    def fill(self, slot: int, record: Record, *, parted: bool) -> None:
        parted |= record.moved_id is not None
        self.states[slot] = State.QUEUED | MARKED * record.is_marked | PARTED * parted
        self.visible[slot] = record.visible_at
        self.received[slot] = record.received_at or 0
        self.first[slot] = record.first_received_at or 0
        self.receives[slot] = 0
        self.delivery[slot] = record.delivery

    def claim(self, slot: int, now: int, until: int, holder: str | None) -> None:
        self.become(slot, State.CONSUMED, until)
        self.receives[slot] += 1
        self.delivery[slot] = next_delivery(self.delivery[slot], now)
        self.received[slot] = now
        self.first[slot] = self.first[slot] or now
        self.hold(slot, holder)

    def hold(self, slot: int, holder: str | None) -> None:
        if holder is not None:
            self.holders[slot] = holder
        elif self.holders:
            self.holders.pop(slot, None)

    def become(self, slot: int, state: State, visible_at: int) -> None:
        if state in (State.QUEUED, State.DAMAGED):
            self.hold(slot, None)
        self.states[slot] = self.states[slot] & ~(STATE | MOVING) | state
        self.visible[slot] = visible_at

    def clear(self, slot: int, state: int = GONE) -> None:
        self.hold(slot, None)
        self.states[slot] = state
        self.visible[slot] = NEVER

    def message(self, slot: int, id: str, number: int, queue: str, record: Record) -> Message:
        head = unpack_head(record.head)
        return Message(
            id=id,
            number=number,
            queue=queue,
            body=record.body,
            content_type=head.content_type,
            attributes=head.attributes,
            state=State(self.states[slot] & STATE),
            receives=self.receives[slot],
            delivery=self.delivery[slot],
            sent_at=record.sent_at,
            visible_at=self.visible[slot],
            expires_at=record.expires_at,
            deadline_at=record.deadline_at,
            visibility=head.visibility,
            group=record.group,
            key=key_of(record.own_mark),
            moved_at=record.moved_at,
            first_received_at=self.first[slot] or None,
            received_at=self.received[slot] or None,
            death=head.death,
            intact=record.intact,
            holder=self.holders.get(slot),
            retry=head.retry,
            failures=head.failures,
            error=head.error,
        )


@lru_cache(maxsize=4)
def _filled(state: int) -> bytes:
    zeros = bytes(SLOTS * 28)
    return array("q", [NEVER] * SLOTS).tobytes() + zeros + bytes([state]) * SLOTS


def _pack_holders(holders: dict[int, str]) -> bytes:
    """Leaves out names for which there is no room."""
    places: dict[str, int] = {}
    names, whose = b"", bytearray(SLOTS)
    for slot, holder in holders.items():
        if holder not in places:
            name = holder.encode()
            if len(names) + 1 + len(name) > NAMES_BYTES:
                continue
            places[holder] = len(places) + 1
            names += bytes([len(name)]) + name
        whose[slot] = places[holder]
    return bytes(whose) + names


def _unpack_holders(packed: bytes) -> dict[int, str]:
    names: list[str] = []
    at = SLOTS
    while at < len(packed):
        names.append(packed[at + 1 :][: packed[at]].decode(errors="replace"))
        at += 1 + packed[at]
    return {slot: names[place - 1] for slot, place in enumerate(packed[:SLOTS]) if 0 < place <= len(names)}
