"""Works on move tasks: claims them from their queue, and moves messages in parts, each a commit of its own.

    look ──claims──► step ──► step ──► … ──► end: the label shows the outcome, and the task's message is deleted
                      │ the server is killed: its claim lapses │ it stops: it gives the claim back
                      └────────────► another server, or the next one, claims the task and goes on

A part moves messages whole or not at all, so that a task that is interrupted loses and doubles none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from penstock.errors import PenstockError, QueueNotFound
from penstock.message import SECOND, Message, micros
from penstock.server.budget import room_for
from penstock.server.dialects.base import Core
from penstock.server.dialects.sqs.errors import no_queue
from penstock.server.dialects.sqs.move_book import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    FAILED,
    LEASE,
    MOVES,
    MoveBook,
    MoveTask,
    Plan,
    read_plan,
)
from penstock.server.http.request_response import Refused
from penstock.stores.ports import START

logger = logging.getLogger("penstock.server")

Answer = TypeVar("Answer")
LOOK_EVERY = 5.0
"""Seconds between two looks for tasks that another server has left."""
TICK = 0.5
"""Seconds after which a server that waits for its turn looks whether the task was cancelled."""
MOST_AT_ONCE = 100
"""Tasks on which one server works."""
FIRST_PART, LARGEST_PART = 8, 64
"""Messages in the first part of a task, and in any."""
PART_BYTES = 8 * 1024 * 1024
"""About so many bytes of messages in one part, going by those of the part before."""
PARTS_A_SECOND = 10
"""If a task has a rate: so that it moves few messages often, and not many at once."""
PATIENCE = 60.0
"""Seconds that a store may take for a part."""
NO_SOURCE = "CouldNotDetermineMessageSource"
"""AWS's word for a message that did not die in a queue: it was sent to the dead letter queue."""


