"""Messages as Arrow straight out of an SQL database, by ADBC: no Python object per row.

The database gives plain columns (numbers, bytes); what is rarely there (the head, a mark, a group) is decoded only in rows that
have it. Only looking: nothing here writes.

Two copies of SQLite in one process must not have one file open (closing a file drops the process' locks on it), and ADBC brings
a copy of its own: a file that this process has open as a store is not read this way (`penstock.stores.sqlite.lend`). It is
opened read-only, so that this copy never checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from penstock import arrow
from penstock.broker import location
from penstock.errors import QueueNotFound, StoreError
from penstock.message import State
from penstock.policy import key_of
from penstock.stores.base import Ids
from penstock.stores.encoding import Head, unpack_head

SQLITE_ROWS = 2000
"""Rows of one batch from SQLite, which must stay below 2 GiB of bodies. (PostgreSQL's driver goes by bytes itself.)"""
WAIT = 10_000
"""Milliseconds to wait for a lock on the file."""
# Where a column may be null, a value stands for it: SQLite's driver takes the types from the first rows.
SOURCES = {
    "id": "{id} AS id",
    "body": "body",
    "content_type": "COALESCE(head, {empty}) AS head",
    "attributes": "COALESCE(head, {empty}) AS head",
    "attribute_types": "COALESCE(head, {empty}) AS head",
    "death": "COALESCE(head, {empty}) AS head",
    "sent_at": "sent_at",
    "receives": "receives",
    "visible_at": "ABS(visible_at) AS visible_at",
    "deadline": "COALESCE(deadline_at, -1) AS deadline",
    "group": "COALESCE(grp, {empty}) AS grp",
    "key": "COALESCE(mark, {empty}) AS mark",
    "state": "state",
    "first_received_at": "COALESCE(first_received_at, -1) AS first_received_at",
    "received_at": "COALESCE(received_at, -1) AS received_at",
    "settled_at": "settled_at",
    "reason": "COALESCE('=' || reason, '') AS reason",
}
CLAIM = """
SELECT {columns} FROM penstock_held, penstock_message
WHERE penstock_held.claim = {claim} AND penstock_held.place >= {start} AND penstock_held.place < {stop}
AND penstock_message.number = penstock_held.message AND penstock_message.delivery = penstock_held.delivery
ORDER BY penstock_held.place
"""
SCAN = "SELECT {columns} FROM {table} WHERE {by} = {home} AND number >= {start} AND number < {stop}{conditions}"
FIND_QUEUE = "SELECT number FROM penstock_queue WHERE name = {first}"
FIND_CLAIM = (
    "SELECT number FROM penstock_claim WHERE queue = {first} AND reader = {second} AND epoch = {third} AND confirmed = 1"
)
FIND_SALT = "SELECT value FROM penstock_meta WHERE name = 'salt'"
DIALECTS: dict[str, dict[str, str]] = {
    "sqlite": {
        "id": "format('{prefix}%04x-%012x', number >> 48 | 32768, number & 281474976710655)",
        "empty": "x''",
        "first": "?1",
        "second": "?2",
        "third": "?3",
    },
    "postgresql": {
        "id": "'{prefix}' || lpad(to_hex(number >> 48 | 32768), 4, '0') || '-' || "
        "lpad(to_hex(number & 281474976710655), 12, '0')",
        "empty": "''::bytea",
        "first": "$1",
        "second": "$2",
        "third": "$3",
    },
}


class Columnar:
    """A connection for looking; made by `opened`."""

    def __init__(self, connection: Any, dialect: str) -> None:
        self._connection = connection
        self._words = DIALECTS[dialect]
        self._options = {"adbc.sqlite.query.batch_rows": str(SQLITE_ROWS)} if dialect == "sqlite" else {}
        if dialect == "sqlite":
            self._value(f"PRAGMA busy_timeout = {WAIT}")
        self.ids = Ids(self._value(FIND_SALT))

    def claim(self, queue: str, reader: str, epoch: int, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The messages of a confirmed claim from place ``start`` up to ``stop``; none if there is no such claim."""
        claim = self._value(FIND_CLAIM, self._queue(queue), reader, epoch)
        if claim is not None:
            yield from self._select(CLAIM, queue, schema, claim=claim, start=start, stop=stop)

    def scan(
        self, queue: str, start: int, stop: int, schema: pa.Schema, *, settled: bool, dense: bool, conditions: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The messages whose numbers are from ``start`` up to ``stop``. ``dense``: many of these numbers are of this queue, so
        go through the table, and not by an index."""
        where = "".join(f" AND {condition}" for condition in conditions)
        table = "penstock_settled" if settled else "penstock_message"
        home = self._queue(queue)
        words = {"table": table, "by": "queue + 0" if dense else "queue", "home": home, "conditions": where}
        yield from self._select(SCAN, queue, schema, start=start, stop=stop, **words)

    def _queue(self, name: str) -> int:
        home: int | None = self._value(FIND_QUEUE, name)
        if home is None:
            raise QueueNotFound(name)
        return home

    def _value(self, statement: str, *values: object) -> Any:
        with _translated(), closing(self._connection.cursor()) as cursor:
            cursor.execute(statement.format(**self._words), values or None)
            found = cursor.fetchone()
            return found[0] if found else None

    def _select(self, statement: str, queue: str, schema: pa.Schema, **words: object) -> Iterator[pa.RecordBatch]:
        sources = dict.fromkeys(SOURCES[field.name] for field in schema if field.name in SOURCES) or {"number": None}
        columns = ", ".join(sources).format(**{**self._words, "id": self._words["id"].format(prefix=self.ids.prefix)})
        with _translated(), closing(self._connection.cursor()) as cursor:
            cursor.adbc_statement.set_options(**self._options)
            cursor.execute(statement.format(columns=columns, **words))
            for rows in cursor.fetch_record_batch():
                if rows.num_rows:
                    yield decode(rows, queue, schema)


@contextmanager
def opened(url: str) -> Iterator[Columnar | None]:
    """A connection to the database behind a URL; None if it has to be read in another way."""
    kind, target = location(url)
    if kind in DIALECTS and find_spec(f"adbc_driver_{kind}") is None:
        yield None
    elif kind == "postgresql":
        from adbc_driver_postgresql import dbapi

        with _translated(), closing(dbapi.connect(target)) as connection:
            yield Columnar(connection, kind)
    elif kind == "sqlite":
        from adbc_driver_sqlite import dbapi

        from penstock.stores.sqlite import lend

        with lend(Path(target)) as free:
            if not free or not Path(target).exists():
                yield None
                return
            with _translated(), closing(dbapi.connect(f"file:{quote(str(Path(target).absolute()))}?mode=ro")) as connection:
                yield Columnar(connection, kind)
    else:
        yield None


@contextmanager
def _translated() -> Iterator[None]:
    from adbc_driver_manager import Error

    try:
        yield
    except (Error, pa.ArrowException, OSError) as error:
        raise StoreError(f"the messages cannot be read by ADBC: {error}") from error


def decode(rows: pa.RecordBatch, queue: str, schema: pa.Schema) -> pa.RecordBatch:
    """What the database gave as the columns that were asked for."""
    found = {name: rows.column(name) for name in rows.schema.names}
    heads: list[Head] | None = None
    if "head" in found and pc.max(pc.binary_length(found["head"])).as_py():
        heads = [_head(packed) for packed in found["head"].to_pylist()]
    columns = []
    for field in schema:
        if field.name == "queue":
            columns.append(pa.repeat(pa.scalar(queue, field.type), rows.num_rows))
        elif field.name in HEADS:
            columns.append(_from_heads(field, heads, rows.num_rows))
        else:
            columns.append(DECODERS.get(field.name, _as_is)(found[SQL_NAMES.get(field.name, field.name)], field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@lru_cache(maxsize=4096)
def _head(packed: bytes) -> Head:
    try:
        return unpack_head(packed or None)
    except (TypeError, ValueError, KeyError):  # damaged, which the state tells
        return unpack_head(None)


def _from_heads(field: pa.Field, heads: list[Head] | None, count: int) -> pa.Array:
    if heads is not None:
        return pa.array(map(HEADS[field.name], heads), field.type, size=count)
    if field.name == "content_type":
        return pa.repeat(pa.scalar(unpack_head(None).content_type, field.type), count)
    if field.name == "death":
        return pa.nulls(count, field.type)
    empty = pa.nulls(0, pa.string())
    return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count + 1), empty, empty).cast(field.type)


def _as_is(column: pa.Array, type: pa.DataType) -> pa.Array:
    return column.cast(type)


def _instants(column: pa.Array, type: pa.DataType) -> pa.Array:
    ends = pc.min_max(column)
    if ends["min"].as_py() < 0 or ends["max"].as_py() >= arrow.END:
        known = pc.and_(pc.greater_equal(column, 0), pc.less(column, arrow.END))
        column = pc.if_else(known, column, pa.scalar(None, pa.int64()))
    return column.view(type)


def _states(column: pa.Array, type: pa.DataType) -> pa.Array:
    names = pa.array([State(number).name.lower() for number in range(len(State))], type)
    return names.take(column)


def _groups(column: pa.Array, type: pa.DataType) -> pa.Array:
    return _rare(column, type, lambda line: line.decode(errors="replace"))


def _keys(column: pa.Array, type: pa.DataType) -> pa.Array:
    return _rare(column, type, key_of)


def _reasons(column: pa.Array, type: pa.DataType) -> pa.Array:
    return _rare(column, type, lambda reason: reason[1:])


def _rare(column: pa.Array, type: pa.DataType, value: Callable[[Any], Any]) -> pa.Array:
    """Mostly empty, which is null."""
    if not pc.max(pc.binary_length(column)).as_py():
        return pa.nulls(len(column), type)
    return pa.array([value(item) if item else None for item in column.to_pylist()], type)


SQL_NAMES = {"group": "grp", "key": "mark"}
HEADS: dict[str, Callable[[Head], Any]] = {
    "content_type": lambda head: head.content_type,
    "attributes": lambda head: [(name, arrow.text(value)) for name, value in head.attributes.items()],
    "attribute_types": lambda head: arrow.types(head.attributes.items()),
    "death": lambda head: arrow.death(head.death),
}
DECODERS: dict[str, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    "state": _states,
    "group": _groups,
    "key": _keys,
    "reason": _reasons,
    **dict.fromkeys(("sent_at", "visible_at", "deadline", "first_received_at", "received_at", "settled_at"), _instants),
}
