"""A segment: many messages for one or more queues, as an Arrow IPC stream.

queue            string     the target queue
body             binary
content_type     string     this and later columns are optional; null means the queue's default
attributes       map<string, string>
attribute_types  map<string, string>   for those that are not text: integer, number or bytes (in base64)
delay            double     seconds
deadline         double     seconds from the publication
deadline_at      int64      or an instant, in microseconds
key              binary
group            string
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from struct import Struct
from typing import Any, NamedTuple

from penstock.errors import BadInput, BadMessage, MissingExtra
from penstock.message import OCTETS, Draft, from_datetime, to_datetime

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise MissingExtra("publishing segments", "arrow") from error

from penstock import arrow

MAX_ROWS = 100_000
"""Messages in one segment."""
INT, UINT, SHORT, LONG = (Struct(code) for code in ("<i", "<I", "<H", "<q"))
COLUMNS = {
    "queue": pa.string(),
    "body": pa.binary(),
    "content_type": pa.string(),
    "attributes": arrow.TEXTS,
    "attribute_types": arrow.TEXTS,
    "delay": pa.float64(),
    "deadline": pa.float64(),
    "deadline_at": pa.int64(),
    "key": pa.binary(),
    "group": pa.string(),
}


class Piece(NamedTuple):
    """Messages for one queue. Plain bytes have this content type. A ``problem`` says why a row is not a message."""

    queue: str
    drafts: Sequence[Draft | bytes]
    content_type: str = OCTETS
    problem: str | None = None


def pack(batches: Sequence[Any]) -> bytes:
    """Pack record batches that share one schema, with columns from the list above, into a segment."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue())


def pack_drafts(queue: str, drafts: Sequence[Draft]) -> bytes:
    """Pack messages for one queue into a segment."""
    values: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for draft in drafts:
        if draft.unique:
            raise BadMessage("a message that is staged cannot be unique")
        instant = draft.deadline if isinstance(draft.deadline, datetime) else None
        values["queue"].append(queue)
        values["body"].append(draft.body)
        values["content_type"].append(draft.content_type)
        values["attributes"].append([(name, arrow.text(value)) for name, value in draft.attributes.items()] or None)
        values["attribute_types"].append(arrow.types(draft.attributes.items()) or None)
        values["delay"].append(draft.delay)
        values["deadline"].append(None if instant else draft.deadline)
        values["deadline_at"].append(instant and from_datetime(instant))
        values["key"].append(draft.key.encode() if isinstance(draft.key, str) else draft.key)
        values["group"].append(draft.group)
    return pack([pa.record_batch({name: pa.array(values[name], kind) for name, kind in COLUMNS.items()})])


def unpack(segment: bytes | memoryview, rows: int = 10_000) -> Iterator[Piece]:
    """The messages of a segment, at most ``rows`` at a time. Those for the same queue keep their order."""
    try:
        check_extent(segment)
        with pa.ipc.open_stream(pa.py_buffer(segment)) as stream:
            _check_schema(stream.schema)
            for batch in stream:
                batch.validate()
                for column in batch.columns:
                    # Arrow trusts the offsets in a buffer and would read beyond its end. (Invalid UTF-8 is reported later, with
                    # its message.)
                    (column.view(pa.binary()) if column.type == pa.string() else column).validate(full=True)
                for start in range(0, batch.num_rows, rows):
                    yield from _pieces(batch.slice(start, rows))
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"a segment cannot be read: {error}") from None
    except UnicodeDecodeError:
        raise BadInput("a segment cannot be read: the name of a column is not UTF-8") from None


def check_extent(segment: bytes | memoryview) -> None:
    """Look at the heads of the batches alone, before any of them is decoded. An Arrow batch refers to its bytes and does not
    copy them, unless they are compressed; then a few can become billions, so that compressed ones are refused."""
    total = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(segment)):
        if message.type == "schema":
            continue
        if message.type != "record batch":
            raise BadInput(f"a segment has record batches, not a {message.type}")
        count, compressed = _read_batch_head(message.metadata.to_pybytes())
        if compressed:
            raise BadInput("a segment cannot be read: its batches are compressed")
        total += count
        if count < 0 or total > MAX_ROWS:
            raise BadInput(f"a segment has {total} messages or more, the limit is {MAX_ROWS}")


