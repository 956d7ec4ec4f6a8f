"""Tables of Iceberg, through `pyiceberg`. The last batch of each application is a property of the table, which is set in the
transaction that adds the batch's files.

    CATALOG/catalog.db                           if CATALOG is a folder: which metadata is the table's (a catalog on SQLite)
    CATALOG/NAMESPACE/TABLE/data/part-….parquet  files that tasks wrote
    CATALOG/NAMESPACE/TABLE/metadata/…           {"properties": {"penstock.batch.APP": {"version": 12, "content": …}}}
    CATALOG/_penstock/…                          checkpoints of pipelines, unless they are told to be elsewhere

Summaries of snapshots would be the other place for the batch, but they go when snapshots expire; properties stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, RESTError, TableAlreadyExistsError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from sqlalchemy.exc import SQLAlchemyError

from penstock.errors import BadInput, StoreBusy, StoreUnreachable, Unsupported
from penstock.spark.lakes.tables import CommitConflict, DataFile, LakeBatch, LakeTable, Output, Scan
from penstock.spark.lakes.writing import check_partition, conformed

CATALOG = "penstock"
"""The name of a catalog in a folder."""
BATCH = "penstock.batch."
AWAY = (RESTError, SQLAlchemyError, OSError)
RETRIES = "commit.retry.num-retries"


@dataclass(frozen=True, slots=True)
class IcebergOutput:
    io: FileIO
    location: str
    in_files: bool = True

    def path(self, name: str) -> str:
        return f"{self.location}/data/{name}"

    def open(self, path: str) -> Any:
        return self.io.new_output(path).create()

    def local(self, path: str) -> str | None:
        return local_folder(path)


@dataclass(frozen=True, slots=True)
class IcebergReader:
    metadata: TableMetadata
    io: FileIO
    schema: Schema
    arrow: pa.Schema

    def batches(self, part: FileScanTask) -> Iterator[pa.RecordBatch]:
        for batch in ArrowScan(self.metadata, self.io, self.schema, AlwaysTrue()).to_record_batches([part]):
            yield conformed(batch, self.arrow)


class IcebergLakeTable:
    def __init__(self, catalog: str, table: str) -> None:
        self._catalog = _catalog(catalog)
        self._table: Table | None = None
        self._id = table
        self.name = f"iceberg:{catalog}/{table}"
        self.folder = catalog if catalog.startswith("/") else None
        self.notes = f"{catalog}/_penstock/{table}" if "/" in catalog else None
        self.refresh()

    def refresh(self) -> None:
        try:
            self._table = self._catalog.load_table(self._id)
        except NoSuchTableError:
            self._table = None
        except AWAY as error:
            raise StoreUnreachable(f"{self.name} cannot be opened: {_told(error)}") from error

    def schema(self) -> pa.Schema | None:
        if self._table is None:
            return None
        return _plain_schema(schema_to_pyarrow(self._table.schema(), include_field_ids=False))

    def partition(self) -> list[str]:
        if self._table is None:
            return []
        fields = self._table.spec().fields
        if any(not isinstance(field.transform, IdentityTransform) for field in fields):
            raise Unsupported(f"{self.name} is partitioned by more than the values of columns; Spark's connector writes to it")
        return [self._table.schema().find_column_name(field.source_id) or "" for field in fields]

    def create(self, schema: pa.Schema, partition: Sequence[str]) -> None:
        check_partition(schema, partition)
        try:
            self._catalog.create_namespace_if_not_exists(self._id.rpartition(".")[0])
            with self._catalog.create_table_transaction(self._id, schema) as creation, creation.update_spec() as spec:
                for name in partition:
                    spec.add_identity(name)
        except TableAlreadyExistsError:
            return
        except AWAY as error:
            raise StoreUnreachable(f"{self.name} cannot be created: {_told(error)}") from error
        except (TypeError, ValueError) as error:
            raise BadInput(f"a table of Iceberg cannot have these columns: {_told(error)}") from None

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        assert self._table is not None
        try:
            with self._table.update_schema() as update:
                update.union_by_name(pa.schema(fields))
        except CommitFailedException as error:
            raise StoreBusy(f"{self.name} was changed by others while it got new columns: {_told(error)}") from error

    def output(self) -> Output:
        assert self._table is not None
        return IcebergOutput(self._table.io, self._table.location().rstrip("/"))

    def committed(self, app: str) -> int | None:
        known = self._last(app)
        return None if known is None else int(known["version"])

    def content(self, app: str) -> str | None:
        known = self._last(app)
        return None if known is None else str(known["content"])

    def _last(self, app: str) -> dict[str, Any] | None:
        known = None if self._table is None else self._table.properties.get(f"{BATCH}{app}")
        return None if known is None else json.loads(known)

    def commit(self, batch: LakeBatch, files: Sequence[DataFile]) -> None:
        table = self._table
        assert table is not None
        # The library would repeat a commit that lost a race, on what the winner left, and a batch that both had would be there
        # twice. This changes only our copy of the metadata.
        table.metadata.properties[RETRIES] = "0"
        note = {"version": batch.version, "content": batch.content}
        summary = {"penstock.app": batch.app, "penstock.batch": str(batch.version)}
        try:
            with table.transaction() as transaction:
                transaction.set_properties({f"{BATCH}{batch.app}": json.dumps(note)})
                transaction.add_files([each.path for each in files], summary, check_duplicate_files=False)
        except CommitFailedException as error:
            raise CommitConflict from error
        except AWAY as error:
            raise StoreUnreachable(f"{self.name} cannot be written: {_told(error)}") from error

    def scan(self, since: str | None, until: str | None) -> Scan:
        table, schema = self._table, self.schema()
        if table is None or schema is None:
            raise BadInput(f"there is no table {self.name}")
        days = [f"day {sign} '{day}'" for sign, day in ((">=", since), ("<=", until)) if day is not None]
        found = table.scan(" AND ".join(days)) if days and "day" in schema.names else table.scan()
        return Scan(IcebergReader(table.metadata, table.io, table.schema(), schema), list(found.plan_files()))

    def compact(self, _keep: int | None, /) -> dict[str, int]:
        raise Unsupported("PyIceberg cannot compact tables: Spark's connector can, by CALL system.rewrite_data_files")


@lru_cache(maxsize=16)
def _catalog(catalog: str) -> Catalog:
    """One for each name, which keeps its connections."""
    if "/" in catalog:
        folder = local_folder(catalog)
        if folder is None:
            raise BadInput(
                f"{catalog!r:.200} cannot have a catalog: SQLite needs a folder. Configure a catalog, and write its name"
            )
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            return SqlCatalog(CATALOG, uri=f"sqlite:///{folder}/catalog.db", warehouse=folder)
        except (SQLAlchemyError, OSError) as error:
            raise BadInput(f"there cannot be a catalog in {folder}: {_told(error)}") from None
    try:
        return load_catalog(catalog)
    except (ValueError, *AWAY) as error:
        told = f"PyIceberg's catalog {catalog!r:.80} cannot be opened: {_told(error)}"
        raise BadInput(
            f"{told}; a folder is written ./{catalog}, and docs/lakes.md tells how a catalog is configured"
        ) from None


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(each.name, _plain(each.type)) for each in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    """Spark has no large texts and lists."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        inner = (kind.field(place) for place in range(kind.num_fields))
        return pa.struct([pa.field(each.name, _plain(each.type)) for each in inner])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


def local_folder(place: str) -> str | None:
    if place.startswith("file:"):
        return unquote(urlsplit(place).path)
    return place if place.startswith("/") else None


def _told(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _check(table: IcebergLakeTable) -> LakeTable:
    return table  # for the type checker: it has all that a table must have
