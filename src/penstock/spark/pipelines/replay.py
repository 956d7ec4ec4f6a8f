"""Sends messages of an archive again, to the queues they came from or to another, once under each name.

    ARCHIVE/_penstock/replays/NAME/rows/            the chosen messages, until they are sent
    ARCHIVE/_penstock/replays/NAME/chosen.json      they are all there, and stay the same from now on
    ARCHIVE/_penstock/replays/NAME/load/            the checkpoint of the query that sends them
    ARCHIVE/_penstock/replays/NAME/sent.json        all are sent: the same replay has nothing to do any more

The messages are copied before the first is sent. So it does not matter that an archive grows, and that small files of it are
merged, while a replay runs, or before a killed one goes on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import BadInput, QueueNotFound
from penstock.message import MAX_NUMBER
from penstock.spark.lakes.reading import read
from penstock.spark.lakes.tables import TableAddress, is_address, table_address
from penstock.spark.options import check_queues
from penstock.spark.pipelines.access import store_options
from penstock.spark.pipelines.archive import OURS, known_types
from penstock.spark.pipelines.bodies import readable_bodies
from penstock.spark.pipelines.failures import readable
from penstock.spark.pipelines.folders import DataFolder, check_no_pattern, checkpoint_id
from penstock.spark.pipelines.lake_sinks import check_s3, notes_of_table
from penstock.spark.pipelines.load import READ, send_slowly
from penstock.spark.pipelines.progress import Totals, Watch
from penstock.spark.pipelines.reporting import ReportPlace
from penstock.stores.disk import sync_file_system
from penstock.urls import without_password

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CHOSEN, SENT = "chosen.json", "sent.json"
CARRIED = ("queue", "body", "content_type", "attributes", "attribute_types", "group", "key")
NEEDED = {"id", "queue", "day", "body", "sent_at", "attributes", "attribute_types"}
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
ROWS_OF_A_FILE = 100_000
FILES_OF_A_BATCH = 8


def replay(
    spark: SparkSession,
    archive: str,
    url: str,
    queue: str | None = None,
    *,
    name: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    where: str | None = None,
    rate: int | None = None,
    bad_queue: str | None = None,
    checkpoint: str | None = None,
    watch: Watch | None = None,
) -> Totals:
    """Send messages of an archive to the queues they came from, or all to ``queue``. A replay that is repeated under its
    ``name`` sends nothing twice, and one that was killed continues; by default the name is made of the other arguments.

    ``since``, ``until``: only what was sent from the one instant to before the other (UTC, if they have no zone). ``where``:
    SQL over the columns of the archive, and ``text`` and ``json``, the body as text and as a variant."""
    if rate is not None and not 1 <= rate <= MAX_NUMBER:
        raise BadInput(f"the rate is {rate}; it must be at least 1 row a second")
    since, until = _in_utc(since), _in_utc(until)
    if since is not None and until is not None and since >= until:
        raise BadInput(f"since {since.isoformat()} is not before until {until.isoformat()}")
    table = table_address(archive) if is_address(archive) else None
    home = DataFolder(archive) if table is None else None
    about = {
        "archive": str(table) if home is None else home.url,
        "store": url,
        "queue": queue or "(each its own)",
        "since": since.isoformat() if since else "(the beginning)",
        "until": until.isoformat() if until else "(the end)",
        "where": where or "(all)",
    }
    name = check_replay_name(name) if name is not None else name_of(about)
    if checkpoint:
        notes = DataFolder(checkpoint)
    elif table is not None:
        notes = notes_of_table(table) / f"replays/{name}"
    else:
        assert home is not None
        notes = home / f"{OURS}/replays/{name}"
    check_no_pattern(notes.url)
    check_s3(spark, notes.url)
    chosen = _Choice(spark, table or home, since, until, where).rows()
    with notes.locked():
        checkpoint_id(notes, "replay", about)
        if notes.read(SENT) is not None:
            return Totals(0, 0, 0.0, False)
        if notes.read(CHOSEN) is None:
            _choose(chosen, notes, url, queue, rate)
        queues = json.loads(notes.read(CHOSEN) or "{}")["queues"]
        watch = (watch or Watch("load")).report_to(ReportPlace(url, writes=[queue] if queue else queues))
        sink = {**store_options(url), **({"queue": queue} if queue else {}), **({"badRows": bad_queue} if bad_queue else {})}
        columns = chosen.select(*(name for name in CARRIED if queue is None or name != "queue")).schema
        done = _send(spark, columns, rate, sink, notes, watch)
        if not done.stopped:
            notes.write(SENT, json.dumps({"sent_at": datetime.now(UTC).isoformat()}))
            notes.clear("rows")
    return done


def check_replay_name(name: str) -> str:
    if not re.fullmatch(NAME, name):
        raise BadInput(f"replay name {name!r:.120} must be 1 to 100 letters, digits and _-. (and not begin with - or .)")
    return name


def name_of(about: dict[str, str]) -> str:
    known = [without_password(value) for value in about.values()]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]


def _in_utc(given: datetime | None) -> datetime | None:
    if given is None:
        return None
    return given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)


class _Choice:
    """Which messages of an archive."""

    def __init__(
        self,
        spark: SparkSession,
        home: DataFolder | TableAddress | None,
        since: datetime | None,
        until: datetime | None,
        where: str | None,
    ) -> None:
        self._spark = spark
        self._home = home
        self._since = since
        self._until = until
        self._where = where

    def rows(self) -> DataFrame:
        frame = self._archive()
        for instant, sign in ((self._since, ">="), (self._until, "<")):
            if instant is not None:
                micros = int(instant.timestamp()) * 1_000_000 + instant.microsecond
                frame = frame.where(f"sent_at {sign} timestamp_micros({micros})")
                frame = frame.where(f"day {sign[0]}= date'{instant.date().isoformat()}'")  # whole folders are left out
        if self._where is None:
            return frame
        try:
            return readable_bodies(frame).where(self._where)
        except Exception as error:
            known = readable(error)
            raise BadInput(f"--where {self._where!r:.200}: {known}") if isinstance(known, BadInput) else known from None

    def _archive(self) -> DataFrame:
        home = self._home
        if isinstance(home, TableAddress):
            since, until = (None if at is None else at.date().isoformat() for at in (self._since, self._until))
            return self._checked(read(self._spark, home, since=since, until=until), str(home))
        assert home is not None
        if not any(file.path.endswith(".parquet") for file in ([] if home.is_file else home.files())):
            raise BadInput(
                f"{home.url} is not an archive: it is not a folder with files of Parquet; to load other files, name the QUEUE"
            )
        try:
            # Files written before the columns of JSON bodies were fixed have no ``data``.
            found = self._spark.read.option("mergeSchema", "true").parquet(home.url)
        except Exception as error:
            raise readable(error) from None
        self._checked(found, home.url)
        return self._spark.read.schema(known_types(found.schema)).parquet(home.url)

    def _checked(self, found: DataFrame, place: str) -> DataFrame:
        if missing := sorted(NEEDED - set(found.columns)):
            raise BadInput(f"{place} is not an archive: it has no column {missing[0]}; to load other files, name the QUEUE")
        return found


def _choose(chosen: DataFrame, notes: DataFolder, url: str, queue: str | None, rate: int | None) -> None:
    """Copy the rows. While files of the archive are being merged, a message may be found twice; by its id it is one."""
    notes.clear("rows")
    rows = chosen.select("id", *CARRIED).dropDuplicates(["queue", "id"]).drop("id")
    rows.write.option("maxRecordsPerFile", rate or ROWS_OF_A_FILE).parquet(f"{notes.url}/rows")
    names = [row[0] for row in chosen.sparkSession.read.parquet(f"{notes.url}/rows").select("queue").distinct().collect()]
    _check_targets(url, sorted(names) if queue is None else [queue])
    if notes.local:
        sync_file_system(Path(notes.url))
    notes.write(CHOSEN, json.dumps({"queues": sorted(names)}))


def _check_targets(url: str, names: Sequence[str]) -> None:
    try:
        check_queues(url, *names)
    except QueueNotFound as error:
        error.add_note("create it, or name another queue for all messages")
        raise


def _send(
    spark: SparkSession, columns: StructType, rate: int | None, sink: dict[str, str], notes: DataFolder, watch: Watch
) -> Totals:
    if rate is not None:
        return send_slowly(spark, columns, sink, notes, watch)
    parts = spark.readStream.schema(columns).options(**READ, maxFilesPerTrigger=FILES_OF_A_BATCH)
    rows = parts.parquet(f"{notes.url}/rows")
    writer = rows.writeStream.format("penstock").options(**sink).option("checkpointLocation", f"{notes.url}/load")
    return watch.follow(writer.trigger(availableNow=True).start())
