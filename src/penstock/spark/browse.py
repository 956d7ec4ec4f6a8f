"""A batch read of queues, or of their history; it consumes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.message import FOREVER
from penstock.spark import columns, reading
from penstock.spark.filters import Wanted
from penstock.spark.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

DENSE = 8
"""If a queue has at least one number in eight, it is read by a table scan."""


@dataclass
class Ranges(InputPartition):
    """A part of one queue by numbers, or of several small ones."""

    pieces: list[reading.QueuePart]


class Browse(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> list[Ranges]:
        with self._options.open() as broker:
            splits = broker.store.ordered
            spans = {
                name: broker.queue(name).span(settled=self._options.view == "settled")
                for name in self._options.queues(broker)
                if self._wanted.queues is None or name in self._wanted.queues
            }
        sizes = [(name, count) for name, (count, _, _) in spans.items()]
        among = reading.parts(sum(size for _, size in sizes), self._options.min_partitions, self._options.parallelism)
        cut = reading.cut(sizes, among, whole=not splits)
        return [Ranges([_by_number(piece, *spans[piece.queue]) for piece in pieces]) for pieces in cut]

    def read(self, partition: Ranges) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        if not isinstance(partition, Ranges):  # Spark passes a partition of its own if we returned none: the queues are empty
            return
        yield from reading.scan(self._options, partition.pieces, self._wanted, columns.arrow_schema(self._schema))


def _by_number(piece: reading.QueuePart, count: int, first: int, last: int) -> reading.QueuePart:
    """The numbers that messages with these places may have, if they are spread evenly."""
    start = first + (last - first) * piece.start // count
    stop = first + (last - first) * piece.stop // count if piece.stop < count else FOREVER
    return reading.QueuePart(piece.queue, start, stop, dense=(last - first + 1) <= count * DENSE)


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
