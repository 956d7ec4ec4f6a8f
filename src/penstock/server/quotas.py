"""The limits of tokens: how much the clients of each may use together.

Rates and connections are those of this server process. Queues, messages and messages in flight are counted in the store now and
then, and between two counts this process adds what it lets in. So several servers in front of one store, or several long polls
that are answered at once, can pass a limit by what they let in at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from math import ceil
from typing import NoReturn

from penstock.bridge.commits import Commits
from penstock.broker import LocalBroker
from penstock.errors import QueueNotFound
from penstock.server.http.request_response import NO_LIMITS, Grant, Limits, Refused, Request

COUNT_EVERY = 1.0
"""Seconds for which a count of the store is believed."""
SHARE = 20
"""One part in so many of the time goes into counting for one token."""
PART = 20
"""Queues that are counted before other operations get a turn."""
QUEUES, MESSAGES, IN_FLIGHT = "max_queues", "max_messages", "max_in_flight"


class Bucket:
    """Fills at ``rate`` a second, up to what comes in a second."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = max(rate, 1.0)
        self._left = self._most
        self._at = now

    def take(self, count: float, now: float) -> float:
        """Take ``count``. If that is not there, take nothing and return in how many seconds it will be. What is more than ever
        fits is taken from a full bucket, which is then in debt."""
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now
        missing = min(count, self._most) - self._left
        if missing > 0:
            return missing / self._rate
        self._left -= count
        return 0.0


class Usage:
    """What the clients of one token use. (Tokens of one name are counted together.)"""

    def __init__(self, limits: Limits, now: float) -> None:
        self.rate = Bucket(limits.max_rate, now) if limits.max_rate else None
        self.byte_rate = Bucket(limits.max_byte_rate, now) if limits.max_byte_rate else None
        self.limits = limits
        self.queues: frozenset[str] = frozenset()
        self.counted: Counter[str] = Counter()
        """As the store said."""
        self.since: Counter[str] = Counter()
        """Let in and done, less what was deleted, since it was asked."""
        self.pending: Counter[str] = Counter()
        """Let in and not done."""
        self.believed_until = 0.0
        """Until then the last count is believed if there is room."""
        self.rests_until = 0.0
        """Until then it is believed anyway: at its limit, a token must not make the store count all the time."""
        self.counting: asyncio.Future[None] | None = None

    def room(self, what: str) -> int:
        most: int = getattr(self.limits, what)
        return most - self.counted[what] - self.since[what] - self.pending[what]


