"""A store over the statements of queue.sql: all that SQL databases have in common, here with the named claims.

A database joins by a subclass that gives its `dialect` (the words in braces of queue.sql) and the primitives at the end of
`penstock.stores.sql.session`: run statements, open transactions, hand out numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, repeat

from penstock.message import (
    FOREVER,
    Claim,
    Held,
    Message,
    Settings,
    Settlement,
    State,
)
from penstock.stores.sql.messages import SqlMessages
from penstock.stores.sql.roster import SqlRoster
from penstock.stores.sql.session import Row


class SqlStore(SqlMessages):
    durable = True
    ordered = True
    groups = True
    shares = True
    ranges = True

    def __init__(self) -> None:
        super().__init__()
        self.roster = SqlRoster(self)

    def hold(self, queue: str, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        with self._joined():
            home, _ = self._queue(queue)
            claim = self._add_claim(home, reader, epoch, len(receipts), lapses_at)
            numbers = [receipt.number if isinstance(receipt, Message) else self._number(receipt) for receipt in receipts]
            deliveries = [receipt.delivery for receipt in receipts]
            self._many("add_held", zip(repeat(claim), count(), numbers, deliveries))

    def _add_claim(self, home: int, reader: str, epoch: int, size: int, lapses_at: int) -> int:
        if not self._rows("reader", {"queue": home, "reader": reader}):
            self._run("add_reader", {"queue": home, "reader": reader})
        self._run("add_claim", {"queue": home, "reader": reader, "epoch": epoch, "lapses_at": lapses_at, "size": size})
        return self._claims(home, reader)[epoch]

    def held(self, queue: str, reader: str) -> tuple[int | None, list[Claim]]:
        with self._reading():
            home, _ = self._queue(queue)
            found = self._rows("reader", {"queue": home, "reader": reader})
            claims = self._rows("claims", {"queue": home, "reader": reader})
            return found[0][0] if found else None, [
                Claim(reader, epoch, size, bool(confirmed), lapses_at) for _, epoch, size, confirmed, lapses_at, *_ in claims
            ]

    def readers(self, queue: str) -> list[str]:
        with self._reading():
            return sorted(name for (name,) in self._rows("readers", {"queue": self._queue(queue)[0]}))

    def confirm(self, queue: str, reader: str, epoch: int) -> None:
        with self._joined():
            home, _ = self._queue(queue)
            claim = self._claims(home, reader)[epoch]
            self._run("confirm", {"claim": claim, "forever": FOREVER})
            self._extend_all(home, claim, FOREVER, State.CONSUMED)

    def read(self, queue: str, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._reading():
            home, _ = self._queue(queue)
            claim = self._claims(home, reader)[epoch]
            rows = self._rows("read", {"claim": claim, "start": start, "stop": stop})
            return [self._message(queue, row) for row in rows]

    def settle(self, queue: str, reader: str, epoch: int, settlement: Settlement) -> int:
        with self._joined():
            home, settings = self._queue(queue)
            gone = 0
            for number, claim in self._claims(home, reader).items():
                if number <= epoch:
                    gone += self._settle_claim(home, settings, claim, settlement)
            if not self._rows("reader", {"queue": home, "reader": reader}):
                self._run("add_reader", {"queue": home, "reader": reader})
            self._run("settle_reader", {"queue": home, "reader": reader, "epoch": epoch})
            return gone

    def give_back(self, queue: str, reader: str, epoch: int | None, now: int) -> int:
        with self._joined():
            home, _ = self._queue(queue)
            claims = self._claims(home, reader)
            given = 0
            for claim in claims.values() if epoch is None else [claims[epoch]]:
                given += self._extend_all(home, claim, now, State.QUEUED)
                self._forget_claim(claim)
            if epoch is None:
                self._run("drop_reader", {"queue": home, "reader": reader})
            return given

    def _settle_claim(self, home: int, settings: Settings, claim: int, settlement: Settlement) -> int:
        # What turned out to be damaged when it was read was set aside, and stays.
        found = [row for row in self._holding(home, claim) if row[3] != State.DAMAGED]
        gone = self._delete_all(home, settings, found, settlement)
        self._forget_claim(claim)
        return len(gone)

    def _holding(self, home: int, claim: int) -> list[Row]:
        """What is still as it was claimed, of the messages of a claim."""
        keys = [(number, home, delivery) for number, delivery in self._rows("held", {"claim": claim})]
        return self._find(home, keys)

    def _extend_all(self, home: int, claim: int, until: int, state: State) -> int:
        numbers = [row[0] for row in self._holding(home, claim) if row[3] == State.CONSUMED]
        if numbers:
            self._run("extend_all", {"until": until, "state": int(state), "numbers": self._list(numbers)})
        return len(numbers)

    def _claims(self, home: int, reader: str) -> dict[int, int]:
        return {row[1]: row[0] for row in self._rows("claims", {"queue": home, "reader": reader})}

    def _forget_claim(self, claim: int) -> None:
        self._run("release_held", {"claim": claim})
        self._run("release_claim", {"claim": claim})
