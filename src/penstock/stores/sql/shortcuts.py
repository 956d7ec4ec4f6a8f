"""Verbs that a database can do with one statement, before `SqlQueue` does them the usual way."""

# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Sequence

from penstock.message import Entry, Held, Sent, Settings, Settlement
from penstock.stores.requests import Claiming
from penstock.stores.sql.rows import Row


class Shortcuts:
    """This class is for a database that has none. Each answer means: nothing was done."""

    __slots__ = ()

    def insert(self, queue: str, entries: Sequence[Entry], settings: Settings) -> list[Sent] | None:
        """Outside of a batch: insert messages whose marks and groups do not matter, if the queue has these settings."""
        return None

    def insert_alike(self, row: Row, bodies: Sequence[bytes]) -> bool:
        """In a batch: insert messages that differ from this row in their bodies, with numbers that count up from its own."""
        return False

    def claim(self, queue: int | str, claiming: Claiming) -> list[Row] | None:
        """In a batch: hide messages. Returns the rows as they were before. A queue given by its name must have the settings
        ``claiming.known``."""
        return None

    def delete(self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings) -> set[int] | None:
        """Outside of a batch: delete plain messages, if the queue has these settings. Returns their numbers."""
        return None

    def exchange(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, claiming: Claiming
    ) -> tuple[set[int], list[Row]] | None:
        """`delete` and `claim` in one commit."""
        return None


NO_SHORTCUTS = Shortcuts()
