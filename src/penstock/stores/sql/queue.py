"""The messages of a queue in an SQL database, written once over a `Database`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from penstock.errors import QueueNotFound, StoreError
from penstock.marks import FOLLOWS, outlasts
from penstock.message import BLOCKED, FOREVER, Counts, Entry, Held, Message, Moved, Sent, Settings, Settlement, State, weigh
from penstock.stores.encoding import add_body
from penstock.stores.ports import START, StoredQueue
from penstock.stores.requests import Alike, Claimed, Claiming, Marked, Moving, Swept
from penstock.stores.sql.database import Database, Found
from penstock.stores.sql.deleting import delete, find_one, keys_of
from penstock.stores.sql.extending import extend
from penstock.stores.sql.groups import all_groups_have_a_first, with_those_behind
from penstock.stores.sql.history import SqlHistory
from penstock.stores.sql.marks import SqlMarks
from penstock.stores.sql.moving import SqlMover
from penstock.stores.sql.readers import SqlReaders
from penstock.stores.sql.rows import (
    DELIVERY,
    Row,
    insert_row,
    insert_rows,
    numbers_of,
    pack_holder,
    to_message,
)
from penstock.stores.sql.runs import Runs
from penstock.stores.sql.shortcuts import NO_SHORTCUTS, Shortcuts

SWEEP_AT_ONCE = 500
NEAR = 10_000
"""How many numbers a scan looks at before it looks at all messages of its queue."""
"""Settled messages, and marks, that one commit clears away."""


class SqlQueue(StoredQueue):
    """Owns the rows of penstock_message of one queue."""

    def __init__(self, name: str, database: Database, runs: Runs, shortcuts: Shortcuts = NO_SHORTCUTS) -> None:
        self.readers = SqlReaders(name, database, runs)
        self.history = SqlHistory(database, name)
        self._name = name
        self._database = database
        self._runs = runs
        self._shortcuts = shortcuts

    # sending

    def insert(self, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        database = self._database
        if type(entries) is Alike:
            database.admit(sum(map(len, entries.bodies)))
            if not settings.groups:
                return database.retry(self._insert_alike, entries, settings)
        else:
            database.admit(sum([weigh(entry) if entry.attributes else len(entry.body) for entry in entries]))
            sent = self._shortcuts.insert(self._name, entries, settings)
            if sent is not None:
                return sent
        return database.retry(self._insert, entries, now, settings)

    def _insert(self, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        database = self._database
        with database.joined():
            alone = settings.groups or any(entry.mark is not None for entry in entries)
            found = database.enter(self._name, alone=alone)
            if found.settings != settings:
                return None
            entries = self._runs.lift(found, entries)
            first = database.take_numbers(found, len(entries))
            if alone:
                return self._insert_alone(found, entries, first, now)
            database.many("insert", insert_rows(first, found.number, entries))
            make = database.ids.make
            return [Sent(make(number)) for number in range(first, first + len(entries))]

    def _insert_alone(self, found: Found, entries: Sequence[Entry], number: int, now: int) -> list[Sent]:
        """Insert messages that may be duplicates, or blocked by others of their group."""
        database, marks = self._database, SqlMarks(self._database, found.number)
        rows: list[Row] = []
        answers: list[Sent] = []
        groups: set[bytes] = set()
        new: dict[bytes, tuple[int, int]] = {}
        first: int | None = None
        for entry in entries:
            visible_at, group, mark = entry.visible_at, None, entry.mark
            if mark is not None:
                first = new[mark][0] if mark in new else marks.first(mark, now)
            else:
                first = first + 1 if first is not None and entry.mark_until == FOLLOWS else None
            if first is not None:
                answers.append(Sent(database.ids.make(first), True))
                continue
            if mark is not None:
                new[mark] = number, entry.mark_until
                entry = entry._replace(mark=None) if outlasts(mark) else entry
            if entry.group is not None:
                group = entry.group.encode()
                if found.settings.groups:
                    if group in groups or database.rows("in_group", {"queue": found.number, "grp": group}):
                        visible_at = -visible_at
                    groups.add(group)
            rows.append(insert_row(number, found.number, visible_at, group, entry))
            answers.append(Sent(database.ids.make(number)))
            number += 1
        database.many("insert", rows)
        marks.add((mark, *given) for mark, given in new.items())
        return answers

    def _insert_alike(self, alike: Alike, settings: Settings) -> list[Sent] | None:
        database = self._database
        with database.joined():
            found = database.enter(self._name, alone=False)
            if found.settings != settings:
                return None
            (like,) = self._runs.lift(found, [alike.like])
            first = database.take_numbers(found, len(alike.bodies))
            row = insert_row(first, found.number, like.visible_at, None, like)
            if not self._shortcuts.insert_alike(row, alike.bodies):
                _, *common, begun, _ = row
                numbered = enumerate(alike.bodies, first)
                database.many("insert", ((number, *common, add_body(body, begun), body) for number, body in numbered))
            return []

    # receiving

    def claim(self, claiming: Claiming) -> Claimed | None:
        if claiming.deleting is not None:
            return self._exchange(claiming)
        database, now, until = self._database, claiming.at, claiming.until
        with database.joined(durable=False):
            if until is not None and claiming.known is not None and not claiming.known.groups:
                rows = self._shortcuts.claim(self._name, claiming)
                if rows:
                    return Claimed(self._as_claimed(rows, claiming))
            found = database.enter_to_claim(self._name, claiming.known)
            if claiming.known is not None and found.settings != claiming.known:
                return None
            if until is not None and until <= now:  # before what is in runs, perhaps
                self._runs.touch(found, until=until)
                found = database.find(self._name)
            together = claiming.together and found.settings.groups
            floor = self._runs.floor(found, claiming.at)
            rows = None if until is None or together else self._shortcuts.claim(found.number, claiming)
            if rows is None:
                rows = self._visible(found, claiming, floor)
                if together:
                    rows = with_those_behind(database, found, rows, claiming)
                self._hide(rows, claiming)
            messages = self._as_claimed(rows, claiming)
            if until is None:
                for message, row in zip(messages, rows, strict=True):
                    database.uncounted[message.number, message.delivery] = row[DELIVERY]
            return Claimed(messages)

    def _visible(self, found: Found, claiming: Claiming, floor: tuple[int, int]) -> list[Row]:
        now, (place, of) = claiming.at, claiming.share or (0, 1)
        if floor == START:
            return self._database.rows("visible", (found.number, now, of, place, claiming.limit))
        fields = _above(found.number, floor) | {"now": now, "place": place, "of": of, "limit": claiming.limit}
        return self._database.rows("visible_above", fields)

    def _hide(self, rows: list[Row], claiming: Claiming) -> None:
        until, now, holder = claiming.until, claiming.at, pack_holder(claiming.holder)
        if until is None or not rows:
            return
        if len(rows) == 1:
            self._database.run("claim", (until, now, holder, rows[0][0]))
        else:
            numbers = self._database.list_of([row[0] for row in rows])
            self._database.run("claim_all", {"until": until, "now": now, "holder": holder, "numbers": numbers})

    def _as_claimed(self, rows: list[Row], claiming: Claiming) -> list[Message]:
        ids, now, until, holder = self._database.ids, claiming.at, claiming.until, claiming.holder
        return [to_message(ids, self._name, row, now, until, holder=holder) for row in rows]

    def _exchange(self, claiming: Claiming) -> Claimed | None:
        """Delete and claim in one commit."""
        assert claiming.deleting is not None
        receipts, settlement = claiming.deleting
        claiming, settings = claiming._replace(deleting=None), claiming.known
        done = self._shortcuts.exchange(self._name, receipts, settlement, claiming)
        if done is None:
            return self._database.retry(self._delete_and_claim, receipts, settlement, claiming)
        gone, rows = done
        # Once messages are claimed, the rest uses the same settings, even if they change now.
        deleted = self._delete_rest(receipts, settlement, None if rows else settings, gone)
        if deleted is None:
            return None
        if rows:
            return Claimed(self._as_claimed(rows, claiming), deleted)
        with suppress(StoreError):  # the deletion is done; the next claim will report the error
            claimed = self.claim(claiming)
            return Claimed(claimed.messages if claimed else [], deleted)
        return Claimed([], deleted)

    def _delete_and_claim(self, receipts: Sequence[Held], settlement: Settlement, claiming: Claiming) -> Claimed | None:
        with self._database.batch():
            deleted = self._delete(receipts, settlement, claiming.known)
            if deleted is None:
                return None
            claimed = self.claim(claiming)
            return Claimed(claimed.messages if claimed else [], deleted)

    # settling

    def extend(self, receipts: Sequence[Held], until: int, *, release: bool = False, error: str | None = None) -> list[bool]:
        return self._database.retry(self._extend, receipts, until, State.QUEUED if release else State.CONSUMED, error)

    def _extend(self, receipts: Sequence[Held], until: int, state: State, error: str | None) -> list[bool]:
        with self._database.joined():
            return extend(self._database, self._runs, self._name, receipts, until, state, error)

    def delete(self, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None) -> list[bool] | None:
        gone = None
        if settings is not None:
            gone = self._shortcuts.delete(self._name, receipts, settlement, settings)
        return self._delete_rest(receipts, settlement, settings, gone)

    def _delete_rest(
        self, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None, gone: set[int] | None
    ) -> list[bool] | None:
        """Delete what a shortcut has left, which is mostly nothing."""
        if gone is None:
            return self._database.retry(self._delete, receipts, settlement, settings)
        if len(gone) == len(receipts):
            return [True] * len(receipts)
        numbers = numbers_of(self._database.ids, receipts)
        left = [receipt for number, receipt in zip(numbers, receipts, strict=True) if number not in gone]
        # Once part of the deletion is done, the rest uses the same settings, even if they change now.
        answers = self._database.retry(self._delete, left, settlement, None if gone else settings)
        if answers is None:
            return None
        others = iter(answers)
        return [number in gone or next(others) for number in numbers]

    def _delete(self, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None) -> list[bool] | None:
        database = self._database
        with database.joined():
            found = database.find(self._name)
            if settings is not None and found.settings != settings:
                return None
            self._runs.touch(found, receipts)
            keys = keys_of(database, found.number, receipts)
            gone = delete(database, found, keys, settlement)
            # A message that is named twice is settled once, by the receipt that is not stale.
            return [delivery in (None, gone.get(number)) and gone.pop(number, None) is not None for number, _, delivery in keys]

    def move(self, receipts: Sequence[Held], moving: Moving) -> list[Moved]:
        with self._database.joined():
            return SqlMover(self._database, self._runs, self._name, moving).move(receipts)

    def set_aside(self, receipts: Sequence[Held]) -> list[bool]:
        database = self._database
        with database.joined():
            found = database.find(self._name)
            self._runs.touch(found, receipts)
            rows = [find_one(database, found.number, receipt) for receipt in receipts]
            for row in rows:
                if row:
                    database.run("set_aside", {"number": row[0], "forever": FOREVER})
                    all_groups_have_a_first(database, found)  # the damage may be in its group
            return [row is not None for row in rows]

    # looking

    def browse(
        self, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        database = self._database
        if now is not None:
            self._runs.wake(self._name, now)
        with database.reading():
            found = database.find(self._name)
            above = max(after, found.floor)
            fields = {"queue": found.number, "state": None if state is None else int(state)}
            place = {"now": FOREVER if now is None else now, "after_at": above[0], "after_number": above[1]}
            rows = database.rows("browse", {**fields, **place, "limit": limit})
            if now is None and len(rows) < limit:
                blocked = after if after[0] >= BLOCKED else (BLOCKED, 0)
                place = {"after_at": blocked[0] - BLOCKED, "after_number": blocked[1]}
                rows += database.rows("browse_blocked", {**fields, **place, "limit": limit - len(rows)})
            messages = [to_message(database.ids, self._name, row) for row in rows]
            held = self._runs.held(found.number, limit, after) if now is None and state in (None, State.CONSUMED) else []
        if held:  # none of these is in a queue with groups, where messages can be blocked
            every = {message.number: message for message in (*messages, *held)}
            messages = sorted(every.values(), key=attrgetter("place"))[:limit]
        return messages

    def span(self) -> tuple[int, int, int]:
        with self._database.reading():
            queue = self._database.find(self._name).number
            count, first, last = self._database.rows("span", {"queue": queue})[0]
            gone = sum(run.size for run in self._runs.all(queue) if not run.reader)
            return count - gone, first or 0, last or 0

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        ids, messages = self._database.ids, []
        with self._database.reading():
            queue = self._database.find(self._name).number
            runs = self._runs.all(queue)
            for row in self._rows_by_number(queue, start, stop, limit, unsettled=bool(runs)):
                run = next((run for run in runs if run.has(row[1], row[0])), None)
                held = {} if run is None else {"now": run.run_at, "until": run.lapses_at, "holder": run.reader}
                messages.append(to_message(ids, self._name, row, **held))  # type: ignore[arg-type]
        return messages

    def _rows_by_number(self, queue: int, start: int, stop: int, limit: int, *, unsettled: bool) -> list[Row]:
        """Look at the next numbers, of whatever queue, since most in a row are those of one. If that is not enough: at all that
        the queue has, which takes a sort of them."""
        rows: list[Row] = []
        fields = {"queue": queue, "limit": limit}
        if not unsettled:
            near = min(stop, start + max(limit, NEAR))
            rows = self._database.rows("scan_few", {**fields, "start": start, "stop": near})
            start = near
        if start < stop and len(rows) < limit:
            left = {"start": start, "stop": stop, "limit": limit - len(rows)}
            rows += self._database.rows("scan_unsettled" if unsettled else "scan", fields | left)
        return rows

    def marked(self, mark: bytes | None = None) -> Marked:
        with self._database.reading():
            marks = SqlMarks(self._database, self._database.find(self._name).number)
            return Marked(marks.count()) if mark is None else marks.of(mark)

    def count(self, now: int) -> Counts:
        database = self._database
        self._runs.wake(self._name, now)
        with database.reading():
            found = database.find(self._name)
            counts: dict[str, Any] = {"visible": 0, "in_flight": 0, "delayed": 0, "blocked": 0, "damaged": 0}
            firsts = []
            for kind, count, first in database.rows("count", {"queue": found.number, "now": now}):
                counts[kind] += count
                firsts.append(first)
            counted = Counts(
                messages=sum(counts.values()),
                **counts,
                settled=database.rows("count_settled", {"queue": found.number})[0][0],
                oldest_at=sent_at(database, min(firsts)) if firsts else None,
            )
            return self._runs.recount(found, now, counted)

    def due(self) -> int | None:
        rows = self._database.rows("due_of", (FOREVER, self._name))
        if not rows:
            raise QueueNotFound(self._name)
        due: int | None = rows[0][1]
        return due

    # clearing

    def purge(self, limit: int) -> int:
        database = self._database
        with database.joined():
            found = database.find(self._name)
            if found.settings.groups:
                found = database.enter(self._name, alone=True)
                database.run("forget_marks", {"queue": found.number, "forever": FOREVER})
            gone, missed = 0, True
            name = "purgeable" if found.floor == START else "purgeable_above"
            while missed and gone < limit:  # where others write too, some may have been received just now
                rows = database.rows(name, _above(found.number, found.floor) | {"limit": limit - gone})
                keys = [(number, found.number, delivery) for number, delivery in rows]
                deleted = len(delete(database, found, keys, Settlement(State.PROCESSED, 0)))
                gone += deleted
                missed = deleted < len(keys)
            return gone

    def sweep(self, now: int) -> Swept:
        database = self._database
        found = database.find(self._name)
        fields = {"queue": found.number, "now": now}
        more = False
        if database.rows("sweepable", fields):  # checked without a write lock
            with database.joined():
                for what in ("sweep_settled", "sweep_marks"):
                    last = database.rows(f"{what}_until", {**fields, "most": SWEEP_AT_ONCE})
                    database.run(what, {**fields, "now": last[0][0]} if last else fields)
                    more = more or bool(last)
        more = self._runs.tidy(found) or more
        return Swept(database.maintain() or more)


def sent_at(database: Database, number: int | None) -> int | None:
    for (instant,) in database.rows("sent_at", {"number": number}):
        return instant if isinstance(instant, int) else None  # damage can turn any value into any other
    return None


def _above(queue: int, floor: tuple[int, int]) -> dict[str, int]:
    return {"queue": queue, "floor_at": floor[0], "floor_number": floor[1]}
