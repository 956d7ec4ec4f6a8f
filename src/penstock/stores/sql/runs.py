"""The interface between a queue's verbs and its runs: named claims that hold messages without writing to their rows.

Only SQLite makes runs (`penstock.stores.sqlite.runs`). This class is for the other databases, which have none.
"""

# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.message import Counts, Entry, Held, Message, Settings, Settlement
from penstock.stores.ports import START


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
    __slots__ = ()

    def hold_visible(
        self, queue: str, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, settings: Settings
    ) -> int:
        """See `ClaimingReaders.hold_visible`."""
        return 0

    def settle(self, home: int, claim: int, settlement: Settlement) -> int | None:
        """Settle a claim without looking at each message. Returns how many; None if it must be done one by one."""

    def give_back(self, home: int, reader: str, epoch: int | None, now: int) -> int:
        """Undo the reader's claims that are runs, as far as that can be done at once. Returns how many messages."""
        return 0

    def touch(self, queue: str, receipts: Sequence[Held] = (), until: int | None = None) -> None:
        """In a batch: call this before these messages change, or before they or others become visible at ``until``."""

    def lift(self, queue: str, entries: Sequence[Entry]) -> Sequence[Entry]:
        """In a batch, before these are sent: returns them with instants that the runs allow."""
        return entries

    def wake(self, queue: str, now: int) -> None:
        """Before a search: make the messages of claims that have lapsed by then visible."""

    def floor(self, home: int, now: int | None = None) -> tuple[int, int]:
        """The position, in the order of (visible_at, number), up to which all is in runs; with ``now``, after `wake`."""
        return START

    def all(self, home: int) -> list[Run]:
        return []

    def held(self, queue: str, home: int, limit: int) -> list[Message]:
        """The first messages of claims whose rows do not say until when they are hidden, ready to be shown."""
        return []

    def recount(self, home: int, now: int, counts: Counts) -> Counts:
        """Correct the counts taken from the rows."""
        return counts


NO_RUNS = Runs()
