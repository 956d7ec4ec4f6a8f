"""The turns of a group's messages in SQL: what comes together with the first, and what is freed when it has left."""

from __future__ import annotations

from itertools import takewhile

from penstock.stores.requests import Claiming
from penstock.stores.sql.database import Database, Found
from penstock.stores.sql.rows import GROUP, VISIBLE_AT, Row


def with_those_behind(database: Database, found: Found, firsts: list[Row], claiming: Claiming) -> list[Row]:
    """Insert after the first message of each group those behind it, up to one that is hidden."""
    rows: list[Row] = []
    groups: set[bytes] = set()  # damage may make two messages the first of one
    for first in firsts:
        rows.append(first)
        group, left = first[GROUP], claiming.limit - len(rows)
        if group is not None and group not in groups and left > 0:
            groups.add(group)
            behind = database.rows("behind", {"queue": found.number, "grp": group, "limit": left})
            rows += takewhile(lambda row: -row[VISIBLE_AT] <= claiming.at, behind)
        if len(rows) == claiming.limit:
            break
    return rows


def free_next(database: Database, queue: int, group: bytes) -> None:
    """Give the turn to the next by number. But one that was moved here does not overtake those that are in hand."""
    place = {"queue": queue, "grp": group}
    for number, entered in database.rows("next_in_group", place):
        received = database.rows("received_in_group", place) if entered else []
        database.run("unblock", {"number": received[0][0] if received else number})


def all_groups_have_a_first(database: Database, found: Found) -> None:
    """After a message whose group may be damaged has left: free each message that waits behind nobody."""
    if found.settings.groups:
        for (group,) in database.rows("leaderless", {"queue": found.number}):
            free_next(database, found.number, group)
