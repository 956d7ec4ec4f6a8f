"""Watching streaming queries: a live line, JSON lines, /metrics, all from Spark's own progress; and stopping them cleanly.

    archive  120,000 rows  41,200 rows/s  lag 380,000  batch 2.1 s

The figures of a batch, as JSON and with the prefix penstock_pipeline_ as metrics:

    rows        since the start, over all queries        rows_per_second   of the last batch
    batches     since the start                          batch_seconds     how long the last one took
    lag         how many messages wait in the queues     oldest_seconds    how long the oldest of them has
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, TYPE_CHECKING, Any, Self

from penstock.pipeline_reports import MOST_CHECKS
from penstock.spark.pipelines.checks import CheckCounts
from penstock.spark.pipelines.reporting import Reporter, ReportPlace

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL = 0.2
COUNTERS = ("rows", "batches")
COUNTED = "penstock rows"
"""The name of the observation (`DataFrame.observe`) whose ``rows`` are those that a query writes: fewer than it reads, if it
leaves some out."""


@dataclass(slots=True)
class Figures:
    rows: int = 0
    batches: int = 0
    rows_per_second: float = 0
    batch_seconds: float = 0
    lag: int | None = None
    oldest_seconds: float | None = None


@dataclass(slots=True)
class _Query:
    """How far the watch has read the progress of one query."""

    query: StreamingQuery
    seen: tuple[int, str] | None = None
    """The last event that was counted. Its batch is not enough: while a query idles, Spark tells the batch that comes next."""
    lag: int | None = None
    oldest: float | None = None
    rows: int = 0
    duplicates: int = 0
    late: int = 0

    def new_events(self) -> list[Any]:
        events = list(self.query.recentProgress)
        for place in reversed(range(len(events))):
            if _key(events[place]) == self.seen:
                events = events[place + 1 :]
                break
        if events:
            self.seen = _key(events[-1])
        return events


@dataclass(slots=True)
class Totals:
    """The result of `Watch.follow`."""

    rows: int
    batches: int
    seconds: float
    stopped: bool
    """By Ctrl-C or SIGTERM, rather than because all was done."""
    duplicates: int = 0
    """How many rows dropDuplicates has dropped."""
    late: int = 0
    """Rows that came later than the watermark allows."""
    by_query: list[int] = field(default_factory=list)
    """The rows of each query, in the order in which `follow` was given them."""
    bad: int | None = 0
    """Rows of a load that could not be messages and are not in ``rows``; None if they are, because nobody has counted them."""


class Watch:
    """Follows queries to their end. ``mode`` is line (live, only on a terminal), json or off."""

    def __init__(self, name: str, mode: str = "off", *, metrics_port: int | None = None, out: IO[str] | None = None) -> None:
        self.name = name
        self.figures = Figures()
        self._mode = mode
        self._out = out or sys.stderr
        self._live = mode == "line" and self._out is not None and self._out.isatty()
        self._stop = threading.Event()
        self.checks = CheckCounts()
        self._places: tuple[ReportPlace, ...] = ()
        self._reporters: list[Reporter] = []
        self._started_at = time.time_ns() // 1000
        self._server = _serve(self, metrics_port) if metrics_port is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def port(self) -> int | None:
        """The port of the metrics."""
        return None if self._server is None else self._server.server_address[1]

    def stop(self, *_: object) -> None:
        """Stop the queries that are followed: uncommitted work is replayed at the next start."""
        self._stop.set()

    def report_to(self, *places: ReportPlace) -> Self:
        """Tell these how it gets on, while queries are followed."""
        self._places = places
        return self

    def follow(self, *queries: StreamingQuery) -> Totals:
        """Wait until all queries have ended, or `stop` is called. If one fails, stop the others and raise its error."""
        self._reporters = [Reporter(self.name, place) for place in self._places]
        failed: str | None = None
        try:
            self._report()
            return self._follow(*queries)
        except BaseException as error:
            failed = str(error) or type(error).__name__
            raise
        finally:
            self._report(finished=True, last_error=failed)
            for reporter in self._reporters:
                reporter.close()
            self._reporters = []

    def _report(self, *, finished: bool = False, last_error: str | None = None) -> None:
        figures = self.figures
        worst = sorted(self.checks.figures().items(), key=lambda each: -each[1].failed)[:MOST_CHECKS]
        checks = {name: asdict(found) for name, found in worst}
        for reporter in self._reporters:
            reporter.tell(
                rows=figures.rows,
                batches=figures.batches,
                rate=round(figures.rows_per_second, 2),
                lag=figures.lag,
                batch_seconds=round(figures.batch_seconds, 3),
                finished=finished,
                last_error=last_error,
                started_at=self._started_at,
                **({"checks": checks} if checks else {}),
            )

    def _follow(self, *queries: StreamingQuery) -> Totals:
        started = time.monotonic()
        watched = [_Query(query) for query in queries]
        rows, batches = self.figures.rows, self.figures.batches
        try:
            with _stopped_by_signals(self):
                while any(query.isActive for query in queries) and not self._stop.is_set():
                    self._stop.wait(POLL)
                    self._look(watched)
                    for one in watched:
                        if not one.query.isActive:
                            one.query.awaitTermination()  # raises its error
        finally:
            try:
                for one in watched:
                    if one.query.isActive:
                        one.query.stop()
                self._look(watched)
            except Exception:
                if not self._stop.is_set():  # a signal to the process group has ended Spark as well
                    raise
            if self._live:
                print("\r\x1b[K", end="", file=self._out, flush=True)
        if not self._stop.is_set():
            for one in watched:
                one.query.awaitTermination()
        done = self.figures
        totals = Totals(done.rows - rows, done.batches - batches, time.monotonic() - started, self._stop.is_set())
        totals.duplicates, totals.late = sum(one.duplicates for one in watched), sum(one.late for one in watched)
        totals.by_query = [one.rows for one in watched]
        return totals

    def _look(self, watched: list[_Query]) -> None:
        new = False
        for one in watched:
            for event in one.new_events():
                self._count(one, event)
                new = True
        if new:
            lags = [one.lag for one in watched if one.lag is not None]
            self.figures.lag = sum(lags) if lags else None
            self.figures.oldest_seconds = max((one.oldest for one in watched if one.oldest is not None), default=None)
            self._tell()

    def _count(self, one: _Query, event: Any) -> None:
        figures = self.figures
        took = event["durationMs"].get("triggerExecution", 0) / 1000
        rows = rows_of(event)
        self.checks.add(one.query.name, event)
        if rows:
            one.rows += rows
            figures.rows += rows
            figures.batches += 1
            figures.rows_per_second = rows / took if took else 0.0
            figures.batch_seconds = took
        for operator in event["stateOperators"]:
            one.duplicates += operator["customMetrics"].get("numDroppedDuplicateRows", 0)
            one.late += operator["numRowsDroppedByWatermark"]
        for source in event["sources"]:
            waiting = _waiting(source["latestOffset"])
            if waiting is not None:
                one.lag, one.oldest = waiting.get("visible"), waiting.get("oldest_age")

    def _tell(self) -> None:
        self._report()
        if self._mode == "json" and self._out is not None:
            checks = {name: asdict(found) for name, found in self.checks.figures().items()}
            told = {"pipeline": self.name, **asdict(self.figures), **({"checks": checks} if checks else {})}
            print(json.dumps(told), file=self._out, flush=True)
        elif self._live:
            print(f"\r\x1b[K{self.line()}", end="", file=self._out, flush=True)

    def line(self) -> str:
        figures = self.figures
        parts = [self.name, f"{figures.rows:,} rows", f"{figures.rows_per_second:,.0f} rows/s"]
        if figures.lag is not None:
            parts.append(f"lag {figures.lag:,}")
        parts.append(f"batch {figures.batch_seconds:.1f} s")
        if failed := sum(check.failed for check in self.checks.figures().values()):
            parts.append(f"{failed:,} rows fail a check")
        return "  ".join(parts)

    def metrics(self) -> str:
        lines = []
        for name, value in asdict(self.figures).items():
            if value is not None:
                full = f"penstock_pipeline_{name}" + ("_total" if name in COUNTERS else "")
                kind = "counter" if name in COUNTERS else "gauge"
                lines += [f"# TYPE {full} {kind}", f'{full}{{pipeline="{self.name}"}} {value}']
        for name, of in (("check_rows", "rows"), ("check_failed", "failed")):
            full, checks = f"penstock_pipeline_{name}_total", self.checks.figures()
            lines += [f"# TYPE {full} counter"] if checks else []
            lines += [
                f'{full}{{pipeline="{self.name}",check="{check}"}} {getattr(found, of)}' for check, found in checks.items()
            ]
        return "\n".join(lines) + "\n"


def _key(event: Any) -> tuple[int, str]:
    return event["batchId"], event["timestamp"]


def rows_of(event: Any) -> int:
    """How many rows a batch has written, if its query counts them as `COUNTED`; else how many it has read."""
    counted: Any = (event["observedMetrics"] or {}).get(COUNTED) or ()  # without fields if nothing ran
    return counted.rows if "rows" in counted else sum(source["numInputRows"] for source in event["sources"])


def _waiting(offset: Any) -> dict[str, Any] | None:
    """The latest offset if it is from our source; other sources have other offsets."""
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return None
    return found if isinstance(found, dict) and "visible" in found else None


@contextmanager
def _stopped_by_signals(watch: Watch) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM ends the queries, the second this process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(number: int, _frame: object) -> None:
        signal.signal(number, before[number])
        watch.stop()

    before: dict[int, Any] = {number: signal.signal(number, heard) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _serve(watch: Watch, port: int) -> ThreadingHTTPServer:
    class ProgressPage(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = watch.metrics().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silent: stderr shows the live line."""

    server = ThreadingHTTPServer(("127.0.0.1", port), ProgressPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
