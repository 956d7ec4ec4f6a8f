"""Messages as Arrow straight out of an SQL database, by ADBC: no Python object per row.

The database gives plain columns (numbers, bytes). Rare values (the head, a mark, a group) are decoded only in the rows that
have them. Nothing here writes.

ADBC brings its own copy of SQLite. Two copies in one process must not have one file open, because closing a file drops the
process' locks on it: a file that this process has open as a store is not read this way (`stores.sqlite.file.lend`). The file
is opened read-only, so that this copy never checkpoints.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from operator import eq
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from penstock import arrow
from penstock.broker import location
from penstock.errors import QueueNotFound, StoreError
from penstock.marks import key_of
from penstock.message import FOREVER, State
from penstock.stores.encoding import Head, add_body, checksum, plain_checksum, unpack_head
from penstock.stores.ids import Ids
from penstock.stores.postgresql import words as postgresql
from penstock.stores.sql.runs import Run
from penstock.stores.sql.statements import read_sql
from penstock.stores.sqlite import words as sqlite

SQLITE_ROWS = 1000
"""Rows of one batch from SQLite, which must stay below 2 GiB of bodies, or of heads, where bytes grow by a third."""
POSTGRESQL_BYTES = 2 * 1024 * 1024
"""Bytes of one batch from PostgreSQL: larger ones are no faster, and do not fit into the processor's cache."""
OPTIONS = {
    "sqlite": {"adbc.sqlite.query.batch_rows": str(SQLITE_ROWS)},
    "postgresql": {"adbc.postgresql.batch_size_hint_bytes": str(POSTGRESQL_BYTES)},
}
WAIT = 10_000
"""Milliseconds to wait for a lock on the file."""
SOURCES = {
    "id": "number",
    "body": "body",
    "content_type": "head",
    "attributes": "head",
    "attribute_types": "head",
    "death": "head",
    "sent_at": "sent_at",
    "receives": "receives",
    "visible_at": "visible_at",
    "deadline": "deadline_at",
    "group": "grp",
    "key": "mark",
    "state": "state",
    "first_received_at": "first_received_at",
    "received_at": "received_at",
    "settled_at": "settled_at",
    "reason": "reason",
}
"""The source of each column. Columns are decoded here, a whole batch at once."""
EXPRESSIONS = {
    # The driver infers a column's type from the first rows, and assumes integers if they are null.
    "sqlite": {
        "head": "COALESCE(head, x'') AS head",
        "grp": "COALESCE(grp, x'') AS grp",
        "mark": "COALESCE(mark, x'') AS mark",
        "reason": "COALESCE('=' || reason, '') AS reason",
    },
    "postgresql": {"reason": "'=' || reason AS reason"},
}
CHECKED = ("body", "head", "grp", "mark", "sent_at", "deadline_at", "checksum")
"""Everything that a message's checksum covers, and the checksum itself."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
WORDS = {"columns": "{columns}", "held_columns": "{columns}", "all_settled_columns": "{columns}"}
WORDS |= {"by_queue": "{by_queue}", "first_of_these": "{conditions}"}
"""What we put into the statements of the store when we know it, and the store puts otherwise."""


@lru_cache
def _texts(dialect: str) -> dict[str, str]:
    """The store's own statements, with our words in them."""
    known = {"sqlite": sqlite, "postgresql": postgresql}[dialect]
    return read_sql({**known.WORDS, **WORDS}, known.TEXTS)[1]


def _filled(text: str, fields: Mapping[str, int]) -> str:
    """A statement with these numbers as its parameters; one that is text is bound later."""
    return re.sub(r"(?<!:):(\w+)", lambda found: str(int(fields[found[1]])) if found[1] in fields else "$1", text)


class Damaged(Exception):
    """A message is not as it was sent. To learn which, read them one by one."""


