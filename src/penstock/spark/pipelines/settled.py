"""Archives the history of queues: the messages that have left them, with how and when. Each once, however often it is run.

What is in the archive already, from an earlier run or because the message was drained into it, is found by its id in the same
days of the archive. A run that is killed has placed some of its files; the next places the others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import BadInput
from penstock.spark.options import ReadOptions
from penstock.spark.pipelines.access import source_options
from penstock.spark.pipelines.archive import ArchivePlace, check_compression, fix_columns, known_types, merge, notes_of, shaped
from penstock.spark.pipelines.folders import DataFolder, File, check_no_pattern, checkpoint_id
from penstock.spark.pipelines.progress import Totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTLED = ("state", "settled_at", "reason")
"""The columns that such rows have beside an archive's usual ones."""


def archive_history(
    spark: SparkSession,
    url: str,
    queues: str | Sequence[str],
    folder: str,
    *,
    checkpoint: str | None = None,
    compression: str = "zstd",
    columns: str | None = None,
    **options: str,
) -> Totals:
    """Copy what is in the history of queues now (names, or patterns with * and ?) into ``folder``, as `archive` writes it, with
    the columns ``state``, ``settled_at`` and ``reason``. The history stays, for as long as the queue keeps it."""
    check_compression(compression)
    names = queues if isinstance(queues, str) else ",".join(queues)
    _check_history(ReadOptions(url, names, token=options.get("token")))
    home = DataFolder(folder)
    check_no_pattern(home.url)
    if columns is not None:
        fix_columns(spark, home, columns)
    notes = DataFolder(checkpoint) if checkpoint else notes_of(home, url, names, "history")
    started = time.monotonic()
    with notes.locked():
        run = checkpoint_id(notes, "archive-history", {"store": url, "queues": names, "folder": home.url})
        found = spark.read.format("penstock").options(**source_options(spark, url, names, view="settled", **options)).load()
        batch = 1 + max((int(file.path.rpartition("/")[2].split("-")[1]) for file in _files(home, run)), default=-1)
        ArchivePlace(home.url, run, compression, infer=columns == "infer", more=SETTLED)(_new(spark, found, home), batch)
        placed = [f"{home.url}/{file.path}" for file in _files(home, f"{run}-{batch:08}")]
        rows = spark.read.parquet(*placed).count() if placed else 0
        merge(spark, home, run, compression)
    return Totals(rows, min(rows, 1), time.monotonic() - started, False)


def _check_history(options: ReadOptions) -> None:
    with options.open() as broker:
        names = options.queues(broker)
        if names and not any(broker.queue(name).settings.history for name in names):
            raise BadInput(
                f"queue {names[0]!r} keeps no history, so there is nothing to archive; it does with the setting history"
            )


def _new(spark: SparkSession, found: DataFrame, home: DataFolder) -> DataFrame:
    """The messages that are not in the archive."""
    if not home.files():
        return found
    span = shaped(found).selectExpr("min(day)", "max(day)").collect()[0]
    if span[0] is None:
        return found
    first, last = (day.isoformat() for day in span)
    known = spark.read.schema(known_types(spark.read.parquet(home.url).schema)).parquet(home.url)
    known = known.where(f"day BETWEEN date'{first}' AND date'{last}'").select("queue", "id")
    return found.join(known, ["queue", "id"], "left_anti")


def _files(home: DataFolder, prefix: str) -> list[File]:
    return [file for file in home.files() if file.path.rpartition("/")[2].startswith(f"{prefix}-")]
