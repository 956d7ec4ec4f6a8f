"""What memcached keeps of the readers of a queue, beside its messages:

readers    [name]
rNAME      {"name", "settled": epoch or null, "claims": {epoch: [size, confirmed, lapses_at]}}
rNAME.N    the numbers and deliveries of epoch N, 16 bytes each; further parts .1, .2 …
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from struct import Struct
from typing import Any

from penstock.message import Held, Receipt
from penstock.stores.memcached.catalogue import Home, digest, logger

HOLD = Struct("<qq")
PART = 4000


@dataclass(slots=True)
class Reader:
    name: str
    settled: int | None = None
    claims: dict[str, list[Any]] = field(default_factory=dict)


class ReaderRecords:
    def __init__(self, home: Home) -> None:
        self._home = home
        self._link = home.link

    def names(self) -> list[str]:
        key = self._home.key("readers")
        return list(json.loads(self._link.get([key]).get(key, b"[]")))

    def load(self, reader: str) -> tuple[Reader, bytes | None]:
        """A reader, and the token by which its record is changed: None if it has none."""
        key = self._key(reader)
        raw, token = self._link.gets([key]).get(key, (None, None))
        return (Reader(reader), None) if raw is None else (Reader(**json.loads(raw)), token)

    def change(self, reader: str, change: Callable[[Reader], None]) -> None:
        while True:
            known, token = self.load(reader)
            if token is None:
                self._enter(reader, present=True)
            change(known)
            if self._link.cas(self._key(reader), json.dumps(asdict(known)).encode(), token):
                return

    def forget(self, reader: str) -> None:
        self._link.forget([self._key(reader)])
        self._enter(reader, present=False)  # last: a reader that has a record must be in the list

    def _enter(self, reader: str, *, present: bool) -> None:
        key = self._home.key("readers")
        while True:
            raw, token = self._link.gets([key]).get(key, (b"[]", None))
            names = set(json.loads(raw)) - {reader} | ({reader} if present else set())
            if self._link.cas(key, json.dumps(sorted(names)).encode(), token):
                return

    def put_holds(self, reader: str, epoch: int, receipts: Sequence[Held]) -> None:
        """Write down the messages of a claim."""
        # Messages know their number here; what was moved here has another's id.
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
        """The messages of all named claims, with the deliveries that they were claimed by."""
        return {
            self._home.ids.number(hold.id) or 0: hold.delivery or 0
            for name in self.names()
            for epoch in self.load(name)[0].claims
            for hold in self.holds(name, int(epoch))
        }

    def clear(self) -> None:
        """Delete all of it, after the queue was dropped."""
        for name in self.names():
            self.forget_holds(name, list(map(int, self.load(name)[0].claims)))
            self._link.forget([self._key(name)])
        self._link.forget([self._home.key("readers")])

    def _key(self, reader: str) -> str:
        return self._home.key("r", digest(reader.encode()))

    def _part(self, reader: str, epoch: int, part: int) -> str:
        return f"{self._key(reader)}.{epoch}.{part}"
