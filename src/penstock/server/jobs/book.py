"""Jobs as the store keeps them.

    label penstock.job.ID of the queue    what is shown of a job: status, counts, and what it is to do, shortened
    message in the queue `JOBS`           what it is to do, and the right to work on it; a server that does so hides it
    history of the queue `JOBS`           which jobs have ended in the last days

Only a job whose label has the digest of its message is done: the label shows that its writer may change the queue, the message
that this server, or another one of this store, has checked the rights of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from penstock.broker import LocalBroker
from penstock.errors import BadInput
from penstock.message import MAX_NUMBER, SECOND, Message, Settings
from penstock.queue.queue import LocalQueue
from penstock.server.jobs.plan import CANCELLING, FAILED, LOST, RUNNING, Job, Plan, expect, read_job, read_plan, shorten

JOBS = "penstock.jobs"
"""No queue of SQS can have this name."""
LABEL = "penstock.job."
LEASE = 5.0
"""Seconds for which a server has a job. If it dies, another one goes on when they are over."""
KEPT = 10
"""Jobs that a queue keeps, with those that run."""
MOST_OF_QUEUE = 5
"""Jobs of one queue at a time."""
MOST_ACTIVE, MOST_LISTED = 10_000, 200
PART = 16
"""Messages that are read at once."""
REMEMBERED = 7 * 86400
"""Seconds for which ended jobs are listed."""


def jobs_of(settings: Settings) -> list[Job]:
    """The jobs of a queue, the last one first."""
    texts = (text for name, text in settings.labels.items() if name.startswith(LABEL))
    found = [job for job in map(read_job, texts) if job is not None]
    return sorted(found, key=lambda job: job.started_at, reverse=True)


class JobBook:
    """Reads and writes the jobs of a store. Its methods are called where the store may be used."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    def begin(self, plan: Plan, *, beside: Callable[[Job], bool] = lambda _: True, expected: int | None = None) -> Job | None:
        """A new job; None if one is active ``beside`` which it cannot be. ``expected``: how many messages it is about."""
        broker = self._broker
        queue = self._open()
        with broker.waiting.told(), broker.store.batch():
            broker.store.reserve(plan.queue)
            home = broker.queue(plan.queue)
            jobs = jobs_of(home.settings)
            living = self._living(jobs)
            active = [job for job in jobs if job.is_active and job.proof in living]
            if not all(map(beside, active)):
                return None
            if len(active) >= MOST_OF_QUEUE:
                raise BadInput(f"{len(active)} jobs change queue {plan.queue!r} already, the limit; wait for one, or cancel it")
            stats = home.stats()
            started_at = max([broker.clock(), *(job.started_at + 1 for job in jobs)])  # a later job comes first in lists
            counted = expect(plan, stats)
            total = expected if counted is None else counted
            shown = shorten(plan.filter)
            job = Job(
                *(plan.id, plan.queue, plan.proof, plan.action, shown, plan.to, plan.rate, plan.by),
                *(started_at, stats.messages, total),
            )
            # First the label: where a batch is no transaction, a server would drop a message without one.
            ended = [job for job in jobs if job not in active]
            lost: dict[str, str | None] = {LABEL + old.id: _lose(old).pack() for old in ended if old.is_active}
            old: dict[str, str | None] = {LABEL + old.id: None for old in ended[max(0, KEPT - 1 - len(active)) :]}
            home.update(labels={**lost, **old, LABEL + plan.id: job.pack()})
            queue.send(plan.pack())
        return job

    def _open(self) -> LocalQueue:
        if self._broker.store.load(JOBS) is None:
            return self._broker.create(JOBS, exist_ok=True, visibility=LEASE, retention=MAX_NUMBER, history=REMEMBERED)
        return self._broker.queue(JOBS)

    def jobs(self, queue: str) -> list[Job]:
        """The last one first."""
        jobs, lost = self._look(queue)
        if lost:  # or they have begun or ended meanwhile: look again where nobody changes them
            store = self._broker.store
            with store.batch():
                store.reserve(queue)
                jobs, lost = self._look(queue)
        return [_lose(job) if job.proof in lost else job for job in jobs]

    def _look(self, queue: str) -> tuple[list[Job], set[str]]:
        """The jobs of a queue, and the proofs of those that seem active and have no message."""
        jobs = jobs_of(self._broker.queue(queue).settings)
        return jobs, {job.proof for job in jobs if job.is_active} - self._living(jobs)

    def find(self, plan: Plan) -> Job | None:
        """The job that is to do this; None if it is gone, or to do something else."""
        settings = self._broker.store.load(plan.queue)
        text = None if settings is None else settings.labels.get(LABEL + plan.id)
        job = None if text is None else read_job(text)
        return job if job is not None and job.proof == plan.proof else None

    def active(self) -> list[Job]:
        """All jobs on which servers work, or will."""
        jobs = map(self.find, self._plans())
        return [job for job in jobs if job is not None and job.is_active]

    def recent(self) -> list[Job]:
        """Active jobs, and those of the last days, as far as their queues keep them; the last one first."""
        if self._broker.store.load(JOBS) is None:
            return []
        plans = list(self._plans())  # first: a job that ends meanwhile is then seen twice, and not overlooked
        home, ended = self._broker.queue(JOBS), list[Plan]()
        after = (self._broker.clock() - REMEMBERED * SECOND, 0)
        while page := home.settled(PART, after=after):
            ended += [plan for plan in map(read_plan, page) if plan is not None]
            ended, after = ended[-MOST_LISTED:], page[-1].place
        plans += ended
        named = {plan.queue: self._broker.store.load(plan.queue) for plan in plans}
        kept = {job.id: job for settings in named.values() if settings is not None for job in jobs_of(settings)}
        found = {plan.id: kept[plan.id] for plan in plans if plan.id in kept and kept[plan.id].proof == plan.proof}
        return sorted(found.values(), key=lambda job: job.started_at, reverse=True)

    def cancel(self, queue: str, id: str) -> Job | None:
        """Have a job end before its next part. Returns the job as it was; None if there is none."""
        store = self._broker.store
        with store.batch():
            store.reserve(queue)
            job = next((job for job in self.jobs(queue) if job.id == id), None)
            if job is not None and job.status == RUNNING:
                self._write(replace(job, status=CANCELLING))
        return job

    def note(self, plan: Plan, **changes: Any) -> None:
        """Change what is shown of a job that is active. Whether it is to be cancelled, others decide: a server that notes its
        progress must not undo that."""
        store = self._broker.store
        with store.batch():
            store.reserve(plan.queue)
            job = self.find(plan)
            if job is not None and job.is_active:
                self._write(replace(job, **changes))

    def _write(self, job: Job) -> None:
        self._broker.queue(job.queue).update(labels={LABEL + job.id: job.pack()})

    def _plans(self) -> Iterator[Plan]:
        return (plan for plan in map(read_plan, self._messages()) if plan is not None)

    def _messages(self) -> Iterator[Message]:
        """A few at a time: a plan may name a thousand messages, and other programs may send large ones to the queue. By their
        numbers, so that none is overlooked which a server gives back or claims meanwhile."""
        if self._broker.store.load(JOBS) is None:
            return
        home, start = self._broker.queue(JOBS), 0
        for _ in range(MOST_ACTIVE // PART):
            part = home.scan(start, limit=PART)
            yield from part
            if len(part) < PART:
                return
            start = part[-1].number + 1

    def _living(self, jobs: list[Job]) -> set[str]:
        """The proofs of those active jobs on which somebody can still work. Of the others a program has deleted the message, or
        their server was killed before it had sent it."""
        ids = [job.id.encode() for job in jobs if job.is_active]
        named = (message for message in self._messages() if any(id in message.body for id in ids)) if ids else ()
        return {plan.proof for plan in map(read_plan, named) if plan is not None}


def _lose(job: Job) -> Job:
    return replace(job, status=FAILED, reason=LOST)
