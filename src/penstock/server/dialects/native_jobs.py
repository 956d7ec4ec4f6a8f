"""Jobs in Penstock's own dialect: start, list and cancel them. `penstock.server.jobs` does the work.

POST   /penstock/jobs         {"queue": …, "action": "delete", "filter": {…}, "to": …, "rate": …, "expect": …}  ->  a job
GET    /penstock/jobs         ?queue=NAME  ->  {"jobs": [job, …]}, the last one first
DELETE /penstock/jobs/{id}    have it end before its next part
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

from penstock.errors import BadInput
from penstock.message import MAX_NUMBER
from penstock.policy import check_count, check_name
from penstock.server.dialects.base import HIDDEN, Core, Route
from penstock.server.dialects.native_values import weigh_json
from penstock.server.http.request_response import Grant, Refused, Request, Response, Scope, answer_json, read_json
from penstock.server.jobs.filters import read_filter
from penstock.server.jobs.plan import RUNNING, Action, Job, Plan

FASTEST = 100_000
"""Messages in a second."""
GIVEN = ("queue", "action", "filter", "to", "rate", "expect")
LONGEST_QUERY = 2000


class Jobs:
    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> Sequence[Route]:
        return [
            Route("POST", "/penstock/jobs", None, self.start),
            Route("GET", "/penstock/jobs", None, self.list),
            Route("DELETE", "/penstock/jobs/{id}", None, self.cancel),
        ]

    async def start(self, request: Request) -> Response:
        self._core.budget.hold(request, weigh_json(request.body))
        plan, expected = read_plan(read_json(request.body), request.grant.name)
        request.queue = plan.queue
        check_rights(request.grant, plan)
        job = await self._core.run(lambda: self._begin(plan, expected))
        self._core.jobs.ring()
        request.deed = f"{plan.action} started"
        request.facts = {"job": plan.id, **({} if job.total is None else {"messages": job.total})}
        return answer_json(200, show(job, request.grant))

    def _begin(self, plan: Plan, expected: int | None) -> Job:
        """In a thread of commits."""
        self._core.broker.queue(plan.queue)
        if plan.to is not None:
            there, here = self._core.broker.queue(plan.to).settings, self._core.broker.queue(plan.queue).settings
            if here.groups and not there.groups:
                raise BadInput(f"queue {plan.to!r} has no groups, and would lose the order that queue {plan.queue!r} keeps")
        job = self._core.jobs.book.begin(plan, expected=expected)
        assert job is not None
        return job

    async def list(self, request: Request) -> Response:
        grant = request.grant
        if Scope.COUNT not in grant.scopes:
            raise Refused(403, "this token may not count messages")
        queue = read_queue(request.query)
        if queue is not None:
            grant.check(Scope.COUNT, queue)
            jobs = await self._core.run(lambda: self._core.jobs.book.jobs(queue))
        else:
            jobs = await self._core.look("jobs", self._core.jobs.book.recent)
        return answer_json(200, {"jobs": [show(job, grant) for job in jobs if grant.allows(Scope.COUNT, job.queue)]})

    async def cancel(self, request: Request, id: str) -> Response:
        active = await self._core.look("active jobs", self._core.jobs.book.active)
        job = next((job for job in active if job.id == id and request.grant.knows(job.queue)), None)
        if job is None:
            raise Refused(404, f"there is no job {id!r:.80} that could be cancelled")
        request.queue = job.queue
        request.grant.check(Scope.ADMIN, job.queue)
        before = await self._core.run(lambda: self._core.jobs.book.cancel(job.queue, id))
        self._core.jobs.ring()
        if before is not None and before.status == RUNNING:
            request.deed, request.facts = f"{job.action} cancelled", {"job": id}
        after = await self._core.run(lambda: self._core.jobs.book.jobs(job.queue))
        return answer_json(200, show(next((each for each in after if each.id == id), job), request.grant))


def read_plan(given: Any, by: str) -> tuple[Plan, int | None]:
    """What a request asks for, and how many messages its sender expects to change."""
    if not isinstance(given, dict):
        raise BadInput("the body must be an object with queue, action and filter")
    for name in given:
        if name not in GIVEN:
            raise BadInput(f"a job has no {name!r:.80}; there are {', '.join(GIVEN)}")
    queue, action, to = check_name(given.get("queue")), given.get("action"), given.get("to")
    if action not in list(Action):
        raise BadInput(f"action {action!r:.80} is not one of {', '.join(Action)}")
    filter = read_filter(given.get("filter", {})).pack()
    rate, expected = given.get("rate"), given.get("expect")
    if rate is not None:
        check_count(rate, "rate", 1, FASTEST, BadInput)
    if expected is not None:
        check_count(expected, "expect", 0, MAX_NUMBER, BadInput)
    if (to is not None) != (action == Action.MOVE) and action != Action.REDRIVE:
        raise BadInput(
            "a move says to which queue it goes (to)" if action == Action.MOVE else f"a {action} goes to no queue (to)"
        )
    if to is not None and check_name(to) == queue:
        raise BadInput(f"messages of queue {queue!r} cannot be moved to itself")
    return Plan(str(uuid.uuid4()), queue, action, filter, to, rate, by), expected


def check_rights(grant: Grant, plan: Plan) -> None:
    """Those of a caller that would do the same by itself."""
    grant.check(Scope.ADMIN, plan.queue)
    if plan.wanted.reads_body:
        grant.check(Scope.READ, plan.queue)
    if plan.to is not None:
        grant.check(Scope.ADMIN, plan.to)
    elif plan.action == Action.REDRIVE and not grant.allows_all(Scope.ADMIN):
        raise Refused(
            403, "this token is not for all queues, and letters may have died in any: say to which queue they go (to)"
        )


def read_queue(query: str) -> str | None:
    given = parse_qs(query[:LONGEST_QUERY], keep_blank_values=True, errors="replace")
    unknown = given.keys() - {"queue"}
    if unknown:
        raise BadInput(f"a list of jobs has no {min(unknown)!r:.80}, only queue")
    return check_name(given["queue"][0]) if "queue" in given else None


def show(job: Job, grant: Grant) -> dict[str, Any]:
    """A job as the owner of a grant may see it. What it looks for in messages is for those who may read them."""
    return {
        "id": job.id,
        "queue": job.queue,
        "action": job.action,
        "filter": job.filter if grant.allows(Scope.READ, job.queue) else None,
        "to": HIDDEN if job.to is not None and not grant.knows(job.to) else job.to,
        "rate": job.rate,
        "status": job.status,
        "done": job.done,
        "stayed": job.stayed,
        "scanned": min(job.scanned, job.messages),
        "messages": job.messages,
        "total": job.total,
        "reason": job.reason,
        "started_at": job.started_at,
        "by": job.by,
    }
