"""The named claims of a queue in an SQLite file: as runs or as lists (`penstock.stores.sqlite.runs`) where that serves, else
message by message."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from penstock import policy
from penstock.message import FOREVER, Claim, Held, Message, Settings, Settlement, State
from penstock.stores.ports import ClaimingReaders
from penstock.stores.sql.messages import SqlMessages
from penstock.stores.sql.readers import ClaimRows, SqlReaders
from penstock.stores.sql.runs import Run
from penstock.stores.sql.session import Row
from penstock.stores.sqlite.runs import SqliteRuns, floor_of

LIST_AT_ONCE = policy.MAX_BATCH
"""How many messages are weighed before the next are; no list is longer."""


class NotPlain(Exception):
    """The short way does not serve; what was done of it is undone."""


class SqliteReaders(ClaimingReaders):
    def __init__(self, store: SqlMessages, queue: str) -> None:
        self._store = store
        self._queue = queue
        self._claims = ClaimRows(store)
        self._runs = SqliteRuns(store)
        self._each = SqlReaders(store, queue)

    def hold_visible(
        self, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, settings: Settings
    ) -> int:
        store = self._store
        with suppress(NotPlain), store.batch():
            home, _ = self._home()
            floor_at, floor_number = self._runs.floor(home, now)
            fields = {"queue": home, "floor_at": floor_at, "floor_number": floor_number, "visible_by": visible_by, "now": now}
            fields |= {"most": settings.redrive.max_receives if settings.redrive else FOREVER, "forever": FOREVER}
            fields |= {"since": now - policy.micros(settings.retention), "limit": min(limit, LIST_AT_ONCE)}
            size, (end_at, end_number) = self._fresh(fields, 0 if settings.groups or settings.history else limit)
            if size:
                claim = self._claims.add(home, reader, epoch, size, lapses_at)
                places = {"begin_at": floor_at, "begin_number": floor_number, "end_at": end_at, "end_number": end_number}
                store._run("begin_run", places | {"claim": claim, "run_at": now})
                store._run("set_floor", {"queue": home})
            else:
                size, sure, _ = self._weigh(fields)
                if settings.groups or not size or sure < size:
                    raise NotPlain
                claim = self._claims.add(home, reader, epoch, size, lapses_at)
                end_at, end_number = store._rows("place_above", fields | {"place": size - 1})[0]
                run = Run(claim, reader, epoch, size, now, floor_at, floor_number, end_at, end_number, lapses_at)
                self._runs.hide(home, run)
            store._run("fall_asleep", {"claim": claim})
            return size
        return 0

    def _fresh(self, fields: dict[str, int], limit: int) -> tuple[int, Row]:
        """How many of the first messages were never received, and where these end."""
        size, end = 0, (fields["floor_at"], fields["floor_number"])
        while size < limit:
            part = fields | {"floor_at": end[0], "floor_number": end[1], "limit": min(limit - size, LIST_AT_ONCE)}
            found, _, fresh = self._weigh(part)
            if not found or fresh < found:
                break
            end = self._store._rows("place_above", part | {"place": found - 1})[0]
            size += found
        return size, end

    def _weigh(self, fields: dict[str, int]) -> tuple[int, int, int]:
        """How many there are, how many of them are surely to be delivered, and how many of these fresh."""
        found: int = self._store._rows("count_visible", fields)[0][0]
        sure, fresh = self._store._rows("weigh", fields)[0] if found else (0, 0)
        return found, sure, fresh

    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        self._each.hold(reader, epoch, receipts, lapses_at)

    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        return self._each.held(reader)

    def names(self) -> list[str]:
        return self._each.names()

    def confirm(self, reader: str, epoch: int) -> None:
        with self._store._joined():
            claim, *_, asleep, _ = self._claims.of(self._home()[0], reader)[epoch]
            if asleep:
                self._store._run("confirm", {"claim": claim, "forever": FOREVER})
            else:
                self._each.confirm(reader, epoch)

    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._store._reading():
            home, _ = self._home()
            claim, _, _, _, lapses_at, asleep, _ = self._claims.of(home, reader)[epoch]
            for run in self._runs.all(home):
                if run.claim == claim:
                    return self._runs.read(self._queue, home, run, start, stop)
            messages = self._each.read(reader, epoch, start, stop)
            return [replace(message, visible_at=lapses_at) for message in messages] if asleep else messages

    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        with self._store._joined():
            home, _ = self._home()
            claims = [row[0] for known, row in self._claims.of(home, reader).items() if known <= epoch]
            gone = sum(self._settle_whole(home, claim, settlement) for claim in claims)
            return gone + self._each.settle(reader, epoch, settlement)

    def _settle_whole(self, home: int, claim: int, settlement: Settlement) -> int:
        """If all are as they were claimed and nothing hangs on them, without asking after each. Else 0, and the claim is left
        to be settled message by message."""
        for run in self._runs.all(home):
            if run.claim == claim and settlement.keep_until is None:
                self._store._run("settle_run", {"claim": claim, "forever": FOREVER})
                return run.size
            if run.claim == claim:
                self._runs.end(home, [run])
        if settlement.keep_until is None and self._store._rows("all_plain", {"claim": claim, "queue": home})[0][0]:
            gone = self._store._run("delete_held", {"claim": claim})
            self._claims.forget(claim)
            return gone
        for sleeper, lapses_at in self._store._rows("sleepers", {"queue": home, "now": FOREVER}):
            if sleeper == claim:  # the history tells until when they were hidden
                self._claims.extend(home, claim, lapses_at, State.CONSUMED)
        return 0

    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        with self._store._joined():
            home, _ = self._home()
            runs = self._runs.all(home)
            own = [run for run in runs if run.reader == reader and epoch in (None, run.epoch)]
            # What is shown must lie above the runs that stay, and in none that is yet to be shown.
            if now <= floor_of(runs, own) or (len(own) > 1 and now <= max(run.end_at for run in own)):
                self._runs.end(home)
                own = []
            given = 0
            for run in own:  # with no list in between, which would be to write each message twice
                given += self._store._run("show_run", run._asdict() | {"queue": home, "until": now})
                self._claims.forget(run.claim)
            if own:
                self._store._run("set_floor", {"queue": home})
            return given if own and epoch is not None else given + self._each.give_back(reader, epoch, now)

    def _home(self) -> tuple[int, Settings]:
        return self._store._queue(self._queue)
