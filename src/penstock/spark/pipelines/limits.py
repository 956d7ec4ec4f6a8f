"""The limits of checks (stop_above, stop_share): each batch of a queue is judged as a whole, before any sink sees a row of it.

A batch of which too many rows fail is not landed. Its messages stay claimed in their queue, and the next run judges them again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from penstock.errors import BadInput
from penstock.spark.pipelines.tables import PipelineTables

if TYPE_CHECKING:
    from penstock.spark.pipelines.declaration import Pipeline, Source
    from penstock.spark.pipelines.declared_checks import DeclaredCheck

BY_ROW = {"Project", "Filter", "SubqueryAlias", "View", "Join", "Union", "EventTimeWatermark", "CollectMetrics", "Generate"}
"""The parts of a streaming plan that make each row of one row of the stream."""
STREAM = "StreamingRelation"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Of the checks that a batch of one queue decides."""

    pipeline: Pipeline
    source: str
    checks: tuple[DeclaredCheck, ...]

    def judge(self, messages: DataFrame) -> None:
        """Raise `BadInput` if more rows of a batch fail than a check allows."""
        tables = PipelineTables(messages.sparkSession, self.pipeline, lambda _: messages)
        names = {check.table for check in self.checks}
        tables.define(set().union(*(self.pipeline.uses(name) for name in names)))
        for name in sorted(names):
            counts = tables.checked[name].count()
            for check in self.checks:
                rows, failed = counts["rows"], counts[f"failed {check.name}"]
                if check.table == name and not check.allows(rows, failed):
                    where = self.pipeline.where("check", name, place=check.place)
                    raise BadInput(
                        f"{where}: {failed:,} of {rows:,} rows of a batch fail {check.full_name} ({check.reason}), more than "
                        f"{check.limit}: no sink has got any of this batch, and its messages stay claimed for this checkpoint"
                    )


def limits(pipeline: Pipeline, tables: PipelineTables) -> dict[str, BatchLimits]:
    """By queue. `BadInput` if a batch cannot be judged by itself."""
    found: dict[str, list[DeclaredCheck]] = {}
    for table, checked in tables.checked.items():
        for check in checked.checks:
            if check.limited:
                streams = [source for source in pipeline.sources if source.stream and source.name in pipeline.reads(table)]
                if problem := _problem(streams, checked.judged):
                    where = pipeline.where("check", table, place=check.place)
                    raise BadInput(f"{where}: stop_above and stop_share judge each batch of a queue by itself, but {problem}")
                found.setdefault(streams[0].name, []).append(check)
    return {source: BatchLimits(pipeline, source, tuple(checks)) for source, checks in found.items()}


def _problem(streams: Sequence[Source], frame: DataFrame) -> str | None:
    if len(streams) > 1:
        return f"this table is made of {' and '.join(source.name for source in streams)}"
    if streams[0].queue is None:
        return f"{streams[0].name} is made of files"
    plan = _plan(frame)
    others = [part for part in re.findall(r"^[\s:+-]*~(\w+)", plan, re.M) if part not in BY_ROW]  # Spark marks streams by ~
    if others:
        return f"a row of this table is made of several ({others[0]}): check a table before it"
    if plan.count(STREAM) > 1:
        return f"this table joins {streams[0].name} with itself: check a table before it"
    return None


def _plan(frame: Any) -> str:
    """How Spark understands the table's SQL."""
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        told: str = frame._explain_string(extended=True)
        return told.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
    return str(frame._jdf.queryExecution().analyzed().toString())