class MoveWork:
    """One task that this server has claimed. Owns how far it is. Its methods are called in a thread of commits."""

    def __init__(self, core: Core, book: MoveBook, claimed: Message) -> None:
        self._broker = core.broker
        self._budget = core.budget
        self._book = book
        self._claimed = claimed
        self._plan = read_plan(claimed)
        self._renew_at = claimed.visible_at - micros(LEASE * 2 / 3)
        self._next_at = 0
        self._note_at = 0
        self._moved: int | None = None
        self._part = FIRST_PART
        self._after = START
        self._moved_since_start = False
        """Whether this pass through the queue has moved anything."""
        self._reason = ""

    def step(self) -> float | None:
        """Do what there is to do now. Returns in how many seconds to call this again; None: this server's work has ended."""
        plan, now = self._plan, self._broker.clock()
        task = None if plan is None else self._book.find(plan)
        if plan is None or task is None or not task.is_active:  # forged, or ended, or its queue was deleted
            self._claimed.delete()
            return None
        if now >= self._renew_at:
            if not self._claimed.extend(LEASE):
                return None  # another server has it
            self._renew_at = now + micros(LEASE / 3)
        if self._moved is None:
            self._moved = task.moved
        if task.status == CANCELLING:
            self._end(plan, CANCELLED)
            return None
        if now < self._next_at:
            return (self._next_at - now) / SECOND
        try:
            return self._move(plan, task, now)
        except QueueNotFound as error:
            if error.name == plan.source:
                self._claimed.delete()
                return None
            self._reason = no_queue().code
            self._end(plan, FAILED)
            return None

    def _move(self, plan: Plan, task: MoveTask, now: int) -> float | None:
        home = self._broker.queue(plan.source)
        limit = self._part if plan.rate is None else min(self._part, max(1, plan.rate // PARTS_A_SECOND))
        room = room_for(1)
        try:
            limit = self._budget.take_some(limit, room)
        except Refused:  # requests come first
            return TICK
        try:
            part = home.redrive_part(limit, to=plan.to, came_by=task.started_at, after=self._after)
        finally:
            self._budget.give(limit * room)
        assert self._moved is not None
        self._moved += part.moved
        self._moved_since_start |= part.moved > 0
        if part.gone and not self._reason:
            self._reason = NO_SOURCE if part.gone[0] is None else no_queue().code
        if part.after is not None:
            self._after = part.after
            self._part = max(1, min(LARGEST_PART, 2 * limit, PART_BYTES * limit // max(1, part.weight)))
        elif self._moved_since_start and home.settings.groups:
            # A message that leaves frees the next of its group, which may come before those already seen.
            self._after, self._moved_since_start = START, False
        else:
            self._end(plan, FAILED if self._reason else COMPLETED)
            return None
        if plan.rate is not None:
            self._next_at = now - part.moved * SECOND // -plan.rate  # rounded up
        if now >= self._note_at and part.moved:
            self._book.note(plan, moved=self._moved)
            self._note_at = now + SECOND
        return max(0, self._next_at - now) / SECOND

    def _end(self, plan: Plan, status: str) -> None:
        self._book.note(plan, status=status, moved=self._moved, reason=self._reason if status == FAILED else "")
        self._claimed.delete()

    def give_back(self) -> None:
        """Let another server go on at once."""
        if self._plan is not None and self._moved is not None:
            self._book.note(self._plan, moved=self._moved)
        self._claimed.release()


class MoveRunner:
    """Owns what this server does about move tasks: one look after another, and the work on each task that it has claimed."""

    def __init__(self, core: Core, book: MoveBook) -> None:
        self._core = core
        self._book = book
        self._wake = asyncio.Event()
        self._stopping = False
        self._looking: asyncio.Task[None] | None = None
        self._working: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Called when the server listens."""
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def ring(self) -> None:
        """There is a new task, or one was cancelled: look now."""
        self._wake.set()
        self._wake = asyncio.Event()  # for the next pause

    async def stop(self) -> None:
        """Finish the parts that were begun, and give the tasks back."""
        self._stopping = True
        self.ring()
        if self._looking is not None:
            await self._looking
        await asyncio.gather(*self._working)

    async def _look(self) -> None:
        while not self._stopping:
            bell, pause = self._wake, LOOK_EVERY
            try:
                claimed, pause = await self._do(self._claim)
                for message in claimed:
                    self._begin(MoveWork(self._core, self._book, message))
            except (PenstockError, Refused) as error:
                logger.debug("could not look for move tasks: %s", error)
            except Exception:  # a bug of ours; the next look may succeed
                logger.exception("a defect in Penstock, in a look for move tasks")
            await self._pause(bell, pause)

    def _claim(self) -> tuple[list[Message], float]:
        """In a thread of commits: tasks on which nobody works, and in how many seconds to look again."""
        broker = self._core.broker
        room = MOST_AT_ONCE - len(self._working)
        if room <= 0 or self._stopping or broker.store.load(MOVES) is None:
            return [], LOOK_EVERY
        moves = broker.queue(MOVES)
        claimed = moves.receive(room, visibility=LEASE)
        pulse = moves.pulse()
        return claimed, LOOK_EVERY if pulse.due_at is None else min(LOOK_EVERY, max(TICK, (pulse.due_at - pulse.at) / SECOND))

    def _begin(self, work: MoveWork) -> None:
        task = asyncio.get_running_loop().create_task(self._work(work))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _work(self, work: MoveWork) -> None:
        try:
            pause: float | None = 0.0
            while pause is not None and not self._stopping:
                bell = self._wake
                pause = await self._do(work.step)
                if pause:
                    await self._pause(bell, min(pause, TICK))
            if pause is not None:
                await self._do(work.give_back)
        except (PenstockError, Refused) as error:
            logger.warning("a move task pauses for %g seconds or more: %s", LEASE, error)
        except Exception:  # a bug of ours; the claim lapses, and it is tried again
            logger.exception("a defect in Penstock, in a move task")

    async def _pause(self, bell: asyncio.Event, seconds: float) -> None:
        """Up to so many seconds, or until the bell rings."""
        if not self._stopping:
            with suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), seconds)

    async def _do(self, act: Callable[[], Answer]) -> Answer:
        """Call ``act`` in a thread of commits, with a commit of its own: other operations get their turns in between."""
        answers: list[Answer] = []
        error = await self._core.commits.begin(lambda: answers.append(act()), PATIENCE, alone=True)
        if error is not None:
            raise error
        return answers[0]
