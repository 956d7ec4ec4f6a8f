"""Counts queues for pages, all of which share what was counted.

    requests, events of this process ──► used: counted at the next turn
    a message becomes visible by itself ──► the same, when that instant has come
    another process has changed the store ──► looked through: all queues, a few in each turn

Each turn has a bound on the time that it takes of a processor. A queue whose count takes long is counted less often.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from penstock.errors import PenstockError, QueueNotFound
from penstock.message import Settings, Stats
from penstock.server.dialects.base import Core
from penstock.server.http.request_response import Refused
from penstock.server.page.activity import MOST_QUEUES
from penstock.server.page.board import Board, QueueRow
from penstock.server.page.curves import balance

logger = logging.getLogger("penstock.server")

Answer = TypeVar("Answer")
INTERNAL = "penstock."
"""Queues with such names are Penstock's own."""
SLICE = 0.005
"""Seconds that others wait for a part of the counting."""
BUSY = 0.02
"""Seconds of a turn for queues that were used."""
CALM = 0.004
"""Seconds of a turn for looking through the others."""
REST = 50
"""A queue rests for so many times as long as its count took, and so do questions to the store that are not about one queue."""
LATEST = 10
"""Queues that have changed last: if another process has changed something, they are the first to look at."""
NAMES_EVERY = 5.0
"""Seconds after which the names are read again, though nobody seems to have changed them."""
THROUGH_EVERY = 60.0
"""Seconds after which all queues are looked through, though nobody seems to have changed them: consumers and readers come and
go without a sign."""
UNSEEN_AFTER = 9.0
"""Seconds after which nobody looks any more."""
PATIENCE = 60.0
"""Seconds that a store may take for a part."""
ROOM = 4096
"""Bytes that a queue takes here and in the history, about. All of them may take an eighth of the memory for clients."""
WHOLE_REST = 10
"""After a look at all, there is none for so many times as long as it took: nobody can have them counted all the time."""
WINDOW = 5.0
"""Seconds over which rates are computed."""


class Counted(NamedTuple):
    """A queue as the store has it; None if it is gone."""

    name: str
    stats: Stats | None
    settings: Settings | None
    consumers: list[str]
    readers: list[str]
    due_at: int | None
    seconds: float
    """What it took of a processor."""


class RateSample(NamedTuple):
    at: float
    messages: int
    came: int
    left: int


