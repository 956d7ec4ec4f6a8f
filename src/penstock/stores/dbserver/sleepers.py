"""Named claims on a database server: lists of messages that are claimed, confirmed and settled by a few statements.

A tentative claim is asleep (`penstock.stores.sql.claims`). A receiver learns with the queue's row, or from the statement that
claims at once, whether a claim has lapsed and is to be woken first. A process locks the queue's row before it makes, confirms,
settles or wakes a claim, so a claim is either confirmed in time, or woken.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import FOREVER, Certainty, Held, Message
from penstock.stores.ports import START
from penstock.stores.requests import HeldAtOnce
from penstock.stores.sql.claims import AT_ONCE, ClaimRows
from penstock.stores.sql.database import Database, Found
from penstock.stores.sql.rows import numbers_of, to_message
from penstock.stores.sql.runs import Runs


class Sleepers(Runs):
    """Owns the claims of one queue that are asleep. There are no runs: claims are made side by side."""

    __slots__ = ("_claims", "_database", "_name")

    def __init__(self, name: str, database: Database) -> None:
        self._name = name
        self._database = database
        self._claims = ClaimRows(database)

    def hold_visible(
        self, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, certainty: Certainty
    ) -> HeldAtOnce:
        database, claims = self._database, self._claims
        with database.joined():
            found = database.find(self._name)
            queue = found.number
            if found.settings.groups or lapses_at <= now:
                return HeldAtOnce(0, True)
            self.floor(found, now)
            begun = claims.of(queue, reader).get(epoch)
            claim, _, size, _, _, asleep, _ = begun or (claims.add(queue, reader, epoch, 0, lapses_at), *[0] * 6)
            if not asleep:
                claims.fall_asleep(claim)
                claims.extend(queue, claim, FOREVER)  # what was added message by message
            fields = certainty._asdict() | {"queue": queue, "claim": claim, "now": now, "visible_by": visible_by}
            added, more = self._hold_first(fields, reader, size, limit)
            if added:
                claims.grow(claim, size + added)
            elif begun is None:
                claims.forget(claim)
            return HeldAtOnce(added, more)

    def _hold_first(self, fields: dict[str, int], reader: str, size: int, limit: int) -> tuple[int, bool]:
        """Claim the first messages, up to the first that the rules must judge. Returns how many, and whether there is one."""
        added, fields = 0, fields | {"forever": FOREVER}
        while added < limit:
            part = fields | {"limit": min(limit - added, AT_ONCE), "start": size + added}
            doubtful = self._database.rows("first_doubtful", part)
            end_at, end_number = doubtful[0] if doubtful else (FOREVER, FOREVER)
            held = self._database.run("hold_first", part | {"end_at": end_at, "end_number": end_number})
            if held:
                self._claims.hide(fields["claim"], reader, fields["now"], start=size + added)
            added += held
            if doubtful or held < part["limit"]:
                return added, bool(doubtful)
        return added, False

    def touch(self, found: Found, receipts: Sequence[Held] = (), until: int | None = None) -> None:
        if until is None or not receipts or found.wakes_at is None:
            return
        numbers = self._database.list_of(numbers_of(self._database.ids, receipts))
        if self._database.rows("hidden_for_good", {"numbers": numbers, "queue": found.number, "forever": FOREVER}):
            self._wake(found.number, FOREVER)  # what leaves its claim must not be hidden for good, nor hold the others there

    def floor(self, found: Found, now: int) -> tuple[int, int]:
        perhaps = found.wakes_at is not None and found.wakes_at <= now and not found.settings.groups
        if perhaps and self._claims.sleepers(found.number, now):  # checked without a lock
            self._wake(found.number, now)
        return START

    def wake(self, name: str, now: int) -> None:
        found = self._database.look_up(name)
        if found is not None:
            self.floor(found, now)

    def _wake(self, queue: int, now: int) -> None:
        with self._database.joined():
            self._database.reserve(self._name)
            for claim, lapses_at in self._claims.sleepers(queue, now).items():
                self._claims.wake(queue, claim, lapses_at)

    def held(self, queue: int, limit: int, after: tuple[int, int]) -> list[Message]:
        fields = {"queue": queue, "limit": limit, "after_at": after[0], "after_number": after[1]}
        return [to_message(self._database.ids, self._name, row) for row in self._database.rows("asleep", fields)]
