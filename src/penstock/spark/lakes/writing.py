"""How tasks write the rows of a batch as files of Parquet, and tell the driver which files these are.

A file is `part-APP-BATCH-RANDOM.parquet`. Files of a task that failed, or of a driver that died before it committed them, are
in no version of the table, and no reader sees them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import BadInput
from penstock.spark import columns
from penstock.spark.digests import WRAP, digest_of
from penstock.spark.lakes.tables import DataFile, Output
from penstock.stores.disk import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ROW_GROUP, LARGE = 16 * 2**20, 256 * 2**20
"""Bytes of rows that are written together, and of a file after which another begins."""
MOST_OPEN = 16
"""So many partitions are written side by side by one task."""
LONGEST = 64
"""Longer texts are not in the statistics."""
REPORTED = "path string, size bigint, rows bigint, partition map<string,string>, stats string, digest string"
DIGESTED = "digest string, rows bigint"


@dataclass(frozen=True, slots=True)
class Written:
    files: list[DataFile]
    content: str


def arrow_schema(frame: StructType) -> pa.Schema:
    """The columns of a frame; any of them may be null, because tables get new columns."""
    try:
        schema = columns.arrow_schema(frame)
    except Exception as error:  # Spark's, for types such as intervals
        raise BadInput(f"a table of a lake cannot have such columns: {str(error).splitlines()[0]:.200}") from None
    for each in schema:
        if pa.types.is_null(each.type):
            raise BadInput(f"the column {each.name} has no type: cast it to one")
    return pa.schema([pa.field(each.name, nullable(each.type)) for each in schema])


def nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        inner = (kind.field(place) for place in range(kind.num_fields))
        return pa.struct([pa.field(each.name, nullable(each.type)) for each in inner])
    if pa.types.is_map(kind):
        return pa.map_(nullable(kind.key_type), nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(nullable(kind.value_type))
    return kind


def write(
    frame: DataFrame,
    output: Output,
    schema: pa.Schema,
    partition: Sequence[str],
    *,
    name: str,
    compression: str,
    varying: Sequence[str],
) -> Written:
    """Write the rows; the files that belong to the batch, and what is in them."""
    task = _Task(output, schema, tuple(partition), name, compression, tuple(varying))
    rows = frame.mapInArrow(task.run, REPORTED).collect()
    files = [DataFile(row.path, row.size, row.rows, dict(row.partition), row.stats) for row in rows if row.path is not None]
    return Written(files, _content((row.digest, row.rows) for row in rows if row.path is None))


def content_of(frame: DataFrame, varying: Sequence[str]) -> str:
    """What `write` would say of these rows."""
    return _content(tuple(row) for row in frame.mapInArrow(_digesting(tuple(varying)), DIGESTED).collect())


def _content(parts: Any) -> str:
    digest = count = 0
    for part, rows in parts:
        digest, count = (digest + int(part, 16)) % WRAP, count + rows
    return f"{count}-{digest:016x}"


def _digesting(varying: Sequence[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def digest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        known = Digest(varying)
        for batch in batches:
            known.add(batch)
        yield pa.RecordBatch.from_pydict({"digest": [f"{known.digest:x}"], "rows": [known.rows]})

    return digest


@dataclass(slots=True)
class Digest:
    varying: Sequence[str]
    digest: int = 0
    rows: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        same = batch.select([name for name in batch.schema.names if name not in self.varying])
        self.digest, self.rows = (self.digest + digest_of(same)) % WRAP, self.rows + batch.num_rows


@dataclass(frozen=True, slots=True)
class _Task:
    """Writes the rows of one partition of Spark; it is pickled to the executor."""

    output: Output
    schema: pa.Schema
    partition: tuple[str, ...]
    name: str
    compression: str
    varying: tuple[str, ...]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digest, files = Digest(self.varying), _Files(self)
        for batch in batches:
            digest.add(batch)
            for values, rows in split(batch, self.partition):
                files.add(values, conformed(rows, self.schema))
        files.close()
        told = [
            {"path": each.path, "size": each.size, "rows": each.rows, "partition": each.partition, "stats": each.stats}
            for each in files.done
        ]
        if digest.rows:
            told.append({"digest": f"{digest.digest:x}", "rows": digest.rows})
        types = [pa.string(), pa.int64(), pa.int64(), pa.map_(pa.string(), pa.string()), pa.string(), pa.string()]
        names = ["path", "size", "rows", "partition", "stats", "digest"]
        if told:
            arrays = [
                pa.array([_pairs(each.get(name)) for each in told], kind) for name, kind in zip(names, types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names)


def _pairs(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


class _Files:
    """The files that a task is writing, by the values of their partition."""

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._open: dict[tuple[str | None, ...], _Part] = {}
        self.done: list[DataFile] = []
        inside = task.schema.names if task.output.in_files else [n for n in task.schema.names if n not in task.partition]
        self._schema = pa.schema([task.schema.field(name) for name in inside])

    def add(self, values: tuple[str | None, ...], rows: pa.RecordBatch) -> None:
        part = self._open.pop(values, None) or self._begin()
        self._open[values] = part  # the one that was used last is last
        part.add(rows.select(self._schema.names))
        if part.size > LARGE:
            self._end(values)
        elif len(self._open) > MOST_OPEN:
            self._end(next(iter(self._open)))

    def close(self) -> None:
        for values in list(self._open):
            self._end(values)

    def _begin(self) -> _Part:
        task = self._task
        path = task.output.path(f"part-{task.name}-{secrets.token_hex(8)}.parquet")
        return _Part(path, task.output.open(path), self._schema, task.compression)

    def _end(self, values: tuple[str | None, ...]) -> None:
        part = self._open.pop(values)
        size, found = part.close()
        local = self._task.output.local(part.path)
        if local is not None:
            sync(local)
            sync(Path(local).parent)
        partition = dict(zip(self._task.partition, values, strict=True))
        self.done.append(DataFile(part.path, size, found.num_rows, partition, statistics(found, self._schema)))


@dataclass(slots=True)
class _Part:
    path: str
    file: Any
    schema: pa.Schema
    compression: str
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    found: list[pq.FileMetaData] = field(default_factory=list)
    writer: pq.ParquetWriter = field(init=False)

    def __post_init__(self) -> None:
        self.writer = pq.ParquetWriter(
            self.file, self.schema, compression=self.compression, store_schema=False, metadata_collector=self.found
        )

    @property
    def size(self) -> int:
        return int(self.file.tell())

    def add(self, rows: pa.RecordBatch) -> None:
        self.waiting.append(rows)
        self.bytes += rows.nbytes
        if self.bytes > ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self.waiting:
            self.writer.write_table(pa.Table.from_batches(self.waiting, self.schema))
        self.waiting, self.bytes = [], 0

    def close(self) -> tuple[int, pq.FileMetaData]:
        self._flush()
        self.writer.close()
        size = self.size
        self.file.close()
        return size, self.found[0]


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a table, in its order and with its types; null where the rows have none."""
    arrays = [
        batch.column(each.name).cast(each.type) if each.name in batch.schema.names else pa.nulls(batch.num_rows, each.type)
        for each in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def split(batch: pa.RecordBatch, partition: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of each partition, with its values as text."""
    if not partition:
        yield (), batch
        return
    keys = pa.Table.from_batches([batch.select(list(partition))]).group_by(list(partition)).aggregate([]).to_pylist()
    for key in keys:
        values = tuple(as_text(key[name]) for name in partition)
        if len(keys) == 1:
            yield values, batch
            return
        chosen = None
        for name in partition:
            column = batch.column(name)
            same = (
                pc.is_null(column)
                if key[name] is None
                else pc.fill_null(pc.equal(column, pa.scalar(key[name], column.type)), False)
            )
            chosen = same if chosen is None else pc.and_(chosen, same)
        yield values, batch.filter(chosen)


def check_partition(schema: pa.Schema, partition: Sequence[str]) -> None:
    for name in partition:
        if name not in schema.names:
            raise BadInput(f"there is no column {name!r:.80}; there are {', '.join(schema.names)}")
        kind = schema.field(name).type
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_boolean(kind)):
            raise BadInput(f"a table is partitioned by texts, whole numbers, dates or booleans, and {name} is {kind}")
    if len(partition) == len(schema.names):
        raise BadInput("a table needs a column beside those of its partitions")


def as_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


def statistics(found: pq.FileMetaData, schema: pa.Schema) -> str:
    """Counts, and the least and the greatest value of each column where Parquet has them."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for place in range(found.num_columns if found.num_row_groups else 0):
        parts = [found.row_group(group).column(place) for group in range(found.num_row_groups)]
        name, known = parts[0].path_in_schema, [part.statistics for part in parts]
        if name not in schema.names or any(each is None for each in known):  # within structs, or unknown
            continue
        if all(each.has_null_count for each in known):
            nulls[name] = sum(each.null_count for each in known)
        bounds = [each for each in known if each.has_min_max]
        if len(bounds) + sum(not each.num_values for each in known) < len(known) or not bounds:
            continue
        low, high = _bound(min(each.min for each in bounds)), _bound(max(each.max for each in bounds))
        if low is not None and high is not None:
            least[name], most[name] = low, high
    return json.dumps({"numRecords": found.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _bound(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if value.tzinfo else None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool) or not isinstance(value, int | str) or (isinstance(value, str) and len(value) > LONGEST):
        return None
    return value
