"""The three kinds of run: one process, several processes, and one process at a backlog.

Targets take turns within every run, and the runs are repeated, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from penstock.bench.workloads import BenchDriver, MeasuredQueue, Target, Timing, Trial, Unverified, Verb, Workload, plan, repeat

FILL_BATCH = 10_000
FILL_SECONDS = 90
"""Skip a peer that cannot be filled to a backlog within this time."""
BODY = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: ``seconds`` for each verb of each target, ``repeats`` times."""

    seconds: float = 0.25
    repeats: int = 3
    batches: tuple[int, ...] = (1, 10, 100, 1000)
    sizes: tuple[int, ...] = (100, 1000)
    processes: int = 4
    process_seconds: float = 0.3
    process_repeats: int = 3
    backlogs: tuple[int, ...] = (0, 100, 100_000, 1_000_000)
    backlog_batches: tuple[int, ...] = (1, 100)

    def rows(self) -> Iterator[Workload]:
        for processes in (1, self.processes):
            for size in self.sizes:
                for batch in self.batches:
                    for verb in Verb:
                        # Settling at once is measured for the peer that has no other mode, and it has no batches.
                        if batch == 1 or verb not in (Verb.RECEIVE_ONCE, Verb.CYCLE_ONCE):
                            yield Workload(verb, batch, size, processes)
        for backlog in self.backlogs:
            for batch in self.backlog_batches:
                for verb in (Verb.SEND, Verb.RECEIVE, Verb.DELETE, Verb.RECEIVE_ONCE):
                    if batch == 1 or verb is not Verb.RECEIVE_ONCE:
                        yield Workload(verb, batch, BODY, backlog=backlog)


QUICK = Plan(
    seconds=0.02,
    repeats=1,
    batches=(1, 100),
    sizes=(100,),
    process_seconds=0.05,
    process_repeats=1,
    backlogs=(0, 100, 10_000),
)


@dataclass(slots=True)
class Results:
    """All rates by row and target, in the order of the repeats, and notes on them."""

    rows: list[Workload]
    targets: list[Target]
    rates: dict[tuple[Workload, str], list[float]] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, target: Target, row: Workload, rate: float) -> None:
        self.rates.setdefault((row, target.name), []).append(rate)


