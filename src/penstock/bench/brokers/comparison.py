"""The comparison: who is there, the turns that they take, and what each does alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from penstock.bench.brokers.generators import Failed, Generator
from penstock.bench.brokers.processes import memory, undisturbed
from penstock.bench.brokers.servers import Running, Servers
from penstock.bench.brokers.syncs import SyncCount
from penstock.bench.brokers.targets import Target
from penstock.testing.servers import Missing

SIZE = 1000
WAKE_UP, SYNCS, IDLE, MEMORY = "wake-up", "syncs", "idle", "memory"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the tables: a verb by so many connections at once, on ``batch`` messages a call."""

    verb: str
    connections: int
    batch: int = 1

    @property
    def name(self) -> str:
        return f"{self.verb}{f'-{self.batch}x' if self.batch > 1 else ''}-{self.connections}c"


ROWS = (
    *(Row("send", connections) for connections in (1, 8, 32, 64)),
    *(Row("send", connections, batch) for connections, batch in product((1, 8), (10, 100))),
    *(Row("cycle", connections) for connections in (8, 32)),
)
NAMES = (*(row.name for row in ROWS), WAKE_UP, SYNCS, IDLE, MEMORY)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. A turn is ``seconds``; in a round, each target has one turn of a row."""

    rounds: int = 5
    seconds: float = 1
    wakes: int = 20
    gap: float = 0.03
    synced: int = 50
    waiters: int = 100
    idle_seconds: float = 10
    backlog: int = 200_000
    fill_seconds: float = 120


QUICK = Plan(rounds=1, seconds=0.1, wakes=5, synced=10, waiters=20, idle_seconds=0.5, backlog=1600, fill_seconds=10)


Generators = list[tuple[Target, Generator]]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a target did in one turn. ``p50``, ``p99``: seconds of a call; ``generator``, ``server``: cores that they used."""

    rate: float
    p50: float
    p99: float
    generator: float
    server: float


@dataclass(slots=True)
class Results:
    """All that was measured, by row and by target's name."""

    plan: Plan
    targets: list[Target] = field(default_factory=list)
    servers: dict[str, Running] = field(default_factory=dict)
    turns: dict[tuple[Row, str], list[Turn]] = field(default_factory=dict)
    wakes: dict[str, list[float]] = field(default_factory=dict)
    syncs: dict[str, dict[int, tuple[int, dict[str, int]]]] = field(default_factory=dict)
    """By connections: how many messages were sent, and the calls that synced."""
    idle: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The share of a core that the server and the clients used, while these waited."""
    memory: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Bytes when empty, bytes at a backlog, and how many messages that was."""
    notes: list[str] = field(default_factory=list)


