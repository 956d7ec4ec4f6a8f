"""The records of messages in memcached, in parts if they are big, and what points to them: marks, and the ids of moved ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from struct import Struct

from penstock.errors import StoreFull
from penstock.policy import MAX_BODY
from penstock.stores.memcached.catalogue import CachedCatalogue, Home, digest
from penstock.stores.memcached.formats import STATE, Record

SMALL = 4000
"""Records up to this size are one item on any server."""
MAX_RECORD = 4 * MAX_BODY
MOVED_SECONDS = 7 * 86400
"""How long an interrupted move is remembered, so that it is not made twice."""
MARK = Struct("<qq")
ARRIVED = -1
"""In the note of a move, instead of an instant: the message was here, and has left."""


class CachedRecords(CachedCatalogue):
    def _store_records(self, home: Home, records: Mapping[int, Record]) -> set[int]:
        """Write records. Returns which of them are in parts."""
        items: dict[str, bytes] = {}
        parted = set()
        for number, record in records.items():
            packed = record.pack()
            key = home.key("m", number)
            piece = home.link.piece() if len(packed) > SMALL else SMALL
            items[key] = packed[:piece]
            for part, start in enumerate(range(piece, len(packed), piece), start=1):
                items[f"{key}.{part}"] = packed[start : start + piece]
                parted.add(number)
        try:
            home.link.put(items)
        except StoreFull:
            home.link.forget(items)
            raise
        return parted

    def _records(self, home: Home, numbers: Iterable[int]) -> dict[int, Record]:
        """The records that exist and are complete."""
        keys = {number: home.key("m", number) for number in numbers}
        found = home.link.get(keys.values())
        records = {}
        for number, key in keys.items():
            packed = found.get(key)
            if packed is not None:
                parts = _parts(key, packed)
                more = home.link.get(parts) if parts else {}
                if len(more) == len(parts):
                    records[number] = Record.unpack(b"".join([packed, *[more[part] for part in parts]]))
        return records

    def _discard(self, home: Home, records: Mapping[int, Record], *, dead: bool = False) -> None:
        """Delete records, and the marks that last as long as they do and still point to them; with ``dead``, any mark.

        The marks go first: a mark whose page the tail has passed, and that has no record, belongs to a message that was there.
        """
        keys = []
        for number, record in records.items():
            key = home.key("m", number)
            keys += [key, home.key("h", number), home.key("v", number)]
            size = len(record.pack())
            if size > SMALL:
                keys += [f"{key}.{part}" for part in range(1, -(-size // home.link.piece()))]
            if dead or record.is_marked:
                self._unmark(home, number, record)
            if record.moved_id is not None:
                home.link.delete_if(alias_key(home, record.moved_id), (b"%d" % number).__eq__)
                if dead:
                    home.link.delete_if(mark_key(home, record.note), partial(is_mark_of, number))
        if keys:
            home.link.forget(keys)

    def _unmark(self, home: Home, number: int, record: Record) -> None:
        if record.own_mark is not None:
            home.link.delete_if(mark_key(home, record.own_mark), partial(is_mark_of, number))

    def _discard_slots(self, home: Home, slots: Iterable[tuple[int, int]]) -> None:
        """Delete the records of messages that have gone, given their numbers and their former slot status."""
        flagged: list[int] = []
        plain: list[int] = []
        for number, status in slots:
            (flagged if status & ~STATE else plain).append(number)
            home.there -= 1
        if flagged:
            records = self._records(home, flagged)
            self._tell_movers(home, records)
            self._discard(home, records)
        if plain:
            home.link.forget([home.key("m", number) for number in plain])

    def _tell_movers(self, home: Home, records: Mapping[int, Record]) -> None:
        """Note that messages which were moved here have left, so that a process that resumes an interrupted move knows, even if
        the page is gone by then."""
        keys = {mark_key(home, record.note): number for number, record in records.items() if record.moved_id is not None}
        for key, (note, token) in home.link.gets(keys).items() if keys else ():
            if is_mark_of(keys[key], note):
                home.link.cas(key, MARK.pack(keys[key], ARRIVED), token, MOVED_SECONDS)


def mark_key(home: Home, mark: bytes) -> str:
    return home.key("k", digest(mark))


def alias_key(home: Home, id: str) -> str:
    """The key of the number of a message that was moved here with its id."""
    return home.key("i", digest(id.encode(errors="replace")))


def id_of(home: Home, number: int, record: Record) -> str:
    return record.moved_id or home.ids.make(number)


def is_mark_of(number: int, value: bytes) -> bool:
    return len(value) == MARK.size and MARK.unpack(value)[0] == number


def _parts(key: str, packed: bytes) -> list[str]:
    missing = Record.size(packed) - len(packed)
    if not 0 < missing < MAX_RECORD:  # complete, or damaged
        return []
    return [f"{key}.{part}" for part in range(1, 1 - (-missing // len(packed)))]
