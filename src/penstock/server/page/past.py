"""Reads what the servers of a store have written down (see `records`), as far as somebody looks at it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from penstock.errors import QueueNotFound
from penstock.message import SECOND, Message
from penstock.server.budget import room_for
from penstock.server.dialects.base import Core
from penstock.server.page.curves import CurveSample
from penstock.server.page.records import HISTORY, RETENTION, samples_of, unpack

MOST_BYTES = 16 * 1024 * 1024
"""Of records that are kept in memory, as they are stored."""
PART = 8
"""Messages that are read at once."""
LATE = 120 * SECOND
"""A record may become visible so long after one with a later number: another server's commit took long."""
FRESH = 5.0
"""Seconds for which what was read is believed."""
FORGET_AFTER = 600.0


class Kept(NamedTuple):
    place: tuple[int, int]
    body: bytes


class Past:
    """Owns the records that were read, while somebody looks at curves. Used in the event loop."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._kept: dict[str, Kept] = {}
        """By the ids of their messages, in the order of their places."""
        self._bytes = 0
        self._read_at = -FRESH
        self._used_at = 0.0

    async def samples(self, queue: str, since: int) -> list[CurveSample]:
        """What the servers know of a queue since an instant, and what they last knew before."""
        await self._read()
        bodies = [kept.body for kept in self._kept.values()]
        return await self._core.offload.run(len(bodies) * 4096, lambda: list(_find(bodies, queue, since)))

    async def nodes(self, since: int) -> list[dict[str, Any]]:
        """The servers that have written something since an instant, and when they last did."""
        await self._read()
        bodies = [kept.body for kept in self._kept.values() if kept.place[0] >= since]

        def find() -> list[dict[str, Any]]:
            found: dict[str, dict[str, Any]] = {}
            for record in filter(None, map(unpack, bodies)):
                found[record.node["name"]] = {**_short(record.node), "seen_at": record.at}
            return list(found.values())

        return await self._core.offload.run(len(bodies) * 4096, find)

    async def _read(self) -> None:
        """Read what is new."""
        now = time.monotonic()
        self._used_at = now
        if now < self._read_at + FRESH:
            return
        self._read_at = now
        last = max((kept.place for kept in self._kept.values()), default=None)
        after = None if last is None else (last[0] - LATE, 0)
        while True:
            part = await self._core.commits.run(lambda after=after: self._look(after), promise=False)  # type: ignore[misc]
            for message in part:
                self._keep(message)
                after = message.place
            if len(part) < PART:
                break
        old = self._core.broker.clock() - RETENTION * SECOND
        for id in [id for id, kept in self._kept.items() if kept.place[0] < old]:
            self._drop(id)

    def _look(self, after: tuple[int, int] | None) -> list[Message]:
        """In a thread of commits."""
        budget = self._core.budget
        count = budget.take_some(PART, room_for(1), least=PART)
        try:
            return self._core.broker.queue(HISTORY).peek(PART, after=after)
        except QueueNotFound:
            return []
        finally:
            budget.give(count * room_for(1))

    def _keep(self, message: Message) -> None:
        if message.id in self._kept or len(message.body) > MOST_BYTES:
            return
        self._kept[message.id] = Kept(message.place, message.body)
        self._count(len(message.body))
        while self._bytes > MOST_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, id: str) -> None:
        self._count(-len(self._kept.pop(id).body))

    def _count(self, size: int) -> None:
        self._bytes += size
        self._core.budget.count(size)

    def tidy(self) -> None:
        """Forget everything if nobody has looked for a while."""
        if self._kept and time.monotonic() > self._used_at + FORGET_AFTER:
            for id in list(self._kept):
                self._drop(id)


def _find(bodies: list[bytes], queue: str, since: int) -> Iterator[CurveSample]:
    before: CurveSample | None = None
    for record in filter(None, map(unpack, bodies)):
        for sample in samples_of(record, queue):
            if sample.at >= since:
                yield sample
            elif before is None or sample.at > before.at:
                before = sample
    if before is not None:
        yield before


def _short(node: dict[str, Any]) -> dict[str, Any]:
    """Other programs may write to the queue."""
    few = {name: value for name, value in list(node.items())[:10] if isinstance(value, str | int)}
    return {name: value[:200] if isinstance(value, str) else value for name, value in {"name": node["name"], **few}.items()}
