"""Schedules in Penstock's own dialect: verbs of the broker (see `penstock.server.dialects.native`).

A schedule sends to its queue, so whoever makes one may send there. Whoever makes, changes or removes one has the scope admin
for its queue, and for the queue that it had before. Only those who may read a queue see what is sent there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.errors import BadInput, ScheduleNotFound
from penstock.message import Draft
from penstock.schedules.schedule import Schedule, as_draft, measure
from penstock.server.dialects.base import Core
from penstock.server.http.request_response import Grant, Refused, Request, Scope

VERBS = ("change_schedule", "remove_schedule", "schedule", "schedules")
UNSEEN = Draft(b"")
HEAD = 1024
"""Bytes that a schedule takes in an answer, beside what it sends."""


class Schedules:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def call(self, request: Request, verb: str, given: dict[str, Any]) -> Schedule | list[Schedule]:
        grant = request.grant
        if verb == "schedules":
            if given:
                raise BadInput(f"schedules has no argument {min(given)!r:.80}")
            if Scope.COUNT not in grant.scopes:
                raise Refused(403, "this token may not count messages")
            found = await self._run(self._core.broker.schedules)
            shown = [show(each, grant) for each in found if grant.allows(Scope.COUNT, each.queue)]
            self._core.budget.hold(request, sum(HEAD + measure(each.draft) for each in shown) * request.copies)
            return shown
        request.deed, request.facts = verb.replace("_", " "), {"schedule": str(given.get("name"))[:200]}
        schedule: Schedule = await self._run(partial(self._change, verb, given, grant))
        request.queue = schedule.queue
        return show(schedule, grant)

    async def _run(self, act: Callable[[], Any]) -> Any:
        return await self._core.commits.run(act, alone=True)

    def _change(self, verb: str, given: dict[str, Any], grant: Grant) -> Schedule:
        """In a thread of commits."""
        book = self._core.broker.schedule_book
        allow = partial(check, grant)

        def schedule(name: str, *, queue: str, body: bytes | Draft, **rule: Any) -> Schedule:
            return book.put(Schedule(name, queue, as_draft(body), **rule), allow)

        def change_schedule(name: str, **changes: Any) -> Schedule:
            return book.change(name, changes, allow)

        def remove_schedule(name: str) -> Schedule:
            return book.remove(name, allow)

        acts: dict[str, Callable[..., Schedule]]
        acts = {"schedule": schedule, "change_schedule": change_schedule, "remove_schedule": remove_schedule}
        try:
            return acts[verb](**given)
        except TypeError as error:  # the book reports values of a wrong type itself
            raise BadInput(f"{verb}: {error}") from None


def check(grant: Grant, before: Schedule | None, after: Schedule | None) -> None:
    """Whether the sender of a request may make this of a schedule."""
    if before is not None and not grant.knows(before.queue):
        if after is None:
            raise ScheduleNotFound(before.name)
        raise Refused(403, f"schedule {before.name!r} sends to a queue that is not for this token")
    for each in (before, after):
        if each is not None:
            grant.check(Scope.ADMIN, each.queue)
    if after is not None:
        grant.check(Scope.SEND, after.queue)


def show(schedule: Schedule, grant: Grant) -> Schedule:
    return schedule if grant.allows(Scope.READ, schedule.queue) else replace(schedule, draft=UNSEEN)
