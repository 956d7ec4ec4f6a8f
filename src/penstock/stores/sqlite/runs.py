"""Named claims of an SQLite file, by whole sets: to make, confirm and settle a claim of any size is a few statements.

A row is written as seldom as it can be, since to write it is to write its body too.

    a run     all messages between two places of the queue, none of which was ever received: none is written. Runs lie below the
              queue's floor, one behind the other, and nothing else does; whoever looks for messages looks above it. Settled, a
              run has no reader any more, its messages are gone for all, and `tidy` removes them, some at a time.
    a list    each message is written once: hidden for good. To confirm the claim is to say so in the claim alone.

Nothing may come to lie below the floor, or change there. So whoever is about to do that, or wants to see each message as it is,
first makes the runs lists, which is what they would have been.

A claim that is never confirmed has only fallen asleep: whoever looks for visible messages first wakes those whose claim
has lapsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import attrgetter, itemgetter
from typing import NamedTuple

from penstock import policy
from penstock.message import FOREVER, Counts, Death, Entry, Held, Message, Moved, Sent, Settings, Settlement, State
from penstock.stores.ports import START
from penstock.stores.sql.session import Row
from penstock.stores.sql.store import SqlStore

NO_FLOOR = START
LIST_AT_ONCE = policy.MAX_BATCH
"""How many messages are weighed before the next are; no list is longer."""
TIDY_AT_ONCE = 5000


LATE = policy.SECOND
"""By how much a sender may be late, who reads the clock before it gets its turn: what it sends lies at the floor then, as its
number is higher than all that are there."""


class Run(NamedTuple):
    claim: int
    reader: str
    epoch: int
    size: int
    run_at: int
    begin_at: int
    begin_number: int
    end_at: int
    end_number: int
    lapses_at: int

    def has(self, visible_at: int, number: int) -> bool:
        return (self.begin_at, self.begin_number) < (visible_at, number) <= (self.end_at, self.end_number)


class NotPlain(Exception):
    """The short way does not serve; what was done of it is undone."""


class SqliteClaims(SqlStore):
    def hold_visible(
        self,
        queue: str,
        reader: str,
        epoch: int,
        limit: int,
        now: int,
        visible_by: int,
        lapses_at: int,
        settings: Settings,
    ) -> int:
        with suppress(NotPlain), self.batch():
            home, _ = self._queue(queue)
            floor_at, floor_number = self._awake(home, now)
            fields = {"queue": home, "floor_at": floor_at, "floor_number": floor_number, "visible_by": visible_by, "now": now}
            fields |= {"most": settings.redrive.max_receives if settings.redrive else FOREVER, "forever": FOREVER}
            fields |= {"since": now - policy.micros(settings.retention), "limit": min(limit, LIST_AT_ONCE)}
            size, (end_at, end_number) = self._fresh(fields, 0 if settings.groups or settings.history else limit)
            if size:
                claim = self._add_claim(home, reader, epoch, size, lapses_at)
                places = {"begin_at": floor_at, "begin_number": floor_number, "end_at": end_at, "end_number": end_number}
                self._run("begin_run", places | {"claim": claim, "run_at": now})
                self._run("set_floor", {"queue": home})
            else:
                size, sure, _ = self._weigh(fields)
                if settings.groups or not size or sure < size:
                    raise NotPlain
                claim = self._add_claim(home, reader, epoch, size, lapses_at)
                end_at, end_number = self._rows("place_above", fields | {"place": size - 1})[0]
                self._hide(home, Run(claim, reader, epoch, size, now, floor_at, floor_number, end_at, end_number, lapses_at))
            self._run("fall_asleep", {"claim": claim})
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
            end = self._rows("place_above", part | {"place": found - 1})[0]
            size += found
        return size, end

    def _weigh(self, fields: dict[str, int]) -> tuple[int, int, int]:
        """How many there are, how many of them are surely to be delivered, and how many of these fresh."""
        found: int = self._rows("count_visible", fields)[0][0]
        sure, fresh = self._rows("weigh", fields)[0] if found else (0, 0)
        return found, sure, fresh

    def confirm(self, queue: str, reader: str, epoch: int) -> None:
        with self._joined():
            for claim, known, _, _, _, asleep, _ in self._rows("claims", {"queue": self._queue(queue)[0], "reader": reader}):
                if known == epoch and asleep:
                    self._run("confirm", {"claim": claim, "forever": FOREVER})
                    return
            super().confirm(queue, reader, epoch)

    def read(self, queue: str, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        with self._reading():
            home, _ = self._queue(queue)
            claims = {row[1]: row for row in self._rows("claims", {"queue": home, "reader": reader})}
            claim, _, _, _, lapses_at, asleep, _ = claims[epoch]
            for run in self._runs(home):
                if run.claim == claim:
                    return self._read_run(queue, home, run, start, stop)
            messages = super().read(queue, reader, epoch, start, stop)
            return [replace(message, visible_at=lapses_at) for message in messages] if asleep else messages

    def _read_run(self, queue: str, home: int, run: Run, start: int, stop: int) -> list[Message]:
        fields = {"queue": home, "start": start, "count": max(0, min(stop, run.size) - start)}
        rows = self._rows("read_run", run._asdict() | fields)
        return [self._message(queue, row, run.run_at, run.lapses_at, holder=run.reader) for row in rows]

    def give_back(self, queue: str, reader: str, epoch: int | None, now: int) -> int:
        with self._joined():
            home, _ = self._queue(queue)
            runs = self._runs(home)
            own = [run for run in runs if run.reader == reader and epoch in (None, run.epoch)]
            # What is shown must lie above the runs that stay, and in none that is yet to be shown.
            if now <= _floor_of(runs, own) or (len(own) > 1 and now <= max(run.end_at for run in own)):
                self._end_runs(home)
                own = []
            given = 0
            for run in own:  # with no list in between, which would be to write each message twice
                given += self._run("show_run", run._asdict() | {"queue": home, "until": now})
                self._forget_claim(run.claim)
            if own:
                self._run("set_floor", {"queue": home})
            return given if own and epoch is not None else given + super().give_back(queue, reader, epoch, now)

    def _settle_claim(self, home: int, settings: Settings, claim: int, settlement: Settlement) -> int:
        """If all are as they were claimed and nothing hangs on them, without asking after each."""
        for run in self._runs(home):
            if run.claim == claim and settlement.keep_until is None:
                self._run("settle_run", {"claim": claim, "forever": FOREVER})
                return run.size
            if run.claim == claim:
                self._end_runs(home, [run])
        if settlement.keep_until is None and self._rows("all_plain", {"claim": claim, "queue": home})[0][0]:
            gone = self._run("delete_held", {"claim": claim})
            self._forget_claim(claim)
            return gone
        for sleeper, lapses_at in self._rows("sleepers", {"queue": home, "now": FOREVER}):
            if sleeper == claim:  # the history tells until when they were hidden
                self._extend_all(home, claim, lapses_at, State.CONSUMED)
        return super()._settle_claim(home, settings, claim, settlement)

    def tidy(self, queue: str) -> bool:
        home, _ = self._queue(queue)
        if self._floor(home) != NO_FLOOR:  # seen without a write lock
            with self._joined(durable=False):
                for run in self._runs(home):
                    if not run.reader:
                        self._remove(home, run, TIDY_AT_ONCE)
                        return True
        return False

    def sweep(self, queue: str, now: int) -> bool:
        more = super().sweep(queue, now)
        return self.tidy(queue) or more

    # runs and their floor

    def _floor(self, home: int) -> tuple[int, int]:
        for at, number, _ in self._rows("floor", (0, home)):
            return at, number
        return NO_FLOOR  # the queue was dropped meanwhile

    def _runs(self, home: int) -> list[Run]:
        return [Run(*row) for row in self._rows("runs", {"queue": home})]

    def _end_runs(self, home: int, runs: Sequence[Run] | None = None) -> None:
        """Make these runs lists, or all, and remove those that are settled."""
        if self._floor(home) != NO_FLOOR:  # seen without a write lock
            with self._joined():
                for run in self._runs(home) if runs is None else runs:
                    if run.reader:
                        self._hide(home, run)
                        self._run("end_run", {"claim": run.claim})
                    else:
                        self._remove(home, run, FOREVER)
                self._run("set_floor", {"queue": home})

    def _remove(self, home: int, run: Run, limit: int) -> None:
        fields = run._asdict() | {"queue": home, "limit": limit}
        # To empty the whole table is quicker by far than to delete its rows.
        everything = self._rows("is_all", fields)[0][0]
        gone = self._run("delete_each", {}) if everything else self._run("remove_of_run", fields)
        if gone == limit:
            self._run("shorten_run", {"claim": run.claim, "gone": gone})
        else:
            self._forget_claim(run.claim)
            self._run("set_floor", {"queue": home})

    def _hide(self, home: int, run: Run, until: int = FOREVER) -> None:
        """Make the messages between these places the claim's list."""
        self._run("hold_between", run._asdict() | {"queue": home})
        holder = self._packed_holder(run.reader)
        self._run("hide_held", {"claim": run.claim, "now": run.run_at, "until": until, "holder": holder})

    def _keep_runs(self, queue: str, receipts: Sequence[Held] = (), visible_at: int = FOREVER) -> None:
        """In a batch, before these messages are touched, or any becomes visible at this instant: runs stay only if it is not
        below their floor."""
        home, _ = self._queue(queue)
        floor_at, floor_number = floor = self._floor(home)
        if floor == NO_FLOOR:
            return
        if visible_at <= floor_at:
            self._end_runs(home)
        elif receipts:
            fields = {"queue": home, "floor_at": floor_at, "floor_number": floor_number}
            numbers = self._list(self._numbers(receipts))
            places = self._rows("in_run", fields | {"numbers": numbers})
            if places:
                self._end_runs(home, [run for run in self._runs(home) if any(run.has(*place) for place in places)])

    def insert(self, queue: str, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        with self._joined():
            return super().insert(queue, self._lift(queue, entries), now, settings)

    def insert_bodies(self, queue: str, bodies: Sequence[bytes], like: Entry, settings: Settings) -> bool:
        with self._joined():
            return super().insert_bodies(queue, bodies, self._lift(queue, [like])[0], settings)

    def _lift(self, queue: str, entries: Sequence[Entry]) -> Sequence[Entry]:
        """What is sent, but not below the floor."""
        home, _ = self._queue(queue)
        floor_at, _ = self._floor(home)
        earliest = min((entry.visible_at for entry in entries), default=FOREVER)
        if earliest >= floor_at:
            return entries
        if earliest < floor_at - LATE:
            self._end_runs(home)
            return entries
        return [entry._replace(visible_at=max(entry.visible_at, floor_at)) for entry in entries]

    def claim(
        self,
        queue: str,
        limit: int,
        now: int,
        until: int | None,
        share: tuple[int, int] | None = None,
        *,
        holder: str | None = None,
    ) -> list[Message] | None:
        with self._joined(durable=False):
            if until is not None and until <= now:  # it may have been sent before what the floor is made of
                self._keep_runs(queue, visible_at=until)
            return super().claim(queue, limit, now, until, share, holder=holder)

    def extend(self, queue: str, receipts: Sequence[Held], until: int, *, release: bool = False) -> list[bool]:
        with self._joined():
            self._keep_runs(queue, receipts, until)
            self._rouse(queue, receipts)
            return super().extend(queue, receipts, until, release=release)

    def _rouse(self, queue: str, receipts: Sequence[Held]) -> None:
        """Before messages go their own way, hide the others of their claim until it lapses, and no longer for good."""
        home, _ = self._queue(queue)
        numbers = self._list(self._numbers(receipts))
        if self._rows("hidden_for_good", {"numbers": numbers, "queue": home, "forever": FOREVER}):
            for claim, lapses_at in self._rows("sleepers_of", {"queue": home, "numbers": numbers}):
                self._keep_runs(queue, visible_at=lapses_at)
                self._extend_all(home, claim, lapses_at, State.CONSUMED)
                self._run("wake", {"claim": claim})

    def delete(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None
    ) -> list[bool] | None:
        with self._joined():
            self._keep_runs(queue, receipts)
            return super().delete(queue, receipts, settlement, settings)

    def move(
        self, queue: str, receipts: Sequence[Held], target: str, now: int, expires_at: int, deaths: Sequence[Death | None]
    ) -> list[Moved]:
        with self._joined():
            self._keep_runs(queue, receipts)
            self._keep_runs(target, visible_at=now)
            return super().move(queue, receipts, target, now, expires_at, deaths)

    def set_aside(self, queue: str, receipts: Sequence[Held]) -> list[bool]:
        with self._joined():
            self._keep_runs(queue, receipts)
            return super().set_aside(queue, receipts)

    def _purgeable(self, home: int, limit: int) -> list[Row]:
        floor_at, floor_number = floor = self._floor(home)
        if floor == NO_FLOOR:
            return super()._purgeable(home, limit)
        return self._rows(
            "purgeable_above", {"queue": home, "floor_at": floor_at, "floor_number": floor_number, "limit": limit}
        )

    # whoever looks for what is visible, or at all

    def _awake(self, home: int, now: int) -> tuple[int, int]:
        """The floor, after what has lapsed was woken."""
        for at, number, lapsed in self._rows("floor", (now, home)):  # seen without a write lock
            if not lapsed:
                return at, number
        with self._joined():
            lapsed = dict(self._rows("sleepers", {"queue": home, "now": now}))
            runs = self._runs(home)
            over = [run for run in runs if run.claim in lapsed]
            if min(lapsed.values(), default=FOREVER) <= _floor_of(runs, over):
                self._end_runs(home)
                over = []
            for run in over:
                self._hide(home, run, run.lapses_at)
                self._run("end_run", {"claim": run.claim})
            for claim in lapsed.keys() - {run.claim for run in over}:
                self._extend_all(home, claim, lapsed[claim], State.CONSUMED)
            for claim in lapsed:
                self._run("wake", {"claim": claim})
            self._run("set_floor", {"queue": home})
            return self._floor(home)

    def _visible(self, home: int, limit: int, now: int, share: tuple[int, int] | None) -> list[Row]:
        floor_at, floor_number = floor = self._awake(home, now)
        if floor == NO_FLOOR:
            return super()._visible(home, limit, now, share)
        place, of = share or (0, 1)
        fields = {"queue": home, "floor_at": floor_at, "floor_number": floor_number, "now": now}
        return self._rows("visible_above", fields | {"place": place, "of": of, "limit": limit})

    def browse(
        self, queue: str, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        home, _ = self._queue(queue)
        if now is not None:
            self._awake(home, now)
        with self._reading():
            messages = super().browse(queue, limit, state=state, now=now, after=max(after, self._floor(home)))
            if now is None and state in (None, State.CONSUMED):
                held = [self._read_run(queue, home, run, 0, limit) for run in self._runs(home) if run.reader]
                if held:  # to whoever looks at all, they are hidden until their claim lapses
                    messages = sorted(chain(messages, *held), key=attrgetter("visible_at", "number"))[:limit]
            return messages

    def _in_order(self, home: int, now: int | None, limit: int, state: State | None, after: tuple[int, int]) -> list[Row]:
        rows = super()._in_order(home, now, limit, state, after)
        asleep = self._rows("asleep", {"queue": home, "limit": limit}) if now is None else []
        if asleep and state in (None, State.CONSUMED):  # as above
            found = {row[0]: row for row in (*rows, *asleep)}
            rows = sorted(found.values(), key=itemgetter(1, 0))[:limit]
        return rows

    def span(self, queue: str, *, settled: bool = False) -> tuple[int, int, int]:
        with self._reading():
            count, first, last = super().span(queue, settled=settled)
            gone = 0 if settled else sum(run.size for run in self._runs(self._queue(queue)[0]) if not run.reader)
            return count - gone, first, last

    def scan(self, queue: str, start: int, stop: int, limit: int, *, settled: bool = False) -> list[Message]:
        with self._reading():
            home, _ = self._queue(queue)
            runs = [] if settled else self._runs(home)
            if not runs:
                return super().scan(queue, start, stop, limit, settled=settled)
            messages = []
            for row in self._rows("scan_unsettled", {"queue": home, "start": start, "stop": stop, "limit": limit}):
                run = next((run for run in runs if run.has(row[1], row[0])), None)
                if run is None:
                    messages.append(self._message(queue, row))
                else:
                    messages.append(self._message(queue, row, run.run_at, run.lapses_at, holder=run.reader))
            return messages

    def count(self, queue: str, now: int) -> Counts:
        home, _ = self._queue(queue)
        self._awake(home, now)
        with self._reading():
            counts = super().count(queue, now)
            runs = self._runs(home)
            held, gone = (sum(run.size for run in runs if bool(run.reader) is live) for live in (True, False))
            if gone:
                first = self._rows("first_unsettled", {"queue": home})[0][0]
                counts = replace(counts, messages=counts.messages - gone, oldest_at=self._sent_at(first))
            floor_at, floor_number = self._floor(home)
            early = 0
            if now < floor_at:  # the clock was set back, or read before a claim
                fields = {"queue": home, "now": now, "floor_at": floor_at, "floor_number": floor_number}
                early = self._rows("count_early", fields)[0][0]
            visible = counts.visible - (held + gone - early)
            return replace(counts, visible=visible, in_flight=counts.in_flight + held, delayed=counts.delayed - early)

    def due(self, queue: str) -> int | None:
        with self._reading():
            home, _ = self._queue(queue)
            floor_at, floor_number = floor = self._floor(home)
            fields = {"queue": home, "floor_at": floor_at, "floor_number": floor_number, "forever": FOREVER}
            above: int | None = super().due(queue) if floor == NO_FLOOR else self._rows("due_above", fields)[0][0]
            wakes_at: int | None = self._rows("wakes_at", {"queue": home})[0][0]
            return min((at for at in (above, wakes_at) if at is not None), default=None)


def _floor_of(runs: Sequence[Run], but: Sequence[Run]) -> int:
    """Where the last of these runs ends, but for some."""
    return max((run.end_at for run in runs if run not in but), default=NO_FLOOR[0])
