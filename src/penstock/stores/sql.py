"""A store over the statements of queue.sql: all that SQL databases have in common, here with the named claims.

A database joins by a subclass that gives its `dialect` (the words in braces of queue.sql) and the primitives at the end of
`penstock.stores.sql_session`: run statements, open transactions, hand out numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import (
    FOREVER,
    Claim,
    Held,
    Message,
    Settlement,
)
from penstock.stores.sql_messages import SqlMessages


class SqlStore(SqlMessages):
    durable = True
    ordered = True
    groups = True
    shares = True
    ranges = True

    def hold(self, queue: str, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        with self._joined():
            home, _ = self._queue(queue)
            if not self._rows("reader", {"queue": home, "reader": reader}):
                self._run("add_reader", {"queue": home, "reader": reader})
            fields = {"queue": home, "reader": reader, "epoch": epoch, "lapses_at": lapses_at, "size": len(receipts)}
            self._run("add_claim", fields)
            claim = self._claims(home, reader)[epoch]
            rows = [(claim, place, self._number(receipt), receipt.delivery) for place, receipt in enumerate(receipts)]
            self._many("add_held", rows)

    def held(self, queue: str, reader: str) -> tuple[int | None, list[Claim]]:
        with self._reading():
            home, _ = self._queue(queue)
            found = self._rows("reader", {"queue": home, "reader": reader})
            claims = self._rows("claims", {"queue": home, "reader": reader})
            return found[0][0] if found else None, [
                Claim(reader, epoch, size, bool(confirmed), lapses_at) for _, epoch, size, confirmed, lapses_at in claims
            ]

    def readers(self, queue: str) -> list[str]:
        with self._reading():
            return sorted(name for (name,) in self._rows("readers", {"queue": self._queue(queue)[0]}))

    def confirm(self, queue: str, reader: str, epoch: int) -> None:
        with self._joined():
            home, _ = self._queue(queue)
            claim = self._claims(home, reader)[epoch]
            self._run("confirm", {"claim": claim, "forever": FOREVER})
            for number, delivery in self._rows("held", {"claim": claim}):
                self._extend(home, number, delivery, FOREVER, release=False)

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
                    keys = [(message, home, delivery) for message, delivery in self._rows("held", {"claim": claim})]
                    gone += len(self._delete(home, settings, keys, settlement))
                    self._forget_claim(claim)
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
                for number, delivery in self._rows("held", {"claim": claim}):
                    given += self._extend(home, number, delivery, now, release=True)
                self._forget_claim(claim)
            if epoch is None:
                self._run("drop_reader", {"queue": home, "reader": reader})
            return given

    def enroll(self, queue: str, consumer: str, now: int) -> None:
        with self._joined(durable=False):
            self._run("enroll", {"queue": self._queue(queue)[0], "consumer": consumer, "now": now})

    def beat(self, queue: str, consumer: str, now: int) -> bool:
        with self._joined(durable=False):
            return self._run("beat", {"queue": self._queue(queue)[0], "consumer": consumer, "now": now}) > 0

    def strike(self, queue: str, before: int) -> int:
        with self._joined(durable=False):
            return self._run("strike", {"queue": self._queue(queue)[0], "before": before})

    def living(self, queue: str) -> list[str]:
        with self._reading():
            return [name for (name,) in self._rows("living", {"queue": self._queue(queue)[0]})]

    def leave(self, queue: str, consumer: str) -> None:
        with self._joined(durable=False):
            self._run("leave", {"queue": self._queue(queue)[0], "consumer": consumer})

    def _claims(self, home: int, reader: str) -> dict[int, int]:
        return {row[1]: row[0] for row in self._rows("claims", {"queue": home, "reader": reader})}

    def _forget_claim(self, claim: int) -> None:
        self._run("release_held", {"claim": claim})
        self._run("release_claim", {"claim": claim})
