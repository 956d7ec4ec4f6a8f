"""The catalogue and the messages of an SQL store, using the statements of queue.sql."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from penstock.message import (
    FOREVER,
    Counts,
    Death,
    Entry,
    Held,
    Message,
    Moved,
    Sent,
    Settings,
    Settlement,
    State,
)
from penstock.policy import readmit, same_settings
from penstock.stores.encoding import Head, add_body, checksum, pack_head, pack_settings, pack_type
from penstock.stores.ports import START, Claiming
from penstock.stores.sql.runs import Run
from penstock.stores.sql.session import DELIVERY, LINE, MARK, Row, SqlSession

SWEEP_AT_ONCE = 500
"""Settled messages, and marks, that one commit clears away."""


class SqlMessages(SqlSession):
    # the catalogue

    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        with self._joined():
            found = self._rows("queue", {"name": name})
            if bool(found) == create:
                return False
            self._seen.pop(name, None)
            if create:
                return self._run("add_queue", {"name": name, "settings": pack_settings(settings)}) > 0
            self._run("change_queue", {"queue": found[0][0], "settings": pack_settings(settings)})
            return True

    def load(self, name: str) -> Settings | None:
        found = self._look_up(name)
        return found[1] if found else None

    def names(self) -> list[str]:
        return sorted(name for (name,) in self._rows("queues", {}))

    def drop(self, name: str) -> bool:
        with self._joined():
            found = self._rows("lock_queue", {"name": name})
            if not found:
                return False
            for part in ("held", "claims", "readers", "consumers", "marks", "settled", "messages", "queue"):
                self._run(f"drop_{part}", {"queue": found[0][0]})
            self._seen.pop(name, None)
            return True

    # messages

    def insert(self, queue: str, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        with self._joined():
            entries = self._runs.lift(queue, entries)
            alone = settings.groups or any(entry.mark is not None for entry in entries)
            home, current = self._enter(queue, alone=alone)
            if not same_settings(current, settings):
                return None
            number = self._take_numbers(len(entries))
            if not alone:
                numbered = [
                    insert_row(place, home, entry.visible_at, None if entry.group is None else entry.group.encode(), entry)
                    for place, entry in enumerate(entries, number)
                ]
                self._many("insert", numbered)
                make = self._ids.make
                return [Sent(make(place)) for place in range(number, number + len(entries))]
            rows: list[Row] = []
            answers: list[Sent] = []
            lines: set[bytes] = set()
            marks: dict[bytes, int] = {}
            for entry in entries:
                visible_at, line, mark = entry.visible_at, None, entry.mark
                if mark is not None:
                    first = marks.get(mark) or self._marked_by(home, mark, now)
                    if first is not None:
                        answers.append(Sent(self._ids.make(first), True))
                        continue
                    marks[mark] = number
                    self._set_mark(home, mark, number, entry.mark_until)
                if entry.group is not None:
                    line = entry.group.encode()
                    if settings.groups:
                        if line in lines or self._rows("in_group", {"queue": home, "grp": line}):
                            visible_at = -visible_at
                        lines.add(line)
                rows.append(insert_row(number, home, visible_at, line, entry))
                answers.append(Sent(self._ids.make(number)))
                number += 1
            self._many("insert", rows)
            return answers

    def insert_bodies(self, queue: str, bodies: Sequence[bytes], like: Entry, settings: Settings) -> bool:
        if settings.groups:
            return super().insert_bodies(queue, bodies, like, settings)
        with self._joined():
            home, current = self._enter(queue, alone=False)
            if not same_settings(current, settings):
                return False
            (like,) = self._runs.lift(queue, [like])
            self._add_bodies(home, self._take_numbers(len(bodies)), bodies, like)
            return True

    def _add_bodies(self, home: int, first: int, bodies: Sequence[bytes], like: Entry) -> None:
        _, *common, begun, _ = insert_row(first, home, like.visible_at, None, like)
        self._many("insert", ((number, *common, add_body(body, begun), body) for number, body in enumerate(bodies, first)))

    def _marked_by(self, home: int, mark: bytes, now: int) -> int | None:
        found = self._rows("mark", {"queue": home, "mark": mark})
        if not found or found[0][1] <= now:
            return None
        number, until = found[0]
        # A mark that lasts as long as its message must not outlive it, whatever happened to either.
        return None if until == FOREVER and not self._rows("sent_at", {"number": number}) else number

    def _bearer(self, home: int, mark: bytes | None) -> int | None:
        """The message in the queue that carries this mark for as long as it is there."""
        found = self._rows("mark", {"queue": home, "mark": mark})
        return found[0][0] if found and found[0][1] == FOREVER and self._rows("sent_at", {"number": found[0][0]}) else None

    def _set_mark(self, home: int, mark: bytes | None, number: int, until: int) -> None:
        self._run("unmark", {"queue": home, "mark": mark})
        self._run("add_mark", {"queue": home, "mark": mark, "number": number, "expires_at": until})

    def claim(self, queue: str, claiming: Claiming) -> list[Message] | None:
        now, until, holder = claiming.at, claiming.until, claiming.holder
        with self._joined(durable=False):
            home, current = self._queue(queue)
            if claiming.known is not None and not same_settings(current, claiming.known):
                return None
            if until is not None and until <= now:  # before what is in runs, perhaps
                self._runs.touch(queue, until=until)
            rows = self._visible(home, claiming.limit, now, claiming.share)
            if until is not None:
                packed = self._packed_holder(holder)
                self._many("claim", [(until, now, packed, row[0]) for row in rows])
            return self._claimed(queue, rows, now, until, holder)

    def _claimed(self, queue: str, rows: list[Row], now: int, until: int | None, holder: str | None) -> list[Message]:
        messages = [self._message(queue, row, now, until, holder=holder) for row in rows]
        if until is None:
            for message, row in zip(messages, rows, strict=True):
                self._uncounted[message.number, message.delivery] = row[DELIVERY]
        return messages

    def _key(self, home: int, receipt: Held) -> tuple[int, int, int | None]:
        """The key of a message: its number, its queue, and the delivery in its row."""
        number, delivery = self._number(receipt), receipt.delivery
        if delivery is not None and self._uncounted:
            delivery = self._uncounted.get((number, delivery), delivery)
        return number, home, delivery

    def _visible(self, home: int, limit: int, now: int, share: tuple[int, int] | None) -> list[Row]:
        floor = self._runs.floor(home, now)
        place, of = share or (0, 1)
        if floor != START:
            fields = _above(home, floor) | {"now": now, "place": place, "of": of, "limit": limit}
            return self._rows("visible_above", fields)
        if share is None:
            return self._rows("visible", (home, now, limit))
        return self._rows("visible_share", (home, now, of, place, limit))

    def extend(self, queue: str, receipts: Sequence[Held], until: int, *, release: bool = False) -> list[bool]:
        with self._joined():
            home, _ = self._queue(queue)
            self._runs.touch(queue, receipts, until)
            return [self._extend(home, self._number(receipt), receipt.delivery, until, release) for receipt in receipts]

    def _extend(self, home: int, number: int, delivery: int | None, until: int, release: bool) -> bool:
        state = State.QUEUED if release else State.CONSUMED
        return self._run("extend", (until, int(state), number, home, delivery)) > 0

    def delete(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None
    ) -> list[bool] | None:
        with self._joined():
            home, current = self._queue(queue)
            if settings is not None and not same_settings(current, settings):
                return None
            self._runs.touch(queue, receipts)
            keys: list[Row] = [self._key(home, receipt) for receipt in receipts]
            gone = self._delete(home, current, keys, settlement)
            # A message that is named twice is settled once, by the receipt that is not stale.
            return [delivery in (None, gone.get(number)) and gone.pop(number, None) is not None for number, _, delivery in keys]

    def amend(self, queue: str, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        with self._joined():
            home, _ = self._queue(queue)
            keys = [self._key(home, receipt) for receipt in receipts]
            fields = [{"number": number, "queue": home, "delivery": delivery} for number, _, delivery in keys]
            return [self._run("amend", {**each, "state": int(state), "reason": reason}) > 0 for each in fields]

    def _delete(self, home: int, settings: Settings, keys: list[Row], settlement: Settlement) -> dict[int, int]:
        """The deleted messages, each with the number of its last delivery."""
        if settlement.keep_until is not None:
            archived: set[int] = set()
            for number, _, delivery in keys:
                fields = {"number": number, "queue": home, "delivery": delivery, "state": int(settlement.state)}
                fields |= {"settled_at": settlement.settled_at, "keep_until": settlement.keep_until}
                if number not in archived and self._run("archive", {**fields, "reason": settlement.reason}):
                    archived.add(number)
        rows = self._many("delete", keys)
        for number, _, visible_at, state, line, mark in rows:
            self._leave(home, settings, number, visible_at, state, line, mark)
        return {row[0]: row[1] for row in rows}

    def _find(self, home: int, keys: list[Row]) -> list[Row]:
        """Find and lock messages by (number, queue, delivery). Returns number, delivery, visible_at, state, group, mark."""
        wanted: dict[int, set[int | None]] = {}
        for number, _, delivery in keys:
            wanted.setdefault(number, set()).add(delivery)
        # By number alone, so that no query planner scans the whole queue instead.
        rows = self._rows("found", {"numbers": self._list(sorted(wanted))}) if wanted else []
        return [row[:6] for row in rows if row[6] == home and not wanted[row[0]].isdisjoint({None, row[1]})]

    def _delete_all(self, home: int, settings: Settings, found: list[Row], settlement: Settlement) -> dict[int, int]:
        """`_delete` for messages that `_find` returned, with one statement for all."""
        if not found:
            return {}
        numbers = self._list([row[0] for row in found])
        if settlement.keep_until is not None:
            fields = {"state": int(settlement.state), "settled_at": settlement.settled_at, "reason": settlement.reason}
            self._run("archive_all", {**fields, "keep_until": settlement.keep_until, "numbers": numbers})
        self._run("delete_all", {"numbers": numbers})
        for number, _, visible_at, state, line, mark in found:
            if line is not None or mark is not None:
                self._leave(home, settings, number, visible_at, state, line, mark)
        return {row[0]: row[1] for row in found}

    def _leave(
        self,
        home: int,
        settings: Settings,
        number: int,
        visible_at: int,
        state: int,
        line: bytes | None,
        mark: bytes | None,
    ) -> None:
        """After a message has left its queue: forget its mark, and if it was first in its group, free the next."""
        if mark is not None:
            self._run("unmark_gone", {"queue": home, "mark": mark, "number": number, "forever": FOREVER})
        if line is not None and settings.groups and visible_at >= 0 and state != State.DAMAGED:
            for (following,) in self._rows("next_in_group", {"queue": home, "grp": line}):
                self._run("unblock", {"number": following})

    def move(
        self,
        queue: str,
        receipts: Sequence[Held],
        target: str,
        now: int,
        expires_at: int,
        deaths: Sequence[Death | None],
    ) -> list[Moved]:
        with self._joined():
            home, settings = self._queue(queue)
            self._runs.touch(queue, receipts)
            self._runs.touch(target, until=now)
            there, beyond = self._enter(target, alone=None in deaths and self._will_mark(home, receipts, target))
            moved = []
            for receipt, death in zip(receipts, deaths, strict=True):
                row = self._one(home, receipt)
                message = row and self._message(queue, row)
                if not row or not message or not message.intact:
                    moved.append(Moved.STALE)
                    continue
                number, line, mark = row[0], row[LINE], row[MARK]
                new = readmit(message, mark, death, settings, beyond, now)
                if new.mark_until and self._bearer(there, new.mark):
                    moved.append(Moved.DUPLICATE)
                    continue
                blocked = line is not None and beyond.groups and self._rows("in_group", {"queue": there, "grp": line})
                head = pack_head(Head(message.content_type, message.attributes, message.visibility, death))
                fields = {
                    "number": number,
                    "queue": there,
                    "visible_at": -now if blocked else now,
                    "expires_at": expires_at,
                    "now": now,
                    "deadline_at": new.deadline_at,
                    "mark": new.mark,
                    "head": head,
                    "checksum": checksum(message.body, head, line, new.mark, message.sent_at, new.deadline_at),
                }
                if receipt.delivery not in (None, row[DELIVERY]):  # its claim takes effect now
                    self._many("claim", [(now, now, None, number)])
                    del self._uncounted[number, receipt.delivery]
                self._run("move", fields)
                self._leave(home, settings, number, row[1], row[2], line, mark)
                if new.mark_until:
                    self._set_mark(there, new.mark, number, new.mark_until)
                moved.append(Moved.DONE)
            return moved

    def _will_mark(self, home: int, receipts: Sequence[Held], target: str) -> bool:
        """Whether redriven messages may get a mark that counts: only one batch at a time may look up and add marks."""
        found = self._look_up(target)
        if found is not None and found[1].deduplicate is True:
            return True
        return any((row := self._one(home, receipt)) is not None and row[MARK] is not None for receipt in receipts)

    def set_aside(self, queue: str, receipts: Sequence[Held]) -> list[bool]:
        with self._joined():
            home, settings = self._queue(queue)
            self._runs.touch(queue, receipts)
            rows = [self._one(home, receipt) for receipt in receipts]
            for row in rows:
                if row:
                    self._run("set_aside", {"number": row[0], "forever": FOREVER})
                    # The damage may be in its group: free any message that waits behind nobody.
                    for (following,) in self._rows("leaderless", {"queue": home}) if settings.groups else []:
                        self._run("unblock", {"number": following})
            return [row is not None for row in rows]

    def _one(self, home: int, receipt: Held) -> Row | None:
        number, _, delivery = self._key(home, receipt)
        found = self._rows("one", {"queue": home, "number": number})
        return found[0] if found and delivery in (None, found[0][DELIVERY]) else None

    def browse(
        self, queue: str, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        if now is not None:
            self._runs.wake(queue, now)
        with self._reading():
            home, _ = self._queue(queue)
            after = max(after, self._runs.floor(home))
            place = {"now": FOREVER if now is None else now, "after_at": after[0], "after_number": after[1]}
            rows = self._rows("browse", {"queue": home, "state": _code(state), **place, "limit": limit})
            if now is None and len(rows) < limit:
                rows += self._rows("browse_blocked", {"queue": home, "state": _code(state), "limit": limit - len(rows)})
            messages = [self._message(queue, row) for row in rows]
            held = self._runs.held(queue, home, limit) if now is None and state in (None, State.CONSUMED) else []
            if held:  # none of these is in a queue with groups, where messages can be blocked
                found = {message.number: message for message in (*messages, *held)}
                messages = sorted(found.values(), key=attrgetter("visible_at", "number"))[:limit]
            return messages

    def settled(self, queue: str, limit: int) -> list[Message]:
        with self._reading():
            rows = self._rows("settled", {"queue": self._queue(queue)[0], "limit": limit})
            return [self._message(queue, row[:-2], settled_at=row[-2], reason=row[-1]) for row in rows]

    def span(self, queue: str, *, settled: bool = False) -> tuple[int, int, int]:
        with self._reading():
            home, _ = self._queue(queue)
            count, first, last = self._rows("span_settled" if settled else "span", {"queue": home})[0]
            gone = 0 if settled else sum(run.size for run in self._runs.all(home) if not run.reader)
            return count - gone, first or 0, last or 0

    def scan(self, queue: str, start: int, stop: int, limit: int, *, settled: bool = False) -> list[Message]:
        with self._reading():
            home, _ = self._queue(queue)
            fields = {"queue": home, "start": start, "stop": stop, "limit": limit}
            if not settled:
                runs = self._runs.all(home)
                rows = self._rows("scan_unsettled" if runs else "scan", fields)
                found = ((row, next((run for run in runs if run.has(row[1], row[0])), None)) for row in rows)
                return [self._message(queue, row) if run is None else self._in_run(queue, row, run) for row, run in found]
            rows = self._rows("scan_settled", fields)
            return [self._message(queue, row[:-2], settled_at=row[-2], reason=row[-1]) for row in rows]

    def _read_run(self, queue: str, home: int, run: Run, start: int, stop: int) -> list[Message]:
        fields = {"queue": home, "start": start, "count": max(0, min(stop, run.size) - start)}
        return [self._in_run(queue, row, run) for row in self._rows("read_run", run._asdict() | fields)]

    def _in_run(self, queue: str, row: Row, run: Run) -> Message:
        return self._message(queue, row, run.run_at, run.lapses_at, holder=run.reader)

    def marked(self, queue: str, mark: bytes) -> bool:
        with self._reading():
            return self._bearer(self._queue(queue)[0], mark) is not None

    def count_marked(self, queue: str) -> int:
        with self._reading():
            return int(self._rows("count_marked", {"queue": self._queue(queue)[0], "forever": FOREVER})[0][0])

    def count(self, queue: str, now: int) -> Counts:
        self._runs.wake(queue, now)
        with self._reading():
            home, _ = self._queue(queue)
            fields = {"queue": home, "now": now}
            counts: dict[str, Any] = {"visible": 0, "in_flight": 0, "delayed": 0, "blocked": 0, "damaged": 0}
            firsts = []
            for kind, count, first in self._rows("count", fields):
                counts[kind] = count
                firsts.append(first)
            counted = Counts(
                messages=sum(counts.values()),
                **counts,
                settled=self._rows("count_settled", {"queue": home})[0][0],
                oldest_at=self._sent_at(min(firsts)) if firsts else None,
            )
            return self._runs.recount(home, now, counted)

    def _sent_at(self, number: int | None) -> int | None:
        for (sent_at,) in self._rows("sent_at", {"number": number}):
            return sent_at if isinstance(sent_at, int) else None  # damage can turn any value into any other
        return None

    def purge(self, queue: str, limit: int) -> int:
        with self._joined():
            home, settings = self._queue(queue)
            gone, missed = 0, True
            floor = self._runs.floor(home)
            name = "purgeable" if floor == START else "purgeable_above"
            while missed and gone < limit:  # where others write too, some may have been received just now
                found = self._rows(name, _above(home, floor) | {"limit": limit - gone})
                keys = [(number, home, delivery) for number, delivery in found]
                deleted = len(self._delete(home, settings, keys, Settlement(State.PROCESSED, 0)))
                gone += deleted
                missed = deleted < len(keys)
            return gone

    def sweep(self, queue: str, now: int) -> bool:
        fields = {"queue": self._queue(queue)[0], "now": now}
        more = False
        if self._rows("sweepable", fields):  # checked without a write lock
            with self._joined():
                for what in ("sweep_settled", "sweep_marks"):
                    found = self._rows(f"{what}_until", {**fields, "most": SWEEP_AT_ONCE})
                    self._run(what, {**fields, "now": found[0][0]} if found else fields)
                    more = more or bool(found)
        return more


def insert_row(number: int, home: int, visible_at: int, line: bytes | None, entry: Entry) -> Row:
    """The parameters of the insert statement for a message."""
    body, content_type, attributes, sent_at, _, expires_at, deadline_at, visibility, _, mark, _ = entry
    plain = not attributes and visibility is None
    head = pack_type(content_type) if plain else pack_head(Head(content_type, attributes, visibility))
    check = checksum(body, head, line, mark, sent_at, deadline_at)
    return number, home, visible_at, sent_at, expires_at, deadline_at, line, mark, head, check, body


def _above(home: int, floor: tuple[int, int]) -> dict[str, int]:
    return {"queue": home, "floor_at": floor[0], "floor_number": floor[1]}


def _code(state: State | None) -> int | None:
    return None if state is None else int(state)