class Counting:
    """Owns the board, and which queues have to be counted when. Used in the event loop; only `_count` is called in a thread of
    commits."""

    def __init__(self, core: Core, board: Board) -> None:
        self._core = core
        self._broker = core.broker
        self._activity = core.activity
        self.board = board
        self.at = 0
        """The instant of the last turn, by the store's clock."""
        self.most = min(MOST_QUEUES, core.settings.max_memory // 8 // ROOM)
        """Queues that are counted; others are not shown."""
        self.total = 0
        """How many queues there are."""
        self.counted: Callable[[dict[str, QueueRow], set[str], int], None] = lambda _rows, _gone, _at: None
        """Called with the rows of a turn, the queues that are gone, and its instant."""
        self.error: PenstockError | Refused | None = None
        """Why the last turn has failed."""
        self._turn: asyncio.Task[None] | None = None
        self._whole = False
        self._whole_at = 0.0
        self._looked_at = -UNSEEN_AFTER
        self._used: dict[str, None] = {}
        self._waited: set[str] = set()
        """Those that were used before the last turn, and not counted in it."""
        self._turned_at = 0.0
        self._through: deque[str] = deque()
        """Those that are left of a look through all."""
        self._rests: dict[str, float] = {}
        """When a queue that takes long may be counted again."""
        self._due: list[tuple[int, str]] = []
        self._samples: dict[str, deque[RateSample]] = {}
        self._events = 0
        self._catalogue = -1
        self._version: int | None = None
        self._version_at = self._names_at = self._through_at = 0.0

    def look(self, queue: str | None = None, *, whole: bool = False) -> asyncio.Task[None]:
        """Count what has to be counted now, for all who ask meanwhile; ``queue`` in any case. ``whole``: also all that another
        process may have changed."""
        whole = whole and time.monotonic() >= self._whole_at
        before = None if self._turn is None or self._turn.done() else self._turn
        if before is None or queue is not None or (whole and not self._whole):
            self._whole = whole
            self._turn = asyncio.get_running_loop().create_task(self._take_turn(before, queue, whole))
        assert self._turn is not None
        self._looked_at = time.monotonic()
        return self._turn

    async def look_calmly(self) -> None:
        """Nobody looks, but there is a history: count a little, unless a page has it counted anyway."""
        if time.monotonic() < self._looked_at + UNSEEN_AFTER:
            return
        looked_at = self._looked_at
        self._version_at = max(self._version_at, self._through_at)
        await self.look()
        self._looked_at = looked_at

    async def _take_turn(self, before: asyncio.Task[None] | None, queue: str | None, whole: bool) -> None:
        if before is not None:
            await before
        self.error = None
        rows: dict[str, QueueRow] = {}
        try:
            now = time.monotonic()
            self._waited = set(self._used)
            gone = await self._find_names(now)
            self._hear_events()
            await self._hear_others(now)
            self.at = self._broker.clock()
            self._hear_clock()
            if queue is not None:
                await self._count_some([queue], PATIENCE, rows)
            first = [name for name in self._used if name not in rows and (whole or self._rests.get(name, 0.0) <= now)]
            await self._count_some(first, BUSY if not whole else PATIENCE, rows)
            for name in rows:
                self._used.pop(name, None)
            left = PATIENCE if whole else CALM
            await self._count_some([name for name in self._through if name not in rows], left, rows)
            self._through = deque(name for name in self._through if name not in rows)
            if whole:
                self._whole_at = now + (WHOLE_REST + 1) * (time.monotonic() - now)
            self._through.extend(name for name, row in rows.items() if row and row["rate_in"] is None)
            self._used |= dict.fromkeys(name for name, row in rows.items() if row and (row["rate_in"] or row["rate_out"]))
            gone |= {name for name, row in rows.items() if not row}
            there = {name: row for name, row in rows.items() if row}
            self.board.put(there, gone)
            self.counted(there, gone, self.at)
            self._turned_at = now
            for name in gone:
                self._forget(name)
        except (PenstockError, Refused) as error:
            self.error = error
            self._used |= dict.fromkeys(rows)  # what was counted is not shown yet
            logger.debug("could not count queues for a page: %s", error)
        except Exception:  # a bug of ours; the next turn may succeed
            logger.exception("a defect in Penstock, while queues are counted for a page")

    # what has to be counted

    async def _find_names(self, now: float) -> set[str]:
        """Read the names if they may have changed. Returns those that are gone."""
        if self._activity.catalogue == self._catalogue and now < self._names_at and not self._others_changed:
            return set()
        self._catalogue = self._activity.catalogue
        self._others_changed = False
        began = time.monotonic()
        names = await self._do(lambda: self._broker.queues().names)
        self._names_at = now + max(NAMES_EVERY, REST * (time.monotonic() - began))
        self.total = len(names)
        names = [name for name in names if not name.startswith(INTERNAL)] + [
            name for name in names if name.startswith(INTERNAL)
        ]
        known, kept = self.board.rows, dict.fromkeys(names[: self.most])
        self._used |= dict.fromkeys(name for name in kept if name not in known and name not in self._through)
        return {name for name in known if name not in kept}

    _others_changed = False

    def _hear_events(self) -> None:
        used, overflow = self._activity.take_used()
        self._events, told = self._broker.waiting.since(self._events)
        if overflow or told is None:
            self._look_through()
        self._used |= dict.fromkeys(name for name in (*used, *(told or ())) if name in self.board.rows)

    async def _hear_others(self, now: float) -> None:
        if now >= self._version_at:
            version, took = await self._do(self._ask_version)
            self._version_at = now + REST * took
            if version != self._version:
                self._version = version
                self._others_changed = True
                self._look_through()
                self._used |= dict.fromkeys(self.board.latest(LATEST))
        if now >= self._through_at:
            self._through_at = now + THROUGH_EVERY
            self._look_through()

    def _ask_version(self) -> tuple[int, float]:
        """In a thread of commits."""
        began = time.thread_time()
        return self._broker.store.version(), time.thread_time() - began

    def _look_through(self) -> None:
        if not self._through:
            self._through = deque(self.board.rows)

    def _hear_clock(self) -> None:
        while self._due and self._due[0][0] <= self.at:
            _, name = heapq.heappop(self._due)
            if name in self.board.rows:
                self._used[name] = None

    def _forget(self, name: str) -> None:
        self._used.pop(name, None)
        self._samples.pop(name, None)
        self._rests.pop(name, None)
        self._activity.forget(name)

    # counting

    async def _count_some(self, names: Iterable[str], seconds: float, rows: dict[str, QueueRow]) -> None:
        """Count queues, in parts, until that has taken so many seconds of a processor."""
        left = list(names)
        while left and seconds > 0:
            part = list(left)

            def act(part: list[str] = part, most: float = min(seconds, SLICE)) -> list[Counted]:
                return self._count(part, most)

            counted = await self._do(act)
            now = time.monotonic()
            for each in counted:
                rows[each.name] = self._row(each, now)
                seconds -= each.seconds
            left = left[len(counted) :]

    def _count(self, names: list[str], most: float) -> list[Counted]:
        """In a thread of commits: the first one in any case, and more as long as that takes little time."""
        counted: list[Counted] = []
        while names[len(counted) :] and most > 0:
            counted.append(self._count_one(names[len(counted)]))
            most -= counted[-1].seconds
        return counted

    def _count_one(self, name: str) -> Counted:
        began = time.thread_time()
        store = self._broker.store
        try:
            queue = self._broker.queue(name)
            stats = queue.stats()
            due_at = store.queue(name).due() if stats.in_flight or stats.delayed else None
            consumers, readers = store.roster.living(name), store.queue(name).readers.names()
        except QueueNotFound:
            return Counted(name, None, None, [], [], None, time.thread_time() - began)
        return Counted(name, stats, queue.known, consumers, readers, due_at, time.thread_time() - began)

    def _row(self, counted: Counted, now: float) -> QueueRow:
        """Its row; empty if the queue is gone."""
        name, stats, settings = counted.name, counted.stats, counted.settings
        if stats is None or settings is None:
            return {}
        if counted.seconds > SLICE:
            self._rests[name] = now + REST * counted.seconds
        else:
            self._rests.pop(name, None)
        if counted.due_at is not None and counted.due_at > self.at:
            heapq.heappush(self._due, (counted.due_at, name))
            if len(self._due) > 2 * MOST_QUEUES:
                self._due = sorted({name: (at, name) for at, name in reversed(self._due)}.values())
        rate_in, rate_out = self._rates(name, stats.messages, now)
        receivers = self._activity.receivers(name)
        named = {*counted.consumers, *(holder for holder in receivers if holder is not None)}
        return {
            "name": name,
            "messages": stats.messages,
            "visible": stats.visible,
            "in_flight": stats.in_flight,
            "delayed": stats.delayed,
            "blocked": stats.blocked,
            "damaged": stats.damaged,
            "oldest_at": stats.oldest_at,
            "rate_in": rate_in,
            "rate_out": rate_out,
            "dead_letter_queue": None if settings.redrive is None else settings.redrive.dead_letter_queue,
            "consumers": len(named) + sum(holder is None for holder in receivers),
            "readers": len(counted.readers),
            "paused": settings.paused,
        }

    def _rates(self, name: str, messages: int, now: float) -> tuple[float | None, float | None]:
        """Messages a second that came and left. What this process has put in and taken out is known; what the number of
        messages says beyond that was done by others."""
        flow = self._activity.flows.get(name)
        sample = RateSample(now, messages, 0 if flow is None else flow.came, 0 if flow is None else flow.left)
        samples = self._samples.setdefault(name, deque(maxlen=16))
        if len(samples) == 1 and name in self._used and name not in self._waited:
            # It rested until the turn before this one: what has happened since did not take longer.
            samples[0] = samples[0]._replace(at=max(samples[0].at, self._turned_at))
        while len(samples) > 1 and samples[1].at <= now - WINDOW:
            samples.popleft()
        samples.append(sample)
        first = samples[0]
        if len(samples) < 2 or now - first.at <= 0:
            return None, None
        if (sample.messages, sample.came, sample.left) == first[1:]:
            samples.clear()  # most queues rest most of the time
            samples.append(sample)
            return 0.0, 0.0
        came, left, more = sample.came - first.came, sample.left - first.left, messages - first.messages
        came, left = balance(came, left, more)
        seconds = max(now - first.at, 1.0)
        return round(came / seconds, 2), round(left / seconds, 2)

    async def _do(self, act: Callable[[], Answer]) -> Answer:
        """Call ``act`` in a thread of commits, outside a commit: it only looks."""
        return await self._core.commits.work(act, PATIENCE, alone=True)
