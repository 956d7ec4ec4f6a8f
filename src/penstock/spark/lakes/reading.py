"""A table as a frame: executors read its files through the table's own library, so Spark needs no connector."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.errors import BadInput
from penstock.spark.lakes.tables import TableAddress, TableReader
from penstock.spark.lakes.writing import nullable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_OF_A_TASK = 200
"""More files than this for one task make more tasks than Spark can run at a time."""


def read(spark: SparkSession, address: TableAddress, *, since: str | None = None, until: str | None = None) -> DataFrame:
    """The table as it is now, whatever becomes of it; ``since`` and ``until``: only these days, or more."""
    table = address.open()
    schema = table.schema()
    if schema is None:
        raise BadInput(f"there is no table {address}")
    found = from_arrow_schema(pa.schema([pa.field(each.name, nullable(each.type)) for each in schema]))
    scan = table.scan(since, until)
    parts = [(pickle.dumps(part),) for part in scan.parts]
    if not parts:
        return spark.createDataFrame([], found)
    tasks = min(len(parts), max(parallelism(spark), len(parts) // FILES_OF_A_TASK))
    return spark.createDataFrame(parts, "part binary").repartition(tasks).mapInArrow(_reading(scan.reader), found)


def parallelism(spark: SparkSession) -> int:
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return 8
    return spark.sparkContext.defaultParallelism


def _reading(reader: TableReader) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                yield from reader.batches(pickle.loads(part))  # noqa: S301 (our own driver's)

    return read
