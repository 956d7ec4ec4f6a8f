"""The filters that the store evaluates: on the queue, on ids, on instants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow import END, INSTANT
from penstock.message import from_datetime
from penstock.stores.ids import Ids

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

COMPARISONS = {"EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<="}
"""By the names of Spark's classes, which Spark 4.0 does not have."""
OPERATORS: dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "=": pc.equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "<": pc.less,
    "<=": pc.less_equal,
}
INSTANTS = {"sent_at": "sent_at", "visible_at": "ABS(visible_at)", "settled_at": "settled_at"}
"""The columns that can be compared, and their SQL."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What passes the filters: queues and ids (None: all), and comparisons of instants as (column, operator, microseconds)."""

    queues: frozenset[str] | None = None
    ids: frozenset[str] | None = None
    times: tuple[tuple[str, str, int], ...] = ()

    def narrowed(self, given: Filter) -> Wanted | None:
        """With one more filter; None if Spark has to evaluate it."""
        column, kind, value = ".".join(getattr(given, "attribute", ())), type(given).__name__, getattr(given, "value", None)
        if column in ("queue", "id") and kind in ("EqualTo", "In"):
            values: Any = value if kind == "In" else (value,)
            known = self.queues if column == "queue" else self.ids
            left = frozenset(value for value in values if value is not None and (known is None or value in known))
            return replace(self, queues=left) if column == "queue" else replace(self, ids=left)
        if column in INSTANTS and kind in COMPARISONS and isinstance(value, datetime) and value.tzinfo is not None:
            return replace(self, times=(*self.times, (column, COMPARISONS[kind], from_datetime(value))))
        return None

    def conditions(self, ids: Ids) -> list[str]:
        """As SQL conditions, made of numbers alone."""
        conditions = [f"{INSTANTS[column]} {sign} {at} AND {INSTANTS[column]} < {END}" for column, sign, at in self.times]
        if self.ids is not None:
            numbers = sorted(number for number in map(ids.number, self.ids) if number is not None)
            conditions.append(f"number IN ({', '.join(map(str, numbers))})" if numbers else "1 = 0")
        return conditions

    def columns(self) -> set[str]:
        """The columns that `filter` needs."""
        return {column for column, _, _ in self.times} | ({"id"} if self.ids is not None else set())

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.ids is not None:
            batch = batch.filter(pc.is_in(batch.column("id"), pa.array(sorted(self.ids), pa.string())))
        for column, sign, at in self.times:
            batch = batch.filter(OPERATORS[sign](batch.column(column), pa.scalar(at, INSTANT)))  # drops nulls too
        return batch
