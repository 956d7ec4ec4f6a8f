"""What happened in queues, counted by Spark from archives and from the queues' own history: `penstock pipeline report`.

    waiting time    sent -> first received
    handling time   last received -> settled, as far as the queue keeps a history
    redelivered     received more than once
    archived        settled: processed when it was archived, unless the queue's history knows better
    dead letters    by the reason they died of, were failed with, or that a pipeline gave them

`page` makes a page of it for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

import penstock
from penstock import arrow
from penstock.errors import BadInput
from penstock.spark.lakes.reading import read
from penstock.spark.lakes.tables import is_address, table_address
from penstock.spark.pipelines.access import source_options
from penstock.spark.pipelines.archive import known_types

STEPS = (1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)
MOST_BUCKETS = 72
PERCENTILES = (0.5, 0.9, 0.99)
EVENTS = ("sent", "received", "settled", "died")
TOP = 12
VIEWS = ("messages", "archive", "settled")
"""Where a message can be. The last of them knows most about it."""


def report(
    spark: SparkSession, what: Sequence[str | Path], *, url: str | None = None, producer: str = "producer"
) -> dict[str, Any]:
    """The figures, as JSON: of folders and tables with archives, and of queues with their messages and their history."""
    frames = []
    for each in what:
        if is_address(str(each)):
            frames.append(_normal(read(spark, table_address(str(each))), producer, view="archive"))
        elif Path(each).is_dir():
            known = known_types(spark.read.option("mergeSchema", "true").parquet(str(each)).schema)
            frames.append(_normal(spark.read.schema(known).parquet(str(each)), producer, view="archive"))
        elif isinstance(each, Path) or "/" in each:
            raise BadInput(f"there is no folder {str(each)!r}")
        else:
            if url is None:
                raise BadInput(f"queue {each!r} needs a store: say which")
            with penstock.open(url) as broker:
                broker.queue(each)
            reader = spark.read.format("penstock").options(**source_options(spark, url, each, exact="true"))
            frames += [_normal(reader.option("view", view).load(), producer, view=view) for view in ("messages", "settled")]
    if not frames:
        raise BadInput("a report needs at least one folder or queue")
    whole = frames[0] if len(frames) == 1 else _once(frames)
    whole = whole.persist()
    try:
        return _figures(whole)
    finally:
        whole.unpersist()


def _once(frames: Sequence[DataFrame]) -> DataFrame:
    """Each message once: an archived one can be in the queue's history, too, and one can be settled between two reads."""
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    message = f.max_by(f.struct(*whole.columns), f.array_position(f.array(*map(f.lit, VIEWS)), f.col("view")))
    by = whole.withColumn("id", f.coalesce("id", f.expr("uuid()"))).groupBy("queue", "id")
    return by.agg(message.alias("message")).select("message.*")


def _normal(frame: DataFrame, producer: str, *, view: str) -> DataFrame:
    """The counted columns of each message, without bodies; columns that a frame lacks are null."""
    known = from_arrow_schema(arrow.SETTLED)
    if "archived_at" in frame.columns:
        known_at = "settled_at" if "settled_at" in frame.columns else "archived_at"  # the history's, if it comes from there
        frame = frame.withColumn("settled_at", f.coalesce(known_at, "archived_at"))
    has = set(frame.columns)
    given = {field.name: f.col(f"`{field.name}`") if field.name in has else f.lit(None).cast(field.dataType) for field in known}
    size = f.length("body") if "body" in has else f.lit(None)
    # A message that a pipeline rejected carries its origin: it is dead unless it is back in that queue.
    rejected = f.when(f.col("attributes")["queue"] != f.col("queue"), f.col("attributes")["reason"])
    died = f.coalesce(f.col("death.reason"), rejected, f.when(f.col("state") == "failed", f.col("reason")))
    return frame.select(
        *[value.alias(name) for name, value in given.items() if name != "body"], size.cast("long").alias("size")
    ).select(
        f.lit(view).alias("view"),
        "queue",
        "id",
        "sent_at",
        f.col("first_received_at").alias("taken_at"),
        "settled_at",
        f.when(died.isNotNull(), f.coalesce("death.died_at", "settled_at", "sent_at")).alias("died_at"),
        f.coalesce(died, f.when(f.col("state") == "failed", f.lit("failed"))).alias("died"),
        f.coalesce("state", f.lit("processed" if view == "archive" else "queued")).alias("state"),
        f.coalesce("receives", f.lit(0)).alias("receives"),
        "size",
        f.col("attributes")[producer].alias("producer"),
        _seconds("first_received_at", "sent_at").alias("waiting"),
        _seconds("settled_at", "received_at").alias("handling"),
    )


