"""Which jobs have changed, for the streams of changes."""

from __future__ import annotations

from penstock.server.dialects.base import Core
from penstock.server.jobs.book import JOBS
from penstock.server.jobs.plan import Job
from penstock.server.page.board import Board
from penstock.server.page.counting import PATIENCE

KEPT = 200
"""Jobs whose last change is remembered."""


class JobNews:
    """Owns the jobs as they were last seen, with the number of the change of each. It looks only while there are some."""

    def __init__(self, core: Core, board: Board) -> None:
        self._core = core
        self._board = board
        self.number = 0
        self._jobs: dict[str, tuple[int, Job]] = {}
        """The one that has changed last is the last."""
        self._active: dict[str, str] = {}
        """The jobs that were active, and their queues."""
        self._events = core.broker.waiting.events(JOBS)
        self._since = core.broker.clock()

    async def look(self) -> None:
        row, events = self._board.rows.get(JOBS), self._core.broker.waiting.events(JOBS)
        if not self._active and not (row and row["messages"]) and events == self._events:
            return
        for job in await self._core.commits.work(lambda: self._read(short=events != self._events), PATIENCE, alone=True):
            if job.id not in self._jobs or self._jobs[job.id][1] != job:
                self.number += 1
                self._jobs.pop(job.id, None)
                self._jobs[job.id] = (self.number, job)
        self._events = events
        while len(self._jobs) > KEPT:
            del self._jobs[next(iter(self._jobs))]

    def _read(self, *, short: bool) -> list[Job]:
        """In a thread of commits: those that are active, and those that were and have ended. ``short``: also those that have
        begun and ended since the last look."""
        book, before = self._core.jobs.book, self._active
        active = book.active()
        self._active = {job.id: job.queue for job in active}
        ended = before.keys() - self._active.keys()
        store = self._core.broker.store
        queues = {before[id] for id in ended if store.load(before[id]) is not None}
        found = [*active, *(job for queue in queues for job in book.jobs(queue) if job.id in ended)]
        if short:
            found += [job for job in book.recent() if job.started_at > self._since and not job.is_active]
        return found

    def since(self, number: int) -> list[Job]:
        return [job for at, job in self._jobs.values() if at > number]
