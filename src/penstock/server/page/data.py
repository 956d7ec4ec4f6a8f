"""What the page shows, for programs too: GET under /penstock, in JSON.

/penstock/overview                   all queues that a token may count, as rows
/penstock/changes                    the same as a stream (see `changes`)
/penstock/queues/{queue}/summary     one queue: its row, its settings, and who holds its messages
/penstock/queues/{queue}/curve       how it has changed in the last minute, hour or day
/penstock/server                     the server itself
/penstock/pipelines                  Spark streams that report here
/penstock/schedules                  what sends messages again and again
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qsl

from penstock.errors import BadInput, QueueNotFound
from penstock.message import Settings, State
from penstock.pipeline_reports import PipelineBook, read_report
from penstock.server.budget import room_for
from penstock.server.dialects.base import Core, Route, seen_by
from penstock.server.dialects.native_values import answer, read_arguments
from penstock.server.http.request_response import Refused, Request, Response, Scope, answer_json
from penstock.server.page.board import Board, QueueRow, seen
from penstock.server.page.changes import ChangeStreams
from penstock.server.page.counting import INTERNAL, Counting
from penstock.server.page.curves import SPANS, draw
from penstock.server.page.history import QueueHistory
from penstock.server.page.machine import Machine
from penstock.server.page.past import Past

MOST_ROWS = 1000
"""Rows of one answer."""
ROW = 1024
"""Bytes that a row takes in an answer, beside its names."""
SORTS = (
    *("name", "messages", "visible", "in_flight", "delayed", "damaged", "oldest_age"),
    *("rate_in", "rate_out", "dead_letters", "consumers", "readers"),
)
SCHEDULE = ("name", "queue", "cron", "every", "zone", "missed", "paused", "next_at", "last_at", "runs")
MOST_READERS = 100
LARGEST_REPORT = 64 * 1024
REPORTS, REPORT = 8 * 1024 * 1024, 16 * 1024
"""Bytes that the reports of all pipelines take while they are read, and one of them in an answer."""
HELD_PART, HELD_SECONDS = 32, 0.5
"""Messages that are looked at at once for who holds them, and for how long."""


class PageData:
    """Owns the counting for all pages of this server."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._broker = core.broker
        self.counting = Counting(core, Board())
        self._past = Past(core)
        self.history = QueueHistory(core, self.counting, self._past)
        self._book = PipelineBook(core.broker)
        self._machine = Machine(core, self.history, self._past)
        self.changes = ChangeStreams(core, self.counting)

    def routes(self) -> Sequence[Route]:
        return [
            Route("GET", "/penstock/overview", None, self.overview),
            Route("GET", "/penstock/changes", None, self.follow),
            Route("GET", "/penstock/server", None, self.server),
            Route("GET", "/penstock/pipelines", None, self.pipelines),
            Route("GET", "/penstock/schedules", None, self.schedules),
            Route("POST", "/penstock/pipelines/{pipeline}", None, self.report),
            Route("GET", "/penstock/queues/{queue}/summary", Scope.COUNT, self.summary),
            Route("GET", "/penstock/queues/{queue}/curve", Scope.COUNT, self.curve),
        ]

    def start(self) -> None:
        self.history.start()

    async def stop(self) -> None:
        await self.changes.stop()
        await self.history.stop()

    async def overview(self, request: Request) -> Response:
        given = _read_query(request, {"filter", "sort", "limit", "after", "internal"})
        limit = _read_number(given, "limit", MOST_ROWS, 1, MOST_ROWS)
        field = given.get("sort", "name")
        down, field = field.startswith("-"), field.removeprefix("-")
        if field not in SORTS:
            raise BadInput(f"sort is {field!r:.80}; it must be one of {', '.join(SORTS)}, or one of them behind a -")
        _check_counter(request)
        await self._look()
        rows = self._visible(request, given.get("filter", ""), internal=_read_flag(given, "internal"))
        if field == "dead_letters":  # a place in the order must tell no more than the row
            rows = [self._told(request, row) for row in rows]
        places = sorted(((_place(row, field), row["name"]) for row in rows), reverse=down)
        after = _read_place(given["after"], field) if "after" in given else None
        if after is not None:
            places = [place for place in places if (place < after if down else place > after)]
        shown = [self._shown(request, self.counting.board.rows[name]) for _, name in places[:limit]]
        self._core.budget.hold(request, len(shown) * ROW)
        more = json.dumps(places[limit - 1]) if len(places) > limit else None
        return answer_json(200, {"at": self.counting.at, "queues": shown, "more": more, "total": len(rows)})

    def _visible(self, request: Request, part: str, *, internal: bool) -> list[QueueRow]:
        grant, everything = request.grant, request.grant.allows_all(Scope.COUNT)
        part = part.casefold()
        return [
            row
            for name, row in self.counting.board.rows.items()
            if (not part or part in name.casefold())
            and (internal or not name.startswith(INTERNAL))
            and (everything or grant.allows(Scope.COUNT, name))
        ]

    def _told(self, request: Request, row: QueueRow) -> QueueRow:
        return seen(row, row, request.grant, self.counting.at)

    def _shown(self, request: Request, row: QueueRow) -> QueueRow:
        return {**self._told(request, row), "curve": self.history.depths(row["name"], self.counting.at)}

    async def follow(self, request: Request) -> Response:
        given = _read_query(request, {"queue", "internal"})
        _check_counter(request)
        queue = given.get("queue")
        if queue is not None:
            request.grant.check(Scope.COUNT, queue)
            await self._row(queue)
        else:
            await self._look()
        return self.changes.open(request, queue, internal=_read_flag(given, "internal"))

    async def server(self, request: Request) -> Response:
        if not request.grant.allows_all(Scope.COUNT):
            raise Refused(
                403, "this token may not count the messages of all queues: what all clients do together is not for it"
            )
        return answer_json(200, await self._machine.tell(place=request.grant.allows_all(Scope.ADMIN)))

    async def pipelines(self, request: Request) -> Response:
        """Those whose queues the sender may count, all of them."""
        _check_counter(request)
        grant, budget = request.grant, self._core.budget
        budget.take(REPORTS)
        try:
            reports = await self._core.look("pipelines", self._book.all)
        finally:
            budget.give(REPORTS)
        await self._look()
        shown = [
            {**asdict(report), "source": report.reads[0] if len(report.reads) == 1 else None, "lags": self._lags(report.reads)}
            for report in reports
            if grant.allows_all(Scope.COUNT)
            or (report.reads + report.writes and all(grant.allows(Scope.COUNT, name) for name in report.reads + report.writes))
        ]
        budget.hold(request, len(shown) * REPORT)
        return answer_json(200, {"at": self._broker.clock(), "pipelines": shown})

    async def schedules(self, request: Request) -> Response:
        """Those of queues that the sender may count, without what they send."""
        _check_counter(request)
        found = await self._core.look("schedules", self._broker.schedules)
        shown = [each for each in found if request.grant.allows(Scope.COUNT, each.queue)]
        self._core.budget.hold(request, len(shown) * ROW)
        told = [{field: getattr(each, field) for field in SCHEDULE} for each in shown]
        return answer_json(200, {"at": self._broker.clock(), "schedules": told})

    def _lags(self, reads: Sequence[str]) -> dict[str, int]:
        """How many messages wait now in each queue that a pipeline reads, whether or not it runs."""
        rows = self.counting.board.rows
        return {name: rows[name]["visible"] for name in reads if name in rows}

    async def report(self, request: Request, pipeline: str) -> Response:
        """A pipeline tells how it gets on. It may receive from the queues that it reads, and send to those that it writes."""
        if len(request.body) > LARGEST_REPORT:
            raise Refused(413, f"the report has {len(request.body)} bytes, the limit is {LARGEST_REPORT}")
        report = read_report(pipeline, read_arguments(request))
        for scope, queues in ((Scope.RECEIVE, report.reads), (Scope.SEND, report.writes)):
            for queue in queues:
                request.grant.check(scope, queue)
        if not report.reads and not report.writes and not request.grant.allows_all(Scope.RECEIVE):
            raise Refused(403, "this token is not for all queues: the report must say what the pipeline reads or writes")
        await self._core.run(lambda: self._book.put(report))
        return answer(request, None)

    async def _look(self) -> None:
        """Have all queues counted, unless they are all the time, for open streams."""
        await self.counting.look(whole=not self.changes.streams)
        if self.counting.error is not None:
            raise self.counting.error

    async def curve(self, request: Request, queue: str) -> Response:
        given = _read_query(request, {"span"})
        name = given.get("span", "hour")
        if name not in SPANS:
            raise BadInput(f"span is {name!r:.80}; it must be one of {', '.join(SPANS)}")
        await self._row(queue)
        span, now = SPANS[name], self.counting.at
        if name == "minute":
            samples = self.history.recent(queue)
        else:
            samples = await self._past.samples(queue, now - span.length)
            samples += self.history.unwritten(queue, now)
        return answer_json(200, {"queue": queue, "span": name, **draw(samples, span, now)})

    async def _row(self, queue: str) -> QueueRow:
        """The row of one queue, counted now."""
        await self._core.run(lambda: self._broker.queue(queue))
        await self.counting.look(queue)
        if self.counting.error is not None:
            raise self.counting.error
        row = self.counting.board.rows.get(queue)
        if row is None:
            raise QueueNotFound(queue)
        return row

    async def summary(self, request: Request, queue: str) -> Response:
        grant = request.grant
        row = await self._row(queue)
        settings = await self._core.run(lambda: self._broker.queue(queue).settings)
        activity = self._core.activity
        more: QueueRow = {
            "settings": self._settings(request, settings),
            "waiting": activity.waiting.percentiles(queue),
            "handling": activity.handling.percentiles(queue),
            "may": [scope.value for scope in Scope if grant.allows(scope, queue)],
            "holders": None,
            "holders_complete": True,
            "readers": None,
        }
        if grant.allows(Scope.READ, queue):
            more["readers"] = await self._core.run(lambda: self._readers(queue, row["visible"]))
            more["holders"], more["holders_complete"] = await self._holders(queue)
        return answer_json(200, {"at": self.counting.at, **self._shown(request, row), **more})

    def _settings(self, request: Request, settings: Settings) -> QueueRow:
        settings = seen_by(request.grant, settings)
        redrive = settings.redrive
        return {
            "visibility": settings.visibility,
            "retention": settings.retention,
            "delay": settings.delay,
            "deduplicate": settings.deduplicate,
            "redrive": None
            if redrive is None
            else {"dead_letter_queue": redrive.dead_letter_queue, "max_receives": redrive.max_receives},
            "groups": settings.groups,
            "mode": settings.mode.value,
            "history": settings.history,
            "labels": dict(settings.labels),
            "paused": settings.paused,
            "retry": settings.retry and str(settings.retry),
        }

    def _readers(self, queue: str, visible: int) -> list[QueueRow]:
        """In a thread of commits."""
        home = self._broker.queue(queue)
        return [
            {
                "reader": reader,
                "epoch": max((claim.epoch for claim in claims), default=None),
                "messages": sum(claim.size for claim in claims),
                "confirmed": all(claim.confirmed for claim in claims),
                "lapses_at": min((claim.lapses_at for claim in claims if not claim.confirmed), default=None),
                "settled_epoch": home.settled_epoch(reader),
                "lag": visible,
            }
            for reader, claims in list(home.readers().items())[:MOST_READERS]
        ]

    async def _holders(self, queue: str) -> tuple[list[QueueRow], bool]:
        """Who holds messages, and whether all messages in flight were looked at: that has a limit in time."""
        holders: dict[str | None, QueueRow] = {}
        after: tuple[int, int] | None = None
        end = time.monotonic() + HELD_SECONDS
        complete = False
        while not complete and time.monotonic() < end:
            part = await self._core.run(lambda after=after: self._held(queue, after))  # type: ignore[misc]
            for holder, received_at, visible_at, _ in part:
                row = holders.setdefault(holder, {"holder": holder, "messages": 0})
                row["messages"] += 1
                row["oldest_claim_at"] = min(row.get("oldest_claim_at", received_at), received_at)
                row["next_expiry_at"] = min(row.get("next_expiry_at", visible_at), visible_at)
            complete = len(part) < HELD_PART
            after = part[-1][3] if part else after
        for name in await self._core.run(lambda: self._broker.store.roster.living(queue)):
            holders.setdefault(name, {"holder": name, "messages": 0})["registered"] = True
        for receiver in self._core.activity.receivers(queue):
            holders.setdefault(receiver, {"holder": receiver, "messages": 0})["receives"] = True
        ordered = sorted(holders.values(), key=lambda row: (-row["messages"], row["holder"] or ""))
        return ordered[:MOST_ROWS], complete

    def _held(self, queue: str, after: tuple[int, int] | None) -> list[tuple[str | None, int, int, tuple[int, int]]]:
        """In a thread of commits: who holds some messages, and since and until when."""
        budget = self._core.budget
        count = budget.take_some(HELD_PART, room_for(1))
        try:
            messages = self._broker.queue(queue).peek(count, state=State.CONSUMED, after=after)
            now = self._broker.clock()
            return [
                (message.holder, message.received_at or message.delivery, message.visible_at, message.place)
                for message in messages
                if message.visible_at > now
            ]
        finally:
            budget.give(count * room_for(1))


