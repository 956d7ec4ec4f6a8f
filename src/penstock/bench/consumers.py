"""``penstock bench consumers``: tasks a second of an empty handler, on one PostgreSQL, with one worker and with four.

A worker is a process. Each queue has its own way to run one: Penstock's consumer, procrastinate's worker, pgqueuer's queue
manager, and for pgmq, which is SQL alone, a loop of read and delete. All get the same tasks, take the same number at a time,
and start together. The time from the first task handled to the last counts. The queues take turns, and the turns are repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import penstock
from penstock.bench import postgresql
from penstock.bench.machine import facts
from penstock.bench.postgresql import FUNCTIONS, OURS, TARGETS, schema_url
from penstock.bench.report import si
from penstock.errors import MissingExtra

BODY = b"x" * 100
FILL = 1000


@dataclass(slots=True)
class HandledTasks:
    """How many tasks a worker has handled, and when it handled the first and the last, by the monotonic clock."""

    count: int = 0
    first: float = field(default_factory=lambda: float("inf"))
    last: float = 0

    def one(self) -> None:
        self.last = time.monotonic()
        self.first = min(self.first, self.last)
        self.count += 1


Work = Callable[[Path, int, HandledTasks, Callable[[], Any]], None]
"""Open, report ready and wait for the others, then work until the queue is empty."""


def penstock_consumer(path: Path, batch: int, handled: HandledTasks, ready: Callable[[], Any]) -> None:
    with penstock.open(schema_url(path)) as broker:
        consumer = broker.consumer("bench", batch_size=batch)
        consumer.process(lambda _, __: handled.one())
        ready()
        consumer.run(until_empty=True)


def loop(name: str, path: Path, batch: int, handled: HandledTasks, ready: Callable[[], Any]) -> None:
    with closing(KNOWN[name].open(path)) as session:
        ready()
        while held := session.receive(batch):
            for _ in held:
                handled.one()
            session.delete(held)


def procrastinate_worker(path: Path, batch: int, handled: HandledTasks, ready: Callable[[], Any]) -> None:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=schema_url(path)))

    @app.task(name="task", queue="bench")
    async def task(body: str) -> None:  # noqa: ARG001
        handled.one()

    async def work() -> None:
        async with app.open_async():
            ready()
            await app.run_worker_async(
                wait=False, concurrency=batch, delete_jobs="successful", install_signal_handlers=False, listen_notify=False
            )

    asyncio.run(work())


def pgqueuer_manager(path: Path, batch: int, handled: HandledTasks, ready: Callable[[], Any]) -> None:
    import psycopg
    from pgqueuer.adapters.drivers.psycopg import PsycopgDriver
    from pgqueuer.qm import QueueManager
    from pgqueuer.queries import Queries
    from pgqueuer.types import QueueExecutionMode

    async def work() -> None:
        connection = await psycopg.AsyncConnection.connect(schema_url(path), autocommit=True)
        manager = QueueManager(Queries(PsycopgDriver(connection)))

        @manager.entrypoint("bench")
        async def task(job: Any) -> None:  # noqa: ARG001
            handled.one()

        ready()
        await manager.run(batch_size=batch, mode=QueueExecutionMode.drain)

    asyncio.run(work())


KNOWN = TARGETS | {FUNCTIONS.name: FUNCTIONS}
WORKERS: dict[str, Work] = {
    OURS: penstock_consumer,
    "pgmq's SQL": partial(loop, "pgmq's SQL"),
    "procrastinate": procrastinate_worker,
    "pgqueuer": pgqueuer_manager,
    FUNCTIONS.name: partial(loop, FUNCTIONS.name),
}


def rate(name: str, path: Path, tasks: int, workers: int, batch: int) -> float:
    """Tasks a second of this many workers together, on a queue of their own."""
    with closing(KNOWN[name].open(path)) as session:
        for done in range(0, tasks, FILL):
            session.fill([BODY] * min(FILL, tasks - done))
        session.settings()  # raises Unverified if it does not sync
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(workers)
    answers = context.SimpleQueue()
    processes = [context.Process(target=_work, args=(name, path, batch, barrier, answers)) for _ in range(workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise RuntimeError(f"{name}: a worker died; it has said why on stderr")
    handled: list[HandledTasks] = [answers.get() for _ in processes]
    count = sum(one.count for one in handled)
    if count < tasks:
        raise RuntimeError(f"{name}: {count} of {tasks} tasks were handled")
    return count / (max(one.last for one in handled) - min(one.first for one in handled))


def _work(name: str, path: Path, batch: int, barrier: Any, answers: Any) -> None:
    handled = HandledTasks()
    try:
        WORKERS[name](path, batch, handled, barrier.wait)
    except BaseException:
        barrier.abort()
        raise
    answers.put(handled)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="penstock bench consumers", description="Measure tasks a second of an empty handler, beside other queues."
    )
    parser.add_argument("--tasks", metavar="N", type=int, default=5000, help="in the queue beforehand, each time (5000)")
    parser.add_argument("--workers", metavar="N", nargs="+", type=int, default=[1, 4], help="processes (1 4)")
    parser.add_argument("--batch", metavar="N", type=int, default=10, help="tasks that a worker takes at a time (10)")
    parser.add_argument("--targets", metavar="NAME", nargs="+", choices=WORKERS, help="whom, if not all")
    postgresql.add_pgmq(parser)
    parser.add_argument("--repeats", metavar="N", type=int, default=3, help="turns of each (3)")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("bench-results"), help="where the results go")
    parser.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help="for what is kept meanwhile")
    arguments = parser.parse_args(argv)
    known_targets = postgresql.targets(arguments.pgmq)
    names = arguments.targets or [name for name in WORKERS if name in known_targets]
    if not set(names) <= known_targets.keys():
        parser.error("to measure pgmq's functions, say with --pgmq where its pgmq.sql is")
    if not all(find_spec(KNOWN[name].module or "") for name in names):
        raise MissingExtra("the benchmark", "bench")
    rates: dict[int, dict[str, list[float]]] = {workers: {name: [] for name in names} for workers in arguments.workers}
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".penstock-bench-", dir=arguments.folder) as name:
        folder = Path(name).resolve()
        known = facts(folder)
        with postgresql.server(folder, arguments.pgmq):
            for repeat in range(arguments.repeats):
                for workers, found in rates.items():
                    for place, target in enumerate(found):
                        path = folder / f"{repeat}_{workers}_{place}"
                        found[target].append(rate(target, path, arguments.tasks, workers, arguments.batch))
    page = markdown(rates, known)
    sys.stdout.write(page)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "consumers.md").write_text(page)
    (arguments.out / "consumers.json").write_text(json.dumps({"machine": known, "rates": rates}, indent=1))
    return 0


def markdown(rates: dict[int, dict[str, list[float]]], known: dict[str, str]) -> str:
    lines = ["# Consumers: tasks a second of an empty handler", ""]
    lines += [f"* {name}: {value}" for name, value in known.items()]
    names = list(next(iter(rates.values())))
    lines += ["", f"| workers | {' | '.join(names)} |", f"|---:|{'---:|' * len(names)}"]
    for workers, found in rates.items():
        lines.append(f"| {workers} | {' | '.join(si(median(found[name])) for name in names)} |")
    lines.append("")
    for workers, found in rates.items():
        for name in [name for name in names if name != OURS and OURS in names]:
            # Compare neighbours in time: a slow moment of the machine slows both.
            times = median(mine / theirs for mine, theirs in zip(found[OURS], found[name], strict=True))
            lines.append(f"* {OURS}: ahead of {name} with {workers}: {times:.2f}×: **{'met' if times >= 1 else 'NOT met'}**")
    return "\n".join(lines) + "\n"