def _seconds(late: str, early: str) -> Column:
    passed = (f.unix_micros(late) - f.unix_micros(early)) / 1_000_000
    return f.when(passed < 0, 0.0).otherwise(passed)  # the clocks of two machines may differ


def _figures(whole: DataFrame) -> dict[str, Any]:
    marks = f.array(*map(f.lit, PERCENTILES))
    totals = [
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.count(f.when(f.col("state").isin("queued", "consumed"), 1)).alias("unsettled"),
        f.count(f.when(f.col("state") == "processed", 1)).alias("processed"),
        f.count(f.when(f.col("receives") > 1, 1)).alias("redelivered"),
        f.sum(f.greatest(f.col("receives") - 1, f.lit(0))).alias("redeliveries"),
        f.count("died").alias("dead"),
        f.min("sent_at").alias("first_at"),
        f.greatest(f.max("sent_at"), f.max("taken_at"), f.max("settled_at"), f.max("died_at")).alias("last_at"),
        f.min(f.when(f.col("state").isin("queued", "consumed"), f.col("sent_at"))).alias("oldest_at"),
        *[f.percentile_approx(name, marks).alias(name) for name in ("waiting", "handling")],
        *[f.max(name).alias(f"max_{name}") for name in ("waiting", "handling")],
    ]
    queues = [_total(row.asDict()) for row in whole.groupBy("queue").agg(*totals).orderBy("queue").collect()]
    everything = _total(whole.agg(*totals).collect()[0].asDict())
    step = _step(everything)
    return {
        "at": _text(datetime.now(UTC)),
        "step": step,
        "all": everything,
        "queues": queues,
        "throughput": _throughput(whole, step),
        "times": {
            name: _over_time(whole, name, at, step) for name, at in (("waiting", "taken_at"), ("handling", "settled_at"))
        },
        "deaths": _commonest(whole.where("died IS NOT NULL"), "died"),
        "producers": _commonest(whole.where("producer IS NOT NULL"), "producer"),
    }


def _total(row: dict[str, Any]) -> dict[str, Any]:
    for name in ("waiting", "handling"):
        found, most = row.pop(name), row.pop(f"max_{name}")
        row[name] = None if most is None else {"p50": found[0], "p90": found[1], "p99": found[2], "max": most}
    return {name: _text(value) if isinstance(value, datetime) else value for name, value in row.items()}


def _text(at: datetime) -> str:
    """Spark returns instants in this machine's time, without a zone."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _step(everything: dict[str, Any]) -> int:
    """How many seconds one point of a curve covers."""
    if everything["first_at"] is None:
        return STEPS[0]
    first, last = (datetime.fromisoformat(everything[name]) for name in ("first_at", "last_at"))
    return next((step for step in STEPS if (last - first).total_seconds() / step <= MOST_BUCKETS), STEPS[-1])


def _bucket(at: str, step: int) -> Column:
    return (f.unix_seconds(at) / step).cast("long") * step


def _throughput(whole: DataFrame, step: int) -> list[dict[str, Any]]:
    """How many messages were sent, first received, settled and died in each time step."""
    instants = dict(zip(EVENTS, ("sent_at", "taken_at", "settled_at", "died_at"), strict=True))
    pairs = f.array(*[f.struct(f.lit(event).alias("event"), _bucket(at, step).alias("at")) for event, at in instants.items()])
    counted = whole.select(f.explode(pairs).alias("pair")).where("pair.at IS NOT NULL").groupBy("pair.event", "pair.at").count()
    found: dict[int, dict[str, Any]] = {}
    for row in counted.collect():
        found.setdefault(row["at"], dict.fromkeys(EVENTS, 0))[row["event"]] = row["count"]
    if not found:
        return []
    return [{"at": at, **found.get(at, dict.fromkeys(EVENTS, 0))} for at in range(min(found), max(found) + 1, step)]


def _over_time(whole: DataFrame, name: str, at: str, step: int) -> list[dict[str, Any]]:
    marks = f.array(*map(f.lit, PERCENTILES))
    rows = (
        whole.where(f.col(name).isNotNull())
        .groupBy(_bucket(at, step).alias("at"))
        .agg(f.percentile_approx(name, marks).alias("p"))
    )
    return [
        {"at": row["at"], "p50": row["p"][0], "p90": row["p"][1], "p99": row["p"][2]} for row in rows.orderBy("at").collect()
    ]


def _commonest(whole: DataFrame, name: str) -> list[dict[str, Any]]:
    rows = whole.groupBy(name).agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"))
    found = rows.orderBy(f.desc("messages"), name).limit(TOP).collect()
    return [{"name": row[name], "messages": row["messages"], "bytes": row["bytes"]} for row in found]
