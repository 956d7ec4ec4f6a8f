"""Looking at a queue in slices: an answer is bounded by its bytes, and no slice holds up the commits of others for long.

An answer that had no room for everything says with which arguments to ask for the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock.message import Message, weigh
from penstock.policy import MAX_BATCH, MAX_CLAIM, check_count
from penstock.queue.queue import LocalQueue
from penstock.server.budget import cost, room_for
from penstock.server.dialects.base import Core
from penstock.server.http.request_response import Refused, Request

LIMITS = {"peek": 1, "settled": 100, "scan": MAX_BATCH}
"""How many messages a verb lists if the request does not say."""
LOOKS = frozenset({*LIMITS, "read"})
FIRST, MOST = 4, 10_000
"""Messages of the first slice, whose sizes nobody knows yet, and of any."""
SLICE, SECONDS = 1024 * 1024, 0.005
"""Bytes of a slice, judging by the messages before it, and how long it may take."""
HEAD = 500
"""Bytes of a message without its body and attributes, roughly."""


class PagedLook:
    """One look, and how far it has come."""

    def __init__(self, verb: str, given: dict[str, Any]) -> None:
        self._verb = verb
        self._given = dict(given)
        self.done = False
        if verb == "read":
            check_count(self._given.setdefault("start", 0), "start", 0, MAX_CLAIM)
            if self._given.setdefault("stop", None) is not None:
                check_count(self._given["stop"], "stop", 0, MAX_CLAIM)
        else:
            check_count(self._given.setdefault("limit", LIMITS[verb]), "limit", 1, MAX_BATCH)

    def slice(self, queue: LocalQueue, count: int, call: Callable[..., Any]) -> list[Message]:
        return self._read(queue, count, call) if self._verb == "read" else self._list(queue, count, call)

    def _list(self, queue: LocalQueue, count: int, call: Callable[..., Any]) -> list[Message]:
        asked = min(count, self._given["limit"])
        messages: list[Message] = []
        start, stop = self._given.get("start", 0), self._given.get("stop")
        if self._verb == "scan" and type(start) is int and (stop is None or (type(stop) is int and start + asked < stop)):
            # Most numbers in a row are those of one queue, and they are found at once.
            messages = call(queue.scan, {**self._given, "stop": start + asked, "limit": asked})
            start += asked
        if len(messages) < asked:
            more = {} if start == self._given.get("start", 0) else {"start": start}
            messages += call(getattr(queue, self._verb), {**self._given, **more, "limit": asked - len(messages)})
        self._given["limit"] -= len(messages)
        self.done = len(messages) < asked or self._given["limit"] <= 0
        if messages and self._verb == "scan":
            self._given["start"] = messages[-1].number + 1
        elif messages:
            self._given["after"] = list(messages[-1].place)
        return messages

    def _read(self, queue: LocalQueue, count: int, call: Callable[..., Any]) -> list[Message]:
        start, stop = self._given["start"], self._given["stop"]
        if stop is None:
            call(queue.read, {**self._given, "start": 0, "stop": 0})  # is there such a claim?
            claims = queue.readers().get(self._given.get("reader", ""), [])
            stop = self._given["stop"] = sum(claim.size for claim in claims if claim.epoch == self._given.get("epoch"))
        end = min(stop, start + count)
        messages: list[Message] = call(queue.read, {**self._given, "stop": end})
        self._given["start"], self.done = end, end >= stop
        return messages

    @property
    def place(self) -> tuple[dict[str, Any], bool]:
        """How far it has come."""
        return dict(self._given), self.done

    @place.setter
    def place(self, place: tuple[dict[str, Any], bool]) -> None:
        self._given, self.done = place

    @property
    def more(self) -> dict[str, Any] | None:
        """The arguments that have changed, with which a client gets the rest; None if nothing is left."""
        return None if self.done else {name: self._given[name] for name in CURSORS if name in self._given}


CURSORS = ("start", "after", "limit")


async def look(
    core: Core, request: Request, queue: str, verb: str, given: dict[str, Any], call: Callable[..., Any]
) -> tuple[list[Message], int, dict[str, Any] | None]:
    """The messages, their bytes, and the arguments for the rest."""
    looking = PagedLook(verb, given)
    messages: list[Message] = []
    size, count = 0, FIRST
    while not looking.done and size < core.settings.max_body:
        try:
            part = await core.commits.run(partial(_slice, core, request, looking, queue, count, call), promise=False)
        except Refused:
            if not messages:
                raise
            break  # the budget has no room for more now
        messages += part
        size += sum(map(_size, part))
        room = min(SLICE, core.settings.max_body - size)
        count = max(1, min(4 * count, MOST, room * len(messages) // max(1, size)))
    return messages, size, looking.more


def _slice(core: Core, request: Request, looking: PagedLook, queue: str, count: int, call: Callable[..., Any]) -> list[Message]:
    """In a thread of commits: look at about so many messages, as long as that takes little time."""
    home = core.broker.queue(queue)
    messages: list[Message] = []
    size, end = 0, time.monotonic() + SECONDS
    while True:
        try:
            part = _look(core, request, looking, home, count - len(messages), call)
        except Refused:
            if not messages:
                raise
            return messages
        messages += part
        size += sum(map(_size, part))
        if not part or looking.done or len(messages) >= count or size >= SLICE or time.monotonic() >= end:
            return messages


def _look(
    core: Core, request: Request, looking: PagedLook, queue: LocalQueue, most: int, call: Callable[..., Any]
) -> list[Message]:
    """Nobody knows how large the next messages are, so that there must be room for the largest."""
    room = room_for(1)
    count = core.budget.take_some(most, room, least=min(most, FIRST) if request.held > room else 1)
    taken, before = count * room, looking.place
    try:
        messages = looking.slice(queue, count, call)
        weight = sum(cost(message, request.copies) for message in messages)
        if weight > taken:
            core.budget.take(weight - taken)
            taken = weight
    except BaseException:
        looking.place = before
        core.budget.give(taken)
        raise
    request.held += weight
    core.budget.give(taken - weight)
    return messages


def _size(message: Message) -> int:
    """Bytes of its part of the answer, about."""
    return HEAD + weigh(message)
