"""Moves messages from one queue to another."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import Held, Moved
from penstock.stores.encoding import Head, checksum, pack_head
from penstock.stores.requests import Moving
from penstock.stores.sql.database import Database, Found, known
from penstock.stores.sql.deleting import find, find_one, key_of, leave
from penstock.stores.sql.marks import SqlMarks
from penstock.stores.sql.rows import DELIVERY, GROUP, MARK, to_message
from penstock.stores.sql.runs import Runs


class SqlMover:
    """One call of `StoredQueue.move`, within a batch."""

    def __init__(self, database: Database, runs: Runs, name: str, moving: Moving) -> None:
        self._database = database
        self._runs = runs
        self._name = name
        self._moving = moving

    def move(self, receipts: Sequence[Held]) -> list[Moved]:
        here, there = self._lock(receipts)
        self._runs.touch(here, receipts)
        self._runs.touch(there, until=self._moving.now)
        return [self._move_one(here, there, receipt) for receipt in receipts]

    def _move_one(self, here: Found, there: Found, receipt: Held) -> Moved:
        database, marks = self._database, SqlMarks(self._database, there.number)
        row = find_one(database, here.number, receipt)
        message = row and to_message(database.ids, self._name, row)
        if not row or not message or not message.intact:
            return Moved.STALE
        now, number, group, mark = self._moving.now, row[0], row[GROUP], row[MARK]
        new = self._moving.readmit(message, mark, self._moving.death, here.settings, there.settings, now)
        if new.mark_until and marks.bearer(new.mark):
            return Moved.DUPLICATE
        grouped = group is not None and there.settings.groups
        blocked = grouped and database.rows("in_group", {"queue": there.number, "grp": group})
        head = pack_head(Head(message.content_type, message.attributes, message.visibility, new.death, message.retry))
        fields = {
            "number": number,
            "queue": there.number,
            "visible_at": -now if blocked else now,
            "expires_at": self._moving.expires_at,
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

    def _lock(self, receipts: Sequence[Held]) -> tuple[Found, Found]:
        """Lock messages before queues, and queues in the order of their names, so that no two batches wait for each other."""
        database, name, target = self._database, self._name, self._moving.target
        here = known(database.look_up(name), name)
        if not here.settings.groups:
            find(database, here.number, [key_of(database, here.number, receipt) for receipt in receipts])
        marks = self._moving.death is None and (here.settings.groups or self._will_mark(here.number, receipts))
        for each in sorted({name, target}):
            if marks and each == target:
                database.enter(each, alone=True)
            else:
                database.find(each)
        return database.find(name), database.enter(target, alone=marks)

    def _will_mark(self, queue: int, receipts: Sequence[Held]) -> bool:
        """Whether redriven messages may get a mark that counts: only one batch at a time may look up and add marks."""
        found = self._database.look_up(self._moving.target)
        if found is not None and found.settings.deduplicate is True:
            return True
        rows = (find_one(self._database, queue, receipt) for receipt in receipts)
        return any(row is not None and row[MARK] is not None for row in rows)
