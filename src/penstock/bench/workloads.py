"""What is measured: the verbs, the rows of the table, and how an open queue is driven through them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Verb(StrEnum):
    """A cycle is send, receive, delete in sequence; ``once`` verbs settle messages in the call that receives them."""

    SEND = "send"
    RECEIVE = "receive"
    DELETE = "delete"
    CYCLE = "cycle"
    RECEIVE_ONCE = "receive-once"
    CYCLE_ONCE = "cycle-once"


ACKED = frozenset({Verb.SEND, Verb.RECEIVE, Verb.DELETE, Verb.CYCLE})
ONCE = frozenset({Verb.SEND, Verb.RECEIVE_ONCE, Verb.CYCLE_ONCE})
NOTHING: frozenset[Verb] = frozenset()

GROUPS: tuple[tuple[Verb, ...], ...] = (
    (Verb.SEND, Verb.RECEIVE, Verb.DELETE),
    (Verb.SEND, Verb.RECEIVE_ONCE),
    (Verb.CYCLE,),
    (Verb.CYCLE_ONCE,),
)
"""Verbs in the order in which they must run, so that each finds what it needs and the queue ends as it began."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the table: a verb on ``batch`` messages a call with bodies of ``size`` bytes."""

    verb: Verb
    batch: int
    size: int
    processes: int = 1
    backlog: int | None = None

    @property
    def name(self) -> str:
        name = f"{self.verb}-{self.batch}x{self.size}B"
        if self.processes > 1:
            name += f"-{self.processes}p"
        if self.backlog is not None:
            name += f"-at-{self.backlog}"
        return name


class MeasuredQueue(ABC):
    """A queue that is open for measuring; verbs that it lacks are missing from its `Target`."""

    @abstractmethod
    def send(self, bodies: Sequence[bytes]) -> None:
        """Send the messages; they are on stable storage when this returns."""

    def receive(self, limit: int) -> list[Any]:
        """Receive messages, in the form that `delete` takes."""
        raise NotImplementedError

    def delete(self, held: list[Any]) -> None:
        raise NotImplementedError

    def receive_once(self, limit: int) -> int:
        """Receive and settle in one call; returns how many."""
        raise NotImplementedError

    def fill(self, bodies: Sequence[bytes]) -> None:
        """Send as fast as possible, to build up a backlog; not measured."""
        self.send(bodies)

    def settings(self) -> str:
        """Its settings, as read back from it; empty if there are none to read."""
        return ""

    def tidy(self) -> None:  # noqa: B027 (most leave nothing behind)
        """Clean up after the verbs; never timed."""

    @abstractmethod
    def close(self) -> None: ...


class Unverified(Exception):
    """A queue could not be shown to sync as fully as the others do."""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that can be measured.

    verbs     what it can do
    batched   the verbs that do many in one commit; batch rows of other verbs show the rate of single calls
    shared    several processes may work on it
    durable   it syncs, so it is compared with others that sync
    limit     the name of the target that is its limit
    module    the library that it needs
    note      what a reader must know to compare it
    """

    name: str
    open: Callable[[Path], MeasuredQueue]
    verbs: frozenset[Verb]
    batched: frozenset[Verb]
    shared: bool = True
    durable: bool = True
    peer: bool = False
    limit: str | None = None
    module: str | None = None
    note: str = ""

    def measures(self, row: Workload) -> bool:
        """Whether the row is measured, rather than impossible or derived from single calls."""
        if row.verb not in self.verbs or (row.processes > 1 and not self.shared):
            return False
        if row.backlog is not None and self.verbs.isdisjoint({Verb.RECEIVE, Verb.RECEIVE_ONCE}):
            return False
        if row.batch == 1:
            return True
        piled = row.backlog is not None or (row.processes > 1 and row.verb is Verb.DELETE)
        if piled and Verb.RECEIVE in self.verbs - self.batched:
            return False  # receiving them one by one could take minutes
        return row.verb in self.batched


@dataclass(slots=True)
class Timing:
    count: int = 0
    seconds: float = 0

    def add(self, other: Timing) -> None:
        self.count += other.count
        self.seconds += other.seconds

    @property
    def rate(self) -> float:
        return self.count / self.seconds if self.seconds else 0


class BenchDriver:
    """The verbs of a session as calls that return how many messages they moved; 0 when none are left."""

    def __init__(self, session: MeasuredQueue, row: Workload) -> None:
        self._session = session
        self._batch = row.batch
        self._bodies = [b"x" * row.size] * row.batch
        self._held: deque[list[Any]] = deque()
        self.acts: dict[Verb, Callable[[], int]] = {
            Verb.SEND: self._send,
            Verb.RECEIVE: self._receive,
            Verb.DELETE: self._delete,
            Verb.CYCLE: self._cycle,
            Verb.RECEIVE_ONCE: self._receive_once,
            Verb.CYCLE_ONCE: self._cycle_once,
        }

    def _send(self) -> int:
        self._session.send(self._bodies)
        return self._batch

    def _receive(self) -> int:
        held = self._session.receive(self._batch)
        self._held.append(held)
        return len(held)

    def _delete(self) -> int:
        held = self._held.popleft() if self._held else []
        if held:
            self._session.delete(held)
        return len(held)

    def _cycle(self) -> int:
        self._session.send(self._bodies)
        held = self._session.receive(self._batch)
        self._session.delete(held)
        return len(held)

    def _receive_once(self) -> int:
        return self._session.receive_once(self._batch)

    def _cycle_once(self) -> int:
        self._session.send(self._bodies)
        return self._session.receive_once(self._batch)


def plan(target: Target, verbs: Collection[Verb], *, drain: bool) -> list[tuple[Verb, ...]]:
    """The groups that measure ``verbs``; with ``drain``, sent messages are also taken out again, if the target can."""
    able = [group for group in GROUPS if set(group) <= target.verbs]
    groups = [group for group in able if not set(group[-2:]).isdisjoint(set(verbs) - {Verb.SEND})]
    if Verb.SEND in verbs and not any(Verb.SEND in group for group in groups):
        groups.append(next((group for group in able if drain and Verb.SEND in group), (Verb.SEND,)))
    return groups


def repeat(act: Callable[[], int], seconds: float, calls: int | None = None) -> Timing:
    """Call until the time or the number of calls is used up, or there is nothing left to do."""
    count = done = 0
    start = now = time.perf_counter()
    while done != calls and now - start < seconds:
        moved = act()
        if not moved:
            break
        count += moved
        done += 1
        now = time.perf_counter()
    return Timing(count, now - start)


class Trial:
    """One target on one kind of rows: rounds of a few calls of each verb, until ``seconds`` a verb are used up.

    Rounds are short, so that targets can take turns: the speed of a shared disk changes within a second. Whole courses are
    compared, because a single round may miss the checkpoints."""

    def __init__(self, target: Target, session: MeasuredQueue, rows: Sequence[Workload], seconds: float) -> None:
        self.target = target
        self.tallies = {row.verb: Timing() for row in rows}
        self._session = session
        self._driver = BenchDriver(session, rows[0])
        self._calls = max(2, min(50, 1000 // rows[0].batch))
        self._groups = plan(target, self.tallies, drain=True)
        self._seconds = seconds
        self._left = seconds * len(self.tallies)

    def round(self) -> bool:
        """Run one round; returns whether there is time for more."""
        began = time.perf_counter()
        for group in self._groups:
            for verb in group:
                tally = repeat(self._driver.acts[verb], self._seconds, self._calls)
                if verb in self.tallies:
                    self.tallies[verb].add(tally)
        self._session.tidy()
        self._left -= time.perf_counter() - began
        return self._left > 0
