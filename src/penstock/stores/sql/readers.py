"""The named claims of a queue in an SQL database: a row per reader, a row per claim, and a list of the claim's messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, repeat

from penstock.message import FOREVER, Certainty, Claim, Held, Message, Settlement, State
from penstock.stores.ports import ClaimingReaders
from penstock.stores.requests import HeldAtOnce
from penstock.stores.sql.claims import ClaimRows
from penstock.stores.sql.database import Database
from penstock.stores.sql.rows import number_of, to_message
from penstock.stores.sql.runs import Run, Runs


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
            queue = database.find(self._name).number
            begun = self._claims.of(queue, reader).get(epoch)
            claim, _, size, _, _, asleep, _ = begun or (self._claims.add(queue, reader, epoch, 0, lapses_at), *[0] * 6)
            ids = database.ids
            numbers = [receipt.number if isinstance(receipt, Message) else number_of(ids, receipt) for receipt in receipts]
            deliveries = [receipt.delivery for receipt in receipts]
            database.many("add_held", zip(repeat(claim), count(size), numbers, deliveries))
            self._claims.grow(claim, size + len(receipts))
            if asleep:
                self._claims.extend(queue, claim, FOREVER, start=size)

    def hold_visible(
        self, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, certainty: Certainty
    ) -> HeldAtOnce:
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
                self._claims.extend(queue, claim, FOREVER)

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
            gone = 0
            for row in [row for known, row in self._claims.of(found.number, reader).items() if known <= epoch]:
                whole = self._runs.settle(found.number, row[0], settlement)
                gone += self._claims.settle(found, row, settlement) if whole is None else whole
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
