"""The records of a queue's readers in memcached:

readers    [name]
rNAME      {"name", "settled": epoch or null, "claims": {epoch: [size, confirmed, lapses_at]}}
rNAME.N    the numbers and deliveries of epoch N, 16 bytes each; further parts .1, .2 …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from penstock.message import Held, Receipt
from penstock.stores.memcached.documents import Documents
from penstock.stores.memcached.records import Keyspace

HOLD = Struct("<qq")
PART = 4000


@dataclass(slots=True)
class ReaderDocument:
    name: str = ""
    settled: int | None = None
    claims: dict[str, list[Any]] = field(default_factory=dict)

    def drop(self, epochs: Sequence[int]) -> None:
        for epoch in epochs:
            self.claims.pop(str(epoch), None)


class ReaderRecords:
    """Owns the readers of one queue, and the list of messages of each of their claims."""

    def __init__(self, keys: Keyspace) -> None:
        self._keys = keys
        self._link = keys.link
        self.documents = Documents(ReaderDocument, lambda _: keys.link, keys.key("r"), (keys.link, keys.key("readers")))

    def put_holds(self, reader: str, epoch: int, receipts: Sequence[Held]) -> None:
        """Write the list of a claim's messages."""
        # Messages know their number; a moved message's id belongs to another number.
        numbers = [getattr(receipt, "number", None) or self._keys.ids.number(receipt.id) or 0 for receipt in receipts]
        holds = zip(numbers, receipts, strict=True)
        packed = b"".join(HOLD.pack(number, receipt.delivery or 0) for number, receipt in holds)
        starts = range(0, len(packed), PART)
        self._link.put({self._part(reader, epoch, at): packed[start : start + PART] for at, start in enumerate(starts)})

    def holds(self, reader: str, epoch: int) -> list[Receipt]:
        claim = self.documents.load(reader).claims.get(str(epoch))
        keys = [] if claim is None else [self._part(reader, epoch, at) for at in range(-(-claim[0] * HOLD.size // PART))]
        found = self._link.get(keys)
        name, ids = self._keys.name, self._keys.ids
        if len(found) < len(keys):
            self._keys.report(f"has evicted a part of claim {epoch} of reader {reader!r}")
        packed = b"".join(found.get(key, b"") for key in keys)
        return [Receipt(name, ids.make(number), delivery) for number, delivery in HOLD.iter_unpack(packed)]

    def forget_holds(self, reader: str, epochs: Sequence[int]) -> None:
        for epoch in epochs:
            parts = 1
            while self._link.get([self._part(reader, epoch, parts)]):
                parts += 1
            self._link.forget([self._part(reader, epoch, part) for part in range(parts)])

    def held(self, lapsed_by: int | None = None) -> dict[int, int]:
        """The numbers of the messages in named claims, with the deliveries under which they were claimed. With ``lapsed_by``,
        only those in claims that had lapsed by then and were not confirmed."""
        return {
            self._keys.ids.number(hold.id) or 0: hold.delivery or 0
            for name in self.documents.names()
            for epoch, (_, confirmed, lapses_at) in self.documents.load(name).claims.items()
            if lapsed_by is None or (lapses_at <= lapsed_by and not confirmed)
            for hold in self.holds(name, int(epoch))
        }

    def clear(self) -> None:
        """Delete everything, after the queue was dropped."""
        for name in self.documents.names():
            self.forget_holds(name, list(map(int, self.documents.load(name).claims)))
            self._link.forget([self.documents.key(name)])
        self._link.forget([self._keys.key("readers")])

    def _part(self, reader: str, epoch: int, part: int) -> str:
        return f"{self.documents.key(reader)}.{epoch}.{part}"
