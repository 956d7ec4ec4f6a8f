"""A digest of rows that does not depend on their order, nor on how they are split: the sum of a checksum of each value.

Spark replays a batch with the same rows, but in another order and in other partitions. Columns are summed by themselves, so two
batches that differ only in which value stands beside which have one digest. The digest shows accidents, not forgeries.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

WRAP = 2**64


def digest_of(batch: pa.RecordBatch) -> int:
    """The digest of a batch with columns of a segment; digests of several batches are added."""
    return sum(_sum(name, batch.column(name)) for name in batch.schema.names) % WRAP


def _sum(name: str, column: pa.Array) -> int:
    seed, column = crc32(name.encode()), column.drop_null()  # the same with a column of nulls as without the column
    if not len(column):
        return 0
    if name in ("body", "key"):
        return sum(crc32(value, seed) for value in _views(column))
    if pa.types.is_string(column.type):  # mostly the same for many rows
        return sum(crc32(repr(each["values"]).encode(), seed) * each["counts"] for each in pc.value_counts(column).to_pylist())
    return sum(crc32(repr(_sorted(value)).encode(), seed) for value in column.to_pylist())


def _views(column: pa.Array) -> Any:
    """The values of a binary column, without a copy of each."""
    _, ends, data = column.buffers()
    places = memoryview(ends).cast("i")[column.offset : column.offset + len(column) + 1]
    content = memoryview(data or b"")
    return (content[start:end] for start, end in pairwise(places))


def _sorted(value: Any) -> Any:
    """A map comes as a list of pairs, in an order that says nothing."""
    if not isinstance(value, list):
        return value
    try:
        return sorted(value)
    except TypeError:  # a list of structs, or with nulls
        return sorted(value, key=repr)
