"""Dead letters, selected by SQL and sent back to where they came from: `penstock pipeline redrive DLQ`.

Spark selects the letters without receiving them; the queue moves them, a page in one transaction. Whenever this is killed, each
letter is in one of the two queues, so running it again continues.

Beside the columns of a message, SQL sees:

    reason      why it died: `max_receives`, or the attribute of that name that a pipeline gave it
    source      the queue it came from: where it died, or the attribute `queue`
    tries       how often it was received there
    died_at     when; of a letter that a pipeline sent, when that was
    age         seconds since then
    text        the body as text
    json        the body as a variant, null if it is no JSON: json:customer.name::string
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import penstock
from penstock.errors import BadInput, QueueNotFound
from penstock.spark.pipelines.access import source_options
from penstock.spark.pipelines.bodies import readable_bodies
from penstock.spark.pipelines.failures import readable

BATCH = 500
AGES = ((60, "under a minute"), (3600, "under an hour"), (86400, "under a day"), (7 * 86400, "under a week"))
OLDER = "a week and more"
UNKNOWN = "(unknown)"


@dataclass(slots=True)
class RedriveTotals:
    """How many letters were chosen, how many went where, and why some remain."""

    chosen: int
    moved: dict[str, int] = field(default_factory=dict)
    homeless: int = 0
    """Letters that do not name their origin."""
    gone: dict[str, int] = field(default_factory=dict)
    """Letters from queues that no longer exist, by queue."""
    duplicates: int = 0
    """Letters whose queue deduplicates and has an equal message."""
    held: int = 0
    """Letters that a receiver took, or that disappeared, since they were chosen."""


def letters(spark: SparkSession, url: str, queue: str, *, where: str | None = None, token: str | None = None) -> DataFrame:
    """The visible letters of a dead letter queue that match the SQL ``where``, with the columns that SQL sees."""
    with penstock.open(url, **_access(token)) as broker:
        broker.queue(queue)
    frame = spark.read.format("penstock").options(**source_options(spark, url, queue, exact="true", token=token)).load()
    now = f.current_timestamp()
    frame = frame.where(f.col("visible_at") <= now).withColumns(
        {
            "reason": f.coalesce("death.reason", f.col("attributes")["reason"]),
            "source": f.coalesce("death.queue", f.col("attributes")["queue"]),
            "tries": f.coalesce("death.receives", "receives"),
            "died_at": f.coalesce("death.died_at", "sent_at"),
        }
    )
    frame = readable_bodies(frame).withColumn("age", (f.unix_micros(now) - f.unix_micros("died_at")) / 1_000_000)
    if where is None:
        return frame
    try:
        return frame.where(where)
    except Exception as error:
        known = readable(error)
        raise BadInput(f"--where {where!r:.200}: {known}") if isinstance(known, BadInput) else known from None


def summarize(frame: DataFrame, *, field: str | None = None, most: int = 20) -> dict[str, list[tuple[str, int]]]:
    """How many letters there are in all, and by reason, source, tries, age and a field of JSON bodies, most common first."""
    age = f.lit(OLDER)
    for limit, name in reversed(AGES):
        age = f.when(f.col("age") < limit, name).otherwise(age)
    looks = {"reason": f.col("reason"), "source": f.col("source"), "tries": f.col("tries").cast("string"), "age": age}
    if field is not None:
        if not re.fullmatch(r"[\w-]+(\[\d+\])?(\.[\w-]+(\[\d+\])?)*", field):
            raise BadInput(f"--field {field!r:.80} is not a path in JSON such as customer.name")
        looks[field] = f.get_json_object("text", f"$.{field}")
    pairs = f.array(*[f.struct(f.lit(name).alias("by"), value.alias("value")) for name, value in looks.items()])
    # One job, so that the queue is read only once.
    counted = frame.select(f.explode(pairs).alias("pair")).groupBy("pair.by", "pair.value").count().collect()
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in looks}
    for row in sorted(counted, key=lambda row: (-row["count"], row["value"] or "")):
        found[row["by"]].append((UNKNOWN if row["value"] is None else row["value"], row["count"]))
    total = sum(count for _, count in found["reason"])
    shown = {name: _shortened(values, most) for name, values in found.items()}
    order = [name for _, name in AGES] + [OLDER]
    shown["age"].sort(key=lambda pair: order.index(pair[0]))
    return {"letters": [("all", total)], **shown}


def redrive(
    spark: SparkSession,
    url: str,
    queue: str,
    *,
    where: str | None = None,
    to: str | None = None,
    limit: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    token: str | None = None,
    advance: Callable[[int, int], None] = lambda _done, _all: None,
) -> RedriveTotals:
    """Send the letters that match ``where`` back to their origin, or to the queue ``to``, at most ``rate`` a second.

    ``advance`` is called with the number done and the total."""
    if rate is not None and not rate > 0:
        raise BadInput(f"rate {rate} must be more than 0 messages a second")
    frame = letters(spark, url, queue, where=where, token=token)
    target = f.lit(to) if to is not None else f.col("source")
    rows = frame.select("id", f.unix_micros("visible_at").alias("visible_at"), target.alias("target"))
    rows = rows.orderBy("visible_at", "id")
    chosen = [(row["id"], row["visible_at"], row["target"]) for row in (rows if limit is None else rows.limit(limit)).collect()]
    done = RedriveTotals(len(chosen), homeless=sum(target is None for _, _, target in chosen))
    with penstock.open(url, **_access(token)) as broker:
        if to is not None:
            broker.queue(to)
        for name in sorted({target for _, _, target in chosen if target is not None}):
            mine = [letter for letter in chosen if letter[2] == name]
            if name not in broker:
                done.gone[name] = len(mine)
            elif name == queue:
                raise BadInput(f"queue {name!r} cannot be redriven to itself")
            elif dry_run:
                done.moved[name] = len(mine)
            else:
                before = sum(done.moved.values())
                tell = partial(_tell, advance, before, len(chosen))
                done.moved[name], duplicates = _move(broker, queue, mine, name, rate, tell)
                done.duplicates += duplicates
                done.held += len(mine) - done.moved[name] - duplicates
    return done


def _move(
    broker: penstock.Broker,
    queue: str,
    chosen: Sequence[tuple[str, int, Any]],
    target: str,
    rate: float | None,
    advance: Callable[[int], None],
) -> tuple[int, int]:
    """How many letters moved, and how many stay because the queue has an equal message."""
    source, moved, duplicates, started = broker.queue(queue), 0, 0, time.monotonic()
    size = BATCH if rate is None else max(1, min(BATCH, int(rate / 4)))
    for first in range(0, len(chosen), size):
        part = chosen[first : first + size]
        if rate is not None:
            time.sleep(max(0, started + first / rate - time.monotonic()))
        try:
            done = source.redrive(ids=[id for id, _, _ in part], to=target, since_at=max(0, part[0][1]))
        except QueueNotFound:  # deleted since we looked
            break
        moved, duplicates = moved + done, duplicates + done.duplicates
        advance(moved)
    return moved, duplicates


def _tell(advance: Callable[[int, int], None], before: int, whole: int, moved: int) -> None:
    advance(before + moved, whole)


def _shortened(values: list[tuple[str, int]], most: int) -> list[tuple[str, int]]:
    rest = values[most:]
    return values[:most] + ([(f"({len(rest)} others)", sum(count for _, count in rest))] if rest else [])


def _access(token: str | None) -> dict[str, Any]:
    return {} if token is None else {"token": token}
