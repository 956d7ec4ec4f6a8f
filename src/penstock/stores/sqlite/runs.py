"""How an SQLite file keeps a named claim of any size with a few statements.

Rows are written as seldom as possible, since writing a row also writes its body.

    a run     all messages between two positions of the queue, none of which was ever received. Their rows are not written.
              Below the queue's floor are only runs, one after the other; a search for messages begins above it. A settled run
              has no reader, and nobody sees its messages any more; `tidy` removes them, some at a time.
    a list    each row is written once, hidden for good. Confirming the claim writes only the claim.

Nothing may be inserted or changed below the floor. A verb that is about to do that first turns the runs into lists.

A claim that is not confirmed in time is only asleep: a search for visible messages first wakes the claims that have lapsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from penstock.message import FOREVER, SECOND, Certainty, Counts, Entry, Held, Message, Settlement
from penstock.stores.ports import START
from penstock.stores.requests import HeldAtOnce
from penstock.stores.sql.claims import ClaimRows
from penstock.stores.sql.database import Database, Found
from penstock.stores.sql.queue import sent_at
from penstock.stores.sql.readers import read_run
from penstock.stores.sql.rows import Row, numbers_of, to_message
from penstock.stores.sql.runs import Run, Runs

LIST_AT_ONCE = 100_000
"""How many messages are checked at a time; also the longest list."""
TIDY_AT_ONCE = 5000
LATE = SECOND
"""How late a sender may be, since it reads the clock before it gets the write lock. What it sends then goes to the floor, as
its number is higher than all others there."""


class NotPlain(Exception):
    """The claim cannot be made at once; its changes are rolled back."""


class SqliteRuns(Runs):
    """Owns the runs of one queue, and its claims that are asleep."""

    __slots__ = ("_claims", "_database", "_name")

    def __init__(self, name: str, database: Database) -> None:
        self._name = name
        self._database = database
        self._claims = ClaimRows(database)

    def all(self, queue: int) -> list[Run]:
        return [Run(*row) for row in self._database.rows("runs", {"queue": queue})]

    # claims that are made, settled and given back whole

    def hold_visible(
        self, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, certainty: Certainty
    ) -> HeldAtOnce:
        database = self._database
        with suppress(NotPlain), database.batch():
            found = database.find(self._name)
            queue, settings = found.number, found.settings
            if epoch in self._claims.of(queue, reader):  # begun with messages that were judged one by one
                raise NotPlain
            floor_at, floor_number = self.floor(found, now)
            fields = {"queue": queue, "floor_at": floor_at, "floor_number": floor_number, "visible_by": visible_by, "now": now}
            fields |= certainty._asdict() | {"limit": min(limit, LIST_AT_ONCE), "forever": FOREVER}
            size, (end_at, end_number) = self._fresh(fields, 0 if settings.groups or settings.history else limit)
            if size:
                claim = self._claims.add(queue, reader, epoch, size, lapses_at)
                places = {"begin_at": floor_at, "begin_number": floor_number, "end_at": end_at, "end_number": end_number}
                database.run("begin_run", places | {"claim": claim, "run_at": now})
                database.run("set_floor", {"queue": queue})
            else:
                size, sure, _ = self._weigh(fields)
                if settings.groups or not size or sure < size:
                    raise NotPlain
                claim = self._claims.add(queue, reader, epoch, size, lapses_at)
                end_at, end_number = database.rows("place_above", fields | {"place": size - 1})[0]
                run = Run(claim, reader, epoch, size, now, floor_at, floor_number, end_at, end_number, lapses_at)
                self._hide(queue, run)
            self._claims.fall_asleep(claim)
            return HeldAtOnce(size, False)
        return HeldAtOnce(0, True)

    def _fresh(self, fields: dict[str, int], limit: int) -> tuple[int, Row]:
        """How many of the first messages were never received, and where these end."""
        size, end = 0, (fields["floor_at"], fields["floor_number"])
        while size < limit:
            part = fields | {"floor_at": end[0], "floor_number": end[1], "limit": min(limit - size, LIST_AT_ONCE)}
            found, _, fresh = self._weigh(part)
            if not found or fresh < found:
                break
            end = self._database.rows("place_above", part | {"place": found - 1})[0]
            size += found
        return size, end

    def _weigh(self, fields: dict[str, int]) -> tuple[int, int, int]:
        """How many messages there are, how many of them are certain to be delivered, and how many of these are fresh."""
        found: int = self._database.rows("count_visible", fields)[0][0]
        sure, fresh = self._database.rows("weigh", fields)[0] if found else (0, 0)
        return found, sure, fresh

    def settle(self, queue: int, claim: int, settlement: Settlement) -> int | None:
        for run in self.all(queue):
            if run.claim == claim and settlement.keep_until is None:
                self._database.run("settle_run", {"claim": claim, "forever": FOREVER})
                return run.size
            if run.claim == claim:
                self._end(queue, [run])
        return None
        return None

    def give_back(self, queue: int, reader: str, epoch: int | None, now: int) -> int:
        runs = self.all(queue)
        own = [run for run in runs if run.reader == reader and epoch in (None, run.epoch)]
        # Messages made visible must lie above the runs that stay, and not inside one that is yet to be made visible.
        if now <= floor_of(runs, own) or (len(own) > 1 and now <= max(run.end_at for run in own)):
            self._end(queue, runs)
            own = []
        given = 0
        for run in own:  # without a list in between, which would write each message twice
            given += self._database.run("show_run", run._asdict() | {"queue": queue, "until": now})
            self._claims.forget(run.claim)
        if own:
            self._database.run("set_floor", {"queue": queue})
        return given

    # before something changes

    def touch(self, found: Found, receipts: Sequence[Held] = (), until: int | None = None) -> None:
        if found.floor == START and found.wakes_at is None:  # no claim is a run, and none is asleep
            return
        numbers = self._database.list_of(numbers_of(self._database.ids, receipts)) if receipts else None
        self._keep(found, numbers, until)
        if receipts and until is not None:
            self._rouse(found, numbers)

    def _keep(self, found: Found, numbers: object, until: int | None) -> None:
        """Keep runs only if nothing in them is touched and nothing becomes visible below their floor."""
        floor_at, floor_number = found.floor
        if found.floor == START:
            return
        if until is not None and until <= floor_at:
            self._end(found.number)
        elif numbers is not None:
            fields = {"queue": found.number, "floor_at": floor_at, "floor_number": floor_number, "numbers": numbers}
            places = self._database.rows("in_run", fields)
            if places:
                self._end(found.number, [run for run in self.all(found.number) if any(run.has(*place) for place in places)])

    def _rouse(self, found: Found, numbers: object) -> None:
        """Before messages leave their claim, hide the others only until the claim lapses, and no longer for good."""
        queue = found.number
        if self._database.rows("hidden_for_good", {"numbers": numbers, "queue": queue, "forever": FOREVER}):
            for claim, lapses_at in self._database.rows("sleepers_of", {"queue": queue, "numbers": numbers}):
                self._keep(self._database.find(self._name), None, lapses_at)
                self._claims.wake(queue, claim, lapses_at)

    def lift(self, found: Found, entries: Sequence[Entry]) -> Sequence[Entry]:
        """The entries to send, moved up to the floor if they are below it."""
        if found.floor == START:
            return entries
        floor_at, _ = found.floor
        earliest = min((entry.visible_at for entry in entries), default=FOREVER)
        if earliest >= floor_at:
            return entries
        if earliest < floor_at - LATE:
            self._end(found.number)
            return entries
        return [entry._replace(visible_at=max(entry.visible_at, floor_at)) for entry in entries]

    def _end(self, queue: int, runs: Sequence[Run] | None = None) -> None:
        """In a batch: turn these runs, or all, into lists, and remove those that are settled."""
        for run in self.all(queue) if runs is None else runs:
            if run.reader:
                self._hide(queue, run)
                self._database.run("end_run", {"claim": run.claim})
            else:
                self._remove(queue, run, FOREVER)
        self._database.run("set_floor", {"queue": queue})

    def _hide(self, queue: int, run: Run, until: int = FOREVER) -> None:
        """Turn the messages between these positions into the claim's list."""
        self._database.run("hold_between", run._asdict() | {"queue": queue})
        self._claims.hide(run.claim, run.reader, run.run_at, until)

    def _remove(self, queue: int, run: Run, limit: int) -> None:
        fields = run._asdict() | {"queue": queue, "limit": limit}
        # Emptying the whole table is far faster than deleting its rows.
        everything = self._database.rows("is_all", fields)[0][0]
        gone = self._database.run("delete_each", {}) if everything else self._database.run("remove_of_run", fields)
        if gone == limit:
            self._database.run("shorten_run", {"claim": run.claim, "gone": gone})
        else:
            self._claims.forget(run.claim)
            self._database.run("set_floor", {"queue": queue})

    def tidy(self, found: Found) -> bool:
        if found.floor != START:  # checked without a write lock
            with self._database.joined(durable=False):
                for run in self.all(found.number):
                    if not run.reader:
                        self._remove(found.number, run, TIDY_AT_ONCE)
                        return True
        return False

    # before a search

    def wake(self, name: str, now: int) -> None:
        found = self._database.find(name)
        if found.wakes_at is not None and found.wakes_at <= now:  # checked without a write lock
            with self._database.joined():
                self.floor(self._database.find(name), now)

    def floor(self, found: Found, now: int) -> tuple[int, int]:
        if found.wakes_at is None or found.wakes_at > now:
            return found.floor
        queue = found.number
        lapsed = self._claims.sleepers(queue, now)
        runs = self.all(queue)
        over = [run for run in runs if run.claim in lapsed]
        if min(lapsed.values(), default=FOREVER) <= floor_of(runs, over):
            self._end(queue)
            over = []
        for run in over:
            self._hide(queue, run, run.lapses_at)
            self._database.run("end_run", {"claim": run.claim})
        for claim in lapsed.keys() - {run.claim for run in over}:
            self._claims.wake(queue, claim, lapsed[claim])
        for run in over:
            self._database.run("wake", {"claim": run.claim})
        self._database.run("set_floor", {"queue": queue})
        return self._database.find(self._name).floor

    def held(self, queue: int, limit: int, after: tuple[int, int]) -> list[Message]:
        fields = {"queue": queue, "limit": limit, "after_at": after[0], "after_number": after[1]}
        messages = [to_message(self._database.ids, self._name, row) for row in self._database.rows("asleep", fields)]
        for run in self.all(queue):
            if run.reader and run.lapses_at >= after[0]:
                messages += self._held_in(run, queue, limit, after)
        return messages

    def _held_in(self, run: Run, queue: int, limit: int, after: tuple[int, int]) -> list[Message]:
        """Some messages of a run that come after a place."""
        found: list[Message] = []
        start = 0
        while len(found) < limit and start < run.size:
            part = read_run(self._database, self._name, queue, run, start, start + limit)
            found += [message for message in part if message.place > after]
            start += limit
        return found

    def recount(self, found: Found, now: int, counts: Counts) -> Counts:
        queue, (floor_at, floor_number) = found.number, found.floor
        if found.floor == START:
            return counts
        runs = self.all(queue)
        held, gone = (sum(run.size for run in runs if bool(run.reader) is live) for live in (True, False))
        if gone:
            first = self._database.rows("first_unsettled", {"queue": queue})[0][0]
            counts = replace(counts, messages=counts.messages - gone, oldest_at=sent_at(self._database, first))
        early = 0
        if now < floor_at:  # the clock was set back, or read before a claim
            fields = {"queue": queue, "now": now, "floor_at": floor_at, "floor_number": floor_number}
            early = self._database.rows("count_early", fields)[0][0]
        visible = counts.visible - (held + gone - early)
        return replace(counts, visible=visible, in_flight=counts.in_flight + held, delayed=counts.delayed - early)


def floor_of(runs: Sequence[Run], but: Sequence[Run]) -> int:
    """Where the last of these runs ends, ignoring some."""
    return max((run.end_at for run in runs if run not in but), default=START[0])