def _read_batch_head(head: bytes) -> tuple[int, bool]:
    """How many rows a record batch has, and whether they are compressed, from its message (a Flatbuffer; see Arrow's
    Message.fbs): the third field of a message is its batch, whose first is the count, and whose fourth the compression."""
    (root,) = UINT.unpack_from(head)
    at = _field(head, root, 2)
    assert at is not None, "Arrow has checked it"
    batch = at + UINT.unpack_from(head, at)[0]
    count = _field(head, batch, 0)
    return 0 if count is None else LONG.unpack_from(head, count)[0], _field(head, batch, 3) is not None


def _field(head: bytes, table: int, number: int) -> int | None:
    """Where a field of a Flatbuffer's table is; None if it has its default."""
    offsets = table - INT.unpack_from(head, table)[0]
    place = 4 + 2 * number
    offset = SHORT.unpack_from(head, offsets + place)[0] if place < SHORT.unpack_from(head, offsets)[0] else 0
    return table + offset if offset else None


def _check_schema(schema: Any) -> None:
    if len(set(schema.names)) < len(schema.names):
        raise BadInput(f"a segment has a column twice: {', '.join(schema.names):.200}")
    for field in schema:
        if field.name not in COLUMNS or field.type != COLUMNS[field.name]:
            has = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise BadInput(f"a segment has no column {field.name} {field.type}; there are {has}")
    if not {"queue", "body"} <= set(schema.names):
        raise BadInput("a segment must have the columns queue and body")


def _pieces(batch: Any) -> list[Piece]:
    """Find unreadable rows by bisection, so that the other rows stay together."""
    try:
        return list(_by_queue(batch))
    except (BadInput, UnicodeDecodeError) as error:
        if batch.num_rows == 1:
            problem = f"its text is not UTF-8: {error}" if isinstance(error, UnicodeDecodeError) else str(error)
            queue = batch.column("queue").cast(pa.binary())[0].as_py() or b""
            return [Piece(queue.decode(errors="replace"), [batch.column("body")[0].as_py() or b""], problem=problem)]
    half = batch.num_rows // 2
    return [*_pieces(batch.slice(0, half)), *_pieces(batch.slice(half))]


def _by_queue(batch: Any) -> Iterator[Piece]:
    queues = batch.column("queue")
    if queues.null_count or batch.column("body").null_count:
        raise BadMessage("a message has no queue, or no body")
    names = pc.unique(queues).to_pylist()
    if len(names) == 1:
        yield _piece(names[0], batch)
        return
    places: dict[str, list[int]] = {name: [] for name in names}
    for place, name in enumerate(queues.to_pylist()):
        places[name].append(place)
    for name, rows in places.items():
        yield _piece(name, batch.take(pa.array(rows, pa.int64())))


def _piece(queue: str, batch: Any) -> Piece:
    bodies = batch.column("body").to_pylist()
    own = [name for name in batch.schema.names[:] if name not in ("queue", "body")]
    used = {name: batch.column(name) for name in own if batch.column(name).null_count < len(bodies)}
    if not used.keys() - {"content_type"}:
        types = pc.unique(used["content_type"]).to_pylist() if used else [OCTETS]
        if len(types) == 1:
            return Piece(queue, bodies, types[0] or OCTETS)
    columns = {name: column.to_pylist() for name, column in used.items()}
    return Piece(queue, [_draft(body, columns, place) for place, body in enumerate(bodies)])


def _draft(body: bytes, columns: Mapping[str, list[Any]], place: int) -> Draft:
    row = {name: column[place] for name, column in columns.items() if column[place] is not None}
    deadline = row.get("deadline")
    if deadline is None and "deadline_at" in row:
        try:
            deadline = to_datetime(row["deadline_at"])
        except OverflowError:
            raise BadMessage(f"deadline_at {row['deadline_at']} is not within the years 1 to 9999") from None
    attributes = row.get("attributes") or ()
    types = dict(row.get("attribute_types") or ())
    return Draft(
        body,
        row.get("content_type", OCTETS),
        {name: arrow.attribute(name, text, types.get(name)) for name, text in attributes},
        delay=row.get("delay"),
        deadline=deadline,
        key=row.get("key"),
        group=row.get("group"),
    )
