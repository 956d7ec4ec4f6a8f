"""The named claims of a queue in an SQL database: a row per reader, a row per claim, and a list of the claim's messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, repeat

from penstock.message import FOREVER, Claim, Held, Message, Settings, Settlement, State
from penstock.stores.ports import ClaimingReaders
from penstock.stores.sql.messages import SqlMessages
from penstock.stores.sql.session import Row


class ClaimRows:
    """The rows of named claims, each identified by its number."""

    __slots__ = ("_store",)

    def __init__(self, store: SqlMessages) -> None:
        self._store = store

    def of(self, home: int, reader: str) -> dict[int, Row]:
        """A reader's claims by epoch: number, epoch, size, confirmed, lapses_at, asleep, run_at."""
        return {row[1]: row for row in self._store._rows("claims", {"queue": home, "reader": reader})}

    def add(self, home: int, reader: str, epoch: int, size: int, lapses_at: int) -> int:
        self.add_reader(home, reader)
        fields = {"queue": home, "reader": reader, "epoch": epoch, "lapses_at": lapses_at, "size": size}
        self._store._run("add_claim", fields)
        return int(self.of(home, reader)[epoch][0])

    def add_reader(self, home: int, reader: str) -> None:
        if not self._store._rows("reader", {"queue": home, "reader": reader}):
            self._store._run("add_reader", {"queue": home, "reader": reader})

    def forget(self, claim: int) -> None:
        self._store._run("release_held", {"claim": claim})
        self._store._run("release_claim", {"claim": claim})

    def settle(self, home: int, settings: Settings, claim: int, settlement: Settlement) -> int:
        # Messages found damaged when they were read have been set aside, and stay.
        found = [row for row in self._holding(home, claim) if row[3] != State.DAMAGED]
        gone = self._store._delete_all(home, settings, found, settlement)
        self.forget(claim)
        return len(gone)

    def extend(self, home: int, claim: int, until: int, state: State) -> int:
        """Hide the messages of a claim until then. Returns how many are still as they were claimed."""
        numbers = [row[0] for row in self._holding(home, claim) if row[3] == State.CONSUMED]
        if numbers:
            fields = {"until": until, "state": int(state), "numbers": self._store._list(numbers)}
            self._store._run("extend_all", fields)
        return len(numbers)

    def _holding(self, home: int, claim: int) -> list[Row]:
        """The messages of a claim that are still as they were claimed."""
        keys = [(number, home, delivery) for number, delivery in self._store._rows("held", {"claim": claim})]
        return self._store._find(home, keys)


class SqlReaders(ClaimingReaders):
    def __init__(self, store: SqlMessages, queue: str) -> None:
        self._store = store
        self._claims = ClaimRows(store)
        self._runs = store._runs
        self._queue = queue

    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        store = self._store
        with store._joined():
            claim = self._claims.add(self._home()[0], reader, epoch, len(receipts), lapses_at)
            numbers = [receipt.number if isinstance(receipt, Message) else store._number(receipt) for receipt in receipts]
            deliveries = [receipt.delivery for receipt in receipts]
            store._many("add_held", zip(repeat(claim), count(), numbers, deliveries))

    def hold_visible(
        self, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, settings: Settings
    ) -> int:
        return self._runs.hold_visible(self._queue, reader, epoch, limit, now, visible_by, lapses_at, settings)

    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        with self._store._reading():
            home, _ = self._home()
            found = self._store._rows("reader", {"queue": home, "reader": reader})
            return found[0][0] if found else None, [
                Claim(reader, epoch, size, bool(confirmed), lapses_at)
                for _, epoch, size, confirmed, lapses_at, *_ in self._claims.of(home, reader).values()
            ]

    def names(self) -> list[str]:
        with self._store._reading():
            return sorted(name for (name,) in self._store._rows("readers", {"queue": self._home()[0]}))

    def confirm(self, reader: str, epoch: int) -> None:
        with self._store._joined():
            home, _ = self._home()
            claim, *_, asleep, _ = self._claims.of(home, reader)[epoch]
            self._store._run("confirm", {"claim": claim, "forever": FOREVER})
            if not asleep:
                self._claims.extend(home, claim, FOREVER, State.CONSUMED)

    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._store._reading():
            home, _ = self._home()
            claim, _, _, _, lapses_at, asleep, _ = self._claims.of(home, reader)[epoch]
            for run in self._runs.all(home):
                if run.claim == claim:
                    return self._store._read_run(self._queue, home, run, start, stop)
            rows = self._store._rows("read", {"claim": claim, "start": start, "stop": stop})
            messages = [self._store._message(self._queue, row) for row in rows]
            return [replace(message, visible_at=lapses_at) for message in messages] if asleep else messages

    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        with self._store._joined():
            home, settings = self._home()
            claims = [row[0] for known, row in self._claims.of(home, reader).items() if known <= epoch]
            gone = 0
            for claim in claims:
                whole = self._runs.settle(home, claim, settlement)
                gone += self._claims.settle(home, settings, claim, settlement) if whole is None else whole
            self._claims.add_reader(home, reader)
            self._store._run("settle_reader", {"queue": home, "reader": reader, "epoch": epoch})
            return gone

    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        with self._store._joined():
            home, _ = self._home()
            given = self._runs.give_back(home, reader, epoch, now)
            for known, (claim, *_) in self._claims.of(home, reader).items():
                if epoch in (None, known):
                    given += self._claims.extend(home, claim, now, State.QUEUED)
                    self._claims.forget(claim)
            if epoch is None:
                self._store._run("drop_reader", {"queue": home, "reader": reader})
            return given

    def _home(self) -> tuple[int, Settings]:
        return self._store._queue(self._queue)
