"""How messages leave a queue: found and locked, kept in the history if there is one, deleted; their marks and groups follow."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import FOREVER, Held, Settlement, State
from penstock.stores.sql.database import Database, Found
from penstock.stores.sql.groups import free_next
from penstock.stores.sql.rows import DELIVERY, Row, number_of, numbers_of


def keys_of(database: Database, queue: int, receipts: Sequence[Held]) -> list[Row]:
    """The key of each message: its number, its queue, and the delivery in its row."""
    uncounted = database.uncounted
    return [
        (number, queue, uncounted.get((number, receipt.delivery), receipt.delivery) if uncounted else receipt.delivery)  # type: ignore[arg-type]
        for number, receipt in zip(numbers_of(database.ids, receipts), receipts, strict=True)
    ]


def key_of(database: Database, queue: int, receipt: Held) -> Row:
    number, delivery = number_of(database.ids, receipt), receipt.delivery
    return number, queue, delivery if delivery is None else database.uncounted.get((number, delivery), delivery)


def find(database: Database, queue: int, keys: Sequence[Row]) -> list[Row]:
    """Find and lock messages by their keys. Returns number, delivery, visible_at, state, group, mark."""
    wanted: dict[int, set[int | None]] = {}
    for number, _, delivery in keys:
        wanted.setdefault(number, set()).add(delivery)
    # By number alone, so that no query planner scans the whole queue instead.
    rows = database.rows("found", {"numbers": database.list_of(sorted(wanted))}) if wanted else []
    return [row[:6] for row in rows if row[6] == queue and not wanted[row[0]].isdisjoint({None, row[1]})]


def find_one(database: Database, queue: int, receipt: Held) -> Row | None:
    """The whole row of a message, locked; None if the receipt is stale."""
    number, _, delivery = key_of(database, queue, receipt)
    found = database.rows("one", {"queue": queue, "number": number})
    return found[0] if found and delivery in (None, found[0][DELIVERY]) else None


def delete(database: Database, found: Found, keys: Sequence[Row], settlement: Settlement) -> dict[int, int]:
    """Delete messages by their keys. Returns the delivery of each that was there, by its number."""
    if settlement.keep_until is not None:
        return delete_found(database, found, find(database, found.number, keys), settlement)
    rows = database.remove(found.number, keys)
    return _gone(database, found, rows)


def delete_found(database: Database, found: Found, rows: list[Row], settlement: Settlement) -> dict[int, int]:
    """`delete` for what `find` returned."""
    if not rows:
        return {}
    numbers = database.list_of([row[0] for row in rows])
    if settlement.keep_until is not None:
        fields = {"state": int(settlement.state), "settled_at": settlement.settled_at, "reason": settlement.reason}
        database.run("archive_all", {**fields, "keep_until": settlement.keep_until, "numbers": numbers})
    database.run("delete_all", {"numbers": numbers})
    return _gone(database, found, rows)


def _gone(database: Database, found: Found, rows: list[Row]) -> dict[int, int]:
    marked = [(found.number, row[5], row[0], FOREVER) for row in rows if row[5] is not None]
    if marked:
        database.many("unmark_gone", marked)  # together: a round trip for each would take longer than all the rest
    for number, _, visible_at, state, group, _ in rows:
        if group is not None:
            leave(database, found, number, visible_at, state, group, None)
    return {row[0]: row[1] for row in rows}


def leave(
    database: Database, found: Found, number: int, visible_at: int, state: int, group: bytes | None, mark: bytes | None
) -> None:
    """After a message has left its queue: forget its mark, and if it was first in its group, free the next."""
    if mark is not None:
        database.run("unmark_gone", {"queue": found.number, "mark": mark, "number": number, "forever": FOREVER})
    if group is not None and found.settings.groups and visible_at >= 0 and state != State.DAMAGED:
        free_next(database, found.number, group)
