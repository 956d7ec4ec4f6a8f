"""The work on one job: in parts, each a commit of its own, which change messages whole or not at all. So a job that is
interrupted loses and doubles none."""

from __future__ import annotations

from typing import NamedTuple

from penstock.broker import LocalBroker
from penstock.errors import QueueNotFound
from penstock.message import SECOND, Message, micros
from penstock.queue.queue import LocalQueue
from penstock.server.budget import Budget, room_for
from penstock.server.http.request_response import Refused
from penstock.server.jobs.book import LEASE, JobBook
from penstock.server.jobs.filters import EVERYTHING
from penstock.server.jobs.plan import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    FAILED,
    NO_QUEUE,
    NO_SOURCE,
    Action,
    Job,
    Plan,
    read_plan,
)
from penstock.stores.ports import START

TICK = 0.5
"""Seconds after which a server that waits for its turn looks whether the job was cancelled."""
FIRST_PART, LARGEST_PART = 8, 64
"""Messages in the first part of a job, and in any."""
PART_BYTES = 8 * 1024 * 1024
"""About so many bytes of messages in one part, going by those of the part before."""
PARTS_A_SECOND = 10
"""If a job has a rate: so that it changes few messages often, and not many at once."""


class JobPart(NamedTuple):
    """What one part has done."""

    changed: int
    looked: int
    weight: int
    done: bool
    """There was nothing any more."""


class JobWork:
    """One job that this server has claimed. Owns how far it is. Its methods are called in a thread of commits."""

    def __init__(self, broker: LocalBroker, budget: Budget, book: JobBook, claimed: Message) -> None:
        self._broker = broker
        self._budget = budget
        self._book = book
        self._claimed = claimed
        self.plan = read_plan(claimed)
        self._wanted = EVERYTHING if self.plan is None else self.plan.wanted
        self._renew_at = claimed.visible_at - micros(LEASE * 2 / 3)
        self._next_at = 0
        self._note_at = 0
        self._known = False
        self._done = self._stayed = self._scanned = self._next = 0
        self._part = FIRST_PART
        self._after = START
        self._moved_since_start = False
        """Whether this pass through the queue has moved anything."""
        self._reason = ""
        self.outcome = ""
        """How the job has ended, if this server has ended it."""

    def step(self) -> float | None:
        """Do what there is to do now. Returns in how many seconds to call this again; None: this server's work has ended."""
        plan, now = self.plan, self._broker.clock()
        job = None if plan is None else self._book.find(plan)
        if plan is None or job is None or not job.is_active:  # forged, or ended, or its queue was deleted
            self._claimed.delete()
            return None
        if now >= self._renew_at:
            if not self._claimed.extend(LEASE):
                return None  # another server has it
            self._renew_at = now + micros(LEASE / 3)
        if not self._known:
            self._known = True
            self._done, self._next = job.done, job.next
            # A message that is freed by one that was moved may be anywhere: such a job begins again, and finds what is left.
            self._scanned, self._stayed = (0, 0) if self._moves(plan) else (job.scanned, job.stayed)
        if job.status == CANCELLING:
            self._end(plan, CANCELLED)
            return None
        if now < self._next_at:
            return (self._next_at - now) / SECOND
        try:
            return self._go_on(plan, job, now)
        except QueueNotFound as error:
            if error.name == plan.queue:
                self._claimed.delete()
                return None
            self._reason = NO_QUEUE
            self._end(plan, FAILED)
            return None

    @staticmethod
    def _moves(plan: Plan) -> bool:
        return plan.action in (Action.MOVE, Action.REDRIVE)

    def _go_on(self, plan: Plan, job: Job, now: int) -> float | None:
        home = self._broker.queue(plan.queue)
        limit = self._part if plan.rate is None else min(self._part, max(1, plan.rate // PARTS_A_SECOND))
        room = room_for(1)
        try:
            limit = self._budget.take_some(limit, room)
        except Refused:  # requests come first
            return TICK
        try:
            part = self._move(home, plan, job, limit) if self._moves(plan) else self._change(home, plan, job, limit)
        finally:
            self._budget.give(limit * room)
        self._done += part.changed
        self._scanned += part.looked
        if not part.done:
            self._part = max(1, min(LARGEST_PART, 2 * limit, PART_BYTES * limit // max(1, part.weight)))
        elif self._moved_since_start and home.settings.groups:
            # A message that leaves frees the next of its group, which may come before those already seen.
            self._after, self._moved_since_start, self._stayed = START, False, 0
        else:
            self._end(plan, FAILED if self._reason else COMPLETED)
            return None
        if plan.rate is not None:
            self._next_at = now - part.changed * SECOND // -plan.rate  # rounded up
        if now >= self._note_at and (part.changed or part.looked):
            self._note(plan)
            self._note_at = now + SECOND
        return max(0, self._next_at - now) / SECOND

    def _move(self, home: LocalQueue, plan: Plan, job: Job, limit: int) -> JobPart:
        part = home.redrive_part(limit, to=plan.to, came_by=job.started_at, after=self._after, wanted=self._wanted.fits)
        self._moved_since_start |= part.moved > 0
        self._stayed += part.stayed
        if part.gone and not self._reason:
            self._reason = NO_SOURCE if part.gone[0] is None else NO_QUEUE
        if part.after is not None:
            self._after = part.after
        return JobPart(part.moved, part.looked, part.weight, part.after is None)

    def _change(self, home: LocalQueue, plan: Plan, job: Job, limit: int) -> JobPart:
        change = home.delete_part if plan.action == Action.DELETE else home.release_part
        part = change(limit, start=self._next, came_by=job.started_at, wanted=self._wanted.fits)
        if part.next is not None:
            self._next = part.next
        return JobPart(part.changed, part.looked, part.weight, part.next is None)

    def _note(self, plan: Plan) -> None:
        self._book.note(plan, done=self._done, stayed=self._stayed, scanned=self._scanned, next=self._next)

    def _end(self, plan: Plan, status: str) -> None:
        reason = self._reason if status == FAILED else ""
        told = {"done": self._done, "stayed": self._stayed, "scanned": self._scanned}
        self._book.note(plan, status=status, reason=reason, **told)
        self._claimed.delete()
        self.outcome = status

    @property
    def done(self) -> int:
        return self._done

    @property
    def queues(self) -> list[str]:
        """Those that it changes, as far as its plan names them."""
        return [] if self.plan is None else [self.plan.queue, *([] if self.plan.to is None else [self.plan.to])]

    def give_back(self) -> None:
        """Let another server go on at once."""
        if self.plan is not None and self._known:
            self._note(self.plan)
        self._claimed.release()
