"""``penstock bench asyncio``: sends a second of one task and of a hundred, and what tasks cost that wait at a hundred queues.

One and a hundred tasks take turns on one SQLite file, which syncs as always. The second measurement is of processor time: all
threads of the process, while every task waits in a loop over its queue's messages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import penstock
from penstock import AsyncBroker, AsyncQueue
from penstock.bench.machine import facts
from penstock.bench.report import si

BODY = b"x" * 100
MANY = 100
SETTLE = 1.0
"""Seconds for which tasks wait before their processor time is counted."""


async def rate(queue: AsyncQueue, tasks: int, count: int) -> float:
    """Messages a second of so many tasks, each of which sends one after the other."""

    async def send(share: int) -> None:
        for _ in range(share):
            await queue.send(BODY)

    began = time.perf_counter()
    await asyncio.gather(*(send(count // tasks) for _ in range(tasks)))
    return count // tasks * tasks / (time.perf_counter() - began)


async def idle(broker: AsyncBroker, queues: int, seconds: float) -> float:
    """The share of a core that tasks use while each waits at a queue of its own."""

    async def wait(queue: AsyncQueue) -> None:
        async for message in queue.messages():
            await message.delete()

    waiting = [asyncio.create_task(wait(await broker.create(f"idle-{number}"))) for number in range(queues)]
    await asyncio.sleep(SETTLE)
    began, used = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    share = (time.process_time() - used) / (time.perf_counter() - began)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return share


async def measure(url: str, arguments: argparse.Namespace) -> tuple[list[float], list[float], float]:
    ones: list[float] = []
    manys: list[float] = []
    async with penstock.aopen(url) as broker:
        queue = await broker.create("bench")
        await rate(queue, MANY, MANY)
        for _ in range(arguments.repeats):  # in turns: a slow moment of the machine slows both
            ones.append(await rate(queue, 1, arguments.messages))
            manys.append(await rate(queue, MANY, arguments.messages * 10))
        return ones, manys, await idle(broker, MANY, arguments.idle)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="penstock bench asyncio", description="Measure tasks that send to SQLite, and tasks that wait."
    )
    parser.add_argument("--messages", metavar="N", type=int, default=500, help="sent by one task in a turn (500)")
    parser.add_argument("--repeats", metavar="N", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--idle", metavar="SECONDS", type=float, default=10, help="for how long tasks wait (10)")
    parser.add_argument("--url", help="a store or a server with no queues, if not a new SQLite file")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("bench-results"), help="where the results go")
    parser.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help="for what is kept meanwhile")
    arguments = parser.parse_args(argv)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".penstock-bench-", dir=arguments.folder) as name:
        folder = Path(name).resolve()
        known = facts(folder)
        ones, manys, share = asyncio.run(measure(arguments.url or f"sqlite:///{folder}/queue.db", arguments))
    page = markdown(ones, manys, share, known)
    sys.stdout.write(page)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "asyncio.md").write_text(page)
    found = {"machine": known, "one": ones, "many": manys, "idle": share}
    (arguments.out / "asyncio.json").write_text(json.dumps(found, indent=1))
    return 0


def markdown(ones: Sequence[float], manys: Sequence[float], share: float, known: dict[str, str]) -> str:
    times = median(many / one for one, many in zip(ones, manys, strict=True))
    lines = ["# asyncio: tasks that send, and tasks that wait", ""]
    lines += [f"* {name}: {value}" for name, value in known.items()]
    lines += [
        "",
        "| tasks | sends a second |",
        "|---:|---:|",
        f"| 1 | {si(median(ones))} |",
        f"| {MANY} | {si(median(manys))} |",
        "",
    ]
    lines.append(f"* {MANY} tasks send at least 5 times as fast as one: {times:.1f}×: **{'met' if times >= 5 else 'NOT met'}**")
    little = "met" if share < 0.01 else "NOT met"
    lines.append(f"* tasks that wait at {MANY} queues use less than 1 % of a core: {share:.2%}: **{little}**")
    return "\n".join(lines) + "\n"
