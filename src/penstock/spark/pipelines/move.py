"""Moves messages from one store to another, with a proof; and removes duplicates.

The proof does not trust the stream: it reads both queues before and after, and what left the one must have arrived in the
other. A queue's checksum is the sum and the xor of a hash of each message (body, content type, attributes): the order does not
matter, and checksums can be subtracted. It holds if nobody else used the two queues meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812

import penstock
from penstock.errors import BadInput
from penstock.message import Stats
from penstock.spark.options import check_queues
from penstock.spark.pipelines.access import source_options, store_options
from penstock.spark.pipelines.archive import TEXT
from penstock.spark.pipelines.folders import DataFolder, checkpoint_id
from penstock.spark.pipelines.progress import Totals, Watch
from penstock.spark.pipelines.reporting import ReportPlace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROOF = "proof.json"
CARRIED = ("body", "content_type", "attributes", "attribute_types", "deadline", "group", "key")
DELETE = 1000


@dataclass(frozen=True, slots=True)
class Sum:
    """How many messages, and the sum and the xor of their hashes."""

    count: int
    sum: int
    xor: int

    def __sub__(self, other: Sum) -> Sum:
        return Sum(self.count - other.count, self.sum - other.sum, self.xor ^ other.xor)

    def __str__(self) -> str:
        return f"{self.count:,} messages, checksum {self.sum & (2**64 - 1):016x}-{self.xor & (2**64 - 1):016x}"


@dataclass(frozen=True, slots=True)
class MoveTotals:
    left: Sum
    """What has left the first queue since the move began."""
    came: Sum
    """What has arrived in the other."""
    totals: Totals
    stays: Stats
    """The first queue after the move: what is delayed or held is not moved."""

    @property
    def proven(self) -> bool:
        return self.left == self.came


@dataclass(frozen=True, slots=True)
class Deduplicated:
    messages: int
    duplicates: int
    removed: int
    """Excludes duplicates that a receiver holds, which are left to it."""


def checksum(spark: SparkSession, url: str, queue: str) -> Sum:
    rows = spark.read.format("penstock").options(**source_options(spark, url, queue, exact="true")).load()
    hashed = F.xxhash64("body", "content_type", _sorted("attributes"), _sorted("attribute_types"))
    row = rows.agg(F.count("*"), F.sum(hashed.cast("decimal(38,0)")), F.bit_xor(hashed)).collect()[0]
    return Sum(row[0], int(row[1] or 0), row[2] or 0)


def _sorted(name: str) -> Column:
    return F.array_sort(F.map_entries(name))


def move(
    spark: SparkSession,
    url: str,
    queue: str,
    to_url: str,
    to_queue: str | None = None,
    *,
    checkpoint: str,
    watch: Watch | None = None,
    **options: str,
) -> MoveTotals:
    """Move what is visible in a queue now to a queue of another store (or of the same). Ids and sending times are new there."""
    to_queue = to_queue or queue
    if (url, queue) == (to_url, to_queue):
        raise BadInput(f"queue {queue!r} would be moved to itself")
    check_queues(url, queue, what="the source")
    check_queues(to_url, to_queue, what="the target")
    notes = DataFolder(checkpoint)
    with notes.locked():
        checkpoint_id(notes, "move", {"from": url, "queue": queue, "to": to_url, "to_queue": to_queue})
        noted = notes.read(PROOF)
        if noted is None:
            before = [checksum(spark, url, queue), checksum(spark, to_url, to_queue)]
            notes.write(PROOF, json.dumps([[each.count, str(each.sum), str(each.xor)] for each in before]))
        else:  # from a run that did not finish
            before = [Sum(count, int(total), int(xor)) for count, total, xor in json.loads(noted)]
        source = source_options(spark, url, queue, exact="true", **options)
        stream = spark.readStream.format("penstock").options(**source).load().select(*CARRIED)
        writer = stream.writeStream.format("penstock").options(**store_options(to_url), queue=to_queue)
        query = writer.option("checkpointLocation", f"{notes.url}/move").trigger(availableNow=True).start()
        token = options.get("token")
        if url == to_url:
            places = [ReportPlace(url, reads=[queue], writes=[to_queue], token=token)]
        else:
            places = [ReportPlace(url, reads=[queue], token=token), ReportPlace(to_url, writes=[to_queue])]
        totals = (watch or Watch("move")).report_to(*places).follow(query)
        left, came = before[0] - checksum(spark, url, queue), checksum(spark, to_url, to_queue) - before[1]
        with penstock.open(url) as broker:
            moved = MoveTotals(left, came, totals, broker.queue(queue).stats())
        if not totals.stopped:
            notes.remove([PROOF])
    return moved


def dedupe(
    spark: SparkSession,
    url: str,
    queue: str,
    to: str | None = None,
    *,
    by: str = "content",
    dry_run: bool = False,
    checkpoint: str | None = None,
    watch: Watch | None = None,
    **options: str,
) -> Deduplicated:
    """Remove messages that equal an earlier one, or with ``to``, move the others to another queue.

    ``by``: content (body, content type and attributes), body, key, or the name of a field of JSON bodies; a message without
    that key or field is unique."""
    if to is not None and not dry_run:
        if checkpoint is None:
            raise BadInput("moving to another queue needs a checkpoint")
        if to == queue:
            raise BadInput(
                f"queue {queue!r} would be moved to itself: without the second name, duplicates are removed in place"
            )
        return _move_first(spark, url, queue, to, by, DataFolder(checkpoint), watch or Watch("dedupe"), options)
    rows = spark.read.format("penstock").options(**source_options(spark, url, queue, exact="true")).load()
    first = Window.partitionBy("likeness").orderBy("sent_at", "id")
    ranked = rows.select("id", "sent_at", "state", _likeness(by).alias("likeness")).withColumn(
        "place", F.row_number().over(first)
    )
    again = ranked.select("id", "state", (F.col("likeness").isNotNull() & (F.col("place") > 1)).alias("again"))
    if dry_run:
        counts = again.agg(F.count("*"), F.count_if("again")).collect()[0]
        return Deduplicated(counts[0], counts[1], 0)
    return _remove(again, url, queue)


def _remove(again: DataFrame, url: str, queue: str) -> Deduplicated:
    """Messages are removed by id, and the first stays, so a restart after a crash has the same result."""
    kept = again.persist()
    try:
        messages, duplicates = kept.agg(F.count("*"), F.count_if("again")).collect()[0]
        removed = 0
        with penstock.open(url) as broker:
            home = broker.queue(queue)
            page: list[str] = []
            for row in kept.where("again AND state = 'queued'").select("id").toLocalIterator():
                page.append(row.id)
                if len(page) == DELETE:
                    removed += sum(home.delete_many(page))
                    page = []
            removed += sum(home.delete_many(page))
    finally:
        kept.unpersist()
    return Deduplicated(messages, duplicates, removed)


def _move_first(
    spark: SparkSession, url: str, queue: str, to: str, by: str, notes: DataFolder, watch: Watch, options: dict[str, str]
) -> Deduplicated:
    """The checkpoint keeps what Spark has seen, so a duplicate of a message moved long ago is still recognised."""
    with notes.locked():
        checkpoint_id(notes, "dedupe", {"store": url, "queue": queue, "to": to, "by": by})
        partitions = spark.conf.get("spark.sql.shuffle.partitions")
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        try:
            source = source_options(spark, url, queue, exact="true", **options)
            stream = spark.readStream.format("penstock").options(**source).load()
            # In one partition the rows stay in the queue's order, so Spark keeps the first.
            ordered = stream.withColumn("likeness", F.coalesce(_likeness(by), F.concat(F.lit("id "), "id"))).coalesce(1)
            unique = ordered.dropDuplicates(["likeness"]).select(*CARRIED)
            writer = unique.writeStream.format("penstock").options(**store_options(url), queue=to)
            query = writer.option("checkpointLocation", f"{notes.url}/dedupe").trigger(availableNow=True).start()
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        done = watch.report_to(ReportPlace(url, reads=[queue], writes=[to], token=options.get("token"))).follow(query)
    return Deduplicated(done.rows, done.duplicates, done.duplicates)


def _likeness(by: str) -> Column:
    """Text that is the same for equal messages, and null for a message that is unique."""
    parts: dict[str, Any] = {
        "content": lambda: F.concat_ws(
            "\n", F.sha2("body", 256), "content_type", F.to_json(_sorted("attributes")), F.to_json(_sorted("attribute_types"))
        ),
        "body": lambda: F.sha2("body", 256),
        "key": lambda: F.hex("key"),
    }
    if by in parts:
        return parts[by]()  # type: ignore[no-any-return]
    path = "$." + by if all(part.isidentifier() for part in by.split(".")) else f"$[{json.dumps(by)}]"
    return F.try_variant_get(F.expr(f"try_parse_json({TEXT})"), path, "string")
