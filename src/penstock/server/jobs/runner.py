"""Works on jobs: claims them from their queue, and does them in parts.

look ──claims──► step ──► step ──► … ──► end: the label shows the outcome, and the job's message is deleted
                  │ the server is killed: its claim lapses │ it stops: it gives the claim back
                  └────────────► another server, or the next one, claims the job and goes on
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from penstock.bridge.commits import Commits
from penstock.broker import LocalBroker
from penstock.errors import PenstockError
from penstock.message import SECOND, Message
from penstock.server.audit import Audit
from penstock.server.budget import Budget
from penstock.server.http.request_response import Refused
from penstock.server.jobs.book import JOBS, LEASE, JobBook
from penstock.server.jobs.work import TICK, JobWork
from penstock.server.page.activity import Activity

logger = logging.getLogger("penstock.server")

Answer = TypeVar("Answer")
LOOK_EVERY = 5.0
"""Seconds between two looks for jobs that another server has left."""
MOST_AT_ONCE = 100
"""Jobs on which one server works."""
PATIENCE = 60.0
"""Seconds that a store may take for a part."""


class JobRunner:
    """Owns what this server does about jobs: one look after another, and the work on each job that it has claimed."""

    def __init__(self, broker: LocalBroker, commits: Commits, budget: Budget, audit: Audit, activity: Activity) -> None:
        self.book = JobBook(broker)
        self._broker = broker
        self._commits = commits
        self._budget = budget
        self._audit = audit
        self._activity = activity
        self._wake = asyncio.Event()
        self._stopping = False
        self._looking: asyncio.Task[None] | None = None
        self._working: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Called when the server listens."""
        self._looking = asyncio.get_running_loop().create_task(self._look())

    def ring(self) -> None:
        """There is a new job, or one was cancelled: look now."""
        self._wake.set()
        self._wake = asyncio.Event()  # for the next pause

    async def stop(self) -> None:
        """Finish the parts that were begun, and give the jobs back."""
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
                    self._begin(JobWork(self._broker, self._budget, self.book, message))
            except (PenstockError, Refused) as error:
                logger.debug("could not look for jobs: %s", error)
            except Exception:  # a bug of ours; the next look may succeed
                logger.exception("a defect in Penstock, in a look for jobs")
            await self._pause(bell, pause)

    def _claim(self) -> tuple[list[Message], float]:
        """In a thread of commits: jobs on which nobody works, and in how many seconds to look again."""
        room = MOST_AT_ONCE - len(self._working)
        if room <= 0 or self._stopping or self._broker.store.load(JOBS) is None:
            return [], LOOK_EVERY
        jobs = self._broker.queue(JOBS)
        claimed = jobs.receive(room, visibility=LEASE)
        pulse = jobs.pulse()
        return claimed, LOOK_EVERY if pulse.due_at is None else min(LOOK_EVERY, max(TICK, (pulse.due_at - pulse.at) / SECOND))

    def _begin(self, work: JobWork) -> None:
        task = asyncio.get_running_loop().create_task(self._work(work))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _work(self, work: JobWork) -> None:
        try:
            pause: float | None = 0.0
            while pause is not None and not self._stopping:
                bell = self._wake
                pause = await self._do(work.step)
                for queue in work.queues:
                    self._activity.use(queue)
                if pause:
                    await self._pause(bell, min(pause, TICK))
            if pause is not None:
                await self._do(work.give_back)
            elif work.outcome and work.plan is not None:
                plan = work.plan
                self._audit.tell(plan.by, f"{plan.action} {work.outcome}", plan.queue, job=plan.id, messages=work.done)
        except (PenstockError, Refused) as error:
            logger.warning("a job pauses for %g seconds or more: %s", LEASE, error)
        except Exception:  # a bug of ours; the claim lapses, and it is tried again
            logger.exception("a defect in Penstock, in a job")

    async def _pause(self, bell: asyncio.Event, seconds: float) -> None:
        """Up to so many seconds, or until the bell rings."""
        if not self._stopping:
            with suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), seconds)

    async def _do(self, act: Callable[[], Answer]) -> Answer:
        """Call ``act`` in a thread of commits, with a commit of its own: other operations get their turns in between."""
        return await self._commits.work(act, PATIENCE, alone=True)