class Columnar:
    """A read-only connection; made by `opened`."""

    def __init__(self, connection: Any, dialect: str) -> None:
        self._connection = connection
        self._dialect = dialect
        if dialect == "sqlite":
            list(self._run(f"PRAGMA busy_timeout = {WAIT}"))
        connection.set_autocommit(False)
        if dialect == "postgresql":
            # The planner underestimates the rows of a scan, and parallel workers would pass each of them to the leader.
            list(self._run("SET LOCAL max_parallel_workers_per_gather = 0"))
        ((salt,),) = self._rows("meta", name="salt")
        self.ids = Ids(salt)

    def claim(self, queue: str, reader: str, epoch: int, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The messages of a confirmed claim from place ``start`` up to ``stop``; none if there is no such claim. Raises
        `Damaged` if one of them is damaged: the claim has not looked at its body."""
        home = self._queue(queue)
        for claim, found, size, confirmed, _, _, run_at in self._rows("claims", queue=home, reader=reader):
            if found != epoch or not confirmed:
                continue
            if run_at is None:
                yield from self._select("read", queue, schema, NOTHING, CHECKED, claim=claim, start=start, stop=stop)
            else:
                (run,) = (run for row in self._rows("runs", queue=home) if (run := Run(*row)).claim == claim)
                after = {"visible_at": FOREVER, "state": int(State.CONSUMED), "receives": "receives + 1"}
                after |= dict.fromkeys(("received_at", "first_received_at"), run_at)
                fields = run._asdict() | {"queue": home, "start": start, "count": max(0, min(stop, size) - start)}
                yield from self._select("read_run", queue, schema, after, CHECKED, **fields)

    def scan(
        self, queue: str, start: int, stop: int, schema: pa.Schema, *, settled: bool, dense: bool, conditions: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The messages whose numbers are from ``start`` up to ``stop``. ``dense``: many of these numbers belong to this queue,
        so scan the table rather than an index."""
        name, changed, home = "scan_settled" if settled else "scan", NOTHING, self._queue(queue)
        if not settled and self._dialect == "sqlite" and self._rows("runs", queue=home):
            name, held = "scan_unsettled", sqlite.WORDS["in_held_run"]
            changed = {"state": f"CASE WHEN {held} THEN {int(State.CONSUMED)} ELSE state END", "receives": f"receives + {held}"}
            changed |= {"visible_at": f"CASE WHEN {held} THEN {FOREVER} ELSE visible_at END"}
        words = {"by_queue": "queue + 0" if dense else "queue"}
        words["conditions"] = "".join(f" AND {condition}" for condition in conditions)
        yield from self._select(name, queue, schema, changed, (), words, queue=home, start=start, stop=stop)

    def _queue(self, name: str) -> int:
        for row in self._rows("queue", name=name):
            return int(row[0])
        raise QueueNotFound(name)

    def _rows(self, name: str, /, **fields: Any) -> list[tuple[Any, ...]]:
        """The rows of one of the store's statements."""
        values = [fields.pop(field) for field in list(fields) if isinstance(fields[field], str)]
        assert len(values) <= 1
        text = _filled(_texts(self._dialect)[name], fields)
        batches = [rows for rows in self._run(text, *values) if rows.num_columns]
        return [row for rows in batches for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)]

    def _select(
        self,
        name: str,
        queue: str,
        schema: pa.Schema,
        changed: Mapping[str, object] = NOTHING,
        checked: Sequence[str] = (),
        words: Mapping[str, str] = NOTHING,
        /,
        **fields: Any,
    ) -> Iterator[pa.RecordBatch]:
        """``changed``: columns whose value, or expression, replaces the table's.

        ``checked``: the columns that verify each message's checksum, if wanted."""
        sources = [SOURCES[field.name] for field in schema if field.name in SOURCES]
        terms = EXPRESSIONS[self._dialect] | {name: f"{value} AS {name}" for name, value in changed.items()}
        columns = ", ".join(terms.get(source, source) for source in dict.fromkeys([*sources, *checked]) or ["number"])
        text = _filled(_texts(self._dialect)[name], fields)
        for rows in self._run(text.format(columns=columns, **words)):
            if checked and rows.num_rows and not intact(rows):
                raise Damaged
            if rows.num_rows:
                yield decode(rows, queue, schema, self.ids)

    def _run(self, query: str, *values: object) -> Iterator[pa.RecordBatch]:
        from adbc_driver_manager import AdbcStatement

        with _translated(), AdbcStatement(self._connection) as statement:
            statement.set_options(**OPTIONS[self._dialect])
            statement.set_sql_query(query)
            statement.prepare()
            if values:
                statement.bind(pa.record_batch({str(place): [value] for place, value in enumerate(values)}))
            with pa.RecordBatchReader.from_stream(statement.execute_query()[0]) as reader:
                yield from reader


