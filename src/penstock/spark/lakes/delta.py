"""Tables of Delta, through `deltalake`. A batch is the table's own transaction: its application and version are in the log.

PLACE/part-….parquet             files that tasks wrote, without the columns of partitions, as Delta has it
PLACE/_delta_log/00…12.json      what is in the table: {"txn": {"appId": …, "version": 12}}, {"add": …}, {"commitInfo": …}
PLACE/_penstock/…                checkpoints of pipelines, unless they are told to be elsewhere
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction
from pyarrow import fs

from penstock.errors import BadInput, StoreBusy, StoreUnreachable, Unsupported
from penstock.spark.lakes.storage import file_system, is_local
from penstock.spark.lakes.tables import CommitConflict, DataFile, LakeBatch, LakeTable, Output, Scan
from penstock.spark.lakes.writing import check_partition, conformed

NOTE = "penstock"
"""The key in a commit's metadata: {"app": …, "version": …, "content": …}."""
PLAIN = {
    "appendOnly", "changeDataFeed", "deletionVectors", "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck",
    "variantType",
}  # fmt: skip
"""Features that ask nothing of a writer that appends."""
RULES = ("delta.invariants", "delta.generationExpression")
LOOK_BACK = 1000
"""In so many commits the content of an application's last batch is looked for."""


@dataclass(frozen=True, slots=True)
class DeltaOutput:
    place: str
    in_files: bool = False

    def path(self, name: str) -> str:
        return name

    def open(self, path: str) -> Any:
        files, root = file_system(self.place)
        return files.open_output_stream(f"{root}/{path}")

    def local(self, path: str) -> str | None:
        return f"{self.place}/{path}" if is_local(self.place) else None


