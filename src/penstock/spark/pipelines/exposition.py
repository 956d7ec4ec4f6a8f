"""The figures of a pipeline, and how they look in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from penstock.spark.pipelines.checks import CheckFigures
from penstock.spark.pipelines.lag import MOST_QUEUES, QueueLag

Series = Mapping[str, float]
"""Values by what comes behind the pipeline in the labels."""


@dataclass(slots=True)
class Figures:
    rows: int = 0
    batches: int = 0
    rows_per_second: float = 0
    batch_seconds: float = 0
    lag: int | None = None
    oldest_seconds: float | None = None
    restarts: int = 0
    state: str = "starting"
    """starting, running, restarting (it waits, after an error), draining or ended."""


def exposition(name: str, figures: Figures, checks: Mapping[str, CheckFigures], lags: Mapping[str, QueueLag]) -> str:
    """``lags``: by queue, as they are now; without them, the lag is what the last batch has told."""
    lag = sum(each.messages for each in lags.values()) if lags else figures.lag
    oldest = max(each.oldest_seconds for each in lags.values()) if lags else figures.oldest_seconds
    shown = dict(islice(lags.items(), MOST_QUEUES))
    families: dict[str, Series] = {
        "rows_total": {"": figures.rows},
        "batches_total": {"": figures.batches},
        "restarts_total": {"": figures.restarts},
        "running": {"": int(figures.state in ("running", "draining"))},
        "rows_per_second": {"": figures.rows_per_second},
        "batch_seconds": {"": figures.batch_seconds},
        "lag": {} if lag is None else {"": lag},
        "oldest_seconds": {} if oldest is None else {"": oldest},
        "queue_lag": {_label("queue", queue): each.messages for queue, each in shown.items()},
        "queue_oldest_seconds": {_label("queue", queue): each.oldest_seconds for queue, each in shown.items()},
        "check_rows_total": {_label("check", check): each.rows for check, each in checks.items()},
        "check_failed_total": {_label("check", check): each.failed for check, each in checks.items()},
    }
    pipeline = _label("pipeline", name).removeprefix(",")
    lines = []
    for family, series in families.items():
        if series:
            full = f"penstock_pipeline_{family}"
            lines.append(f"# TYPE {full} {'counter' if family.endswith('_total') else 'gauge'}")
            lines += [f"{full}{{{pipeline}{labels}}} {value}" for labels, value in series.items()]
    return "\n".join(lines) + "\n"


def _label(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f',{name}="{escaped}"'