@contextmanager
def opened(url: str) -> Iterator[Columnar | None]:
    """A connection to the database behind a URL; None if it must be read another way."""
    kind, target = location(url)
    if kind not in EXPRESSIONS or find_spec(f"adbc_driver_{kind}") is None:
        yield None
    elif kind == "postgresql":
        with _connected(kind, target) as connection:
            yield connection
    else:
        from penstock.stores.sqlite.file import lend

        with lend(Path(target)) as free:
            if not free or not Path(target).exists():
                yield None
                return
            with _connected(kind, f"file:{quote(str(Path(target).absolute()))}?mode=ro") as connection:
                yield connection


@contextmanager
def _connected(kind: str, uri: str) -> Iterator[Columnar]:
    """Avoids the driver's DB-API, which first imports Arrow's datasets and Parquet."""
    from adbc_driver_manager import AdbcConnection

    driver = import_module(f"adbc_driver_{kind}")
    with _translated(), driver.connect(uri) as database, AdbcConnection(database) as connection:
        yield Columnar(connection, kind)


@contextmanager
def _translated() -> Iterator[None]:
    from adbc_driver_manager import Error

    try:
        yield
    except (Error, pa.ArrowException, OSError) as error:
        raise StoreError(f"the messages cannot be read by ADBC: {error}") from error


def intact(rows: pa.RecordBatch) -> bool:
    """Whether every message is as it was sent."""
    found = dict(zip(rows.schema.names, rows.columns, strict=True))
    body, instants, checks = found["body"], found["sent_at"], found["checksum"]
    types = (body.type, instants.type, checks.type)
    if types != (pa.binary(), pa.int64(), pa.int64()) or body.null_count or instants.null_count or checks.null_count:
        return False
    if not all(_is_empty(found[name]) for name in ("head", "grp", "mark")) or found["deadline_at"].null_count < rows.num_rows:
        return _all_intact(found)
    _, offsets, data = body.buffers()
    ends, view = memoryview(offsets).cast("i")[body.offset :], memoryview(b"" if data is None else data)
    sent = instants.to_pylist()
    begun = {at: plain_checksum(b"", at) for at in set(sent)}
    made = map(add_body, map(view.__getitem__, map(slice, ends, ends[1:])), map(begun.__getitem__, sent))
    return all(map(eq, made, checks.to_pylist()))


def _all_intact(found: Mapping[str, pa.Array]) -> bool:
    """Like `intact`, for messages of any kind."""
    body, head, grp, mark, sent_at, deadline_at, checks = (found[name].to_pylist() for name in CHECKED)
    try:
        return all(
            checksum(*parts[:1], *(part or None for part in parts[1:4]), *parts[4:]) == check
            for *parts, check in zip(body, head, grp, mark, sent_at, deadline_at, checks, strict=True)
        )
    except (TypeError, ValueError):
        return False


def decode(rows: pa.RecordBatch, queue: str, schema: pa.Schema, ids: Ids) -> pa.RecordBatch:
    """Convert the database's columns to the requested ones."""
    found = dict(zip(rows.schema.names, rows.columns, strict=True))
    count = rows.num_rows
    heads: list[Head] | None = None
    if "head" in found and not _is_empty(found["head"]):
        heads = [_head(packed) for packed in found["head"].to_pylist()]
    columns = []
    for field in schema:
        if field.name == "queue":
            columns.append(_repeated(queue, field.type, count))
        elif field.name == "id":
            columns.append(_ids(found["number"], ids.prefix))
        elif field.name not in HEADS:
            columns.append(DECODERS.get(field.name, _as_is)(found[SOURCES[field.name]], field.type))
        elif heads is not None:
            columns.append(pa.array(map(HEADS[field.name], heads), field.type, size=count))
        else:
            columns.append(_without_heads(field.name, field.type, count))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@lru_cache(maxsize=4096)
