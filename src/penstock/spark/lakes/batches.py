"""Batches of rows in a table, each once. This is the same for all tables.

A batch of an application is written as files that no reader sees, and committed with the application's name and the batch's
number in one transaction of the table. So a batch that is replayed finds its number there, whenever its driver was killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import BadInput, StoreBusy, WriterSetBack
from penstock.spark.lakes import writing
from penstock.spark.lakes.tables import CommitConflict, DataFile, LakeBatch, LakeTable, Output
from penstock.stores.disk import sync_file_system

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRIES = 10
"""How often a commit is tried again while others commit to the table."""


def prepare(table: LakeTable, schema: pa.Schema, partition: Sequence[str]) -> pa.Schema:
    """Create the table, or add the columns that it lacks; the schema that its files have then."""
    has = table.schema()
    if has is None:
        table.create(schema, partition)
        table.refresh()
        has = table.schema()
        assert has is not None
    if list(partition) != table.partition():
        is_by = ", ".join(table.partition()) or "nothing"
        raise BadInput(f"{table.name} is partitioned by {is_by}, and cannot be written by {', '.join(partition) or 'nothing'}")
    known = {name.casefold(): name for name in has.names}
    for field in schema:
        own = known.get(field.name.casefold())
        if own is not None and (own != field.name or not _fits(field.type, has.field(own).type)):
            is_one = f"{own} {has.field(own).type}"
            raise BadInput(f"{table.name} has a column {is_one}, and cannot be given {field.name} {field.type}")
    table.output()  # it raises an error if the table asks more of a writer than we do
    new = [field for field in schema if field.name.casefold() not in known]
    if new:
        table.add_columns(new)
        table.refresh()
        has = table.schema()
        assert has is not None
    return has


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of the one type can be written as the other, without loss."""
    if given == wanted or (pa.types.is_integer(given) and pa.types.is_integer(wanted) and given.bit_width <= wanted.bit_width):
        return True
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        fields = {each.name: each.type for each in map(wanted.field, range(wanted.num_fields))}
        inner = map(given.field, range(given.num_fields))
        return all(each.name in fields and _fits(each.type, fields[each.name]) for each in inner)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _fits(given.key_type, wanted.key_type) and _fits(given.item_type, wanted.item_type)
    if pa.types.is_list(given) and pa.types.is_list(wanted):
        return _fits(given.value_type, wanted.value_type)
    return bool(pa.types.is_float32(given) and pa.types.is_float64(wanted))


def put(
    table: LakeTable,
    frame: DataFrame,
    app: str,
    version: int,
    partition: Sequence[str] = (),
    *,
    compression: str = "zstd",
    varying: Sequence[str] = (),
) -> None:
    """Append the rows to a table, which was just opened, as this batch of the application, once. ``varying``: columns that
    are not the same in a replay.

    `WriterSetBack` if the application has committed a later batch, or other rows under this number."""
    last = table.committed(app)
    if last is not None and version <= last:
        if version < last or table.content(app) not in (None, writing.content_of(frame, varying)):
            raise _set_back(table, app, version, last)
        _sync(table)
        return
    schema = prepare(table, writing.arrow_schema(frame.schema), partition)
    written = writing.write(
        frame, table.output(), schema, partition, name=f"{app}-{version:08}", compression=compression, varying=varying
    )
    if not written.files:
        return
    _check_seen(table, table.output(), written.files)
    batch = LakeBatch(app, version, written.content)
    for _ in range(TRIES):
        try:
            table.commit(batch, written.files)
            break
        except CommitConflict:  # somebody else's batch, or another driver with this application's name
            table.refresh()
            last = table.committed(app)
            if last is not None and version <= last:
                if version < last or table.content(app) not in (None, batch.content):
                    raise _set_back(table, app, version, last) from None
                break
    else:
        raise StoreBusy(f"{table.name} was changed by others {TRIES} times while a batch was to be committed")
    _sync(table)


def _sync(table: LakeTable) -> None:
    """What is in the table must outlive a power cut, before its messages leave their queue."""
    if table.folder is not None:
        sync_file_system(Path(table.folder))


def _check_seen(table: LakeTable, output: Output, files: Sequence[DataFile]) -> None:
    """Raise an error if executors have written to a disk that we do not see: we would commit files that are not there."""
    for file in files:
        local = output.local(file.path)
        if local is not None and not (Path(local).is_file() and Path(local).stat().st_size == file.size):
            raise BadInput(
                f"an executor has written {local}, which is not here: {table.name} must be in a folder that all share"
            )


def _set_back(table: LakeTable, app: str, version: int, last: int) -> WriterSetBack:
    what = "with other rows" if version == last else f"and the last one is {last}"
    return WriterSetBack(
        f"batch {version} of {app} is in {table.name} already, {what}: its checkpoint was set back or copied. Restore the "
        "newest checkpoint, or start with a new one"
    )
