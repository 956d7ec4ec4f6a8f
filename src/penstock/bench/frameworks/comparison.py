"""The comparison: which frameworks are installed, and the turns that they take.

A turn of one target:

    sender ──tasks, one by one──► broker        timed; nobody works yet
    workers start ◄──────────────               the first tenth of the tasks warms them up, the others are timed
    workers are asked to end                    they acknowledge what they did
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.bench.brokers.generators import Failed, Generator
from penstock.bench.brokers.processes import Daemon, family, processor_seconds, undisturbed
from penstock.bench.brokers.servers import Running, Servers
from penstock.bench.brokers.syncs import SyncCount
from penstock.bench.frameworks.apps.surroundings import NOTE, noted
from penstock.bench.frameworks.targets import Target, worker_command
from penstock.testing.servers import Missing

SENDER = "penstock.bench.frameworks.sender"
FILE = "file"
LOOK_EVERY = 0.005
STUCK = 90.0
"""Seconds without a task after which the workers have failed."""
END = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int = 5
    tasks: int = 2000
    synced: int = 50


QUICK = Plan(rounds=1, tasks=200, synced=10)


@dataclass(frozen=True, slots=True)
class Turn:
    """Tasks a second, sent and worked off. ``sender``, ``worker``, ``server``: seconds of a processor for a task."""

    sends: float
    works: float
    sender: float
    worker: float
    server: float

    @property
    def cycles(self) -> float:
        """Tasks a second, if one after the other is sent and then worked off."""
        return 1 / (1 / self.sends + 1 / self.works)

    @property
    def processor(self) -> float:
        return self.sender + self.worker + self.server


@dataclass(slots=True)
class Results:
    plan: Plan
    targets: list[Target]
    servers: dict[str, Running] = field(default_factory=dict)
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    syncs: dict[str, tuple[int, dict[str, int]]] = field(default_factory=dict)
    """How many tasks were sent, and the calls that synced meanwhile."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why a target was not measured."""
    notes: list[str] = field(default_factory=list)


