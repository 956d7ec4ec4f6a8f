"""Drains queues to Parquet, exactly once, into a folder that any tool can read.

    FOLDER/queue=orders/day=2026-01-31/1f0c9a7e-00000012-0000.parquet      <checkpoint>-<batch>-<number>
    FOLDER/_penstock/columns.ddl                   the columns of JSON bodies, fixed when the first were archived
    FOLDER/_penstock/checkpoints/…                 how far each set of queues is (unless told to be elsewhere)
    FOLDER/_penstock/staged/<checkpoint>/…         a batch that is being written
    FOLDER/_penstock/merging-<checkpoint>.json     files that are being made one: {"staged": …, "old": […]}

Or to a table of Delta or Iceberg, whose own transaction makes them exact (`TableArchivePlace`).

A batch is written to a staging folder, and its files are then renamed into place. Their names contain the batch, and Spark
replays an unfinished batch with the same messages, so a replay overwrites what a dead run left and no message is there twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from penstock.errors import BadInput
from penstock.policy import MAX_CLAIM
from penstock.spark.lakes.batches import prepare, put
from penstock.spark.lakes.tables import LakeTable, TableAddress, is_address, table_address
from penstock.spark.lakes.writing import arrow_schema, nullable
from penstock.spark.pipelines.access import source_options
from penstock.spark.pipelines.folders import DataFolder, File, check_no_pattern, checkpoint_id
from penstock.spark.pipelines.lake_sinks import check_s3, notes_of_table
from penstock.spark.pipelines.progress import Totals, Watch
from penstock.spark.pipelines.reporting import ReportPlace
from penstock.urls import without_password

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS = "_penstock"
COLUMNS = f"{OURS}/columns.ddl"
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
KEPT = (
    "id", "queue", "body", "content_type", "attributes", "attribute_types", "group", "key", "sent_at", "deadline", "receives",
    "first_received_at", "received_at", "death",
)  # fmt: skip
SCHEMA = (
    "id string, body binary, content_type string, attributes map<string,string>, attribute_types map<string,string>, "
    "`group` string, key binary, sent_at timestamp, deadline timestamp, receives int, first_received_at timestamp, "
    "received_at timestamp, death struct<queue:string,reason:string,receives:int,died_at:timestamp>, archived_at timestamp, "
    "queue string, day date"
)
"""The columns of an archive's rows, plus a struct ``data`` where JSON bodies are parsed."""
PARTITION = ("queue", "day")
VARYING = ("archived_at", "data")
"""Not the same when a batch is played again: the second, if its columns have been given since."""
SMALL, LARGE = 32 * 2**20, 128 * 2**20
"""Files below the first size are merged, up to the second."""
MERGE_EVERY = 50
SAMPLE = 1000
DAY = 86_400_000_000
TEXT = "try_validate_utf8(cast(body AS string))"
"""The body; null if it is not UTF-8, for which Spark's decode raises an error."""
CONFIG = {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS", "spark.sql.maxConcurrentOutputFileWriters": "32"}
"""Timestamps that every Parquet reader knows; and no sort before a batch with few queues and days is written."""


def archive(
    spark: SparkSession,
    url: str,
    queues: str | Sequence[str],
    folder: str,
    *,
    once: bool = False,
    checkpoint: str | None = None,
    compression: str = "zstd",
    columns: str | None = None,
    watch: Watch | None = None,
    **options: str,
) -> Totals:
    """Drain queues (names, or patterns with * and ?) into ``folder``: forever, or with ``once`` what is there now.
    ``folder`` may be a table: delta:PLACE, or iceberg:CATALOG/NAMESPACE.TABLE.

    ``columns``: parse JSON bodies into a column ``data`` of this schema (DDL), or ``infer`` it. ``options``: the source's."""
    check_compression(compression)
    if once and url.startswith("sqlite:"):  # a large claim costs little there, and speeds up the batches
        options.setdefault("maxMessagesPerTrigger", str(MAX_CLAIM))
    names = queues if isinstance(queues, str) else ",".join(queues)
    table = table_address(folder) if is_address(folder) else None
    home = DataFolder(folder) if table is None else None
    if home is not None:
        check_no_pattern(home.url)  # merging reads its small files again
        check_s3(spark, home.url)
        if columns is not None:
            fix_columns(spark, home, columns)
    notes = _notes(checkpoint, home, table, url, names)
    check_s3(spark, notes.url)
    with notes.locked():
        run = checkpoint_id(notes, "archive", {"store": url, "queues": names, "folder": home.url if home else str(table)})
        stream = spark.readStream.format("penstock").options(**source_options(spark, url, names, **options)).load()
        place: ArchivePlace | TableArchivePlace
        if home is not None:
            _finish(home, run)
            place = ArchivePlace(home.url, run, compression, infer=columns == "infer")
        else:
            assert table is not None
            place = TableArchivePlace(table, run, compression, columns)
            place.prepare(stream)
        writer = stream.writeStream.foreachBatch(place).option("checkpointLocation", notes.url).queryName(f"archive-{run}")
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")
        reports = ReportPlace(url, reads=names.split(","), token=options.get("token"))
        done = (watch or Watch("archive")).report_to(reports).follow(writer.start())
        if once and home is not None and not done.stopped:
            merge(spark, home, run, compression)
    return done


def _notes(checkpoint: str | None, home: DataFolder | None, table: TableAddress | None, url: str, names: str) -> DataFolder:
    if checkpoint:
        return DataFolder(checkpoint)
    if home is None:
        assert table is not None
        return notes_of(notes_of_table(table), url, names, below="checkpoints")
    return notes_of(home, url, names)


def check_compression(compression: str) -> None:
    if compression not in COMPRESSIONS:
        raise BadInput(f"compression {compression!r:.80} is not one of {', '.join(COMPRESSIONS)}")


def notes_of(home: DataFolder, *about: str, below: str = f"{OURS}/checkpoints") -> DataFolder:
    known = hashlib.sha256(json.dumps([without_password(each) for each in about]).encode()).hexdigest()[:12]
    return home / f"{below}/{known}"


@dataclass
class TableArchivePlace:
    """Commits each batch to a table, once; Spark may pickle it to another process."""

    address: TableAddress
    run: str
    compression: str
    columns: str | None

    def prepare(self, stream: DataFrame) -> None:
        """Raise what would fail with the first batch, when its messages are claimed."""
        table = self.address.open()
        fixed = self._known(table) if self.columns == "infer" else self._fixed(stream, table)
        prepare(table, arrow_schema(shaped(stream, fixed).schema), PARTITION)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        table = self.address.open()
        if self.columns == "infer" and self._known(table) is None:
            frame = frame.persist()  # it is used twice, and would be read twice
        rows = shaped(frame, self._fixed(frame, table))
        put(table, rows, f"archive-{self.run}", batch, PARTITION, compression=self.compression, varying=VARYING)

    def _fixed(self, frame: DataFrame, table: LakeTable) -> str | None:
        """The columns of JSON bodies: those of the table, if it has them."""
        known = self._known(table)
        if self.columns is None:
            return known
        if self.columns == "infer":
            return known or infer_columns(frame)
        wanted = frame.sparkSession.createDataFrame([], self.columns).schema.simpleString()
        if known not in (None, wanted):
            raise BadInput(f"the columns of JSON bodies are fixed in {self.address} as {known}, and cannot become {wanted}")
        return wanted

    def _known(self, table: LakeTable) -> str | None:
        schema = table.schema()
        if schema is None or "data" not in schema.names:
            return None
        found: str = from_arrow_type(nullable(schema.field("data").type)).simpleString()
        return found


@dataclass
class ArchivePlace:
    """Writes each batch into its place; Spark may pickle it to another process."""

    folder: str
    run: str
    compression: str
    infer: bool
    more: tuple[str, ...] = ()
    """Columns of the messages to keep beside the usual ones."""
    begun: bool = False
    """It has placed a batch, so the remains of an earlier run are cleared away."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        home, staged = DataFolder(self.folder), f"{OURS}/staged/{self.run}"
        spark = frame.sparkSession
        for name, value in CONFIG.items():
            spark.conf.set(name, value)
        if not self.begun or batch % MERGE_EVERY == 0:  # earlier batches are committed, and never replayed
            merge(spark, home, self.run, self.compression, below=batch, least=8)
        home.clear(staged)
        fixed = home.read(COLUMNS)
        if fixed is None and self.infer:
            frame = frame.persist()  # it is used twice, and would be read twice
            fixed = _infer(frame, home)
        rows = shaped(frame, fixed, self.more)
        with home.syncing(staged):
            rows.write.partitionBy("queue", "day").option("compression", self.compression).parquet(f"{home.url}/{staged}")
        moves = self._moves(home.files(staged), staged, batch)
        home.move(moves)
        if not self.begun:  # an earlier run may have placed parts of this batch, split otherwise
            ours = _name(self.run, batch, "")
            placed = set(moves.values())
            home.remove(
                [
                    file.path
                    for file in home.files()
                    if file.path.rpartition("/")[2].startswith(ours) and file.path not in placed
                ]
            )
        home.clear(staged)
        self.begun = True

    def _moves(self, files: list[File], staged: str, batch: int) -> dict[str, str]:
        parts = [file.path for file in files if file.path.endswith(".parquet")]
        return {
            path: f"{_spelled(path[len(staged) + 1 :].rpartition('/')[0])}/{_name(self.run, batch, f'{number:04}.parquet')}"
            for number, path in enumerate(parts)
        }


def _spelled(folder: str) -> str:
    """Spark's name of a folder, with more of it escaped; every reader understands that. Spark leaves } as it is, and takes a
    path with it for a pattern. And it takes a queue of this name for null."""
    return folder.replace("}", "%7D").replace("queue=__HIVE_DEFAULT_PARTITION__/", "queue=%5F_HIVE_DEFAULT_PARTITION__/")


def _infer(frame: DataFrame, home: DataFolder) -> str:
    fixed = infer_columns(frame)
    home.write(COLUMNS, fixed)
    return fixed


def infer_columns(frame: DataFrame) -> str:
    bodies = frame.limit(SAMPLE).selectExpr(f"{TEXT} value")
    found = frame.sparkSession.read.json(bodies, columnNameOfCorruptRecord="_corrupt").drop("_corrupt").schema
    if not found.fields:
        raise BadInput(f"none of the first {SAMPLE} messages is a JSON object: their columns cannot be inferred")
    return found.simpleString()


def shaped(frame: DataFrame, columns: str | None = None, more: Sequence[str] = ()) -> DataFrame:
    """Messages as the rows of an archive; the day is the UTC day of sent_at, whatever the session's time zone."""
    from pyspark.sql import functions as F  # noqa: N812

    rows = frame.select(
        *KEPT,
        *more,
        F.current_timestamp().alias("archived_at"),
        F.expr(f"date_from_unix_date(cast(floor(unix_micros(sent_at) / {DAY}) AS int))").alias("day"),
    )
    if columns is None:
        return rows
    return rows.withColumn("data", F.from_json(F.expr(TEXT), columns))


def known_types(found: StructType) -> StructType:
    """Override the types that Spark guesses from the names of an archive's folders: a queue named 007 is not 7."""
    known = {field.name: field for field in cast("StructType", StructType.fromDDL(SCHEMA))}
    if not {"body", "attribute_types"} <= set(found.fieldNames()):
        return found
    return StructType([known.get(field.name, field) for field in found])


def merge(
    spark: SparkSession, home: DataFolder, run: str, compression: str, *, below: int | None = None, least: int = 2
) -> int:
    """Merge the small files of a queue's day, if there are ``least``; only of committed batches. Returns how many went."""
    _finish(home, run)
    days: dict[str, list[File]] = {}
    for file in home.files():
        day, _, name = file.path.rpartition("/")
        if name.startswith(f"{run}-") and file.size < SMALL and (below is None or int(name.split("-")[1]) < below):
            days.setdefault(day, []).append(file)
    gone = 0
    for files in days.values():
        for group in _groups(files) if len(files) >= least else []:
            staged = f"{OURS}/staged/{run}-merged"
            home.clear(staged)
            # Files written before the columns of JSON bodies were fixed have no ``data``.
            rows = spark.read.parquet(*(f"{home.url}/{file.path}" for file in group), mergeSchema=True).coalesce(1)
            rows.write.option("compression", compression).parquet(f"{home.url}/{staged}")
            (new,) = [file.path for file in home.files(staged) if file.path.endswith(".parquet")]
            home.write(_merging(run), json.dumps({"staged": new, "old": [file.path for file in group]}))
            _finish(home, run)
            gone += len(group) - 1
            home.clear(staged)
    return gone


def _groups(files: list[File]) -> list[list[File]]:
    groups: list[list[File]] = [[]]
    for file in files:
        if sum(each.size for each in groups[-1]) + file.size > LARGE:
            groups.append([])
        groups[-1].append(file)
    return [group for group in groups if len(group) > 1]


def _finish(home: DataFolder, run: str) -> None:
    """Put a merged file in the place of the first, and remove the others. Also finishes what a run that died left undone."""
    noted = home.read(_merging(run))
    if noted is None:
        return
    merging: dict[str, Any] = json.loads(noted)
    staged = merging["staged"]
    if staged in [file.path for file in home.files(staged.rpartition("/")[0])]:
        home.move({staged: merging["old"][0]})
    home.remove(merging["old"][1:])
    home.remove([_merging(run)])


def _merging(run: str) -> str:
    return f"{OURS}/merging-{run}.json"


def _name(run: str, batch: int, rest: str) -> str:
    return f"{run}-{batch:08}-{rest}"


def fix_columns(spark: SparkSession, home: DataFolder, columns: str) -> None:
    if columns == "infer":
        return
    wanted = spark.createDataFrame([], columns).schema.simpleString()
    fixed = home.read(COLUMNS)
    if fixed is None:
        home.write(COLUMNS, wanted)
    elif fixed != wanted:
        raise BadInput(f"the columns of JSON bodies are fixed in {home.url} as {fixed}, and cannot become {wanted}")
