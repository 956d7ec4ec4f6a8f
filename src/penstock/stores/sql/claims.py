"""The rows of named claims in an SQL database: one for each claim, and the list of its messages.

What happens to all messages of a claim is done by a few statements, whatever their number, and no message passes through the
caller.

A tentative claim may be *asleep*: its messages are hidden for good, so that confirming it writes only its own row. If it
lapses, a search for visible messages first wakes it: its messages are then as if they had been hidden until it lapsed.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.message import FOREVER, Settlement, State
from penstock.stores.sql.database import Database, Found
from penstock.stores.sql.deleting import delete_found, find
from penstock.stores.sql.rows import Row, pack_holder

AT_ONCE = 100_000
"""How many messages one statement changes, so that none exceeds the server's limit of time for a statement."""


class ClaimRows:
    """Owns the rows of named claims, each identified by its number."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, queue: int, reader: str) -> dict[int, Row]:
        """A reader's claims by epoch: number, epoch, size, confirmed, lapses_at, asleep, run_at."""
        return {row[1]: row for row in self._database.rows("claims", {"queue": queue, "reader": reader})}

    def add(self, queue: int, reader: str, epoch: int, size: int, lapses_at: int) -> int:
        self.add_reader(queue, reader)
        fields = {"queue": queue, "reader": reader, "epoch": epoch, "lapses_at": lapses_at, "size": size}
        self._database.run("add_claim", fields)
        return int(self.of(queue, reader)[epoch][0])

    def add_reader(self, queue: int, reader: str) -> None:
        if not self._database.rows("reader", {"queue": queue, "reader": reader}):
            self._database.run("add_reader", {"queue": queue, "reader": reader})

    def grow(self, claim: int, size: int) -> None:
        self._database.run("grow_claim", {"claim": claim, "size": size})

    def forget(self, claim: int) -> None:
        self._database.run("release_held", {"claim": claim})
        self._database.run("release_claim", {"claim": claim})

    def hide(self, claim: int, reader: str, now: int, until: int = FOREVER, start: int = 0) -> None:
        """Claim the messages that are in the list from this place on, and are known to be there and unlocked."""
        fields = {"claim": claim, "start": start, "stop": FOREVER, "now": now, "until": until, "holder": pack_holder(reader)}
        self._database.run("hide_held", fields)

    def extend(self, queue: int, claim: int, until: int, state: State = State.CONSUMED, start: int = 0) -> int:
        """Hide the messages of a claim until then. Returns how many are still as they were claimed."""
        fields = {"queue": queue, "until": until, "state": int(state)}
        return sum(self._database.run("extend_held", {**fields, **part}) for part in self._parts(claim, start))

    def settle(self, found: Found, row: Row, settlement: Settlement) -> int:
        """Delete the messages of a claim. Those that were found damaged when they were read have been set aside, and stay."""
        claim, _, _, _, lapses_at, asleep, _ = row
        if asleep and settlement.keep_until is not None:  # the history records until when they were hidden
            self.extend(found.number, claim, lapses_at)
        if found.settings.groups:
            gone = self._settle_each(found, claim, settlement)
        else:
            gone = sum(self._settle_part({"queue": found.number, **part}, settlement) for part in self._parts(claim))
        self.forget(claim)
        return gone

    def _settle_part(self, fields: dict[str, int], settlement: Settlement) -> int:
        ((marked,),) = self._database.rows("lock_held", fields)
        if settlement.keep_until is not None:
            how = {"state": int(settlement.state), "settled_at": settlement.settled_at, "reason": settlement.reason}
            self._database.run("archive_held", {**fields, **how, "keep_until": settlement.keep_until})
        if marked:
            self._database.run("unmark_held", {**fields, "forever": FOREVER})
        return self._database.run("delete_held", fields)

    def _settle_each(self, found: Found, claim: int, settlement: Settlement) -> int:
        """The same in a queue with groups, where each message frees the next."""
        keys = [(number, found.number, delivery) for number, delivery in self._database.rows("held", {"claim": claim})]
        rows = [row for row in find(self._database, found.number, keys) if row[3] != State.DAMAGED]
        return len(delete_found(self._database, found, rows, settlement))

    # claims that are asleep

    def sleepers(self, queue: int, now: int = FOREVER) -> dict[int, int]:
        """The claims that are asleep and have lapsed by then, and when."""
        return dict(self._database.rows("sleepers", {"queue": queue, "now": now}))

    def fall_asleep(self, claim: int) -> None:
        self._database.run("fall_asleep", {"claim": claim})

    def wake(self, queue: int, claim: int, lapses_at: int) -> None:
        """From now on its messages are hidden until the claim lapses, and no longer for good."""
        self.extend(queue, claim, lapses_at)
        self._database.run("wake", {"claim": claim})

    def _parts(self, claim: int, start: int = 0) -> Iterator[dict[str, int]]:
        """The places of a claim's list from there on, as many at a time as a statement takes."""
        while self._database.rows("more_held", {"claim": claim, "start": start}):
            yield {"claim": claim, "start": start, "stop": start + AT_ONCE}
            start += AT_ONCE
