"""The interface between a queue's verbs and its named claims whose messages do not show in their rows how they are held: runs,
which hold messages without writing to their rows, and claims that are asleep (`penstock.stores.sql.claims`).

Only SQLite makes runs (`penstock.stores.sqlite.runs`); on servers, claims only sleep (`penstock.stores.dbserver.sleepers`).
"""

# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.message import Certainty, Counts, Entry, Held, Message, Settlement
from penstock.stores.ports import START
from penstock.stores.requests import HeldAtOnce
from penstock.stores.sql.database import Found


class Run(NamedTuple):
    claim: int
    reader: str
    """Empty once the claim is settled."""
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


class Runs:
    """The runs of one queue."""

    __slots__ = ()

    def hold_visible(
        self, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, certainty: Certainty
    ) -> HeldAtOnce:
        """See `ClaimingReaders.hold_visible`."""
        return HeldAtOnce(0, True)

    def settle(self, queue: int, claim: int, settlement: Settlement) -> int | None:
        """Settle a claim without looking at each message. Returns how many; None if it must be done one by one."""

    def give_back(self, queue: int, reader: str, epoch: int | None, now: int) -> int:
        """Undo the reader's claims that are runs, as far as that can be done at once. Returns how many messages."""
        return 0

    def touch(self, found: Found, receipts: Sequence[Held] = (), until: int | None = None) -> None:
        """In a batch: call this before these messages change, or before they or others become visible at ``until``."""

    def lift(self, found: Found, entries: Sequence[Entry]) -> Sequence[Entry]:
        """In a batch, before these are sent: returns them with instants that the runs allow."""
        return entries

    def floor(self, found: Found, now: int) -> tuple[int, int]:
        """Before a search for messages visible by ``now``: make those of lapsed claims visible. Returns the position, in the
        order of (visible_at, number), up to which all messages are in runs."""
        return START

    def wake(self, name: str, now: int) -> None:
        """The same, outside of a batch and before a read."""

    def all(self, queue: int) -> list[Run]:
        return []

    def held(self, queue: int, limit: int, after: tuple[int, int]) -> list[Message]:
        """The first messages of claims whose rows do not say until when they are hidden, ready to be shown."""
        return []

    def recount(self, found: Found, now: int, counts: Counts) -> Counts:
        """Correct the counts taken from the rows."""
        return counts

    def tidy(self, found: Found) -> bool:
        """Remove some messages that readers have settled but that are still stored. Returns whether there are more."""
        return False
