"""The comparison: two servers of SQS, their clients, and the turns that they take."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from penstock.bench.brokers.generator import finish
from penstock.bench.brokers.servers import listens, served, started
from penstock.bench.brokers.sessions.http_connection import Unexpected
from penstock.bench.sqs.sessions import BATCH, BotoSession, JsonSession, MqsSession, Session
from penstock.testing.servers import free_port

Result = TypeVar("Result")
Opener = Callable[[str, str], Awaitable[Session]]
SIZE = 1000
STUCK = 120
"""Seconds after which a message that does not come is lost."""
SEND, SEND_MANY, RECEIVE, DELETE = VERBS = ("send", f"send-{BATCH}x", f"receive-{BATCH}x", f"delete-{BATCH}x")
PENSTOCK, MOTO = "penstock", "moto"


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and the client that talks to it."""

    server: str
    client: str
    opens: Opener

    @property
    def name(self) -> str:
        return f"{self.server} {self.client}"


JSON, BOTO, MQS = "JSON", "boto3", "mqs"
TARGETS = (
    Target(PENSTOCK, JSON, JsonSession.open),
    Target(MOTO, JSON, JsonSession.open),
    Target(PENSTOCK, MQS, MqsSession.open),
    Target(PENSTOCK, BOTO, BotoSession.open),
    Target(MOTO, BOTO, BotoSession.open),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """In a round every target has a turn: it sends so many messages, as many in batches, receives and deletes them all.

    moto has a tenth of them: the more messages it holds, the longer each call takes."""

    rounds: int = 5
    messages: int = 3200
    connections: Sequence[int] = (1, 8, 32)


QUICK = Plan(rounds=1, messages=100, connections=(1, 8))


@dataclass(frozen=True, slots=True)
class Timing:
    """A verb in one turn: messages, seconds, and the processor's seconds that the server and the clients used."""

    messages: int
    seconds: float
    server: float
    clients: float

    @property
    def rate(self) -> float:
        return self.messages / self.seconds


@dataclass(slots=True)
class Results:
    plan: Plan
    timings: dict[tuple[str, int, str], list[Timing]] = field(default_factory=dict)
    """By verb, connections and the target's name: one of each round."""
    notes: list[str] = field(default_factory=list)


def processor_seconds(pid: int) -> float:
    """What a process has used, to the nanosecond: its clock is numbered by its pid."""
    return time.clock_gettime((~pid << 3) | 2)


@contextmanager
def moto(folder: Path) -> Iterator[tuple[str, int]]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "MOTO_ACCOUNT_ID": "000000000000"}
    with started(folder, *command, executable=sys.executable, **variables) as daemon:
        daemon.wait_until(lambda: listens(port))
        yield f"http://127.0.0.1:{port}", daemon.pid


@contextmanager
def penstock(folder: Path) -> Iterator[tuple[str, int]]:
    with served(folder, f"sqlite:///{folder}/queue.db") as running:
        yield running.address, running.roots[0]


class Clients:
    """The sessions of one turn, and the threads of those that block. Owns both, and counts what they were told."""

    def __init__(self, sessions: list[Session]) -> None:
        self._sessions = sessions
        self._threads = ThreadPoolExecutor(len(sessions)) if sessions[0].threaded else None
        self._held: dict[Session, list[str]] = {session: [] for session in sessions}
        self._lock = Lock()
        self._sent = self._received = 0
        self.errors: list[str] = []

    async def _all(self, work: Callable[[Session], Coroutine[Any, Any, None]]) -> None:
        if self._threads is None:
            await asyncio.gather(*map(work, self._sessions))
            return
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, finish, work(session)) for session in self._sessions))

    async def run(self, verb: str, share: int) -> None:
        """Do it with all sessions at once, each of which sends this many messages."""
        acts = {
            SEND: lambda session: self._send(session, share, 1),
            SEND_MANY: lambda session: self._send(session, share, BATCH),
            RECEIVE: self._receive,
            DELETE: self._delete,
        }
        await self._all(acts[verb])

    async def _send(self, session: Session, messages: int, batch: int) -> None:
        bodies = ["x" * SIZE] * batch
        for _ in range(messages // batch):
            try:
                await session.send(bodies)
            except Unexpected as error:
                self.errors.append(str(error))
            else:
                with self._lock:
                    self._sent += batch

    async def _receive(self, session: Session) -> None:
        """An answer may hold fewer than were asked for, so the sessions receive until all have been received."""
        give_up_at = time.monotonic() + STUCK
        while self._received < self._sent:
            try:
                found = await session.receive()
            except Unexpected as error:
                self.errors.append(str(error))
                continue
            finally:
                if time.monotonic() > give_up_at:
                    raise RuntimeError(f"{self._sent - self._received} messages did not come in {STUCK} seconds")
            self._held[session] += found
            with self._lock:
                self._received += len(found)

    async def _delete(self, session: Session) -> None:
        held = self._held[session]
        for start in range(0, len(held), BATCH):
            try:
                await session.delete(held[start : start + BATCH])
            except Unexpected as error:
                self.errors.append(str(error))

    def faults(self) -> Iterator[str]:
        if self.errors:
            yield "it answered with errors"
        if self._received > self._sent:
            yield "it gave one message to two clients"

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()
        if self._threads:
            self._threads.shutdown()


class Comparison:
    """One run: its plan, its folder and its results."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self.results = Results(plan)

    def run(self) -> Results:
        with penstock(self._folder / PENSTOCK) as ours, moto(self._folder / MOTO) as theirs:
            servers = {PENSTOCK: ours, MOTO: theirs}
            for connections in self._plan.connections:
                for number in range(-1, self._plan.rounds):  # the first is not counted: it warms up
                    for target in TARGETS:
                        timings = asyncio.run(self._turn(target, *servers[target.server], connections))
                        for verb, timing in timings.items() if number >= 0 else ():
                            self.results.timings.setdefault((verb, connections, target.name), []).append(timing)
        return self.results

    async def _turn(self, target: Target, address: str, pid: int, connections: int) -> dict[str, Timing]:
        """All verbs, one after the other: what is sent is received, and what is received is deleted."""
        wanted = self._plan.messages // (10 if target.server == MOTO else 1)
        share = max(BATCH, wanted // connections // BATCH * BATCH)
        each = share * connections
        counts = {SEND: each, SEND_MANY: each, RECEIVE: 2 * each, DELETE: 2 * each}
        sessions = [await target.opens(address, f"bench-{target.client}") for _ in range(connections)]
        await sessions[0].create()
        clients = Clients(sessions)
        timings = {}
        for verb, messages in counts.items():
            began, server, mine = time.perf_counter(), processor_seconds(pid), time.process_time()
            await clients.run(verb, share)
            timings[verb] = Timing(
                messages,
                time.perf_counter() - began,
                processor_seconds(pid) - server,
                time.process_time() - mine,
            )
        for fault in clients.faults():
            if target.server == PENSTOCK:
                raise RuntimeError(f"{fault}: {clients.errors[:1]}")
            self.results.notes.append(f"{target.server}, with clients that work at once: {fault}")
        await sessions[0].drop()
        await clients.close()
        return timings
