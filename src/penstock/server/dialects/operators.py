"""For operators: /health, /metrics, and the description of the paths (/openapi.json, /)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from penstock.errors import PenstockError
from penstock.message import Stats
from penstock.server.dialects.base import Core, Dialect, Route
from penstock.server.http.request_response import Refused, Request, Response, Scope, answer_json
from penstock.server.metrics import MOST_QUEUES
from penstock.server.openapi import document, page

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OWN_PAGE = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""The only page of ours. In a sandbox, its links would come from another site."""


class Operators(Dialect):
    name = "operators"
    reserved = frozenset({"", "health", "metrics", "openapi.json", "favicon.ico", "robots.txt"})
    errors: ClassVar = [(PenstockError, 503)]

    def __init__(self, core: Core, gauges: Callable[[], dict[str, float]]) -> None:
        super().__init__(core)
        self._gauges = gauges

    def routes(self) -> Sequence[Route]:
        return [
            Route("GET", "/", None, self.home),
            Route("GET", "/health", None, self.health),
            Route("GET", "/metrics", None, self.metrics),
            Route("GET", "/openapi.json", None, self.openapi),
        ]

    async def home(self, request: Request) -> Response:
        headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": OWN_PAGE}
        return Response(200, headers, page(self.settings.max_wait).encode())

    async def health(self, request: Request) -> Response:
        """Healthy if the store can be written to: a commit that changes nothing still needs its lock."""

        def act() -> None:
            with self.broker.store.batch():
                self.broker.store.names()

        await self.core.run(act)
        return answer_json(200, {"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        grant = request.grant
        if Scope.COUNT not in grant.scopes:
            raise Refused(403, "this token may not count messages")

        def act() -> tuple[int, list[tuple[str, Stats]]]:
            names = [name for name in self.broker.queues().names if grant.allows(Scope.COUNT, name)]
            return len(names), [(name, self.broker.queue(name).stats()) for name in names[:MOST_QUEUES]]

        total, stats = await self.core.run(act)
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
            text = self.core.metrics.render({**self._gauges(), "queues": total}, queues)
        else:  # what all clients do together is not for a token for some queues
            text = self.core.metrics.render_queues(queues, grant.knows)
        return Response(200, {"Content-Type": TEXT}, text.encode())

    async def openapi(self, request: Request) -> Response:
        return answer_json(200, document(self.settings.max_wait))
