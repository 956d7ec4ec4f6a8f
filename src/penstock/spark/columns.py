"""The columns of `penstock.arrow` as Spark's types, and the ones that a reader selects."""

from __future__ import annotations

from inspect import signature

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock import arrow
from penstock.errors import BadInput
from penstock.spark.options import ReadOptions


def schema(options: ReadOptions) -> StructType:
    whole = from_arrow_schema(arrow.SETTLED if options.view == "settled" else arrow.MESSAGE)
    return StructType([field for field in whole if options.include_attributes or field.name not in arrow.ATTRIBUTES])


def chosen(given: StructType) -> StructType:
    """The columns chosen by `.schema(…)`: some or all of them, each with its own type."""
    whole = {field.name: field for field in from_arrow_schema(arrow.SETTLED)}
    for field in given:
        if field.name not in whole or whole[field.name].dataType != field.dataType:
            has = ", ".join(f"{name} {known.dataType.simpleString()}" for name, known in whole.items())
            raise BadInput(f"there is no column {field.name} {field.dataType.simpleString()}; there are {has}")
    return given


def arrow_schema(chosen: StructType) -> pa.Schema:
    zoned = "timezone" in signature(to_arrow_schema).parameters  # older versions of Spark always say UTC
    return to_arrow_schema(chosen, timezone="UTC") if zoned else to_arrow_schema(chosen)