class Comparison:
    """One run: its plan, its targets, its folder and its results."""

    def __init__(self, plan: Plan, targets: Sequence[Target], folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._folders = 0
        self._show: Callable[[str], None] = _show if sys.stderr.isatty() else lambda _: None
        self._senders: dict[str, Generator] = {}
        self.results = Results(plan, list(targets))

    def run(self) -> Results:
        with Servers(self._new_folder("servers")) as servers, ExitStack() as stack:
            for target in self.results.targets:
                self._admit(target, servers, stack)
            for number in range(self._plan.rounds):
                self._each(f"round {number + 1}", self._take_turn)
            self._each("syncs", self._count_syncs)
        self._show("")
        return self.results

    def _new_folder(self, name: str) -> Path:
        self._folders += 1
        folder = self._folder / f"{self._folders}-{name.replace(' ', '-')}"
        folder.mkdir(mode=0o755)
        return folder

    def _admit(self, target: Target, servers: Servers, stack: ExitStack) -> None:
        if cures := target.missing():
            self.results.missing[target.name] = cures[0]
            return
        self._show(f"starting {target.server}")
        try:
            server = self._file(target) if target.server == FILE else servers.get(target.server)
        except Missing:
            self.results.missing[target.name] = f"apt-get install {target.package}"
            return
        except RuntimeError as error:
            self.results.missing[target.name] = str(error)
            return
        self.results.servers[target.name] = server
        with undisturbed():
            sender = Generator(target.name, server.address, self._new_folder("sender"), SENDER)
            self._senders[target.name] = stack.enter_context(sender)

    def _file(self, target: Target) -> Running:
        return Running(f"{self._new_folder(target.name)}/tasks.db", (), "this version", "synchronous=FULL")

    def _each(self, what: str, act: Callable[[Target], None]) -> None:
        """Do it for each target in turn; one that fails takes no further part, and the report says why."""
        for target in self.results.targets:
            if target.name in self._senders and target.name not in self.results.missing:
                self._show(f"{what}: {target.name}")
                try:
                    act(target)
                except (Failed, RuntimeError) as error:
                    self.results.missing[target.name] = f"it failed in {what}: {error}"

    def _take_turn(self, target: Target) -> None:
        tasks = self._plan.tasks
        server = self.results.servers[target.name]
        sender = self._senders[target.name]
        sender.ask("send", tasks=1)  # whatever is opened, declared or created for the first one
        used = server.processor_seconds()
        sent = sender.ask("send", tasks=tasks)
        serving = server.processor_seconds() - used
        folder = self._new_folder("worker")
        notes = folder / "notes"
        with ExitStack() as stack:
            workers = [self._worker(target, server, folder / str(place), notes, stack) for place in range(target.workers)]
            warm = 1 + tasks // 10
            self._until(warm, notes, workers)
            before = _Moment.now(notes, workers, server)
            self._until(1 + tasks, notes, workers)
            after = _Moment.now(notes, workers, server)
            ended = [worker.ask_to_end(END, target.ends) for worker in workers]
            if not all(ended):
                self.results.notes.append(f"{target.name}: a worker had to be killed: it did not end in {END:g} seconds")
        ran = noted(notes)
        if len(ran) > 1 + tasks:
            self.results.notes.append(f"{target.name}: {len(ran)} runs of {1 + tasks} tasks: some ran twice")
        counted = max(1, after.tasks - before.tasks)
        turn = Turn(
            sends=tasks / sent["took"],
            works=(tasks - warm) / (ran[tasks] - ran[warm]),
            sender=sent["processor"] / tasks,
            worker=(after.workers - before.workers) / counted,
            server=serving / tasks + (after.server - before.server) / counted,
        )
        self.results.turns.setdefault(target.name, []).append(turn)

    def _worker(self, target: Target, server: Running, folder: Path, notes: Path, stack: ExitStack) -> Daemon:
        search = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        surroundings = target.environment(server.address, str(notes)) | search
        with undisturbed():
            daemon = Daemon(folder, *worker_command(target), executable=sys.executable, **surroundings)
            return stack.enter_context(daemon)

    def _until(self, tasks: int, notes: Path, workers: Sequence[Daemon]) -> None:
        known, give_up_at = 0, time.monotonic() + STUCK
        while (ran := _count(notes)) < tasks:
            if ran > known:
                known, give_up_at = ran, time.monotonic() + STUCK
            ended = [worker for worker in workers if worker.has_ended()]
            if ended or time.monotonic() > give_up_at:
                raise Failed(f"{ran} of {tasks} tasks ran; the worker: {(ended or workers)[0].output[-500:]!r}")
            time.sleep(LOOK_EVERY)

    def _count_syncs(self, target: Target) -> None:
        server, sender = self.results.servers[target.name], self._senders[target.name]
        pids = server.processes() or [sender.pid]
        try:
            with ExitStack() as stack:
                with undisturbed():
                    counted = stack.enter_context(SyncCount(pids, self._folder / "strace", server.written))
                sender.ask("send", tasks=self._plan.synced)
        except Missing as error:
            self.results.notes.append(f"{target.name}: syncs were not counted: {error}")
        else:
            self.results.syncs[target.name] = self._plan.synced, dict(counted.calls)


@dataclass(frozen=True, slots=True)
class _Moment:
    """How many tasks have run, and what processors have been used by then."""

    tasks: int
    workers: float
    server: float

    @classmethod
    def now(cls, notes: Path, workers: Sequence[Daemon], server: Running) -> _Moment:
        used = processor_seconds(family([worker.pid for worker in workers]))
        return cls(_count(notes), used, server.processor_seconds())


def _count(notes: Path) -> int:
    try:
        return notes.stat().st_size // NOTE.size
    except FileNotFoundError:  # no task has run yet
        return 0


def _show(text: str) -> Any:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
