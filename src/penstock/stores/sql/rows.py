"""Converts between messages and the rows of an SQL database. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.marks import key_of
from penstock.message import FOREVER, OCTETS, Attributes, Entry, Held, Message, State, next_delivery
from penstock.stores.encoding import Head, checksum, pack_head, pack_type, unpack_head
from penstock.stores.ids import Ids

COLUMNS = (
    "number, visible_at, state, receives, delivery, sent_at, expires_at, deadline_at, moved_at, first_received_at, "
    "received_at, holder, grp, mark, head, checksum, body"
)
VISIBLE_AT, STATE, DELIVERY, GROUP, MARK = (
    COLUMNS.split(", ").index(name) for name in ("visible_at", "state", "delivery", "grp", "mark")
)
STATES = {int(state): state for state in State}
CONSUMED = int(State.CONSUMED)
INSERTED = ("number", "queue", "visible_at", "sent_at", "expires_at", "deadline_at", "grp", "mark", "head", "checksum", "body")
"""The parameters of the insert statement."""

Row = tuple[Any, ...]


def insert_row(number: int, queue: int, visible_at: int, group: bytes | None, entry: Entry) -> Row:
    """The parameters of the insert statement for a message."""
    body, content_type, attributes, sent_at, _, expires_at, deadline_at, visibility, _, mark, _, retry = entry
    plain = not attributes and visibility is None and retry is None
    head = pack_type(content_type) if plain else pack_head(Head(content_type, attributes, visibility, retry=retry))
    check = checksum(body, head, group, mark, sent_at, deadline_at)
    return number, queue, visible_at, sent_at, expires_at, deadline_at, group, mark, head, check, body


def insert_rows(first: int, queue: int, entries: Sequence[Entry]) -> list[Row]:
    """The same for messages that are not blocked, numbered from ``first``."""
    return [
        insert_row(number, queue, entry.visible_at, None if entry.group is None else entry.group.encode(), entry)
        for number, entry in enumerate(entries, first)
    ]


def to_message(
    ids: Ids,
    queue: str,
    row: Row,
    now: int | None = None,
    until: int | None = None,
    settled_at: int | None = None,
    reason: str | None = None,
    holder: str | None = None,
) -> Message:
    """A row as a message; with ``now``, as it is after this holder's claim at that instant."""
    (number, visible_at, state, receives, delivery, sent_at, expires_at, deadline_at, moved_at, first_received_at,
     received_at, named, group_bytes, mark, packed, check, body) = row  # fmt: skip
    # Most messages have no head and no group; keep those steps out of their path.
    attributes: Attributes = {}
    content_type, visibility, death, retry, failures, error, group = OCTETS, None, None, None, 0, None, None
    try:
        intact = check == checksum(body, packed, group_bytes, mark, sent_at, deadline_at)
        if intact and packed is not None:
            content_type, attributes, visibility, death, retry, failures, error = unpack_head(packed)
        if intact and group_bytes is not None:
            group = group_bytes.decode()
    except (TypeError, ValueError, KeyError):
        intact, content_type, attributes, visibility, death, retry, failures, error = (
            False,
            OCTETS,
            {},
            None,
            None,
            None,
            0,
            None,
        )
    if not intact:  # damage can turn any value into any other
        visible_at, receives, delivery = _whole(visible_at), _whole(receives), _whole(delivery)
        sent_at, expires_at = _whole(sent_at), _whole(expires_at)
    lapsed = now is not None and state == CONSUMED
    if now is None:
        known = STATES.get(state, State.DAMAGED)
        if named is not None:
            holder = named.decode(errors="replace") if isinstance(named, bytes) else None
    else:
        known, visible_at, receives, delivery = (
            State.CONSUMED,
            FOREVER if until is None else until,
            receives + 1,
            next_delivery(delivery, now),
        )
        received_at, first_received_at = now, first_received_at or now
    return Message(
        ids.make(number), number, queue, body, content_type, attributes, known, receives, delivery, sent_at,
        visible_at if visible_at >= 0 else -visible_at, expires_at, deadline_at, visibility, group,
        key_of(mark) if intact and mark is not None else None, moved_at, first_received_at, received_at, death,
        settled_at, reason, lapsed, intact, holder, visible_at < 0 and settled_at is None, retry, failures, error,
    )  # fmt: skip


def to_settled(ids: Ids, queue: str, row: Row) -> Message:
    """A row of the history as a message."""
    return to_message(ids, queue, row[:-2], settled_at=row[-2], reason=row[-1])


def number_of(ids: Ids, receipt: Held) -> int:
    """The number of a message; 0 if its id is not from this store."""
    if type(receipt) is Message and ids.make(receipt.number) == receipt.id:  # a faster check
        return receipt.number
    return ids.number(receipt.id) or 0


def numbers_of(ids: Ids, receipts: Sequence[Held]) -> list[int]:
    """`number_of` for many."""
    if len(receipts) > 1 and {type(receipt) for receipt in receipts} == {Message}:
        numbers = [receipt.number for receipt in receipts]  # type: ignore[attr-defined]
        if ids.made_all([receipt.id for receipt in receipts], numbers):
            return numbers
    return [number_of(ids, receipt) for receipt in receipts]


def pack_holder(holder: str | None) -> bytes | None:
    return None if holder is None else holder.encode()


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