@dataclass(frozen=True, slots=True)
class DeltaReader:
    place: str
    schema: pa.Schema

    def batches(self, part: tuple[str, dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        """``part``: the path of a file, and the values of its partition."""
        (path, partition), (files, root) = part, file_system(self.place)
        with pq.ParquetFile(files.open_input_file(f"{root}/{path}")) as file:
            for batch in file.iter_batches():
                for name, value in partition.items():
                    kind = self.schema.field(name).type
                    column = pa.repeat(pa.scalar(value, kind), batch.num_rows)
                    batch = batch.append_column(name, column)
                yield conformed(batch, self.schema)


class DeltaLakeTable:
    def __init__(self, place: str) -> None:
        self.place = place
        self.name = f"delta:{place}"
        self.folder = place if is_local(place) else None
        self.notes = f"{place}/_penstock"
        self._table: DeltaTable | None = None
        self.refresh()

    def refresh(self) -> None:
        try:
            self._table = DeltaTable(self.place)
        except TableNotFoundError:
            self._table = None
        except (DeltaError, OSError) as error:
            raise StoreUnreachable(f"{self.name} cannot be opened: {_told(error)}") from error

    def schema(self) -> pa.Schema | None:
        return None if self._table is None else pa.schema(self._table.schema().to_arrow())

    def partition(self) -> list[str]:
        return [] if self._table is None else list(self._table.metadata().partition_columns)

    def create(self, schema: pa.Schema, partition: Sequence[str]) -> None:
        check_partition(schema, partition)
        if is_local(self.place):
            Path(self.place).mkdir(parents=True, exist_ok=True)
        try:
            DeltaTable.create(self.place, _schema(schema), mode="ignore", partition_by=list(partition))
        except (DeltaError, OSError) as error:
            raise StoreUnreachable(f"{self.name} cannot be created: {_told(error)}") from error

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        assert self._table is not None
        try:
            self._table.alter.add_columns(list(_schema(pa.schema(fields)).fields))
        except CommitFailedError as error:
            raise StoreBusy(f"{self.name} was changed by others while it got new columns: {_told(error)}") from error

    def output(self) -> Output:
        self._check_writable()
        return DeltaOutput(self.place)

    def committed(self, app: str) -> int | None:
        return None if self._table is None else self._table.transaction_version(app)

    def content(self, app: str) -> str | None:
        assert self._table is not None
        for commit in self._table.history(LOOK_BACK):  # the newest first
            note = json.loads(commit.get(NOTE) or "{}")
            if note.get("app") == app:
                return str(note["content"])
        return None

    def commit(self, batch: LakeBatch, files: Sequence[DataFile]) -> None:
        assert self._table is not None
        now = int(time.time() * 1000)
        note = json.dumps(asdict(batch))
        try:
            self._table.create_write_transaction(
                [AddAction(each.path, each.size, each.partition, now, True, each.stats) for each in files],
                "append",
                self._table.schema(),
                self.partition(),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(batch.app, batch.version, now)], custom_metadata={NOTE: note}
                ),
            )
        except CommitFailedError as error:
            raise CommitConflict from error
        except (DeltaError, OSError) as error:
            raise StoreUnreachable(f"{self.name} cannot be written: {_told(error)}") from error

    def scan(self, since: str | None, until: str | None) -> Scan:
        table, schema = self._table, self.schema()
        if table is None or schema is None:
            raise BadInput(f"there is no table {self.name}")
        days = [f"day {sign} '{day}'" for sign, day in ((">=", since), ("<=", until)) if day is not None]
        pruned = " AND ".join(days) if days and "day" in self.partition() else None
        files, root = file_system(self.place)
        try:
            found = table.to_pyarrow_dataset(file_pruning_predicate=pruned, filesystem=fs.SubTreeFileSystem(root, files))
        except DeltaProtocolError as error:
            raise Unsupported(f"{self.name} cannot be read without Spark's own connector: {_told(error)}") from None
        parts: list[tuple[str, dict[str, Any]]] = []
        for each in found.get_fragments():
            # It tells also what the statistics say of other columns.
            known = pyarrow.dataset.get_partition_keys(each.partition_expression)
            parts.append((each.path, {name: known.get(name) for name in self.partition()}))
        return Scan(DeltaReader(self.place, schema), parts)

    def compact(self, keep: int | None, /) -> dict[str, int]:
        if self._table is None:
            raise BadInput(f"there is no table {self.name}")
        removed: list[str] = []
        try:
            done = self._table.optimize.compact()
            if keep is not None:  # the library refuses hours in which a batch may still be written
                removed = self._table.vacuum(keep, dry_run=False, full=True)
        except CommitFailedError as error:
            raise StoreBusy(f"{self.name} was changed by others meanwhile: {_told(error)}") from error
        except DeltaError as error:
            raise BadInput(f"{self.name} cannot be compacted: {_told(error)}") from None
        return {"made": done["numFilesAdded"], "merged": done["numFilesRemoved"], "removed": len(removed)}

    def _check_writable(self) -> None:
        """We add files as they are, so the table must not ask for more."""
        assert self._table is not None
        protocol = self._table.protocol()
        features = set(protocol.writer_features or ()) - PLAIN
        if 2 < protocol.min_writer_version < 7:
            features.add(f"writer version {protocol.min_writer_version}")
        features |= {name for field in self._table.schema().fields for name in field.metadata if name in RULES}
        if features:
            raise Unsupported(
                f"{self.name} cannot be written without Spark's own connector: it has {', '.join(sorted(features))}"
            )


def _schema(schema: pa.Schema) -> Schema:
    try:
        return Schema.from_arrow(pa.schema(_plain(schema)))
    except Exception as error:  # the library raises errors of several kinds
        raise BadInput(f"a table of Delta cannot have these columns: {_told(error)}") from None


def _plain(fields: Any) -> list[pa.Field]:
    return [pa.field(each.name, each.type) for each in fields]


def _told(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _check(table: DeltaLakeTable) -> LakeTable:
    return table  # for the type checker: it has all that a table must have
