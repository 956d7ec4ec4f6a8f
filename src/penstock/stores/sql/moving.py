"""Moves messages from one queue to another."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import Death, Held, Message, Moved
from penstock.policy import readmit
from penstock.stores.encoding import Head, checksum, pack_head
from penstock.stores.sql.database import Database, Found, known
from penstock.stores.sql.deleting import find, find_one, key_of, leave
from penstock.stores.sql.marks import SqlMarks
from penstock.stores.sql.rows import DELIVERY, GROUP, MARK, Row, to_message
from penstock.stores.sql.runs import Runs


class Moving:
    """One call of `StoredQueue.move`, within a batch."""

    def __init__(self, database: Database, runs: Runs, name: str, target: str, now: int) -> None:
        self._database = database
        self._runs = runs
        self._name = name
        self._target = target
        self._now = now

    def move(self, receipts: Sequence[Held], deaths: Sequence[Death | None], expires_at: int) -> list[Moved]:
        here, there = self._lock(receipts, deaths)
        self._runs.touch(here, receipts)
        self._runs.touch(there, until=self._now)
        moved = []
        for receipt, death in zip(receipts, deaths, strict=True):
            row = find_one(self._database, here.number, receipt)
            message = row and to_message(self._database.ids, self._name, row)
            if not row or not message or not message.intact:
                moved.append(Moved.STALE)
            else:
                moved.append(self._move_one(here, there, receipt, row, message, death, expires_at))
        return moved

    def _move_one(
        self, here: Found, there: Found, receipt: Held, row: Row, message: Message, death: Death | None, expires_at: int
    ) -> Moved:
        database, now, marks = self._database, self._now, SqlMarks(self._database, there.number)
        number, group, mark = row[0], row[GROUP], row[MARK]
        new = readmit(message, mark, death, here.settings, there.settings, now)
        if new.mark_until and marks.bearer(new.mark):
            return Moved.DUPLICATE
        grouped = group is not None and there.settings.groups
        blocked = grouped and database.rows("in_group", {"queue": there.number, "grp": group})
        head = pack_head(Head(message.content_type, message.attributes, message.visibility, death))
        fields = {
            "number": number,
            "queue": there.number,
            "visible_at": -now if blocked else now,
            "expires_at": expires_at,
            "now": now,
            "deadline_at": new.deadline_at,
            "mark": new.mark,
            "head": head,
            "checksum": checksum(message.body, head, group, new.mark, message.sent_at, new.deadline_at),
        }
        if receipt.delivery not in (None, row[DELIVERY]):  # its claim takes effect now
            database.run("claim", (now, now, None, number))
            del database.uncounted[number, receipt.delivery]
        database.run("move", fields)
        leave(database, here, number, row[1], row[2], group, mark)
        if new.mark_until:
            marks.set(new.mark, number, new.mark_until)
        return Moved.DONE

    def _lock(self, receipts: Sequence[Held], deaths: Sequence[Death | None]) -> tuple[Found, Found]:
        """Lock messages before queues, and queues in the order of their names, so that no two batches wait for each other."""
        database, name, target = self._database, self._name, self._target
        here = known(database.look_up(name), name)
        if not here.settings.groups:
            find(database, here.number, [key_of(database, here.number, receipt) for receipt in receipts])
        marks = None in deaths and (here.settings.groups or self._will_mark(here.number, receipts))
        for each in sorted({name, target}):
            if marks and each == target:
                database.enter(each, alone=True)
            else:
                database.find(each)
        return database.find(name), database.enter(target, alone=marks)

    def _will_mark(self, queue: int, receipts: Sequence[Held]) -> bool:
        """Whether redriven messages may get a mark that counts: only one batch at a time may look up and add marks."""
        found = self._database.look_up(self._target)
        if found is not None and found.settings.deduplicate is True:
            return True
        rows = (find_one(self._database, queue, receipt) for receipt in receipts)
        return any(row is not None and row[MARK] is not None for row in rows)
