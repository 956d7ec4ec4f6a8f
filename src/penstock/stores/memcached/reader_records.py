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
from penstock.stores.memcached.catalogue import Home, logger
from penstock.stores.memcached.listed import ListedRecords

HOLD = Struct("<qq")
PART = 4000


@dataclass(slots=True)
class Reader:
    name: str
    settled: int | None = None
    claims: dict[str, list[Any]] = field(default_factory=dict)

    def drop(self, epochs: Sequence[int]) -> None:
        for epoch in epochs:
            self.claims.pop(str(epoch), None)


class ReaderRecords:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._link = home.link
        self._records = ListedRecords(Reader, lambda _: home.link, home.key("r"), home.link, home.key("readers"))
        self.names, self.load = self._records.names, self._records.load
        self.change, self.forget = self._records.change, self._records.forget

    def put_holds(self, reader: str, epoch: int, receipts: Sequence[Held]) -> None:
        """Write the list of a claim's messages."""
        # Messages know their number; a moved message's id belongs to another number.
        numbers = [getattr(receipt, "number", None) or self._home.ids.number(receipt.id) or 0 for receipt in receipts]
        holds = zip(numbers, receipts, strict=True)
        packed = b"".join(HOLD.pack(number, receipt.delivery or 0) for number, receipt in holds)
        starts = range(0, len(packed), PART)
        self._link.put({self._part(reader, epoch, at): packed[start : start + PART] for at, start in enumerate(starts)})

    def holds(self, reader: str, epoch: int) -> list[Receipt]:
        claim = self.load(reader)[0].claims.get(str(epoch))
        if claim is None:
            return []
        home = self._home
        keys = [self._part(reader, epoch, at) for at in range(-(-claim[0] * HOLD.size // PART))]
        found = self._link.get(keys) if keys else {}
        if len(found) < len(keys):
            logger.error("%s has evicted part of claim %d of reader %r of queue %r", self._link, epoch, reader, home.name)
        packed = b"".join(found.get(key, b"") for key in keys)
        return [Receipt(home.name, home.ids.make(number), delivery) for number, delivery in HOLD.iter_unpack(packed)]

    def forget_holds(self, reader: str, epochs: Sequence[int]) -> None:
        for epoch in epochs:
            parts = 1
            while self._link.get([self._part(reader, epoch, parts)]):
                parts += 1
            self._link.forget([self._part(reader, epoch, part) for part in range(parts)])

    def held_numbers(self) -> dict[int, int]:
        """The messages of all named claims, with the deliveries under which they were claimed."""
        return {
            self._home.ids.number(hold.id) or 0: hold.delivery or 0
            for name in self.names()
            for epoch in self.load(name)[0].claims
            for hold in self.holds(name, int(epoch))
        }

    def clear(self) -> None:
        """Delete everything, after the queue was dropped."""
        for name in self.names():
            self.forget_holds(name, list(map(int, self.load(name)[0].claims)))
            self._link.forget([self._records.key(name)])
        self._link.forget([self._home.key("readers")])

    def _part(self, reader: str, epoch: int, part: int) -> str:
        return f"{self._records.key(reader)}.{epoch}.{part}"