class Comparison:
    """One run: its plan, its targets, its folder and its results."""

    def __init__(self, plan: Plan, names: Sequence[str], targets: Sequence[Target], folder: Path) -> None:
        self._plan = plan
        self._names = set(names)
        self._wanted = targets
        self._folder = folder
        self._folders = 0
        self._show: Callable[[str], None] = _show if sys.stderr.isatty() else lambda _: None
        self._active: list[Target] = []
        self.results = Results(plan)

    def run(self) -> Results:
        with Servers(self._new_folder()) as servers:
            for target in self._wanted:
                self._admit(target, servers)
            self._together()
        if {IDLE, MEMORY} & self._names:
            for target in list(self._active):
                self._alone(target)
        self._show("")
        return self.results

    def _together(self) -> None:
        """All servers and their clients are there; they take turns."""
        with ExitStack() as stack:
            generators = self._generators(stack)
            for row in ROWS:
                if row.name in self._names:
                    self._take_turns(row, generators)
            if WAKE_UP in self._names:
                self._wake(generators)
            if SYNCS in self._names:
                self._count_syncs(generators)

    def _new_folder(self) -> Path:
        self._folders += 1
        folder = self._folder / str(self._folders)
        folder.mkdir(mode=0o755)
        return folder

    def _admit(self, target: Target, servers: Servers) -> None:
        if library := target.missing_library():
            self._leave_out(target, f"pip install {library}, or penstock[bench]")
            return
        self._show(f"starting {target.server}")
        try:
            self.results.servers[target.name] = servers.get(target.server)
        except Missing:
            self._leave_out(target, f"apt-get install {target.package}")
            return
        except RuntimeError as error:
            self._leave_out(target, str(error))
            return
        self.results.targets.append(target)
        self._active.append(target)

    def _leave_out(self, target: Target, cure: str) -> None:
        self.results.notes.append(f"{target.name} is left out: {cure}")

    def _generators(self, stack: ExitStack) -> Generators:
        """Clients for each target, until the stack is closed."""
        return [(target, self._generator(stack, target)) for target in self._active]

    def _generator(self, stack: ExitStack, target: Target) -> Generator:
        folder = self._new_folder()
        with undisturbed():
            return stack.enter_context(Generator(target.name, self.results.servers[target.name].address, folder))

    def _each(self, what: str, targets: Sequence[tuple[Target, Any]], act: Callable[[Target, Any], None]) -> None:
        """Do it for each target in turn; one that fails takes no further part, and the report says why."""
        for target, generator in targets:
            if target in self._active:
                self._show(f"{what} {target.name}")
                try:
                    act(target, generator)
                except Failed as error:
                    self._active.remove(target)
                    self.results.notes.append(f"{target.name} takes no part from {what} on: {error}")

    def _take_turns(self, row: Row, generators: Generators) -> None:
        arguments = {"verb": row.verb, "batch": row.batch, "size": SIZE}

        def turn(target: Target, generator: Generator) -> None:
            server = self.results.servers[target.name]
            used = server.processor_seconds()
            found = generator.ask("turn", **arguments, seconds=self._plan.seconds)
            used = server.processor_seconds() - used
            generator.ask("empty")
            seconds = found["seconds"]
            turn = Turn(found["count"] / seconds, found["p50"], found["p99"], found["processor"], used / seconds)
            self.results.turns.setdefault((row, target.name), []).append(turn)

        def warm(_: Target, generator: Generator) -> None:
            generator.ask("open", sessions=row.connections)
            generator.ask("turn", **arguments, seconds=self._plan.seconds / 5)
            generator.ask("empty")

        self._each(row.name, generators, warm)
        for number in range(self._plan.rounds):
            self._each(f"{row.name} {number + 1}", generators, turn)

    def _wake(self, consumers: Generators) -> None:
        def turn(target: Target, pair: tuple[Generator, Generator]) -> None:
            consumer, sender = pair
            consumer.tell("wakes", messages=self._plan.wakes)
            consumer.answer()
            sender.ask("pace", messages=self._plan.wakes, size=SIZE, gap=self._plan.gap)
            self.results.wakes.setdefault(target.name, []).extend(consumer.answer()["took"])

        def warm(_: Target, pair: tuple[Generator, Generator]) -> None:
            for generator in pair:
                generator.ask("open", sessions=1)

        with ExitStack() as stack:
            senders = dict(self._generators(stack))
            pairs = [(target, (consumer, senders[target])) for target, consumer in consumers if target in senders]
            self._each(WAKE_UP, pairs, warm)
            for _ in range(self._plan.rounds):
                self._each(WAKE_UP, pairs, turn)

    def _count_syncs(self, generators: Generators) -> None:
        def count(target: Target, generator: Generator) -> None:
            server = self.results.servers[target.name]
            for connections in (1, 32):
                generator.ask("open", sessions=connections)
                pids = server.processes() or [generator.pid]
                arguments = {"verb": "send", "batch": 1, "size": SIZE, "calls": max(5, self._plan.synced // connections)}
                with ExitStack() as stack:
                    with undisturbed():
                        counted = stack.enter_context(SyncCount(pids, self._folder / "strace", server.written))
                    sent = generator.ask("turn", **arguments, seconds=60)["count"]
                self.results.syncs.setdefault(target.name, {})[connections] = sent, dict(counted.calls)
            generator.ask("empty")

        try:
            self._each(SYNCS, generators, count)
        except Missing as error:
            self.results.notes.append(f"syncs were not counted: {error}")

    def _alone(self, target: Target) -> None:
        """What a target uses that has the machine, and a new server, to itself."""
        with Servers(self._new_folder()) as servers:
            self._show(f"starting {target.server}")
            try:
                server = self.results.servers[target.name] = servers.get(target.server)
            except RuntimeError as error:
                self.results.notes.append(f"{target.name} did not start a second time: {error}")
                return
            if IDLE in self._names:
                with ExitStack() as stack:
                    self._each(IDLE, [(target, self._generator(stack, target))], partial(self._idle, server))
            if MEMORY in self._names:
                with ExitStack() as stack:
                    self._each(MEMORY, [(target, self._generator(stack, target))], partial(self._fill, server))

    def _idle(self, server: Running, target: Target, generator: Generator) -> None:
        seconds = self._plan.idle_seconds
        generator.tell("idle", sessions=self._plan.waiters, settle=max(0.5, seconds / 5), seconds=seconds)
        generator.answer(seconds)
        used = server.processor_seconds()
        clients = generator.answer(seconds)["processor"]
        self.results.idle[target.name] = (server.processor_seconds() - used) / seconds, clients

    def _fill(self, server: Running, target: Target, generator: Generator) -> None:
        generator.ask("open", sessions=1)
        empty = memory(server.processes() or [generator.pid])
        filled = generator.ask("fill", messages=self._plan.backlog, size=SIZE, seconds=self._plan.fill_seconds)["count"]
        self.results.memory[target.name] = empty, memory(server.processes() or [generator.pid]), filled


def _show(line: str) -> None:
    sys.stderr.write(f"\r\033[K{line}")
    sys.stderr.flush()
