"""Messages as Arrow: the columns of a message, and record batches of messages.

Attributes are text. ``attribute_types`` has the type of those that were not: integer, number, or bytes (in base64). An instant
that never comes is null.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.errors import BadInput, BadMessage, MissingExtra
from penstock.message import Attribute, Death, Message

try:
    import pyarrow as pa
except ImportError as error:
    raise MissingExtra("messages as Arrow", "arrow") from error

INSTANT = pa.timestamp("us", tz="UTC")
TEXTS = pa.map_(pa.string(), pa.string())
DEATH = pa.struct([("queue", pa.string()), ("reason", pa.string()), ("receives", pa.int32()), ("died_at", INSTANT)])
SETTLED = pa.schema(
    [
        ("id", pa.string()),
        ("queue", pa.string()),
        ("body", pa.binary()),
        ("content_type", pa.string()),
        ("attributes", TEXTS),
        ("attribute_types", TEXTS),
        ("sent_at", INSTANT),
        ("receives", pa.int32()),
        ("visible_at", INSTANT),
        ("deadline", INSTANT),
        ("group", pa.string()),
        ("key", pa.binary()),
        ("state", pa.string()),
        ("first_received_at", INSTANT),
        ("received_at", INSTANT),
        ("death", DEATH),
        ("settled_at", INSTANT),
        ("reason", pa.string()),
    ]
)
"""All columns; only the history has the last two."""
NUMBER = pa.field("number", pa.int64())
MESSAGE = pa.schema(list(SETTLED)[:-2])
CONTENT_TYPE = "application/vnd.apache.arrow.stream"
ATTRIBUTES = ("attributes", "attribute_types")
END = 253_402_300_800_000_000
"""The year 10000, which Python's datetime and many data lakes cannot represent."""


def schema_of(names: Iterable[str]) -> pa.Schema:
    """A schema of some of the columns, or ``number``, which is for paging. Raises `BadInput` for an unknown name."""
    known = {field.name: field for field in SETTLED} | {"number": NUMBER}
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise BadInput(f"there is no column {name!r:.80}; there are {', '.join(SETTLED.names)}")
    return pa.schema([known[name] for name in names])


def to_batch(messages: Sequence[Message], schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.array((COLUMNS[field.name](message) for message in messages), field.type, size=len(messages)) for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def pack(batch: pa.RecordBatch) -> bytes:
    """The batch as it is sent over HTTP: an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def unpack(contents: Sequence[bytes], schema: pa.Schema) -> pa.RecordBatch:
    """One batch of what came in several answers."""
    batches = [batch for content in contents for batch in pa.ipc.open_stream(content)]
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    return pa.RecordBatch.from_arrays(whole.columns, schema=schema)


def instant(at: int | None) -> int | None:
    return at if at is not None and at < END else None


def text(value: Attribute) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value if isinstance(value, str) else repr(value)


def types(values: Iterable[tuple[str, Attribute]]) -> list[tuple[str, str]]:
    names = {bytes: "bytes", int: "integer", float: "number"}
    return [(name, names[type(value)]) for name, value in values if type(value) is not str]


def attribute(name: str, told: str | None, kind: str | None) -> Attribute:
    """The value that `text` encoded, of this type."""
    if told is None:
        raise BadMessage(f"attribute {name!r:.80} is null")
    try:
        match kind:
            case None:
                return told
            case "integer":
                return int(told)
            case "number":
                return float(told)
            case "bytes":
                return base64.b64decode(told, validate=True)
    except ValueError:
        raise BadMessage(f"attribute {name!r:.80} is {told!r:.80}, which is not a value of the type {kind}") from None
    raise BadMessage(f"attribute {name!r:.80} has the type {kind!r:.80}; there are integer, number and bytes")


def death(told: Death | None) -> dict[str, object] | None:
    if told is None:
        return None
    return {"queue": told.queue, "reason": told.reason, "receives": told.receives, "died_at": instant(told.died_at)}


COLUMNS: dict[str, Callable[[Message], Any]] = {
    "number": lambda message: message.number,
    "id": lambda message: message.id,
    "queue": lambda message: message.queue,
    "body": lambda message: message.body,
    "content_type": lambda message: message.content_type,
    "attributes": lambda message: [(name, text(value)) for name, value in message.attributes.items()],
    "attribute_types": lambda message: types(message.attributes.items()),
    "sent_at": lambda message: instant(message.sent_at),
    "receives": lambda message: message.receives,
    "visible_at": lambda message: instant(message.visible_at),
    "deadline": lambda message: instant(message.deadline_at),
    "group": lambda message: message.group,
    "key": lambda message: message.key,
    "state": lambda message: message.state.name.lower(),
    "first_received_at": lambda message: instant(message.first_received_at),
    "received_at": lambda message: instant(message.received_at),
    "death": lambda message: death(message.death),
    "settled_at": lambda message: instant(message.settled_at),
    "reason": lambda message: message.reason,
}
