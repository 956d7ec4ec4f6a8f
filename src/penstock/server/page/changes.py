"""The stream of changes, as server-sent events: first what is there, then what changes, at most twice a second.

    retry: 1000

    event: rows
    data: {"at": …, "rows": [ROW…], "gone": [names], "whole": true, "left": 900}     forget what you knew; 900 rows are to come

    event: jobs
    data: {"jobs": [JOB…]}     those that have changed

    event: rows
    data: {"at": …, "rows": [{"name": …, and the fields that have changed}…], "gone": [], "whole": false, "left": 0}

All streams share one counting. A stream holds no backlog: what it tells is looked up when its client takes it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.server.dialects.base import Core
from penstock.server.dialects.native_jobs import show
from penstock.server.http.request_response import EVERYTHING, PIECE, Grant, Refused, Request, Response, Scope
from penstock.server.page.board import seen
from penstock.server.page.counting import INTERNAL, Counting
from penstock.server.page.job_news import JobNews

logger = logging.getLogger("penstock.server")

TURN = 0.5
"""Seconds between two events."""
HEARTBEAT = 10.0
"""Seconds after which a comment shows that the server is there."""
MOST_STREAMS = 100
RETRY = b"retry: 1000\n\n"
MOST_JOBS = 20
"""In one event: a job has a filter of a few hundred bytes."""
ROOM = PIECE - 16 * 1024
"""Bytes of an event after which no row is added."""
HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class ChangeStreams:
    """Owns the streams, and the turns of counting while there are some."""

    def __init__(self, core: Core, counting: Counting) -> None:
        self._core = core
        self.counting = counting
        self.board = counting.board
        self.streams: set[Stream] = set()
        self._turns: asyncio.Task[None] | None = None
        self.jobs = JobNews(core, counting.board)
        self._news: tuple[int, bytes] = (-1, b"")

    def open(self, request: Request, queue: str | None, *, internal: bool) -> Response:
        """The answer that goes on. What there is must have been counted before."""
        if len(self.streams) >= MOST_STREAMS:
            raise Refused(503, f"there are {MOST_STREAMS} streams of changes, the limit", {"Retry-After": "1"})
        self._core.budget.hold(request, 2 * PIECE)
        loop = asyncio.get_running_loop()
        stream = Stream(self, request, queue, loop.time(), internal=internal)
        self.streams.add(stream)
        if self._turns is None or self._turns.done():
            self._turns = loop.create_task(self._take_turns())
        return Response(200, dict(HEADERS), feed=stream)

    async def _take_turns(self) -> None:
        loop = asyncio.get_running_loop()
        while self.streams:
            for stream in self.streams:
                if stream.queue is not None:
                    self._core.activity.use(stream.queue)
            began, before = loop.time(), (self.board.number, self.jobs.number)
            await self.counting.look()
            try:
                await self.jobs.look()
            except (PenstockError, Refused) as error:
                logger.debug("could not look for jobs that have changed: %s", error)
            except Exception:  # a bug of ours; the next turn may succeed
                logger.exception("a defect in Penstock, in a stream of changes")
            for stream in list(self.streams):
                if not stream.still():
                    stream.end()
                elif (self.board.number, self.jobs.number) != before or began >= stream.heartbeat_at:
                    stream.ring(began)
            await asyncio.sleep(max(TURN / 2, began + TURN - loop.time()))

    def news(self) -> bytes:
        """The fields that the last change has changed, for all streams that may see everything."""
        number = self.board.number
        if self._news[0] != number:
            at, grant, rows = self.counting.at, EVERYTHING, self.board.rows
            changed = [(name, fields) for name, fields in self.board.news.items() if not name.startswith(INTERNAL)]
            told = [json.dumps({"name": name, **seen(fields, rows[name], grant, at)}) for name, fields in changed]
            gone = [name for name in self.board.news_gone if not name.startswith(INTERNAL)]
            self._news = (number, self.event(told, gone) if told or gone else b"")
        return self._news[1]

    def event(self, rows: list[str], gone: list[str], *, whole: bool = False, left: int = 0) -> bytes:
        more = f'"gone":{json.dumps(gone)},"whole":{json.dumps(whole)},"left":{left}'
        return f'event: rows\ndata: {{"at":{self.counting.at},"rows":[{",".join(rows)}],{more}}}\n\n'.encode()

    async def stop(self) -> None:
        if self._turns is not None:
            self._turns.cancel()


class Stream:
    """What one client has heard of. Its connection takes it (see `Feed`)."""

    def __init__(self, changes: ChangeStreams, request: Request, queue: str | None, now: float, *, internal: bool) -> None:
        grant: Grant = request.grant
        self.still: Callable[[], bool] = request.still or (lambda: True)
        """Whether its client may still know all this."""
        self.wake: Callable[[], None] = lambda: None
        self.heartbeat_at = now + HEARTBEAT
        self._changes = changes
        self._board = changes.board
        self._grant = grant
        self.queue = queue
        """The only one of which it tells; it is counted in every turn."""
        self._internal = internal
        self._shared = queue is None and not internal and grant.allows_all(Scope.COUNT)
        """It may take what was made for others."""
        self._left: deque[str] = deque()
        """Queues whose rows are to be told."""
        self._gone: list[str] = []
        self._whole = True
        self._first = b""
        self._beats = self._ended = False
        self._now = now
        self._number = self._jobs = 0
        self._begin()

    def _begin(self) -> None:
        self._whole = True
        self._number = self._board.number
        self._gone = []
        self._left = deque(name for name in sorted(self._board.rows) if self._tells(name))
        self._first = RETRY

    def _tells(self, name: str) -> bool:
        if self.queue is not None:
            return name == self.queue
        return (self._internal or not name.startswith(INTERNAL)) and self._grant.allows(Scope.COUNT, name)

    def ring(self, now: float) -> None:
        """There may be something to tell, or it is time for a sign of life."""
        self._beats = now >= self.heartbeat_at
        self._now = now
        self.wake()

    def end(self) -> None:
        self._ended = True
        self.wake()

    def take(self) -> bytes | None:
        if self._ended:
            return b""
        first, self._first = self._first, b""
        piece = first + self._next()
        if not piece and self._beats:
            piece = b":\n\n"
        if piece:
            self._beats = False
            self.heartbeat_at = self._now + HEARTBEAT
        return piece or None

    def _next(self) -> bytes:
        """What is to be told now; empty if nothing is."""
        if not self._left and not self._gone and not self._whole and self._board.number != self._number:
            news = self._catch_up()
            if news:
                return news
        if self._left or self._gone or self._whole:
            return self._rows()
        return self._tell_jobs() if self._changes.jobs.number != self._jobs else b""

    def _catch_up(self) -> bytes:
        """Take over what has changed. Returns the event, if it is the same as for others."""
        number, self._number = self._number, self._board.number
        if number < self._board.floor:
            self._begin()
        elif self._shared and number == self._board.number - 1:
            news = self._changes.news()
            if len(news) <= PIECE:
                return news
            self._left = deque(name for name in self._board.news if self._tells(name))
            self._gone = [name for name in self._board.news_gone if self._tells(name)]
        else:
            changed, gone = self._board.since(number)
            self._left = deque(name for name in changed if self._tells(name))
            self._gone = [name for name in gone if self._tells(name)]
        return b""

    def _tell_jobs(self) -> bytes:
        """Empty if they are all of queues that this stream does not tell of."""
        jobs = [job for job in self._changes.jobs.since(self._jobs) if self._tells(job.queue)]
        self._jobs = self._changes.jobs.number
        told = json.dumps({"jobs": [show(job, self._grant) for job in jobs[-MOST_JOBS:]]})
        return f"event: jobs\ndata: {told}\n\n".encode() if jobs else b""

    def _rows(self) -> bytes:
        """Whole rows, as many as fit."""
        rows: list[str] = []
        size = 0
        while self._left and size < ROOM:
            row = self._board.rows.get(self._left.popleft())
            if row is not None:
                rows.append(json.dumps(seen(row, row, self._grant, self._changes.counting.at)))
                size += len(rows[-1])
        gone, whole = self._gone[:50], self._whole
        self._gone, self._whole = self._gone[50:], False
        return self._changes.event(rows, gone, whole=whole, left=len(self._left))

    def close(self) -> None:
        self._changes.streams.discard(self)
