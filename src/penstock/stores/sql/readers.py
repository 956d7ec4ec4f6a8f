"""The named claims of a queue in an SQL database: a row per reader, a row per claim, and a list of the claim's messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, repeat

from penstock.message import FOREVER, Certainty, Claim, Held, Message, Settlement, State
from penstock.stores.ports import ClaimingReaders
from penstock.stores.sql.database import Database, Found
from penstock.stores.sql.deleting import delete_found, find
from penstock.stores.sql.rows import Row, number_of, to_message
from penstock.stores.sql.runs import Run, Runs


class ClaimRows:
    """Owns the rows of named claims, each identified by its number."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, queue: int, reader: str) -> dict[int, Row]:
        """A reader's claims by epoch: number, epoch, size, confirmed, lapses_at, asleep, run_at."""
        return {row[1]: row for row in self._database.rows("claims", {"queue": queue, "reader": reader})}

    def add(self, queue: int, reader: str, epoch: int, size: int, lapses_at: int) -> int:
        self.add_reader(queue, reader)
        fields = {"queue": queue, "reader": reader, "epoch": epoch, "lapses_at": lapses_at, "size": size}
        self._database.run("add_claim", fields)
        return int(self.of(queue, reader)[epoch][0])

    def add_reader(self, queue: int, reader: str) -> None:
        if not self._database.rows("reader", {"queue": queue, "reader": reader}):
            self._database.run("add_reader", {"queue": queue, "reader": reader})

    def forget(self, claim: int) -> None:
        self._database.run("release_held", {"claim": claim})
        self._database.run("release_claim", {"claim": claim})

    def settle(self, found: Found, claim: int, settlement: Settlement) -> int:
        # Messages found damaged when they were read have been set aside, and stay.
        rows = [row for row in self._holding(found.number, claim) if row[3] != State.DAMAGED]
        gone = delete_found(self._database, found, rows, settlement)
        self.forget(claim)
        return len(gone)

    def extend(self, queue: int, claim: int, until: int, state: State) -> int:
        """Hide the messages of a claim until then. Returns how many are still as they were claimed."""
        numbers = [row[0] for row in self._holding(queue, claim) if row[3] == State.CONSUMED]
        if numbers:
            fields = {"until": until, "state": int(state), "numbers": self._database.list_of(numbers)}
            self._database.run("extend_all", fields)
        return len(numbers)

    def _holding(self, queue: int, claim: int) -> list[Row]:
        """The messages of a claim that are still as they were claimed."""
        keys = [(number, queue, delivery) for number, delivery in self._database.rows("held", {"claim": claim})]
        return find(self._database, queue, keys)


class SqlReaders(ClaimingReaders):
    """Owns the named claims of one queue."""

    def __init__(self, name: str, database: Database, runs: Runs) -> None:
        self._name = name
        self._database = database
        self._runs = runs
        self._claims = ClaimRows(database)

    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        database = self._database
        with database.joined():
            claim = self._claims.add(database.find(self._name).number, reader, epoch, len(receipts), lapses_at)
            ids = database.ids
            numbers = [receipt.number if isinstance(receipt, Message) else number_of(ids, receipt) for receipt in receipts]
            deliveries = [receipt.delivery for receipt in receipts]
            database.many("add_held", zip(repeat(claim), count(), numbers, deliveries))

    def hold_visible(
        self, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, certainty: Certainty
    ) -> int:
        return self._runs.hold_visible(reader, epoch, limit, now, visible_by, lapses_at, certainty)

    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        with self._database.reading():
            queue = self._database.find(self._name).number
            found = self._database.rows("reader", {"queue": queue, "reader": reader})
            return found[0][0] if found else None, [
                Claim(reader, epoch, size, bool(confirmed), lapses_at)
                for _, epoch, size, confirmed, lapses_at, *_ in self._claims.of(queue, reader).values()
            ]

    def names(self) -> list[str]:
        with self._database.reading():
            queue = self._database.find(self._name).number
            return sorted(name for (name,) in self._database.rows("readers", {"queue": queue}))

    def confirm(self, reader: str, epoch: int) -> None:
        with self._database.joined():
            queue = self._database.find(self._name).number
            claim, *_, asleep, _ = self._claims.of(queue, reader)[epoch]
            self._database.run("confirm", {"claim": claim, "forever": FOREVER})
            if not asleep:
                self._claims.extend(queue, claim, FOREVER, State.CONSUMED)

    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._database.reading():
            queue = self._database.find(self._name).number
            claim, _, _, _, lapses_at, asleep, _ = self._claims.of(queue, reader)[epoch]
            for run in self._runs.all(queue):
                if run.claim == claim:
                    return read_run(self._database, self._name, queue, run, start, stop)
            rows = self._database.rows("read", {"claim": claim, "start": start, "stop": stop})
        messages = [to_message(self._database.ids, self._name, row) for row in rows]
        return [replace(message, visible_at=lapses_at) for message in messages] if asleep else messages

    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        with self._database.joined():
            found = self._database.find(self._name)
            claims = [row[0] for known, row in self._claims.of(found.number, reader).items() if known <= epoch]
            gone = 0
            for claim in claims:
                whole = self._runs.settle(found.number, claim, settlement)
                gone += self._claims.settle(found, claim, settlement) if whole is None else whole
            self._claims.add_reader(found.number, reader)
            self._database.run("settle_reader", {"queue": found.number, "reader": reader, "epoch": epoch})
            return gone

    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        with self._database.joined():
            queue = self._database.find(self._name).number
            given = self._runs.give_back(queue, reader, epoch, now)
            for known, (claim, *_) in self._claims.of(queue, reader).items():
                if epoch in (None, known):
                    given += self._claims.extend(queue, claim, now, State.QUEUED)
                    self._claims.forget(claim)
            if epoch is None:
                self._database.run("drop_reader", {"queue": queue, "reader": reader})
            return given


def read_run(database: Database, name: str, queue: int, run: Run, start: int, stop: int) -> list[Message]:
    """A slice of a run's messages, as they are after its claim."""
    fields = {"queue": queue, "start": start, "count": max(0, min(stop, run.size) - start)}
    rows = database.rows("read_run", run._asdict() | fields)
    return [to_message(database.ids, name, row, run.run_at, run.lapses_at, holder=run.reader) for row in rows]
