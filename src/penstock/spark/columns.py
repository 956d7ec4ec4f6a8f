"""A message as a row: the columns that Spark sees, and messages as Arrow batches of them.

Attributes are text there; those that are not have their type in ``attribute_types``: integer, number, or bytes (in base64).
An instant that never comes is null.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import BadInput
from penstock.message import Message
from penstock.segments import text_of, types_of
from penstock.spark.options import ReadOptions

MESSAGE = (
    "id string, queue string, body binary, content_type string, attributes map<string,string>, "
    "attribute_types map<string,string>, sent_at timestamp, receives int, visible_at timestamp, deadline timestamp, "
    "`group` string, key binary, state string, first_received_at timestamp, received_at timestamp, "
    "death struct<queue:string,reason:string,receives:int,died_at:timestamp>"
)
SETTLED = f"{MESSAGE}, settled_at timestamp, reason string"
ATTRIBUTES = ("attributes", "attribute_types")
END = 253_402_300_800_000_000
"""The year 10000, which Python's datetime and many a lake cannot hold."""


def schema(options: ReadOptions) -> StructType:
    whole = StructType.fromDDL(SETTLED if options.view == "settled" else MESSAGE)
    return StructType([field for field in whole if options.include_attributes or field.name not in ATTRIBUTES])


def chosen(given: StructType) -> StructType:
    """The columns that were asked for by `.schema(…)`, which may be fewer, but each as it is here."""
    whole = {field.name: field for field in StructType.fromDDL(SETTLED)}
    for field in given:
        if field.name not in whole or whole[field.name].dataType != field.dataType:
            has = ", ".join(f"{name} {known.dataType.simpleString()}" for name, known in whole.items())
            raise BadInput(f"there is no column {field.name} {field.dataType.simpleString()}; there are {has}")
    return given


def arrow_schema(chosen: StructType) -> pa.Schema:
    return to_arrow_schema(chosen, timezone="UTC")


def to_batch(messages: Sequence[Message], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array((COLUMNS[field.name](message) for message in messages), field.type, size=len(messages)) for field in schema],
        schema=schema,
    )


def instant(at: int | None) -> int | None:
    return at if at is not None and at < END else None


def _death(message: Message) -> dict[str, object] | None:
    if message.death is None:
        return None
    death = message.death
    return {"queue": death.queue, "reason": death.reason, "receives": death.receives, "died_at": instant(death.died_at)}


COLUMNS = {
    "id": lambda message: message.id,
    "queue": lambda message: message.queue,
    "body": lambda message: message.body,
    "content_type": lambda message: message.content_type,
    "attributes": lambda message: [(name, text_of(value)) for name, value in message.attributes.items()],
    "attribute_types": lambda message: types_of(message.attributes),
    "sent_at": lambda message: instant(message.sent_at),
    "receives": lambda message: message.receives,
    "visible_at": lambda message: instant(message.visible_at),
    "deadline": lambda message: instant(message.deadline_at),
    "group": lambda message: message.group,
    "key": lambda message: message.key,
    "state": lambda message: message.state.name.lower(),
    "first_received_at": lambda message: instant(message.first_received_at),
    "received_at": lambda message: instant(message.received_at),
    "death": _death,
    "settled_at": lambda message: instant(message.settled_at),
    "reason": lambda message: message.reason,
}