class Quotas:
    """Owns the counts. Used in the event loop only."""

    def __init__(
        self, broker: LocalBroker, commits: Commits, open: Collection[object], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``open``: the connections that are open."""
        self._broker = broker
        self._commits = commits
        self._open = open
        self._clock = clock
        self._usages: dict[str, Usage] = {}
        self._clients: dict[object, str] = {}
        self.refused = 0

    def enter(self, request: Request) -> None:
        """By the head of a request: refuse a connection too many, or more bytes before the last ones are paid for."""
        grant = request.grant
        if grant.limits is NO_LIMITS:
            return
        most = grant.limits.max_connections
        if most is not None and self._clients.get(request.client) != grant.name:
            self._clients = {client: name for client, name in self._clients.items() if client in self._open}
            if sum(name == grant.name for name in self._clients.values()) >= most:
                self._refuse(grant, "max_connections")
            self._clients[request.client] = grant.name
        usage = self._usage(grant)
        if usage.byte_rate is not None and (wait := usage.byte_rate.take(0, self._clock())):
            self._refuse(grant, "max_byte_rate", wait)

    def admit(self, request: Request) -> None:
        """When a request is there as a whole."""
        if request.grant.limits is NO_LIMITS:
            return
        usage, now = self._usage(request.grant), self._clock()
        if usage.rate is not None and (wait := usage.rate.take(1, now)):
            self._refuse(request.grant, "max_rate", wait)
        if usage.byte_rate is not None and (wait := usage.byte_rate.take(request.length, now)):
            self._refuse(request.grant, "max_byte_rate", wait)

    @asynccontextmanager
    async def adding(self, grant: Grant, what: str, count: int, queue: str = "") -> AsyncIterator[None]:
        """Around what adds so many messages, or this queue, if it is not there already."""
        if not count or getattr(grant.limits, what) is None:
            yield
            return
        usage = await self._counted(grant, what, count)
        if what == QUEUES and queue in usage.queues:
            count = 0
        if count > max(usage.room(what), 0):
            self._refuse(grant, what)
        usage.pending[what] += count
        try:
            yield
            usage.since[what] += count
        finally:
            usage.pending[what] -= count

    async def cap(self, grant: Grant, limit: int, *, settling: int = 0) -> int:
        """How many of ``limit`` messages may be received, after so many were settled."""
        if grant.limits.max_in_flight is None:
            return limit
        usage = await self._counted(grant, IN_FLIGHT, limit)
        room = usage.room(IN_FLIGHT) + settling
        if room < 1:
            self._refuse(grant, IN_FLIGHT)
        return min(limit, room)

    def received(self, grant: Grant, count: int) -> None:
        if grant.limits.max_in_flight is not None:
            self._usage(grant).since[IN_FLIGHT] += count

    def deleted(self, grant: Grant, count: int) -> None:
        if grant.limits is not NO_LIMITS:
            self._usage(grant).since.subtract({MESSAGES: count, IN_FLIGHT: count})

    def _usage(self, grant: Grant) -> Usage:
        usage = self._usages.get(grant.name)
        if usage is None or usage.limits != grant.limits:  # there are no more of them than names of tokens
            usage = self._usages[grant.name] = Usage(grant.limits, self._clock())
        return usage

    async def _counted(self, grant: Grant, what: str, count: int) -> Usage:
        """The usage, counted anew if the last count is old, or if by that there is no room for ``count`` more."""
        usage, now = self._usage(grant), self._clock()
        if now < usage.rests_until or (now < usage.believed_until and usage.room(what) >= count):
            return usage
        if usage.counting is not None:
            await usage.counting
            return usage
        usage.counting = asyncio.get_running_loop().create_future()
        usage.since.clear()
        try:
            names = [name for name in await self._commits.run(self._broker.store.names, promise=False) if grant.knows(name)]
            counted, cost = Counter({QUEUES: len(names)}), 0.0
            if grant.limits.max_messages is not None or grant.limits.max_in_flight is not None:
                for start in range(0, len(names), PART):
                    part = names[start : start + PART]
                    found, seconds = await self._commits.run(lambda part=part: self._count(part), promise=False)  # type: ignore[misc]
                    counted.update(found)
                    cost += seconds
            usage.queues, usage.counted = frozenset(names), counted
            usage.rests_until = self._clock() + SHARE * cost
            usage.believed_until = max(self._clock() + COUNT_EVERY, usage.rests_until)
        finally:
            usage.counting.set_result(None)
            usage.counting = None
        return usage

    def _count(self, names: list[str]) -> tuple[Counter[str], float]:
        """In the thread of commits: the messages of these queues, and how long that took."""
        started, counted = self._clock(), Counter[str]()
        for name in names:
            try:
                stats = self._broker.queue(name).stats()
            except QueueNotFound:  # just deleted
                continue
            counted.update({MESSAGES: stats.messages, IN_FLIGHT: stats.in_flight})
        return counted, self._clock() - started

    def _refuse(self, grant: Grant, what: str, wait: float = 1.0) -> NoReturn:
        self.refused += 1
        limit = getattr(grant.limits, what)
        raise Refused(
            429, f"token {grant.name!r:.80} has reached its limit {what}, {limit}", {"Retry-After": str(max(1, ceil(wait)))}
        )
