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

from penstock import policy
from penstock.message import FOREVER, Counts, Entry, Held, Message, Settings, Settlement, State
from penstock.stores.ports import START
from penstock.stores.sql.messages import SqlMessages
from penstock.stores.sql.readers import ClaimRows
from penstock.stores.sql.runs import Run, Runs
from penstock.stores.sql.session import Row

LIST_AT_ONCE = policy.MAX_BATCH
"""How many messages are checked at a time; also the longest list."""
TIDY_AT_ONCE = 5000
LATE = policy.SECOND
"""How late a sender may be, since it reads the clock before it gets the write lock. What it sends then goes to the floor, as
its number is higher than all others there."""


class NotPlain(Exception):
    """The fast path does not apply; its changes are rolled back."""


class SqliteRuns(Runs):
    __slots__ = ("_claims", "_store")

    def __init__(self, store: SqlMessages) -> None:
        self._store = store
        self._claims = ClaimRows(store)

    def all(self, home: int) -> list[Run]:
        return [Run(*row) for row in self._store._rows("runs", {"queue": home})]

    # claims that are made, settled and given back whole

    def hold_visible(
        self, queue: str, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, settings: Settings
    ) -> int:
        store = self._store
        with suppress(NotPlain), store.batch():
            home, _ = store._queue(queue)
            floor_at, floor_number = self.floor(home, now)
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
                self.hide(home, run)
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
        """How many messages there are, how many of them are certain to be delivered, and how many of these are fresh."""
        found: int = self._store._rows("count_visible", fields)[0][0]
        sure, fresh = self._store._rows("weigh", fields)[0] if found else (0, 0)
        return found, sure, fresh

    def settle(self, home: int, claim: int, settlement: Settlement) -> int | None:
        """Without looking at each message, if all are as they were claimed and have no mark, group or history to update."""
        for run in self.all(home):
            if run.claim == claim and settlement.keep_until is None:
                self._store._run("settle_run", {"claim": claim, "forever": FOREVER})
                return run.size
            if run.claim == claim:
                self.end(home, [run])
        if settlement.keep_until is None and self._store._rows("all_plain", {"claim": claim, "queue": home})[0][0]:
            gone = self._store._run("delete_held", {"claim": claim})
            self._claims.forget(claim)
            return gone
        for sleeper, lapses_at in self._store._rows("sleepers", {"queue": home, "now": FOREVER}):
            if sleeper == claim:  # the history records until when they were hidden
                self._claims.extend(home, claim, lapses_at, State.CONSUMED)
        return None

    def give_back(self, home: int, reader: str, epoch: int | None, now: int) -> int:
        runs = self.all(home)
        own = [run for run in runs if run.reader == reader and epoch in (None, run.epoch)]
        # Messages made visible must lie above the runs that stay, and not inside one that is yet to be made visible.
        if now <= floor_of(runs, own) or (len(own) > 1 and now <= max(run.end_at for run in own)):
            self.end(home)
            own = []
        given = 0
        for run in own:  # without a list in between, which would write each message twice
            given += self._store._run("show_run", run._asdict() | {"queue": home, "until": now})
            self._claims.forget(run.claim)
        if own:
            self._store._run("set_floor", {"queue": home})
        return given

    # before something changes

    def touch(self, queue: str, receipts: Sequence[Held] = (), until: int | None = None) -> None:
        home, _ = self._store._queue(queue)
        numbers = self._store._list(self._store._numbers(receipts)) if receipts else None
        self._keep(home, numbers, until)
        if receipts and until is not None:
            self._rouse(home, numbers)

    def _keep(self, home: int, numbers: object, until: int | None) -> None:
        """Keep runs only if nothing in them is touched and nothing becomes visible below their floor."""
        floor_at, floor_number = floor = self.floor(home)
        if floor == START:
            return
        if until is not None and until <= floor_at:
            self.end(home)
        elif numbers is not None:
            fields = {"queue": home, "floor_at": floor_at, "floor_number": floor_number, "numbers": numbers}
            places = self._store._rows("in_run", fields)
            if places:
                self.end(home, [run for run in self.all(home) if any(run.has(*place) for place in places)])

    def _rouse(self, home: int, numbers: object) -> None:
        """Before messages leave their claim, hide the others only until the claim lapses, and no longer for good."""
        if self._store._rows("hidden_for_good", {"numbers": numbers, "queue": home, "forever": FOREVER}):
            for claim, lapses_at in self._store._rows("sleepers_of", {"queue": home, "numbers": numbers}):
                self._keep(home, None, lapses_at)
                self._claims.extend(home, claim, lapses_at, State.CONSUMED)
                self._store._run("wake", {"claim": claim})

    def lift(self, queue: str, entries: Sequence[Entry]) -> Sequence[Entry]:
        """The entries to send, moved up to the floor if they are below it."""
        home, _ = self._store._queue(queue)
        floor_at, _ = self.floor(home)
        earliest = min((entry.visible_at for entry in entries), default=FOREVER)
        if earliest >= floor_at:
            return entries
        if earliest < floor_at - LATE:
            self.end(home)
            return entries
        return [entry._replace(visible_at=max(entry.visible_at, floor_at)) for entry in entries]

    def end(self, home: int, runs: Sequence[Run] | None = None) -> None:
        """Turn these runs, or all, into lists, and remove those that are settled."""
        if self.floor(home) != START:  # checked without a write lock
            with self._store._joined():
                for run in self.all(home) if runs is None else runs:
                    if run.reader:
                        self.hide(home, run)
                        self._store._run("end_run", {"claim": run.claim})
                    else:
                        self._remove(home, run, FOREVER)
                self._store._run("set_floor", {"queue": home})

    def hide(self, home: int, run: Run, until: int = FOREVER) -> None:
        """Turn the messages between these positions into the claim's list."""
        self._store._run("hold_between", run._asdict() | {"queue": home})
        holder = self._store._packed_holder(run.reader)
        self._store._run("hide_held", {"claim": run.claim, "now": run.run_at, "until": until, "holder": holder})

    def _remove(self, home: int, run: Run, limit: int) -> None:
        fields = run._asdict() | {"queue": home, "limit": limit}
        # Emptying the whole table is far faster than deleting its rows.
        everything = self._store._rows("is_all", fields)[0][0]
        gone = self._store._run("delete_each", {}) if everything else self._store._run("remove_of_run", fields)
        if gone == limit:
            self._store._run("shorten_run", {"claim": run.claim, "gone": gone})
        else:
            self._claims.forget(run.claim)
            self._store._run("set_floor", {"queue": home})

    def tidy(self, queue: str) -> bool:
        """Remove some settled messages that are still stored. Returns whether there are more."""
        home, _ = self._store._queue(queue)
        if self.floor(home) != START:  # checked without a write lock
            with self._store._joined(durable=False):
                for run in self.all(home):
                    if not run.reader:
                        self._remove(home, run, TIDY_AT_ONCE)
                        return True
        return False

    # before a search

    def wake(self, queue: str, now: int) -> None:
        self.floor(self._store._queue(queue)[0], now)

    def floor(self, home: int, now: int | None = None) -> tuple[int, int]:
        for at, number, lapsed in self._store._rows("floor", (now or 0, home)):  # checked without a write lock
            return self._wake(home, now) if lapsed and now is not None else (at, number)
        return START  # the queue was dropped meanwhile

    def _wake(self, home: int, now: int) -> tuple[int, int]:
        with self._store._joined():
            lapsed: dict[int, int] = dict(self._store._rows("sleepers", {"queue": home, "now": now}))
            runs = self.all(home)
            over = [run for run in runs if run.claim in lapsed]
            if min(lapsed.values(), default=FOREVER) <= floor_of(runs, over):
                self.end(home)
                over = []
            for run in over:
                self.hide(home, run, run.lapses_at)
                self._store._run("end_run", {"claim": run.claim})
            for claim in lapsed.keys() - {run.claim for run in over}:
                self._claims.extend(home, claim, lapsed[claim], State.CONSUMED)
            for claim in lapsed:
                self._store._run("wake", {"claim": claim})
            self._store._run("set_floor", {"queue": home})
            return self.floor(home)

    def held(self, queue: str, home: int, limit: int) -> list[Message]:
        messages = [self._store._message(queue, row) for row in self._store._rows("asleep", {"queue": home, "limit": limit})]
        for run in self.all(home):
            if run.reader:
                messages += self._store._read_run(queue, home, run, 0, limit)
        return messages

    def recount(self, home: int, now: int, counts: Counts) -> Counts:
        runs = self.all(home)
        held, gone = (sum(run.size for run in runs if bool(run.reader) is live) for live in (True, False))
        if gone:
            first = self._store._rows("first_unsettled", {"queue": home})[0][0]
            counts = replace(counts, messages=counts.messages - gone, oldest_at=self._store._sent_at(first))
        floor_at, floor_number = self.floor(home)
        early = 0
        if now < floor_at:  # the clock was set back, or read before a claim
            fields = {"queue": home, "now": now, "floor_at": floor_at, "floor_number": floor_number}
            early = self._store._rows("count_early", fields)[0][0]
        visible = counts.visible - (held + gone - early)
        return replace(counts, visible=visible, in_flight=counts.in_flight + held, delayed=counts.delayed - early)

    def due(self, home: int) -> int | None:
        """When the first message above the floor, or of a claim that lapses, is visible."""
        floor_at, floor_number = floor = self.floor(home)
        if floor == START:
            found = self._store._rows("due", (home, FOREVER))
        else:
            fields = {"queue": home, "floor_at": floor_at, "floor_number": floor_number, "forever": FOREVER}
            found = self._store._rows("due_above", fields)
        found += self._store._rows("wakes_at", {"queue": home})
        return min((at for (at,) in found if at is not None), default=None)


def floor_of(runs: Sequence[Run], but: Sequence[Run]) -> int:
    """Where the last of these runs ends, ignoring some."""
    return max((run.end_at for run in runs if run not in but), default=START[0])
