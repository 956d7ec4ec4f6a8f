"""Messages for people: those that fit a filter, how many they are, in which groups, and one in full. Nothing is claimed.

POST /penstock/queues/{queue}/select          {"filter": {…}, "limit": 50, "after": text, "by": "reason"}
GET  /penstock/queues/{queue}/messages/{id}

With a ``limit``, a selection lists messages in the order of delivery. Without one it counts: all that fit, in the order of
sending, so that none is counted twice because a receiver has hidden it meanwhile. ``by`` (reason, source, age, field:a.b.0)
also counts them by what they have in common. An answer that took long enough is a part, and has ``more``: the next ``after``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from penstock.errors import BadInput
from penstock.message import FOREVER, SECOND, Message, State
from penstock.policy import came_at, check_count
from penstock.queue.queue import LocalQueue
from penstock.server.budget import WIDE, room_for
from penstock.server.dialects.base import Core, Route
from penstock.server.dialects.native_values import weigh_json
from penstock.server.http.request_response import Refused, Request, Response, Scope, answer_json, read_json
from penstock.server.jobs.filters import LONGEST_TEXT, NOTHING, MessageFilter, find_field, read_filter
from penstock.server.page.heads import head_of, in_full
from penstock.stores.ids import number_of

MOST_HEADS = 200
MOST_GROUPS, MOST_VALUES = 50, 10_000
"""Groups in an answer, and those that are counted for it; what is beyond them is counted together."""
GROUP = 1024
"""Bytes that a group takes beside its value, with the filter for its messages."""
SAMPLE = 10
PATIENCE = 1.0
"""Seconds after which an answer is a part."""
SLICE, SECONDS, MOST = 1024 * 1024, 0.005, 10_000
"""Bytes of a slice, judging by the messages before it, how long it may take, and how many messages it has."""
SEARCHED = 50
"""Messages that a search for one looks at, at a time."""
COPIES = 4
"""Of the body of a message in full: as it is, in base64, in the answer and in what is sent."""
AGES = (60, 3600, 86400, 604800)
HINTS = {"damaged": State.DAMAGED, "in_flight": State.CONSUMED}
"""States that a store can look for by itself."""


class Messages:
    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> Sequence[Route]:
        return [
            Route("POST", "/penstock/queues/{queue}/select", Scope.READ, self.select),
            Route("GET", "/penstock/queues/{queue}/messages/{id}", Scope.READ, self.message),
        ]

    async def select(self, request: Request, queue: str) -> Response:
        self._core.budget.hold(request, weigh_json(request.body))
        selection = read_selection(read_json(request.body), self._core.broker.clock())
        end = time.monotonic() + PATIENCE
        while not selection.done and time.monotonic() < end:
            before = selection.weight
            try:
                await self._core.commits.run(partial(self._slice, queue, selection), promise=False)
                self._core.budget.hold(request, selection.weight - before)
            except Refused:
                if not selection.scanned:
                    raise
                break  # there is no room for more: this answer is a part
        return answer_json(200, selection.told())

    def _slice(self, queue: str, selection: Selection) -> None:
        """In a thread of commits: look at some messages, as long as that takes little time."""
        home = self._core.broker.queue(queue)
        end, budget, room = time.monotonic() + SECONDS, self._core.budget, room_for(1)
        while True:
            count = budget.take_some(selection.next_count(), room)
            try:
                selection.look(home, count)
            finally:
                budget.give(count * room)
            if selection.done or time.monotonic() >= end:
                return

    async def message(self, request: Request, queue: str, id: str) -> Response:
        self._core.budget.hold(request, room_for(COPIES))
        now = self._core.broker.clock()
        number = number_of(id)
        for settled in (False, True):
            start, stop = (0, FOREVER) if number is None else (number, number + 1)
            found = await self._find(queue, id, start, stop, settled)
            if found is not None:
                return await self._core.offload.run(len(found.body) * COPIES, partial(_answer_message, found, now))
        raise Refused(404, f"message {id!r:.80} is not in queue {queue!r:.200}: it was deleted, has expired, or was moved")

    async def _find(self, queue: str, id: str, start: int, stop: int, settled: bool) -> Message | None:
        """Most ids tell their number. In stores of files they do not: there, this looks at one message after the other."""
        while start < stop:
            messages = await self._core.commits.run(partial(self._scan, queue, start, stop, settled), promise=False)
            for message in messages:
                if message.id == id:
                    return message
            start = messages[-1].number + 1 if messages else stop
        return None

    def _scan(self, queue: str, start: int, stop: int, settled: bool) -> list[Message]:
        """In a thread of commits. What is found is small, or there is one of it."""
        budget, room = self._core.budget, room_for(1)
        count = budget.take_some(min(stop - start, SEARCHED), room)
        try:
            return self._core.broker.queue(queue).scan(start, stop, count, settled=settled)
        finally:
            budget.give(count * room)


def _answer_message(message: Message, now: int) -> Response:
    return answer_json(200, {"message": in_full(message, now)})


class Selection:
    """What is looked for, how far the look has come, and what it has found."""

    def __init__(self, filter: MessageFilter, now: int, limit: int, by: str | None, after: tuple[int, ...] | None) -> None:
        self._filter = filter
        self._now = now
        self._limit = limit
        self._after = after
        self._by = by
        self._messages: list[dict[str, Any]] = []
        self._sample: list[str] = []
        self._groups: dict[str, Group] = {}
        self._other = 0
        self._count = self.scanned = self._bytes = 0
        self.weight = 0
        """Bytes that the groups take, at most."""
        self.done = False
        self._complete = False

    def next_count(self) -> int:
        """How many messages to look at next: nobody knows the size of the first."""
        if not self.scanned:
            return 4
        most = min(4 * self.scanned, MOST, max(1, SLICE * self.scanned // max(1, self._bytes)))
        return max(1, min(most, self._limit - len(self._messages)) if self._limit and self._filter == MessageFilter() else most)

    def look(self, queue: LocalQueue, count: int) -> None:
        messages = self._list(queue, count) if self._limit else queue.scan(self._after[0] if self._after else 0, limit=count)
        for message in messages:
            self.scanned += 1
            self._bytes += len(message.body) + 500
            if self._filter.fits(message, self._now):
                self._take(message)
            self._after = message.place if self._limit else (message.number + 1,)
            if self._limit and len(self._messages) >= self._limit:
                self.done = True
                return
        if len(messages) < count:
            self.done = self._complete = True

    def _list(self, queue: LocalQueue, count: int) -> list[Message]:
        after = (self._after[0], self._after[1]) if self._after else None
        return queue.peek(count, state=HINTS.get(self._filter.state or ""), after=after)

    def _take(self, message: Message) -> None:
        self._count += 1
        if self._limit:
            self._messages.append(head_of(message, self._now))
        elif len(self._sample) < SAMPLE:
            self._sample.append(message.id)
        if self._by is None:
            return
        value, filter = _group(message, self._by, self._now)
        key = json.dumps(value)
        if key not in self._groups and len(self._groups) >= MOST_VALUES:
            self._other += 1
            return
        if key not in self._groups:
            self._groups[key] = Group(value, filter)
            self.weight += WIDE * (len(key) + len(value or "")) + GROUP
        self._groups[key].add(came_at(message))

    def told(self) -> dict[str, Any]:
        more = None if self._complete or self._after is None else ".".join(map(str, self._after))
        said = {
            "count": self._count,
            "scanned": self.scanned,
            "complete": self._complete,
            "sample": self._sample,
            "more": more,
        }
        if self._limit:
            said["messages"] = self._messages
        if self._by is not None:
            groups = sorted(self._groups.values(), key=lambda group: -group.count)
            rest = sum(group.count for group in groups[MOST_GROUPS:])
            said |= {"groups": [group.told() for group in groups[:MOST_GROUPS]], "other": self._other + rest}
        return said


class Group:
    """Messages that have something in common; ``filter`` selects them, if one can."""

    __slots__ = ("count", "filter", "newest_at", "oldest_at", "value")

    def __init__(self, value: str | None, filter: dict[str, Any] | None) -> None:
        self.value = value
        self.filter = filter
        self.count = 0
        self.oldest_at = self.newest_at = 0

    def add(self, came: int) -> None:
        self.oldest_at = min(self.oldest_at, came) if self.count else came
        self.newest_at = max(self.newest_at, came)
        self.count += 1

    def told(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("value", "filter", "count", "oldest_at", "newest_at")}


def _group(message: Message, by: str, now: int) -> tuple[str | None, dict[str, Any] | None]:
    """The value by which a message is counted, in words, and the filter that selects its like."""
    if by == "age":
        age = (now - came_at(message)) / SECOND
        younger = next((edge for edge in AGES if age < edge), None)
        older = max((edge for edge in AGES if age >= edge), default=None)
        bounds = {"older_than": older, "younger_than": younger}
        return f"{older or 0}-{younger or ''}", {name: bound for name, bound in bounds.items() if bound is not None}
    if by in ("reason", "source"):
        death = message.death
        value = None if death is None else death.reason if by == "reason" else death.queue
        return value, {by: value} if value and len(value) <= LONGEST_TEXT else None
    path = by.removeprefix("field:")
    found = find_field(message.body, path)
    if found is NOTHING:
        return None, None
    try:
        text = json.dumps(found, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        return None, None
    except ValueError:  # Python reads NaN, and no browser does
        return str(found)[:LONGEST_TEXT], None
    return text[:LONGEST_TEXT], {"field": path, "equals": found} if len(text) < LONGEST_TEXT / 6 else None


def read_selection(given: Any, now: int) -> Selection:
    """What a client asks for; `BadInput` names what is wrong."""
    if not isinstance(given, dict):
        raise BadInput('the body must be {"filter": {…}}')
    for name in given:
        if name not in ("filter", "limit", "after", "by"):
            raise BadInput(f"a selection has no {name!r:.80}; there are filter, limit, after, by")
    limit = check_count(given.get("limit") or 0, "limit", 0, MOST_HEADS)
    by = given.get("by")
    if by is not None and not (
        isinstance(by, str)
        and (
            by in ("reason", "source", "age") or (by.startswith("field:") and 6 < len(by) <= LONGEST_TEXT and by.isprintable())
        )
    ):
        raise BadInput(f"by {by!r:.80} is not reason, source, age or field:a.b.0")
    return Selection(read_filter(given.get("filter") or {}), now, limit, by, _read_after(given.get("after"), 2 if limit else 1))


def _read_after(after: Any, parts: int) -> tuple[int, ...] | None:
    if after is None:
        return None
    if isinstance(after, str) and len(after) < 64:
        numbers = after.split(".")
        if len(numbers) == parts and all(each.isascii() and each.isdecimal() and int(each) < 2**63 for each in numbers):
            return tuple(map(int, numbers))
    raise BadInput(f"after {after!r:.80} is not the text that the answer before has under more")
