"""Spark's own progress, on a terminal, as JSON and as metrics; and stopping."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

import penstock
from penstock.spark.pipelines.checks import counts_of
from penstock.spark.pipelines.progress import Watch, rows_of


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Query:
    """As much of a streaming query as the watch uses."""

    def __init__(self, *events: dict[str, Any], lasts: int = 1, error: Exception | None = None) -> None:
        self.name = "sink"
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


def event(
    batch: int, rows: int, *, at: int | None = None, took: int = 500, waiting: int | None = None, dropped: int = 0
) -> dict[str, Any]:
    latest = json.dumps({"visible": waiting, "oldest_age": 7.5}) if waiting is not None else json.dumps({"logOffset": 3})
    return {
        "batchId": batch,
        "timestamp": f"2026-01-01T00:00:{at or batch:02}.000Z",
        "numInputRows": None,  # as through Spark Connect
        "durationMs": {"triggerExecution": took},
        "observedMetrics": {},
        "sources": [{"latestOffset": latest, "numInputRows": rows}],
        "stateOperators": [{"customMetrics": {"numDroppedDuplicateRows": dropped}, "numRowsDroppedByWatermark": 0}],
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


def test_a_batch_is_counted_although_an_idle_spell_had_its_number() -> None:
    class Growing(Query):
        looks = 0

        @property
        def recentProgress(self) -> list[dict[str, Any]]:
            self.looks += 1
            return self.events[max(0, self.looks - 2) : self.looks]  # Spark keeps only the last ones

        @recentProgress.setter
        def recentProgress(self, events: list[dict[str, Any]]) -> None:
            self.events = events

    idle_and_busy = [event(0, 0), event(0, 100, at=1), event(1, 0, at=2), event(1, 0, at=3), event(1, 50, at=4)]
    watch = Watch("archive")
    totals = watch.follow(Growing(*idle_and_busy, lasts=20))  # type: ignore[arg-type]
    assert (totals.rows, totals.batches, totals.by_query) == (150, 2, [150])


def test_what_comes_after_an_idle_spell_of_a_real_stream_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    url, often = f"sqlite:///{tmp_path}/queue.db", "spark.sql.streaming.noDataProgressEventInterval"
    with penstock.open(url) as broker:
        queue = broker.create("jobs")
        spark.conf.set(often, "500")  # milliseconds
        try:
            stream = spark.readStream.format("penstock").options(url=url, queue="jobs").load()
            query = stream.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/check").start()
        finally:
            spark.conf.unset(often)
        watch = Watch("archive")

        def await_rows(rows: int) -> None:
            give_up_at = time.monotonic() + 120
            while not query.lastProgress or rows_of(query.lastProgress) != rows:
                assert time.monotonic() < give_up_at
                time.sleep(0.02)

        def feed() -> None:
            try:
                for rows in (7, 8):
                    await_rows(0)
                    queue.send_many([b"x"] * rows)
                    await_rows(rows)
            finally:
                watch.stop()

        feeding = threading.Thread(target=feed)
        feeding.start()
        totals = watch.follow(query)
        feeding.join()
    assert (totals.rows, totals.batches, watch.figures.rows) == (15, 2, 15)


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
    with Watch("archive", listen="0") as watch:
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


@pytest.mark.parametrize("connect", [False, True])
def test_observations_are_counted_as_spark_and_as_spark_connect_tell_them(connect: bool) -> None:
    def told(**fields: int) -> Row:
        schema = {"type": "struct", "fields": [{"name": name, "type": "long"} for name in fields]}
        return Row(values=[*fields.values()], schema=schema) if connect else Row(**fields)

    metrics = {
        "penstock rows": told(rows=4),
        "penstock checks orders": told(**{"rows": 5, "failed body": 0, "failed price": 2}),
        "penstock checks idle": Row(),
    }
    event = {"observedMetrics": metrics, "sources": [{"numInputRows": 9}]}
    assert rows_of(event) == 4
    assert counts_of(event) == {"orders.body": (5, 0), "orders.price": (5, 2)}
    assert rows_of({"observedMetrics": {"penstock rows": Row()}, "sources": [{"numInputRows": 9}]}) == 9
