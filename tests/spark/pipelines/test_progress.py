"""Spark's own progress, on a terminal, as JSON and as metrics; and stopping."""

from __future__ import annotations

import io
import json
import os
import signal
import urllib.request
from typing import Any

import pytest

from penstock.spark.pipelines.progress import Watch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Query:
    """As much of a streaming query as the watch uses."""

    def __init__(self, *events: dict[str, Any], lasts: int = 1, error: Exception | None = None) -> None:
        self.recentProgress = list(events)
        self.stopped = False
        self._looks = lasts
        self._error = error

    @property
    def isActive(self) -> bool:
        self._looks -= 1
        return self._looks >= 0 and not self.stopped

    def awaitTermination(self) -> None:
        if self._error:
            raise self._error

    def stop(self) -> None:
        self.stopped = True


def event(batch: int, rows: int, *, took: int = 500, waiting: int | None = None, dropped: int = 0) -> dict[str, Any]:
    latest = json.dumps({"visible": waiting, "oldest_age": 7.5}) if waiting is not None else json.dumps({"logOffset": 3})
    return {
        "batchId": batch,
        "numInputRows": None,  # as through Spark Connect
        "durationMs": {"triggerExecution": took},
        "sources": [{"latestOffset": latest, "numInputRows": rows}],
        "stateOperators": [{"customMetrics": {"numDroppedDuplicateRows": dropped}}],
    }


def test_the_live_line_shows_rows_rate_lag_and_batch_time() -> None:
    out = Terminal()
    watch = Watch("archive", "line", out=out)
    totals = watch.follow(Query(event(0, 1000), event(1, 3000, waiting=200)))  # type: ignore[arg-type]
    assert "archive  4,000 rows  6,000 rows/s  lag 200  batch 0.5 s" in out.getvalue()
    assert (totals.rows, totals.batches, totals.stopped) == (4000, 2, False)


def test_a_batch_is_counted_once_and_an_idle_one_is_none() -> None:
    watch = Watch("archive")
    query = Query(event(0, 1000, dropped=4), event(1, 0), lasts=3)
    totals = watch.follow(query)  # type: ignore[arg-type]
    assert (totals.rows, totals.batches, totals.duplicates) == (1000, 1, 4)


def test_nothing_is_shown_where_nobody_looks() -> None:
    out = io.StringIO()
    Watch("archive", "line", out=out).follow(Query(event(0, 1000)))  # type: ignore[arg-type]
    assert out.getvalue() == ""


def test_the_same_as_json_lines() -> None:
    out = io.StringIO()
    Watch("load", "json", out=out).follow(Query(event(0, 10, waiting=5)))  # type: ignore[arg-type]
    assert json.loads(out.getvalue()) == {
        "pipeline": "load",
        "rows": 10,
        "batches": 1,
        "rows_per_second": 20.0,
        "batch_seconds": 0.5,
        "lag": 5,
        "oldest_seconds": 7.5,
    }


def test_the_same_as_metrics() -> None:
    with Watch("archive", metrics_port=0) as watch:
        watch.follow(Query(event(0, 10, waiting=5)))  # type: ignore[arg-type]
        with urllib.request.urlopen(f"http://127.0.0.1:{watch.port}/metrics") as answer:
            told = answer.read().decode()
    assert '# TYPE penstock_pipeline_rows_total counter\npenstock_pipeline_rows_total{pipeline="archive"} 10\n' in told
    assert 'penstock_pipeline_lag{pipeline="archive"} 5\n' in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_queries_and_not_the_process(number: signal.Signals) -> None:
    class Signalled(Query):
        @property
        def isActive(self) -> bool:
            if not self.stopped and not self.sent:
                self.sent = True
                os.kill(os.getpid(), number)
            return not self.stopped

        sent = False

    query = Signalled()
    before = signal.getsignal(number)
    assert Watch("archive").follow(query).stopped  # type: ignore[arg-type]
    assert query.stopped
    assert signal.getsignal(number) is before


def test_if_one_fails_the_others_are_stopped_and_its_error_is_raised() -> None:
    good, bad = Query(lasts=100), Query(lasts=1, error=RuntimeError("it broke"))
    with pytest.raises(RuntimeError, match="it broke"):
        Watch("run").follow(good, bad)  # type: ignore[arg-type]
    assert good.stopped
