"""The app: finds the dialect and the route of a request, authorizes it, and answers every error."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from functools import partial
from urllib.parse import urlsplit

from penstock.bridge.commits import Commits
from penstock.bridge.polls import Polls
from penstock.broker import LocalBroker
from penstock.clock import MachineClock
from penstock.errors import PenstockError, StoreError
from penstock.message import SECOND
from penstock.server.access_log import AccessLog
from penstock.server.audit import Audit
from penstock.server.auth import Guard, told_to
from penstock.server.budget import Budget
from penstock.server.dialects.base import Core, Dialect, Route, Router
from penstock.server.dialects.mqcore import MqCore
from penstock.server.dialects.mqs import Mqs
from penstock.server.dialects.native import Native
from penstock.server.dialects.operators import Operators
from penstock.server.dialects.sqs.dialect import Sqs
from penstock.server.http.open_connections import Connections
from penstock.server.http.request_response import LEFT, Refused, Request, Response, Scope
from penstock.server.jobs.runner import JobRunner
from penstock.server.metrics import Metrics
from penstock.server.offload import Offload
from penstock.server.page.activity import Activity
from penstock.server.page.dialect import PageDialect
from penstock.server.page.sessions import Sessions
from penstock.server.quotas import Quotas
from penstock.server.scheduling import Scheduling
from penstock.server.settings import ServerSettings
from penstock.server.strangers import Strangers
from penstock.server_clock import ServerClock

logger = logging.getLogger("penstock.server")

Dialects = tuple[type[Dialect], ...]
DIALECTS: Dialects = (Mqs, Native)
"""The dialects with paths of their own. SQS says by itself which requests are its own; MQ-Core, whose queues are at the root,
gets all other paths."""
DEEDS = {"PUT": "create", "POST": "update", "DELETE": "delete"}
"""What a request that needs the scope admin does to its queue."""
NO_PAGE = (("X-Content-Type-Options", "nosniff"), ("Content-Security-Policy", "sandbox"))
"""A message may be a web page of its sender: a browser that shows it must not run it as a page of this server."""


class App:
    def __init__(
        self, broker: LocalBroker, settings: ServerSettings, loop: asyncio.AbstractEventLoop, log: AccessLog, dialects: Dialects
    ) -> None:
        self.settings = settings
        self.stopping = False
        self.gauges: dict[str, float] = {}
        """More of what /metrics tells."""
        self.metrics = Metrics()
        self.budget = Budget(settings.max_memory)
        self.offload = Offload(loop)
        self.commits = Commits(broker, loop, max_pending=settings.max_pending)
        self.commits.sizes = self.metrics.count_commit
        self.polls = Polls(broker, self.commits, loop, max_bytes=settings.max_body, room=self.budget)
        self.connections = Connections(self, loop)
        self.commits.together = self.connections.together
        self.guard = Guard(
            settings.tokens,
            settings.host,
            _hosts(settings),
            sqs_keys=settings.sqs_keys,
            tls=bool(settings.tls_cert),
            page=settings.page,
        )
        self._broker = broker
        self._log = log
        self.quotas = Quotas(broker, self.commits, self.connections.open)
        self._strangers = Strangers(settings, self.connections.open)
        self._activity = Activity(self.connections.open)
        self.audit = Audit(log)
        self.jobs = JobRunner(broker, self.commits, self.budget, self.audit, self._activity)
        core = Core(
            *(broker, self.commits, self.polls, self.metrics, settings, self.budget, self.offload, self.quotas),
            *(self._activity, self.audit, self.jobs),
        )
        self._scheduling = Scheduling(core, loop)
        self._root = MqCore(core)
        self._sqs = Sqs(core)
        self._operators = Operators(core, self._gauges)
        others: list[Dialect] = [*(dialect(core) for dialect in dialects), self._operators]
        self._page: PageDialect | None = None
        if settings.page != "off":
            self.guard.signed_in = sessions = Sessions(broker, self.commits, self.guard, self.audit, settings)
            self._page = PageDialect(core, self.guard, sessions)
            others.append(self._page)
        self.dialects = (*others, self._sqs, self._root)
        self._by_segment = {segment: dialect for dialect in others for segment in dialect.reserved}
        self._routers = {dialect.name: Router(dialect.routes()) for dialect in self.dialects}

    def check(self, request: Request) -> int:
        dialect = self._dialect(request)
        if request.segments != ("health",):
            request.grant = dialect.authorize(self.guard, request)
            if request.prove is None:
                self._enter(dialect, request)
            else:
                self._strangers.enter(request)
        elif request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
            raise Refused(413, "/health takes no body")  # anybody may ask it
        return dialect.keep(request)

    async def handle(self, request: Request) -> Response:
        dialect = self._dialect(request)
        try:
            if request.prove is not None:
                self._strangers.leave(request)
                digest = await self.offload.run(len(request.body), partial(hashlib.sha256, request.body))
                request.grant = request.prove(digest.hexdigest())
                self._enter(dialect, request)
            self.quotas.admit(request)
            route, variables = self._route(dialect, request)
            request.queue = variables.get("queue", "")
            if route.scope is not None:
                request.grant.check(route.scope, request.queue)
            if route.scope is Scope.ADMIN:
                request.deed = DEEDS.get(request.method, "")
            response = await route.handle(request, **variables)
            if request.deed and response.status < 400:
                self.audit.note(request.grant.name, request.deed, request.queue, **(request.facts or {}))
        except asyncio.CancelledError:  # the store had not begun, and never will
            late = f"this took longer than {self.settings.request_timeout:g} s, the limit (request_timeout)"
            refusal = Refused(503, late, {"Retry-After": "1"})
            response = Response(LEFT) if request.unheard else dialect.answer_refused(request, refusal)
        except Refused as refusal:
            response = dialect.answer_refused(request, refusal)
            _let_go(refusal)
        except PenstockError as error:
            response = dialect.refuse(request, told_to(request.grant, error, self._broker.store))
            response.cause = str(error) if isinstance(error, StoreError) else ""
            _let_go(error)
        except Exception:  # a bug of ours: the client gets a 500, the log the traceback
            logger.exception("a defect in Penstock, at %s /%s", request.method, "/".join(request.segments)[:200].encode())
            response = dialect.answer_refused(request, Refused(500, "the server hit a defect of its own"))
        if request.method == "GET" and dialect.name == Native.name:
            response.headers.setdefault("Cache-Control", "no-store")
        for name, value in NO_PAGE:
            response.headers.setdefault(name, value)
        return response

    def refuse(self, request: Request, refusal: Refused) -> Response:
        return self._dialect(request).answer_refused(request, refusal)

    def note(self, request: Request, response: Response, seconds: float) -> None:
        self.metrics.count_request(self._dialect(request).name, request.method, response.status, seconds)
        if request.queue and response.status < 400 and request.segments[0] not in ("dashboard",):
            self._activity.use(request.queue)
        self._log.write(request, response, seconds)

    def _enter(self, dialect: Dialect, request: Request) -> None:
        grant = request.grant
        if grant.dialects and dialect.name not in grant.dialects and dialect.name != Operators.name:
            raise Refused(403, f"this token may not use the dialect {dialect.name}")
        self.quotas.enter(request)

    def _dialect(self, request: Request) -> Dialect:
        if Sqs.claims(request):
            return self._sqs
        dialect = self._by_segment.get(request.segments[0], self._root)
        if dialect is self._operators and self._page is not None and self._page.claims(request):
            return self._page
        return dialect

    def _route(self, dialect: Dialect, request: Request) -> tuple[Route, dict[str, str]]:
        router = self._routers[dialect.name]
        found = router.find(request.method, request.segments)
        if found is not None:
            return found
        raise dialect.refuse_path(request, ", ".join(router.methods(request.segments)))

    def _gauges(self) -> dict[str, float]:
        return {
            "connections": len(self.connections.open),
            "connections_cut_total": self.connections.cut,
            "held_bytes": self.budget.used,
            "log_lines_dropped_total": self._log.dropped,
            "pending_operations": self.commits.pending,
            "refused_operations_total": self.commits.refused,
            "refused_by_limits_total": self.quotas.refused,
            "resting_polls": self.polls.resting,
            "messages_given_back_total": self.polls.given_back,
            **self.gauges,
            **self._clock_gauges(),
        }

    def _clock_gauges(self) -> dict[str, float]:
        """None if the caller passed a clock of its own, which cannot report steps."""
        clock = self._broker.clock
        if not isinstance(clock, MachineClock | ServerClock):
            return {}
        if isinstance(clock, MachineClock):
            clock.look()
        return {"clock_steps_total": clock.steps, "clock_difference_seconds": clock.difference() / SECOND}

    def start(self) -> None:
        self.jobs.start()
        self._scheduling.start()
        for dialect in self.dialects:
            dialect.start()

    def stop_accepting(self) -> None:
        """Finish the requests that have begun, and accept no more: polls end, and each connection closes after its answer."""
        self.stopping = True
        self.polls.stop()
        self.connections.close_idle()

    async def stop(self) -> None:
        self.stop_accepting()
        await self.connections.finish(self.settings.grace)
        await self.jobs.stop()
        await self._scheduling.stop()
        for dialect in self.dialects:
            await dialect.stop()
        await self.commits.stop()
        self.offload.stop()
        self._log.flush()


def _hosts(settings: ServerSettings) -> str:
    """The names of this server; clients of SQS send requests to the address in the URLs of their queues, too."""
    own = urlsplit(settings.sqs_url.replace("{region}", "*")).hostname or ""
    return f"{settings.hosts},{own}"


def _let_go(error: Exception) -> None:
    """Its frames have what the client has sent, and the operation or the future that has the error: such a circle would stay in
    memory until Python looks for circles."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
