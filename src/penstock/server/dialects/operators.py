"""For operators: /health, /metrics, and the description of the paths (/openapi.json, /)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from penstock.errors import PenstockError, QueueNotFound
from penstock.message import Stats
from penstock.server.auth import Guard
from penstock.server.dialects.base import Core, Dialect, Route
from penstock.server.http.request_response import Grant, Refused, Request, Response, Scope, answer_json
from penstock.server.metrics import MOST_QUEUES
from penstock.server.openapi import document, page

NO_QUEUE = ":health"
"""No queue can have this name."""
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OWN_PAGE = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""A page of ours, without scripts. In a sandbox, its links would come from another site."""


def describe_paths(max_wait: int) -> Response:
    headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": OWN_PAGE}
    return Response(200, headers, page(max_wait).encode())


class Operators(Dialect):
    name = "operators"
    reserved = frozenset({"", "health", "metrics", "openapi.json", "favicon.ico", "robots.txt"})
    errors: ClassVar = [(PenstockError, 503)]

    def __init__(self, core: Core, gauges: Callable[[], dict[str, float]]) -> None:
        super().__init__(core)
        self._gauges = gauges
        self._check: asyncio.Future[BaseException | None] | None = None

    def routes(self) -> Sequence[Route]:
        return [
            Route("GET", "/", None, self.home),
            Route("GET", "/health", None, self.health),
            Route("GET", "/metrics", None, self.metrics),
            Route("GET", "/openapi.json", None, self.openapi),
        ]

    def authorize(self, guard: Guard, request: Request) -> Grant:
        return guard.grant_own(request)

    async def home(self, request: Request) -> Response:
        return describe_paths(self.settings.max_wait)

    async def health(self, request: Request) -> Response:
        """Healthy if the store can be written to: a commit that changes nothing still needs its lock. As anybody may ask, all
        that ask at the same time share one commit."""
        if self._check is None or self._check.done():
            self._check = self.core.commits.begin(self._touch, self.settings.request_timeout, late=_late)
        error = await self._check
        if error is not None:
            raise error
        return answer_json(200, {"status": "ok"})

    def _touch(self) -> None:
        with self.broker.store.batch():
            self.broker.store.load(NO_QUEUE)

    async def metrics(self, request: Request) -> Response:
        grant = request.grant
        if Scope.COUNT not in grant.scopes:
            raise Refused(403, "this token may not count messages")

        names = await self.core.names(request, Scope.COUNT)
        counted = await self.core.each(names[:MOST_QUEUES], self._count)
        stats = [(name, found) for name, found in counted if found is not None]
        queues: dict[str, Any] = {
            "messages": {name: each.messages for name, each in stats},
            "visible": {name: each.visible for name, each in stats},
            "in_flight": {name: each.in_flight for name, each in stats},
            "delayed": {name: each.delayed for name, each in stats},
            "damaged": {name: each.damaged for name, each in stats},
            "foreign": {name: len(each.foreign) for name, each in stats},
            "oldest_age_seconds": {name: float(each.oldest_age or 0) for name, each in stats},
        }
        if grant.allows_all(Scope.COUNT):
            text = self.core.metrics.render({**self._gauges(), "queues": len(names)}, queues)
        else:  # what all clients do together is not for a token for some queues
            text = self.core.metrics.render_queues(queues, grant.knows)
        return Response(200, {"Content-Type": TEXT}, text.encode())

    def _count(self, queue: str) -> tuple[str, Stats | None]:
        """None if it was deleted meanwhile."""
        try:
            return queue, self.broker.queue(queue).stats()
        except QueueNotFound:
            return queue, None

    async def openapi(self, request: Request) -> Response:
        return answer_json(200, document(self.settings.max_wait))


def _late(text: str) -> Refused:
    return Refused(503, text, {"Retry-After": "1"})