def _check_counter(request: Request) -> None:
    if Scope.COUNT not in request.grant.scopes:
        raise Refused(403, "this token may not count messages")


def _place(row: QueueRow, field: str) -> Any:
    value = row["oldest_at" if field == "oldest_age" else field]
    if field == "oldest_age" and value is not None:
        return -value  # the older, the earlier
    return -(2**62) if value is None else value


def _read_place(text: str, field: str) -> tuple[Any, str]:
    try:
        value, name = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise BadInput(f"after is {text!r:.80}; it must be what an answer had in more") from None
    kinds = str if field == "name" else int | float
    if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, kinds):
        raise BadInput(f"after is {text!r:.80}; it must be what an answer had in more, sorted by {field} too")
    return value, name


def _read_query(request: Request, known: set[str]) -> dict[str, str]:
    try:
        given = dict(parse_qsl(request.query, keep_blank_values=True, max_num_fields=20))
    except ValueError:
        raise BadInput("there are more than 20 parameters") from None
    for name in given:
        if name not in known:
            raise BadInput(f"there is no parameter {name!r:.80}; there are {', '.join(sorted(known))}")
    return given


def _read_number(given: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = given.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        raise BadInput(f"{name} is {text!r:.80}; it must be a number from {least} to {most}")
    return int(text)


def _read_flag(given: dict[str, str], name: str) -> bool:
    text = given.get(name, "false")
    if text not in ("true", "false"):
        raise BadInput(f"{name} is {text!r:.80}; it must be true or false")
    return text == "true"
