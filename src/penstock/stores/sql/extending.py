"""Hides held messages for longer, or gives them back, with a note in the row that the handler has failed."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import Held, State
from penstock.stores.encoding import checksum, head_of, pack_head
from penstock.stores.sql.database import Database, Found
from penstock.stores.sql.deleting import find_one
from penstock.stores.sql.rows import GROUP, MARK, STATE, numbers_of, to_message
from penstock.stores.sql.runs import Runs


def extend(
    database: Database, runs: Runs, name: str, receipts: Sequence[Held], until: int, state: State, error: str | None
) -> list[bool]:
    """In a batch."""
    found = database.find(name)
    runs.touch(found, receipts, until)
    return [
        (error is None or _note_failure(database, found, name, receipt, error))
        and database.run("extend", (until, int(state), number, found.number, receipt.delivery)) > 0
        for number, receipt in zip(numbers_of(database.ids, receipts), receipts, strict=True)
    ]


def _note_failure(database: Database, found: Found, name: str, receipt: Held, error: str) -> bool:
    """Returns False, and changes nothing, if nobody holds the message by this receipt."""
    row = find_one(database, found.number, receipt)
    if row is None or row[STATE] != State.CONSUMED:
        return False
    message = to_message(database.ids, name, row)
    if message.intact:
        head = pack_head(head_of(message)._replace(failures=message.failures + 1, error=error))
        check = checksum(message.body, head, row[GROUP], row[MARK], message.sent_at, message.deadline_at)
        database.run("note_failure", {"number": row[0], "head": head, "checksum": check})
    return True
