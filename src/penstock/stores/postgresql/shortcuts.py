"""Plain messages with one statement, which also writes the token by which a lost answer is resolved.

Each statement changes nothing if the queue no longer has the settings that the caller knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from penstock.message import OCTETS, Entry, Held, Sent, Settings, Settlement
from penstock.stores.dbserver.database import ServerDatabase
from penstock.stores.dbserver.driver import RowsAndCount, Session
from penstock.stores.encoding import pack_settings
from penstock.stores.postgresql.copying import copy_alike
from penstock.stores.postgresql.driver import PostgresqlDriver
from penstock.stores.requests import Claiming
from penstock.stores.sql.rows import INSERTED, Row, insert_row, numbers_of, pack_holder
from penstock.stores.sql.shortcuts import Shortcuts

COPY_BYTES = 32 * 1024 * 1024
"""A COPY ends after this many bytes; the next one gets the full statement timeout again."""
MOST_BYTES = 1024 * 1024
"""Of several messages in one statement, which has all of them three times in memory. A COPY has a part of them."""
NOTHING: RowsAndCount = ([], 0)
ALL_GONE: RowsAndCount = ([(None,)], 1)
"""What delete_with_token answers if it has deleted every message."""


class PostgresqlShortcuts(Shortcuts):
    """One for all queues of a store."""

    __slots__ = ("_database", "_driver")

    def __init__(self, database: ServerDatabase, driver: PostgresqlDriver) -> None:
        self._database = database
        self._driver = driver

    def insert(self, queue: str, entries: Sequence[Entry], settings: Settings) -> list[Sent] | None:
        if self._database.in_batch() or not _is_plain(entries, settings):
            return None
        return self._database.retry(self._insert, queue, entries, settings)

    def _insert(self, queue: str, entries: Sequence[Entry], settings: Settings) -> list[Sent] | None:
        first = self._database.take_numbers(None, len(entries))
        rows = [insert_row(first + place, 0, entry.visible_at, None, entry) for place, entry in enumerate(entries)]
        if len(entries) == 1:
            name, fields = "insert_with_token", dict(zip(INSERTED, rows[0], strict=True))
        else:
            name, fields = "insert_many_with_token", {"first": first - 1, "visible_at": entries[0].visible_at}
            fields |= {"sent_at": entries[0].sent_at, "expires_at": entries[0].expires_at}
            fields |= {"checksums": [row[9] for row in rows], "bodies": [row[10] for row in rows]}
        fields |= {"name": queue, "settings": pack_settings(settings)}
        asked = self._database.transactions.with_token(
            lambda session: self._ask(session, name, fields), ([], len(rows)), NOTHING
        )
        if not asked[1]:
            return None
        self._database.announcer.announce()
        return [Sent(self._database.ids.make(row[0])) for row in rows]

    def insert_alike(self, row: Row, bodies: Sequence[bytes]) -> bool:
        session = self._database.writing("insert").session
        self._driver.copy(session, copy_alike(row, bodies))
        if session.copy.size > COPY_BYTES:
            self._driver.end_copy(session)
        return True

    def claim(self, queue: int | str, claiming: Claiming) -> list[Row] | None:
        # What a claim has hidden whose answer was lost comes back by itself, so it is made again.
        rows = self._database.rows("claim_at_once", self._claim_fields(queue, claiming))
        self._database.writing("claim_at_once")
        return sorted(rows, key=itemgetter(1, 0))

    def _claim_fields(self, queue: int | str, claiming: Claiming) -> dict[str, Any]:
        known: dict[str, Any]
        if isinstance(queue, int):
            known = {"queue": queue, "name": None, "settings": None}
        else:
            assert claiming.known is not None
            known = {"queue": None, "name": queue, "settings": pack_settings(claiming.known)}
        place, of = claiming.share or (0, 1)
        fields = {**known, "now": claiming.at, "until": claiming.until, "limit": claiming.limit, "of": of, "place": place}
        return {**fields, "holder": pack_holder(claiming.holder)}

    def delete(self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings) -> set[int] | None:
        fields = self._delete_fields(queue, receipts, settlement, settings)
        if fields is None:
            return None

        def ask() -> RowsAndCount:
            transactions = self._database.transactions
            return transactions.with_token(lambda session: self._ask(session, "delete_with_token", fields), ALL_GONE, NOTHING)

        return _gone(fields["numbers"], self._database.retry(ask))

    def _delete_fields(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings
    ) -> dict[str, Any] | None:
        """The parameters for deleting all messages that have the first one's delivery; None if one statement cannot do that."""
        if settlement.keep_until is not None or settings.groups or not receipts or self._database.in_batch():
            return None
        delivery = receipts[0].delivery
        numbers = numbers_of(self._database.ids, receipts)
        if delivery is None or len(set(numbers)) < len(numbers):  # by id alone, or some twice
            return None
        wanted = sorted(number for number, receipt in zip(numbers, receipts, strict=True) if receipt.delivery == delivery)
        fields = {"numbers": wanted, "delivery": delivery, "count": len(wanted)}
        return fields | {"name": queue, "settings": pack_settings(settings)}

    def exchange(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, claiming: Claiming
    ) -> tuple[set[int], list[Row]] | None:
        """Both statements in one round trip."""
        assert claiming.known is not None
        fields = self._delete_fields(queue, receipts, settlement, claiming.known)
        if fields is None:
            return None
        claim = self._claim_fields(queue, claiming)

        def ask_both(session: Session) -> tuple[RowsAndCount, RowsAndCount]:
            noted = {**fields, "token": session.token, "session": session.number}
            deleted, claimed = self._driver.ask_together(session, [("delete_with_token", noted), ("claim_at_once", claim)])
            return deleted, claimed

        def ask() -> tuple[RowsAndCount, RowsAndCount] | None:
            done: tuple[RowsAndCount, RowsAndCount] | None = ALL_GONE, NOTHING
            return self._database.transactions.with_token(ask_both, done, None)

        both = self._database.retry(ask)
        if both is None:
            return None
        deleted, (rows, _) = both
        return _gone(fields["numbers"], deleted), sorted(rows, key=itemgetter(1, 0))

    def _ask(self, session: Session, name: str, fields: dict[str, Any]) -> RowsAndCount:
        noted = {**fields, "token": session.token, "session": session.number}
        return self._driver.ask(session, self._driver.statements[name], noted)


def _gone(wanted: list[int], asked: RowsAndCount) -> set[int]:
    """The numbers of the messages that delete_with_token has deleted: by its answer all, or those that it names."""
    rows, _ = asked
    return set((wanted if rows[0][0] is None else rows[0][0]) if rows else ())


def _is_plain(entries: Sequence[Entry], settings: Settings) -> bool:
    """Whether one statement can send them: no marks, no groups, and if there are many, nothing else that differs."""
    if len(entries) == 1:
        return entries[0].mark is None and entries[0].group is None
    first = entries[0]
    if sum(len(entry.body) for entry in entries) > MOST_BYTES:
        return False
    return not settings.groups and all(
        entry.mark is None
        and entry.group is None
        and entry.deadline_at is None
        and entry.visibility is None
        and entry.retry is None
        and not entry.attributes
        and entry.content_type is OCTETS
        and entry.visible_at == first.visible_at
        for entry in entries
    )
