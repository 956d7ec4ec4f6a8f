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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from py4j.protocol import Py4JError

from penstock.pipeline_reports import MOST_CHECKS
from penstock.spark.pipelines.checks import CheckCounts
from penstock.spark.pipelines.exposition import Figures, exposition
from penstock.spark.pipelines.lag import LagWatch
from penstock.spark.pipelines.listening import ProgressAnswer, ProgressServer, told
from penstock.spark.pipelines.observed import observed
from penstock.spark.pipelines.reporting import REPORT_EVERY, Reporter, ReportPlace

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL = 0.2
TOLD = ("rows", "batches", "rows_per_second", "batch_seconds", "lag", "oldest_seconds")
"""The figures in the progress as JSON."""
COUNTED = "penstock rows"
"""The name of the observation (`DataFrame.observe`) whose ``rows`` are those that a query writes: fewer than it reads, if it
leaves some out."""


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


class Drain(Protocol):
    """How queries are brought to an end, after `Watch.stop`."""

    def begin(self) -> None: ...

    def done(self) -> bool:
        """Whether those that are still running may be stopped now."""


class Watch:
    """Follows queries to their end. ``mode`` is line (live, only on a terminal), json or off.

    ``listen`` is the address at which it answers over HTTP (see `listening`)."""

    def __init__(self, name: str, mode: str = "off", *, listen: str | None = None, out: IO[str] | None = None) -> None:
        self.name = name
        self.figures = Figures()
        self.checks = CheckCounts()
        self.last: Totals | None = None
        """What `follow` has followed last, even if it raised an error."""
        self._mode = mode
        self._out = out or sys.stderr
        self._live = mode == "line" and self._out is not None and self._out.isatty()
        self._stop = threading.Event()
        self._at_work = False
        self._lags = LagWatch(())
        self._places: tuple[ReportPlace, ...] = ()
        self._reporters: list[Reporter] = []
        self._reported_at = 0.0
        self._started_at = time.time_ns() // 1000
        self._listener = None if listen is None else ProgressServer(listen, self._pages())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    @property
    def port(self) -> int | None:
        """The port at which it listens."""
        return None if self._listener is None else self._listener.port

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self, *_: object) -> None:
        """Stop the queries that are followed: uncommitted work is replayed at the next start."""
        self._stop.set()

    def report_to(self, *places: ReportPlace) -> Self:
        """Tell these how it gets on, and look how many messages wait there, while it is at work."""
        self._places = places
        return self

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Signals stop it, and others hear how it gets on. `follow` does this by itself; it may be within another."""
        if self._at_work:
            yield
            return
        self._at_work = True
        self._reporters = [Reporter(self.name, place) for place in self._places]
        self._lags = LagWatch(self._places)
        failed: str | None = None
        try:
            with _stopped_by_signals(self):
                self._report()
                yield
        except BaseException as error:
            failed = str(error) or type(error).__name__
            raise
        finally:
            self._lags.close()
            self.figures.state = "ended"
            self._report(finished=True, last_error=failed)
            for reporter in self._reporters:
                reporter.close()
            self._reporters = []
            self._at_work = False

    def await_restart(self, error: BaseException, seconds: float) -> bool:
        """Tell that the queries have failed, and wait; False: it is to stop."""
        self.figures.state, self.figures.restarts = "restarting", self.figures.restarts + 1
        self._report(last_error=str(error))
        return not self._stop.wait(seconds)

    def follow(self, *queries: StreamingQuery, drain: Drain | None = None) -> Totals:
        """Wait until all queries have ended, or `stop` is called and ``drain`` is done. If one fails, stop the others and raise
        its error."""
        with self.at_work():
            self.figures.state = "running"
            return self._follow(queries, drain)

    def _follow(self, queries: Sequence[StreamingQuery], drain: Drain | None) -> Totals:
        watched = [_Query(query) for query in queries]
        totals = self.last = Totals(0, 0, 0.0, False)
        started, rows, batches = time.monotonic(), self.figures.rows, self.figures.batches
        try:
            try:
                while any(query.isActive for query in queries) and not self._is_over(drain):
                    time.sleep(POLL) if self._stop.is_set() else self._stop.wait(POLL)
                    self._look(watched)
                    for one in watched:
                        if not one.query.isActive:
                            one.query.awaitTermination()  # raises its error
            except (Py4JError, OSError):
                if not self._stop.is_set():  # a signal to the process group has ended Spark as well
                    raise
            finally:
                try:
                    for one in watched:
                        if one.query.isActive:
                            one.query.stop()
                    self._look(watched)
                except Exception:
                    if not self._stop.is_set():
                        raise
                if self._live:
                    print("\r\x1b[K", end="", file=self._out, flush=True)
            if not self._stop.is_set():
                for one in watched:
                    one.query.awaitTermination()
        finally:
            done = self.figures
            totals.rows, totals.batches, totals.seconds = done.rows - rows, done.batches - batches, time.monotonic() - started
            totals.stopped = self._stop.is_set()
            totals.duplicates, totals.late = sum(one.duplicates for one in watched), sum(one.late for one in watched)
            totals.by_query = [one.rows for one in watched]
        return totals

    def _is_over(self, drain: Drain | None) -> bool:
        if not self._stop.is_set() or drain is None:
            return self._stop.is_set()
        if self.figures.state != "draining":
            self.figures.state = "draining"
            drain.begin()
        return drain.done()

    def _report(self, *, finished: bool = False, last_error: str | None = None) -> None:
        figures = self.figures
        self._reported_at = time.monotonic()
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

    def _look(self, watched: list[_Query]) -> None:
        new = False
        for one in watched:
            for event in one.new_events():
                self._count(one, event)
                new = True
        lags = [one.lag for one in watched if one.lag is not None]
        self.figures.lag = sum(lags) if lags else None
        self.figures.oldest_seconds = max((one.oldest for one in watched if one.oldest is not None), default=None)
        if queues := self._lags.by_queue():  # the store knows better than the last batch
            self.figures.lag = sum(lag.messages for lag in queues.values())
            self.figures.oldest_seconds = max(lag.oldest_seconds for lag in queues.values())
        if new:
            self._tell()
        elif time.monotonic() > self._reported_at + REPORT_EVERY:
            self._report()

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
            figures = {name: value for name, value in asdict(self.figures).items() if name in TOLD}
            line = {"pipeline": self.name, **figures, **({"checks": checks} if checks else {})}
            print(json.dumps(line), file=self._out, flush=True)
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
        return exposition(self.name, self.figures, self.checks.figures(), self._lags.by_queue())

    def _pages(self) -> dict[str, ProgressAnswer]:
        def state(ready: bool) -> tuple[int, str, str]:
            figures = self.figures
            ill = ready and figures.state != "running"
            return told(503 if ill else 200, pipeline=self.name, state=figures.state, restarts=figures.restarts)

        return {
            "/metrics": lambda: (200, "text/plain; version=0.0.4", self.metrics()),
            "/health": lambda: state(False),
            "/ready": lambda: state(True),
        }


def _key(event: Any) -> tuple[int, str]:
    return event["batchId"], event["timestamp"]


def rows_of(event: Any) -> int:
    """How many rows a batch has written, if its query counts them as `COUNTED`; else how many it has read."""
    counted = observed(event).get(COUNTED, {})
    return int(counted["rows"]) if "rows" in counted else sum(source["numInputRows"] for source in event["sources"])


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
