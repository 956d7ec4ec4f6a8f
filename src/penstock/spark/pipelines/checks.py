"""The checks of a declared pipeline, made: which rows of a table fail, what becomes of them, and how many there are.

frame ──► the verdict on each row ──► counted (`observe`) ──┬──► rows that pass: the table, as steps and sinks read it
                                                            └──► rows that are rejected: its dead letters

Every query that reads the table makes its checks, and counts them in its own progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.spark.pipelines.bodies import PROBLEM
from penstock.spark.pipelines.declaration import Pipeline
from penstock.spark.pipelines.declared_checks import DeclaredCheck
from penstock.spark.pipelines.failures import at_line
from penstock.spark.pipelines.observed import observed

COUNTED = "penstock checks "
"""How the names of the observations begin; then the table. Their fields: ``rows``, and the rows that fail, for each check."""
TAKEN_BY = "_penstock_taken_by"
"""The place of the check that has taken a row out; null in rows that pass."""
FAILED = "_penstock_failed_"
"""And the place of a check that only counts: whether the row fails it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A table with checks: its rows with the verdict on each, those that pass, and those that are dead letters."""

    judged: DataFrame
    passed: DataFrame
    rejected: DataFrame | None
    checks: tuple[DeclaredCheck, ...]

    def count(self) -> dict[str, int]:
        """Of a table that is not a stream: its rows, and how many fail each check."""
        row = self.judged.agg(*_counts(self.checks)).collect()[0]
        return {name: int(value) for name, value in row.asDict().items()}


def checked(frame: DataFrame, table: str, pipeline: Pipeline) -> Checked | None:
    """None if the table has no check."""
    checks = pipeline.checks_of(table)
    if not checks:
        return None
    taken_by: Column = f.lit(None).cast("int")
    for place, check in enumerate(checks):
        fails = _fails(frame, check, pipeline)
        if check.action == "count":
            frame = frame.withColumn(f"{FAILED}{place}", taken_by.isNull() & fails)
        else:
            taken_by = f.coalesce(taken_by, f.when(fails, f.lit(place)))
    # Both are columns before they are counted, so that a row is judged once. Spark moves no filter below an observation: what
    # a step or a sink leaves out was counted, and what a join leaves out is not.
    judged = frame.withColumn(TAKEN_BY, taken_by).observe(f"{COUNTED}{table}", *_counts(checks))
    passes = f.col(TAKEN_BY).isNull()
    for place, check in enumerate(checks):
        if check.action == "stop":
            passes = f.when(f.col(TAKEN_BY) == place, f.raise_error(_stopped(frame, check, pipeline))).otherwise(passes)
    own = [name for name in judged.columns if name.startswith(FAILED)]
    passed = judged.where(passes).drop(TAKEN_BY, PROBLEM, *own)
    reasons = {place: check.reason for place, check in enumerate(checks) if check.action == "reject"}
    if not reasons:
        return Checked(judged, passed, None, tuple(checks))
    told = f.create_map(*[f.lit(part) for pair in reasons.items() for part in pair])[f.col(TAKEN_BY)]
    rejected = judged.where(f.col(TAKEN_BY).isin(*reasons)).withColumn(PROBLEM, told).drop(TAKEN_BY, *own)
    return Checked(judged, passed, rejected, tuple(checks))


def _fails(frame: DataFrame, check: DeclaredCheck, pipeline: Pipeline) -> Column:
    if check.of_bodies:
        return f.col(PROBLEM).isNotNull()
    at = ("check", check.table)
    line = pipeline.first_line(*at, key="where", place=check.place)
    with at_line(pipeline.where(*at, key="where", place=check.place), line):
        fails = ~f.coalesce(f.expr(check.where), f.lit(False))
        frame.select(fails)
    return fails


def _counts(checks: Sequence[DeclaredCheck]) -> list[Column]:
    taken_by = f.col(TAKEN_BY)
    failed = [
        f.count_if(f.col(f"{FAILED}{place}") if check.action == "count" else f.coalesce(taken_by == place, f.lit(False)))
        for place, check in enumerate(checks)
    ]
    named = [count.alias(f"failed {check.name}") for count, check in zip(failed, checks, strict=True)]
    return [f.count(f.lit(1)).alias("rows"), *named]


def _stopped(frame: DataFrame, check: DeclaredCheck, pipeline: Pipeline) -> Column:
    text = f.lit(
        f"{pipeline.where('check', check.table, place=check.place)}: {check.full_name} stops the pipeline: {check.reason}"
    )
    if "message" not in frame.columns and "id" not in frame.columns:
        return text
    id = f.col("message.id") if "message" in frame.columns else f.col("id")
    return f.concat(text, f.lit("; message "), f.coalesce(id.cast("string"), f.lit("unknown")))


def counts_of(event: Any) -> dict[str, tuple[int, int]]:
    """By the full names of the checks: the rows that a batch of a query had, and those that failed."""
    found: dict[str, tuple[int, int]] = {}
    for name, counts in observed(event).items():
        if name.startswith(COUNTED):
            for field, failed in counts.items():
                if field != "rows":
                    found[f"{name.removeprefix(COUNTED)}.{field.removeprefix('failed ')}"] = (counts["rows"], failed)
    return found


@dataclass(slots=True)
class CheckFigures:
    """How many rows a check has judged since the start, and how many of them failed."""

    action: str
    rows: int = 0
    failed: int = 0


class CheckCounts:
    """The figures of all checks of a pipeline. A check is counted by each query that makes it; the one that is ahead counts."""

    def __init__(self) -> None:
        self._actions: dict[str, str] = {}
        self._counts: dict[str, dict[str, tuple[int, int]]] = {}

    def expect(self, actions: Mapping[str, str]) -> None:
        """These checks are made, by their full names, and this becomes of rows that fail."""
        self._actions.update(actions)

    def add(self, query: str, event: Any) -> None:
        """Count what a batch of a query has told."""
        for name, (rows, failed) in counts_of(event).items():
            counts = self._counts.setdefault(name, {})
            before = counts.get(query, (0, 0))
            counts[query] = before[0] + rows, before[1] + failed

    def figures(self) -> dict[str, CheckFigures]:
        return {
            name: CheckFigures(action, *max(self._counts.get(name, {}).values(), default=(0, 0)))
            for name, action in self._actions.items()
        }
