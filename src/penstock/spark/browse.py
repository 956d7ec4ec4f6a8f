"""A batch read of queues, or of their history; it consumes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from penstock.message import FOREVER
from penstock.spark import columns, reading
from penstock.spark.filters import Wanted
from penstock.spark.options import ReadOptions

DENSE = 8
"""If a queue has at least one number in eight, it is read by a table scan."""


@dataclass
class Range(InputPartition):
    """The messages of one queue whose numbers are from ``start`` up to ``stop``."""

    queue: str
    start: int
    stop: int
    dense: bool


class Browse(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> list[Range]:
        ranges: list[Range] = []
        with self._options.open() as broker:
            splits = broker.store.ordered
            names = [
                name for name in self._options.queues(broker) if self._wanted.queues is None or name in self._wanted.queues
            ]
            for name in names:
                count, first, last = broker.queue(name).span(settled=self._options.view == "settled")
                dense = (last - first + 1) <= count * DENSE
                parts = reading.parts(count, self._options.min_partitions) if splits else [(0, count)] if count else []
                for low, high in parts:
                    start = first + (last - first) * low // count
                    stop = first + (last - first) * high // count if high < count else FOREVER
                    ranges.append(Range(name, start, stop, dense))
        return ranges

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        if not isinstance(partition, Range):  # Spark passes a partition of its own if we returned none: the queues are empty
            return
        schema = columns.arrow_schema(self._schema)
        yield from reading.scan(
            self._options, partition.queue, partition.start, partition.stop, partition.dense, self._wanted, schema
        )


class FilteringBrowse(Browse):
    """Takes filters from Spark, if spark.sql.python.filterPushdown.enabled is true."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for given in filters:
            narrowed = self._wanted.narrowed(given)
            if narrowed is None:
                yield given
            else:
                self._wanted = narrowed


def browse(options: ReadOptions, schema: StructType) -> Browse:
    """If pushdown is disabled, Spark refuses a reader with `pushFilters`, so only the worker that pushes filters gets one."""
    pushing = "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules
    return FilteringBrowse(options, schema) if pushing else Browse(options, schema)