def _head(packed: bytes | None) -> Head:
    try:
        return unpack_head(packed or None)
    except (AttributeError, TypeError, ValueError, KeyError):  # damaged, as its state shows
        return unpack_head(None)


# Values that are the same in most batches are cached.


@lru_cache(maxsize=64)
def _repeated(value: str, type: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, type), count)


@lru_cache(maxsize=64)
def _nulls(type: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, type)


@lru_cache(maxsize=64)
def _without_heads(name: str, type: pa.DataType, count: int) -> pa.Array:
    if name == "content_type":
        return _repeated(unpack_head(None).content_type, type, count)
    if name == "death":
        return _nulls(type, count)
    empty = pa.nulls(0, pa.string())
    return pa.MapArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count + 1), empty, empty).cast(type)


@lru_cache(maxsize=8)
def _state_names(type: pa.DataType) -> pa.Array:
    return pa.array([State(number).name.lower() for number in range(len(State))], type)


@lru_cache(maxsize=8)
def _offsets(length: int, count: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, length * count + 1, length)))


def _ids(numbers: pa.Array, prefix: str) -> pa.Array:
    """Like `Ids.make`, but one digit of all ids at a time."""
    count, size = len(numbers), len(prefix) + 17
    marked = pc.bit_wise_or(numbers, -(1 << 63))
    given = array("q")
    given.frombytes(marked.buffers()[1][8 * marked.offset : 8 * (marked.offset + count)])
    if sys.byteorder == "little":
        given.byteswap()
    digits = given.tobytes().hex().encode()
    made = bytearray(f"{prefix}nnnn-nnnnnnnnnnnn".encode() * count)
    for place in range(16):
        made[len(prefix) + place + (place > 3) :: size] = digits[place::16]
    return pa.Array.from_buffers(pa.string(), count, [None, _offsets(size, count), pa.py_buffer(made)])


def _as_is(column: pa.Array, type: pa.DataType) -> pa.Array:
    return column if column.type == type else column.cast(type)


def _instants(column: pa.Array, type: pa.DataType) -> pa.Array:
    if column.null_count == len(column):
        return _nulls(type, len(column))
    if pc.max(column).as_py() >= arrow.END:
        column = pc.if_else(pc.less(column, arrow.END), column, pa.scalar(None, pa.int64()))
    return column.view(type)


def _visible(column: pa.Array, type: pa.DataType) -> pa.Array:
    return _instants(pc.abs(column), type)  # negative means blocked


def _states(column: pa.Array, type: pa.DataType) -> pa.Array:
    return _state_names(type).take(column)


def _groups(column: pa.Array, type: pa.DataType) -> pa.Array:
    return _rare(column, type, lambda line: line.decode(errors="replace"))


def _keys(column: pa.Array, type: pa.DataType) -> pa.Array:
    return _rare(column, type, key_of)


def _reasons(column: pa.Array, type: pa.DataType) -> pa.Array:
    return _rare(column, type, lambda reason: reason[1:])


def _rare(column: pa.Array, type: pa.DataType, value: Callable[[Any], Any]) -> pa.Array:
    """Decode a column that is mostly empty; empty means null."""
    if _is_empty(column):
        return _nulls(type, len(column))
    return pa.array([value(item) if item else None for item in column.to_pylist()], type)


def _is_empty(column: pa.Array) -> bool:
    return column.null_count == len(column) or not pc.max(pc.binary_length(column)).as_py()


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
    "visible_at": _visible,
    **dict.fromkeys(("sent_at", "deadline", "first_received_at", "received_at", "settled_at"), _instants),
}
