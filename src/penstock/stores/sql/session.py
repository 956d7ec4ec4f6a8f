"""The base of every SQL store: the statements of queue.sql, schema migrations, rows as messages, and the few primitives that
each database implements.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import files
from typing import Any, ClassVar

from penstock.errors import QueueNotFound, StoreVersion
from penstock.message import (
    FOREVER,
    OCTETS,
    Attributes,
    Held,
    Message,
    Settings,
    State,
)
from penstock.policy import key_of, next_delivery
from penstock.stores.encoding import checksum, unpack_head, unpack_settings
from penstock.stores.legacy import LegacyStore
from penstock.stores.ports import Ids
from penstock.stores.sql.runs import NO_RUNS, Runs

COLUMNS = (
    "number, visible_at, state, receives, delivery, sent_at, expires_at, deadline_at, moved_at, first_received_at, "
    "received_at, holder, grp, mark, head, checksum, body"
)
DELIVERY, LINE, MARK = (COLUMNS.split(", ").index(name) for name in ("delivery", "grp", "mark"))
STATES = {int(state): state for state in State}
CONSUMED = int(State.CONSUMED)
MESSAGE_HELD = "LATERAL (SELECT * FROM penstock_message WHERE number = penstock_held.message OFFSET 0) AS penstock_message"
"""On PostgreSQL, looks up each message of a claim by its number, whatever the statistics say. For a plain join, the planner may
scan all messages for each one."""
PRESENT = "penstock_present AS penstock_message"
"""On SQLite, excludes messages that were deleted but whose rows are not removed yet."""
Row = tuple[Any, ...]
Params = Mapping[str, Any] | Sequence[Any]


def read_sql(dialect: Mapping[str, str]) -> tuple[dict[int, list[str]], dict[str, str]]:
    """The schema's steps and the named statements of queue.sql, with the dialect's words filled in."""
    held = ", ".join(f"penstock_message.{column}" for column in COLUMNS.split(", "))
    words = {
        "columns": COLUMNS,
        "columns_settled": COLUMNS.replace(" state,", " :state,"),
        "columns_before": COLUMNS.replace(
            "visible_at, state, receives, delivery", "picked.visible_at, picked.state, receives - 1, picked.before"
        ),
        "held_columns": held,
        "asleep_columns": held.replace("penstock_message.visible_at", "penstock_claim.lapses_at"),
        **dialect,
    }
    text = (files("penstock.stores.sql") / "queue.sql").read_text()
    text = re.sub(r"\{(\w+)\}", lambda found: words[found[1]], text)
    steps: dict[int, list[str]] = {}
    statements: dict[str, str] = {}
    for kind, name, body in re.findall(r"^-- (step|name): (\w+)\n(.*?)(?=^-- (?:step|name):|\Z)", text, re.M | re.S):
        if kind == "step":
            steps[int(name)] = [part.strip() for part in body.split(";") if part.strip()]
        else:
            statements[name] = body.strip()
    return steps, statements


class SqlSession(LegacyStore):
    dialect: ClassVar[Mapping[str, str]]
    _ids: Ids

    def __init__(self) -> None:
        self._steps, self._statements = read_sql(self.dialect)
        self._seen: dict[str, tuple[int, Settings]] = {}
        """The queues looked up in this batch; cleared when a batch begins."""
        self._uncounted: dict[tuple[int, int], int] = {}
        """The messages, by number and delivery, that this batch has claimed without recording it, with the delivery in their
        row; cleared when a batch begins."""

    def _migrate(self) -> None:
        """Bring the schema to the newest step, in one transaction. Nodes that start together wait for each other."""
        newest = max(self._steps)
        if (self._meta("version") if self._has_schema() else 0) != newest:
            with self._migrating():
                version = self._meta("version") if self._has_schema() else 0
                if version > newest:
                    raise StoreVersion(
                        f"{self} has schema version {version}, this Penstock knows {newest}: use a newer Penstock"
                    )
                if version == 0:
                    self._create_meta()
                    for name, value in (("version", 0), ("salt", Ids.salt()), ("number", 0)):
                        self._run("set_meta", {"name": name, "value": value})
                for step in range(version + 1, newest + 1):
                    for statement in self._steps[step]:
                        self._script(statement)
                self._run("change_meta", {"name": "version", "value": newest})
        self._ids = Ids(self._meta("salt"))

    def _meta(self, name: str) -> int:
        return int(self._rows("meta", {"name": name})[0][0])

    def _queue(self, name: str) -> tuple[int, Settings]:
        found = self._look_up(name)
        if found is None:
            raise QueueNotFound(name)
        return found

    def _look_up(self, name: str) -> tuple[int, Settings] | None:
        """A queue's number and settings. A batch reads them once, since nobody else can change them before it ends."""
        found = self._seen.get(name) if self._in_batch() else None
        if found is None:
            rows = self._rows("queue", (name,))
            if not rows:
                return None
            found = self._found(rows[0])
            if self._in_batch():
                self._seen[name] = found
        return found

    @staticmethod
    def _found(row: Row) -> tuple[int, Settings]:
        return row[0], unpack_settings(row[1])

    def _joined(self, *, durable: bool = True) -> AbstractContextManager[None]:
        """The current batch, or else a new one."""
        if not self._in_batch():
            return self.batch(durable=durable)
        self._refuse_handlers()
        return nullcontext()

    def _refuse_handlers(self) -> None:
        """In a batch: raises `StoreBusy` if a signal handler called us, as it is not part of the batch."""

    def _enter(self, name: str, *, alone: bool) -> tuple[int, Settings]:  # noqa: ARG002
        """Look up the queue in order to insert into it: it cannot be dropped before the batch ends. With ``alone``, nobody else
        inserts or settles messages by its groups and marks meanwhile. This default relies on a batch excluding all others."""
        return self._queue(name)

    @property
    def _runs(self) -> Runs:
        return NO_RUNS

    # rows and values

    @staticmethod
    def _packed_holder(holder: str | None) -> bytes | None:
        return None if holder is None else holder.encode()

    def _list(self, numbers: list[int]) -> Any:
        """Numbers in the form that statements with {among} take."""
        return numbers

    def _number(self, receipt: Held) -> int:
        if type(receipt) is Message and self._ids.make(receipt.number) == receipt.id:  # a faster check
            return receipt.number
        return self._ids.number(receipt.id) or 0

    def _numbers(self, receipts: Sequence[Held]) -> list[int]:
        """`_number` for many."""
        if {type(receipt) for receipt in receipts} == {Message}:
            numbers = [receipt.number for receipt in receipts]  # type: ignore[attr-defined]
            if self._ids.made_all([receipt.id for receipt in receipts], numbers):
                return numbers
        return [self._number(receipt) for receipt in receipts]

    def _message(
        self,
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
         received_at, named, line, mark, packed, check, body) = row  # fmt: skip
        # Most messages have no head and no group; keep those steps out of their path.
        attributes: Attributes = {}
        content_type, visibility, death, group = OCTETS, None, None, None
        try:
            intact = check == checksum(body, packed, line, mark, sent_at, deadline_at)
            if intact and packed is not None:
                content_type, attributes, visibility, death = unpack_head(packed)
            if intact and line is not None:
                group = line.decode()
        except (TypeError, ValueError, KeyError):
            intact, content_type, attributes, visibility, death = False, OCTETS, {}, None, None
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
            self._ids.make(number), number, queue, body, content_type, attributes, known, receives, delivery, sent_at,
            visible_at if visible_at >= 0 else -visible_at, expires_at, deadline_at, visibility, group,
            key_of(mark) if intact and mark is not None else None, moved_at, first_received_at, received_at, death,
            settled_at, reason, lapsed, intact, holder,
        )  # fmt: skip

    # what each database does its own way

    def _migrating(self) -> AbstractContextManager[None]:
        """A context in which nobody else changes the schema."""
        return self.batch()

    @abstractmethod
    def _in_batch(self) -> bool:
        """Whether the calling thread is in a batch."""

    @abstractmethod
    def _rows(self, name: str, params: Params) -> list[Row]:
        """Run a named statement. Returns its rows."""

    @abstractmethod
    def _run(self, name: str, params: Params) -> int:
        """Run a named statement. Returns how many rows it changed."""

    @abstractmethod
    def _many(self, name: str, rows: Iterable[Row]) -> list[Row]:
        """Run a named statement for each row of parameters, given in the order of their first use. Returns the rows."""

    @abstractmethod
    def _script(self, text: str) -> None:
        """Run a statement of the schema."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[None]:
        """A context in which several reads see the same state."""

    @abstractmethod
    def _take_numbers(self, count: int) -> int:
        """Reserve ``count`` message numbers that were never given out before. Returns the first."""

    @abstractmethod
    def _has_schema(self) -> bool: ...

    @abstractmethod
    def _create_meta(self) -> None: ...


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
