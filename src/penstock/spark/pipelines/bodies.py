"""Converts bodies to columns and rows to messages; rejected rows become dead letters with their original."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import BadInput

PROBLEM = "_penstock_problem"
CORRUPT = "_penstock_corrupt"
MESSAGE = ("body", "content_type", "attributes", "attribute_types", "delay", "deadline", "key", "group")
"""The columns that a queue takes from a table with a column ``body``; without one, each row becomes JSON."""


def parsed(stream: DataFrame, ddl: str) -> DataFrame:
    """The fields of JSON bodies as columns, the message as the column ``message``, and the problem if a body does not parse."""
    fields: Any = StructType.fromDDL(ddl)
    for taken in ("message", PROBLEM, CORRUPT):
        if taken in fields.fieldNames():
            raise BadInput(f"the field {taken!r} of the JSON would hide a column of that name: read it in a step")
    whole = StructType([*fields.fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    parsed = f.from_json(f.col("body").cast("string"), whole, options)
    wrong = f.col("parsed").isNull() | f.col(f"parsed.{CORRUPT}").isNotNull()
    return stream.select(f.struct("*").alias("message"), parsed.alias("parsed")).select(
        *[f.col(f"parsed.`{name}`") for name in fields.fieldNames()],
        "message",
        f.when(wrong, f.lit(f"the body is not JSON of the form {ddl}")).alias(PROBLEM),
    )


def readable_bodies(frame: DataFrame) -> DataFrame:
    """With the body as the column ``text``, and as the variant ``json``, null if it is no JSON: json:customer.name::string."""
    text = "cast(body AS string)"
    return frame.withColumns({"text": f.expr(text), "json": f.expr(f"try_parse_json({text})")})


def messages(frame: DataFrame) -> DataFrame:
    if "body" in frame.columns:
        return frame.select(*[name for name in MESSAGE if name in frame.columns])
    return frame.select(f.to_json(f.struct("*")).alias("body"), f.lit("application/json").alias("content_type"))


def dead_letters(rejected: DataFrame, table: str) -> DataFrame:
    """The original of each rejected row, with the attributes reason, queue (its origin) and table."""
    names = set(rejected.columns)
    prefix = "message." if "message" in names else ""
    told = {"reason": f.col(PROBLEM), "table": f.lit(table)}
    if not prefix and "body" not in names:
        row = f.to_json(f.struct(*[f.col(f"`{name}`") for name in rejected.columns if name != PROBLEM]))
        body, kind, kept, types = row, f.lit("application/json"), None, None
    else:
        has = set(rejected.select("message.*").columns) if prefix else names
        body = f.col(f"{prefix}body")
        kind = f.col(f"{prefix}content_type") if "content_type" in has else f.lit(None).cast("string")
        kept = f.col(f"{prefix}attributes") if "attributes" in has else None
        types = f.col(f"{prefix}attribute_types") if "attribute_types" in has else None
        if "queue" in has:
            told["queue"] = f.col(f"{prefix}queue")
        if "id" in has and prefix:
            told["message_id"] = f.col("message.id")
    marks = f.create_map(*[part for name, value in told.items() for part in (f.lit(name), value)])
    if kept is not None:
        own = list(told)
        marks = f.map_concat(f.map_filter(kept, lambda name, _: ~name.isin(own)), marks)
    chosen = [body.alias("body"), kind.alias("content_type"), marks.alias("attributes")]
    return rejected.select(*chosen, *([types.alias("attribute_types")] if types is not None else []))
