"""Converts rows to messages: the columns that a DataFrame written to a queue may have, and what makes a row invalid.

    body             string or binary; the only one that must be there
    queue            string, unless the option queue says where all rows go
    content_type     string; default for text bodies: text/plain; charset=utf-8
    attributes       map<string,string>, and attribute_types, as the source has them
    delay            a number of seconds
    deadline         an instant, or a number of seconds
    key              string or binary
    group            string

The other columns of the source are accepted and ignored, so that a stream can go from queue to queue unchanged. The option
overrides the column, as in Spark's Kafka sink: otherwise such a stream would return to its origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock import policy
from penstock.errors import BadInput, BadMessage
from penstock.message import MAX_NUMBER
from penstock.publishing.publishing import divert
from penstock.publishing.segments import COLUMNS

IGNORED = {"id", "sent_at", "receives", "visible_at", "state", "first_received_at", "received_at", "death"}
IGNORED |= {"settled_at", "reason"}


def _texts(kind: DataType) -> bool:
    return isinstance(kind, MapType) and isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


TAKES: dict[str, tuple[str, Callable[[DataType], bool]]] = {
    "body": ("string or binary", lambda kind: isinstance(kind, StringType | BinaryType)),
    "queue": ("string", lambda kind: isinstance(kind, StringType)),
    "content_type": ("string", lambda kind: isinstance(kind, StringType)),
    "attributes": ("map<string,string>", _texts),
    "attribute_types": ("map<string,string>", _texts),
    "delay": ("a number", lambda kind: isinstance(kind, NumericType)),
    "deadline": ("timestamp or a number", lambda kind: isinstance(kind, NumericType | TimestampType)),
    "key": ("string or binary", lambda kind: isinstance(kind, StringType | BinaryType)),
    "group": ("string", lambda kind: isinstance(kind, StringType)),
}


class Rows:
    """Converts the rows of one schema to the columns of a segment."""

    def __init__(self, schema: StructType, queue: str | None, bad_rows: str | None) -> None:
        known = ", ".join(f"{name} ({words})" for name, (words, _) in TAKES.items())
        for field in schema:
            if field.name in IGNORED:
                continue
            if field.name not in TAKES:
                raise BadInput(f"a message has no column {field.name!r:.80}; there are {known}")
            words, fits = TAKES[field.name]
            if not fits(field.dataType):
                zone = ", with a time zone" if isinstance(field.dataType, TimestampNTZType) else ""
                raise BadInput(f"the column {field.name} is {field.dataType.simpleString()}; it must be {words}{zone}")
        names: list[str] = schema.fieldNames()
        if "body" not in names:
            raise BadInput(f"there is no column body, which every message has; the columns are {', '.join(names)}")
        if queue is None and "queue" not in names:
            raise BadInput('there is no column queue: add one, or use .option("queue", …)')
        for name in (queue, bad_rows):
            if name is not None:
                policy.check_name(name)
        self._queue = queue
        self._bad_rows = bad_rows
        self._columns = [name for name in names if name in TAKES]
        self._text = isinstance(schema["body"].dataType, StringType)

    def convert(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Record batches with the columns of a segment. A row that cannot be a message is an error, or diverted."""
        seen = 0
        for batch in batches:
            columns = self._convert(batch)
            wrong = _find_wrong(columns)
            if not wrong:
                yield pa.record_batch(columns)
            else:
                yield from self._divert(columns, wrong, seen)
            seen += batch.num_rows

    def _convert(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        given = {name: batch.column(name) for name in self._columns}
        columns: dict[str, pa.Array] = {}
        if self._queue is not None:
            columns["queue"] = pa.repeat(pa.scalar(self._queue, pa.string()), batch.num_rows)
        else:
            columns["queue"] = given["queue"].cast(pa.string())
        columns["body"] = given["body"].cast(pa.binary())
        if self._text:
            told = given.get("content_type", pa.nulls(batch.num_rows, pa.string()))
            columns["content_type"] = pc.fill_null(told.cast(pa.string()), policy.TEXT)
        for name, column in given.items():
            if name in columns:
                continue
            if name == "deadline" and pa.types.is_timestamp(column.type):
                columns["deadline_at"] = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            else:
                columns[name] = column.cast(COLUMNS[name])
        if self._bad_rows is not None:  # bad rows have attributes, and all batches of a segment need one schema
            columns.setdefault("attributes", pa.nulls(batch.num_rows, COLUMNS["attributes"]))
        return columns

    def _divert(self, columns: dict[str, pa.Array], wrong: dict[int, str], seen: int) -> Iterator[pa.RecordBatch]:
        whole = pa.record_batch(columns)
        if self._bad_rows is None:
            place, reason = min(wrong.items())
            queue = columns["queue"][place].as_py()
            raise BadMessage(
                f"row {seen + place} of its partition, for queue {queue!r:.200}, cannot be a message: {reason}. "
                'With .option("badRows", queue), such rows go there'
            )
        good = pa.array([place not in wrong for place in range(whole.num_rows)])
        yield whole.filter(good)
        diverted = [
            divert(columns["body"][place].as_py() or b"", columns["queue"][place].as_py() or "", reason)
            for place, reason in sorted(wrong.items())
        ]
        fields: dict[str, Any] = {
            "queue": pa.array([self._bad_rows] * len(diverted), pa.string()),
            "body": pa.array([draft.body for draft in diverted], pa.binary()),
            "attributes": pa.array([list(draft.attributes.items()) for draft in diverted], COLUMNS["attributes"]),
        }
        rest = (pa.nulls(len(diverted), field.type) for field in whole.schema)
        yield pa.record_batch(
            {field.name: fields.get(field.name, null) for field, null in zip(whole.schema, rest, strict=True)}
        )


def _find_wrong(columns: dict[str, pa.Array]) -> dict[int, str]:
    """The rows that cannot be messages, and why, as far as this shows here; publishing finds the rest."""
    found: dict[int, str] = {}
    body, queue = columns["body"], columns["queue"]
    if body.null_count:
        _note(found, pc.is_null(body), lambda _: "its body is null")
    if queue.null_count:
        _note(found, pc.is_null(queue), lambda _: "its queue is null")
    sizes = pc.binary_length(body)
    if (pc.max(sizes).as_py() or 0) > policy.MAX_BODY:
        _note(
            found,
            pc.greater(sizes, policy.MAX_BODY),
            lambda place: f"the body has {sizes[place].as_py()} bytes, the limit is {policy.MAX_BODY}",
        )
    for name in ("delay", "deadline"):
        if name in columns and columns[name].null_count < len(body):
            inside = pc.and_(pc.greater_equal(columns[name], 0.0), pc.less_equal(columns[name], float(MAX_NUMBER)))
            if not pc.all(inside).as_py():
                _note(
                    found,
                    pc.invert(inside),
                    lambda place, name=name: f"{name} {columns[name][place].as_py()} is not between 0 and {MAX_NUMBER} seconds",
                )
    return found


def _note(found: dict[int, str], mask: pa.Array, reason: Any) -> None:
    for place in pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist():
        found.setdefault(place, reason(place))