class Bench:
    """One run of the benchmark: its plan, its targets, its files and its results."""

    def __init__(self, plan: Plan, rows: Sequence[Workload], targets: Sequence[Target], folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._paths = 0
        self._show: Callable[[str], None] = _show if sys.stderr.isatty() else lambda _: None
        self.results = Results(list(rows), list(targets))

    def run(self) -> Results:
        alike: dict[tuple[int, int, int, bool], list[Workload]] = {}
        for row in self.results.rows:
            alike.setdefault((row.processes, row.batch, row.size, row.backlog is not None), []).append(row)
        for (processes, *_, backlog), rows in alike.items():
            if backlog:
                continue
            if processes == 1:
                self._run_single(rows)
            else:
                self._run_processes(rows)
        for durable in (True, False):  # a backlog in this process's memory would slow the garbage collector, and so the others
            rows = [row for row in self.results.rows if row.backlog is not None]
            self._run_backlogs(rows, [target for target in self.results.targets if target.durable is durable])
        self._show("")
        return self.results

    def _run_single(self, rows: list[Workload]) -> None:
        with ExitStack() as stack:
            sessions = self._open([t for t in self.results.targets if any(map(t.measures, rows))], stack)
            self._take_turns([(target, session, rows) for target, session in sessions])

    def _run_backlogs(self, rows: list[Workload], targets: list[Target]) -> None:
        # Every backlog has its own files, and all stay open, so that the backlogs take turns too.
        targets = [target for target in targets if any(map(target.measures, rows))]
        with ExitStack() as stack:
            filled: list[tuple[int, Target, MeasuredQueue]] = []
            for backlog in sorted({row.backlog for row in rows if row.backlog is not None}):
                for target, session in self._open(targets, stack):
                    if self._fill(target, session, backlog):
                        filled.append((backlog, target, session))
            for batch in sorted({row.batch for row in rows}):
                alike = {
                    backlog: [row for row in rows if (row.backlog, row.batch) == (backlog, batch)] for backlog, *_ in filled
                }
                self._take_turns([(target, session, alike[backlog]) for backlog, target, session in filled])

    def _take_turns(self, work: list[tuple[Target, MeasuredQueue, list[Workload]]]) -> None:
        measured = [(target, session, [row for row in rows if target.measures(row)]) for target, session, rows in work]
        for _ in range(self._plan.repeats):
            courses = []
            for target, session, rows in measured:
                if rows:
                    self.results.settings[target.name] = session.settings()  # raises Unverified if it does not sync
                    courses.append((Trial(target, session, rows, self._plan.seconds), rows))
            gc.collect()
            running = [course for course, _ in courses]
            while running:
                self._show(f"{courses[0][1][0].name} …: {', '.join(course.target.name for course in running)}")
                running = [course for course in running if course.round()]
            for course, rows in courses:
                for row in rows:
                    self.results.add(course.target, row, course.tallies[row.verb].rate)

    def _fill(self, target: Target, session: MeasuredQueue, backlog: int) -> bool:
        self._show(f"{target.name}: filling to {backlog}")
        began = time.monotonic()
        for done in range(0, backlog, FILL_BATCH):
            session.fill([b"x" * BODY] * min(FILL_BATCH, backlog - done))
            if target.peer and time.monotonic() - began > FILL_SECONDS:
                self.results.notes.append(f"{target.name} could not be filled to {backlog} within {FILL_SECONDS} s")
                return False
        return True

    def _run_processes(self, rows: list[Workload]) -> None:
        failed: set[str] = set()
        for _ in range(self._plan.process_repeats):
            for target in self.results.targets:
                here = [row for row in rows if target.measures(row)]
                if not here or target.name in failed:
                    continue
                self._show(f"{target.name}: {here[0].name} …")
                try:
                    rates = run_processes(target, self._path(), here, self._plan.process_seconds)
                except WorkerDied as error:
                    if not target.peer:
                        raise
                    failed.add(target.name)
                    self.results.notes.append(str(error))
                    for row in here:
                        self.results.rates.pop((row, target.name), None)
                    continue
                for row in here:
                    self.results.add(target, row, rates[row.verb])

    def _open(self, targets: list[Target], stack: ExitStack) -> list[tuple[Target, MeasuredQueue]]:
        sessions = []
        for target in targets:
            session = stack.enter_context(closing(target.open(self._path())))
            try:
                session.settings()
            except Unverified as error:
                if target in self.results.targets:
                    self.results.targets.remove(target)
                    self.results.notes.append(f"{target.name} is not reported: {error}")
            else:
                sessions.append((target, session))
        return sessions

    def _path(self) -> Path:
        self._paths += 1
        return self._folder / f"{self._paths}.queue"


class WorkerDied(Exception):
    """One of several processes failed; it has printed the reason to stderr."""


def run_processes(target: Target, path: Path, rows: list[Workload], seconds: float) -> dict[Verb, float]:
    """Messages a second of each verb, by all processes together; they start each verb at the same time."""
    verbs = {row.verb for row in rows}
    groups = plan(target, verbs, drain=False)
    paths = [path.with_suffix(f".{place}") for place in range(len(groups))]
    for made in paths:
        target.open(made).close()
    context = multiprocessing.get_context("spawn")  # a fork would inherit SQLite's open files
    barrier = context.Barrier(rows[0].processes)
    ends: list[Connection] = []
    workers = []
    for _ in range(rows[0].processes):
        end, far = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(far, barrier, target, paths, groups, rows[0], seconds), daemon=True)
        worker.start()
        far.close()
        ends.append(end)
        workers.append(worker)
    try:
        answers: list[list[Timing]] = [end.recv() for end in ends]
    except EOFError:
        raise WorkerDied(f"{target.name}: a process died in {rows[0].name}") from None
    finally:
        for worker in workers:
            worker.join()
    totals: dict[Verb, Timing] = {verb: Timing() for group in groups for verb in group}
    for verb, *tallies in zip((verb for group in groups for verb in group), *answers, strict=True):
        # The slowest process counts: one that runs out of messages leaves the others more room.
        totals[verb].add(Timing(sum(tally.count for tally in tallies), max(tally.seconds for tally in tallies)))
    return {verb: totals[verb].rate for verb in verbs}


def _work(
    end: Connection,
    barrier: Any,
    target: Target,
    paths: list[Path],
    groups: list[tuple[Verb, ...]],
    row: Workload,
    seconds: float,
) -> None:
    tallies: list[Timing] = []
    try:
        for path, group in zip(paths, groups, strict=True):
            with closing(target.open(path)) as session:
                session.settings()
                driver = BenchDriver(session, row)
                for verb in group:
                    barrier.wait()
                    tallies.append(repeat(driver.acts[verb], seconds))
    except BaseException:
        barrier.abort()
        raise
    end.send(tallies)


def _show(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
