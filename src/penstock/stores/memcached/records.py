"""The keys of one queue in memcached, and the records of its messages: in parts if they are big, with their marks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from struct import Struct

from penstock.errors import StoreFull
from penstock.message import FOREVER, Settings
from penstock.stores.encoding import unpack_settings
from penstock.stores.ids import Ids
from penstock.stores.memcached.formats import PAGE_BYTES, STATE, Record, digest
from penstock.stores.memcached.link import Link

Report = Callable[[str], object]
FAN = 256
"""Pages per block."""
SPARES = 3
"""Page-sized items that are given up when memory runs out, so that a full queue can still be emptied."""
ECHOES = 3
SMALL = 4000
"""MessageRecords up to this size are one item on any server."""
MAX_RECORD = 4 * 1024 * 1024
"""More than any message and its head; what claims to be bigger is damaged."""
MOVED_SECONDS = 7 * 86400
"""How long an interrupted move is remembered, so that it is not made twice."""
MARK = Struct("<qq")
ARRIVED = -1
"""In the note of a move, instead of an instant: the message was here, and has left."""


class Keyspace:
    """The keys of a queue, and what this process knows about the queue.

    head   the last number given out               pN   page N: the slots of 64 numbers (`penstock.stores.memcached.formats`)
    tail   the first page that is not all gone     bN   for each of 256 pages, an instant before which it has nothing visible
    stir   changes when something is visible early mN   the record of message N; mN.1, mN.2 …: its further parts
    lost   how many messages the server lost       hN   how and when message N was settled, where history is kept
    kMARK  the number that carries a mark          readers, rNAME, rNAME.EPOCH: the named claims
    spareN what is given up when memory runs out   iID  the number of a message that was moved here with its id
    vN     the queue that message N is being moved to
    eN     how often the handler of message N has failed, and the last error
    """

    def __init__(self, name: str, prefix: str, link: Link, salt: int, report: Report) -> None:
        self.name = name
        self.link = link
        self.salt = salt
        """Random bits, so that a queue that is dropped and created again has other keys."""
        self.ids = Ids(salt)
        self.birth = self.packed = ""
        self.raw = b""
        """The bucket of the catalogue from which `learn` took the settings."""
        self.settings = Settings()
        self.tail = 0
        """The first page, as far as this process knows; it only grows."""
        self.page = 0
        """Where the last message was claimed."""
        self.seen = -1
        """The last page known to exist: if it is missing, it was evicted."""
        self.count = 0
        """How many messages there are, as far as this process knows."""
        self.swept = 0
        """The page at which the next sweep begins."""
        self.latest = 0
        """The latest instant that a caller passed to this process."""
        self._report = report
        self._root = f"{prefix}:{salt:015x}:"
        self._news: dict[str, bytes] = {}
        self._echoes = 0

    def key(self, kind: str, number: int | str = "") -> str:
        return f"{self._root}{kind}{number}"

    def mark(self, mark: bytes) -> str:
        return self.key("k", digest(mark))

    def alias(self, id: str) -> str:
        """The key of the number of a message that was moved here with its id."""
        return self.key("i", digest(id.encode(errors="replace")))

    def first_reads(self) -> list[str]:
        """What a claim reads first. The block comes before the page: see `penstock.stores.memcached.pages`."""
        return [self.key("b", self.tail // FAN), self.key("head"), self.key("tail"), self.key("p", self.page)]

    def learn(self, birth: str, packed: str, raw: bytes) -> None:
        """Take over what the catalogue says: all of it, or nothing if this is interrupted."""
        settings = unpack_settings(packed)
        self.settings, self.birth, self.packed, self.raw = settings, birth, packed, raw

    def lay(self, lost: int = 0) -> None:
        """Write the counters of a new queue."""
        counters = {"head": b"0", "tail": b"0", "stir": b"0", "lost": b"%d" % lost}
        spares = {f"spare{number}": bytes(PAGE_BYTES) for number in range(SPARES)}
        self.link.put({self.key(kind): value for kind, value in (counters | spares).items()})

    def look(self) -> tuple[object, ...]:
        """A value that changes when there may be something new to receive. The head changes before the message is there, so a
        change of it also counts for the next few looks."""
        found = self.link.get([self.key("head"), self.key("stir")])
        if found != self._news:
            self._news, self._echoes = found, ECHOES if self._news else 0
        self._echoes = max(0, self._echoes - 1)
        return *found.values(), self._echoes

    def report(self, damage: str) -> None:
        """Tell the layer above what the server has lost."""
        self._report(f"queue {self.name!r}: {self.link} {damage}")


class MessageRecords:
    """Owns the records of one queue, and their marks."""

    def __init__(self, keys: Keyspace) -> None:
        self._keys = keys
        self._link = keys.link

    def store(self, records: Mapping[int, Record]) -> set[int]:
        """Write records. Returns which of them are in parts."""
        items: dict[str, bytes] = {}
        parted = set()
        for number, record in records.items():
            packed = record.pack()
            key = self._keys.key("m", number)
            piece = self._link.piece() if len(packed) > SMALL else SMALL
            items[key] = packed[:piece]
            for part, start in enumerate(range(piece, len(packed), piece), start=1):
                items[f"{key}.{part}"] = packed[start : start + piece]
                parted.add(number)
        try:
            self._link.put(items)
        except StoreFull:
            self._link.forget(items)
            raise
        return parted

    def load(self, numbers: Iterable[int]) -> dict[int, Record]:
        """The records that exist and are complete."""
        keys = {number: self._keys.key("m", number) for number in numbers}
        found = self._link.get(keys.values())
        records = {}
        for number, key in keys.items():
            packed = found.get(key)
            if packed is not None:
                parts = _parts(key, packed)
                more = self._link.get(parts)
                if len(more) == len(parts):
                    records[number] = Record.unpack(b"".join([packed, *[more[part] for part in parts]]))
        return records

    def load_one(self, number: int) -> Record | None:
        return self.load([number]).get(number)

    def discard(self, records: Mapping[int, Record], *, dead: bool = False) -> None:
        """Delete records, and the marks that last as long as they do and still point to them; with ``dead``, any mark.

        The marks go first: a mark whose page the tail has passed, and that has no record, belongs to a message that was there.
        """
        keys = []
        for number, record in records.items():
            key = self._keys.key("m", number)
            keys += [key, *(self._keys.key(kind, number) for kind in "hve")]
            size = len(record.pack())
            if size > SMALL:
                keys += [f"{key}.{part}" for part in range(1, -(-size // self._link.piece()))]
            if dead or record.is_marked:
                self.unmark(number, record)
            if record.moved_id is not None:
                self._link.delete_if(self._keys.alias(record.moved_id), (b"%d" % number).__eq__)
                if dead:
                    self._link.delete_if(self._keys.mark(record.note), partial(is_mark_of, number))
        self._link.forget(keys)

    def unmark(self, number: int, record: Record) -> None:
        if record.own_mark is not None:
            self._link.delete_if(self._keys.mark(record.own_mark), partial(is_mark_of, number))

    def restore_mark(self, number: int, record: Record) -> None:
        """Write the mark of a message that is there: it was evicted, or its sender died before it wrote the mark."""
        until = FOREVER if record.is_marked else record.mark_until
        if record.own_mark is not None and until:
            self._link.add(self._keys.mark(record.own_mark), MARK.pack(number, until))

    def is_outrun(self, number: int, record: Record) -> bool:
        """Whether another message has the mark with which this one was to be sent: its sender was not the first, and will not
        send it."""
        if record.own_mark is None:
            return False
        key = self._keys.mark(record.own_mark)
        value = self._link.get([key]).get(key, b"")
        if len(value) != MARK.size or is_mark_of(number, value):
            return False
        _, until = MARK.unpack(value)
        if record.is_marked:
            return bool(until == FOREVER)
        # A message that was sent keeps its mark until its window is over, when the next one of its kind begins another.
        return bool(until - record.mark_until < record.mark_until - record.sent_at)

    def drop(self, slots: Iterable[tuple[int, int]]) -> None:
        """Delete the records of messages that have left the queue, given their numbers and their former slot status."""
        flagged: list[int] = []
        plain: list[str] = []
        for number, status in slots:
            if status & ~STATE:
                flagged.append(number)
            else:
                plain.append(self._keys.key("m", number))
        records = self.load(flagged)
        self._tell_movers(records)
        self.discard(records)
        self._link.forget(plain)

    def _tell_movers(self, records: Mapping[int, Record]) -> None:
        """Note that messages which were moved here have left, so that a process that resumes an interrupted move knows, even if
        the page is gone by then."""
        keys = {self._keys.mark(record.note): number for number, record in records.items() if record.moved_id is not None}
        for key, (note, token) in self._link.gets(keys).items():
            if is_mark_of(keys[key], note):
                self._link.cas(key, MARK.pack(keys[key], ARRIVED), token, MOVED_SECONDS)

    def is_orphan(self, number: int, record: Record) -> bool:
        """Whether this is a copy of a moved message whose mover died, and which another process moved again."""
        if record.moved_id is None:
            return False
        key = self._keys.mark(record.note)
        note = self._link.get([key]).get(key)
        return note is not None and not is_mark_of(number, note)

    def id_of(self, number: int, record: Record | None) -> str:
        """A message that was moved here has kept its id."""
        return (record and record.moved_id) or self._keys.ids.make(number)


def is_mark_of(number: int, value: bytes) -> bool:
    return len(value) == MARK.size and MARK.unpack(value)[0] == number


def _parts(key: str, packed: bytes) -> list[str]:
    missing = Record.size(packed) - len(packed)
    if not 0 < missing < MAX_RECORD:  # complete, or damaged
        return []
    return [f"{key}.{part}" for part in range(1, 1 - (-missing // len(packed)))]
