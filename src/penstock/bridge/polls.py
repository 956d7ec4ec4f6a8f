"""Long polls without a thread each: a poll that finds nothing waits as a future until its queue changes.

The polls of one queue share one bell (see `penstock.queue.waiting`), which an event of their queue rings. Then one of them
looks; if it succeeds, it wakes the next. As long as some wait, either the bell can ring or one of them looks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.bridge.commits import Commits
from penstock.bridge.taking import Asked, How, Receiver, Room, Taken, Taking
from penstock.broker import LocalBroker
from penstock.message import SECOND, Message


class Polls:
    def __init__(
        self, broker: LocalBroker, commits: Commits, loop: asyncio.AbstractEventLoop, *, max_bytes: int, room: Room
    ) -> None:
        self._broker = broker
        self._taking = Taking(broker, commits, room, max_bytes)
        self._commits = commits
        self._loop = loop
        self._resting: dict[str, deque[asyncio.Future[None]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._bells: dict[str, Callable[[], None]] = {}
        """The bells that have not rung yet."""
        self._stopping = False
        self.keep: Callable[[How, list[Message]], None] = lambda _how, _messages: None
        """Called with messages that were settled when they were received, and whose receiver has left."""
        self.given_back = 0
        """How many messages were claimed for receivers that have left."""

    @property
    def resting(self) -> int:
        return sum(map(len, self._resting.values()))

    async def receive(
        self,
        receiver: Receiver,
        queue: str,
        limit: int,
        wait: float,
        *,
        visibility: float | None = None,
        mode: str | None = None,
        holder: str | None = None,
        unfinished: bool = False,
        together: bool = False,
    ) -> list[Message]:
        """Up to ``limit`` messages; if there are none, wait up to ``wait`` seconds for one."""

        how = How(queue, visibility, mode, holder, unfinished, together)
        key = self._taking.key(how, limit) or f"{id(receiver)} {queue}"
        take, asked = partial(self._taking.take, how), Asked(receiver, limit, wait > 0)
        give_up_at = self._loop.time() + wait
        rested = False
        while True:
            try:
                taken: Taken = await self._commits.share(key, take, asked, undo=partial(self._undo, how), promise=False)
            except BaseException:
                self._wake(queue)  # pass the wake-up on to another poll
                raise
            if taken.messages:
                self._wake(queue)
                return taken.messages
            if self._loop.time() >= give_up_at or self._stopping:
                if queue not in self._bells:
                    self._wake(queue)  # somebody must hear the next event
                return []
            if taken.due is not None:
                self._wake_at(queue, self._loop.time() + (taken.due - self._broker.clock()) / SECOND)
            if self._listen(queue, taken.events):
                receiver.resting = True
                try:
                    await self._rest(queue, give_up_at, first=rested)
                finally:
                    receiver.resting = False
                rested = True
                if self._stopping:
                    return []

    async def exchange(
        self,
        receiver: Receiver,
        queue: str,
        held: Sequence[Any],
        limit: int,
        *,
        visibility: float | None = None,
        holder: str | None = None,
    ) -> tuple[list[bool], list[Message]]:
        """Settle messages, and receive others without waiting for any."""
        how = How(queue, visibility, None, holder, False)
        act = partial(self._taking.exchange, how, receiver, held, limit)
        return await self._commits.run(act, undo=lambda done: self.give_back(done[1]))

    def _undo(self, how: How, taken: Taken) -> None:
        settled = [message for message in taken.messages if message.settled_at is not None]
        if settled:
            self.keep(how, settled)
        self.give_back(taken.messages)

    def give_back(self, messages: list[Message]) -> None:
        """Make messages visible again whose receiver has left, unless they were settled when they were received."""
        messages = [message for message in messages if message.settled_at is None]
        if messages:
            self.given_back += len(messages)
            self._commits.soon(lambda: [message.release() for message in messages])

    async def _rest(self, queue: str, until: float, *, first: bool) -> None:
        future = self._loop.create_future()
        line = self._resting.setdefault(queue, deque())
        line.appendleft(future) if first else line.append(future)
        timer = self._loop.call_at(until, _wake, future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._wake(queue)
            raise
        finally:
            timer.cancel()
            if future in line:
                line.remove(future)
            if not line and self._resting.get(queue) is line:
                del self._resting[queue]
                self._stop_timer(queue)
                if queue in self._bells:
                    self._broker.waiting.leave(queue, self._bells.pop(queue))

    def _listen(self, queue: str, events: int) -> bool:
        """Hang up the bell of this queue. False if something has happened since ``events`` was read."""
        if queue in self._bells:
            return self._broker.waiting.events(queue) == events
        bell = self._bells[queue] = partial(self._ring, queue)
        listens = self._broker.waiting.listen(queue, events, bell)
        if not listens:
            del self._bells[queue]
        return listens

    def _ring(self, queue: str) -> None:
        """Called in any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._answer, queue)

    def _answer(self, queue: str) -> None:
        self._bells.pop(queue, None)
        self._wake(queue)

    def _wake(self, queue: str) -> None:
        """Wake the poll that has waited longest."""
        line = self._resting.get(queue, ())
        for future in line:
            if not future.done():
                future.set_result(None)
                return

    def _wake_at(self, queue: str, at: float) -> None:
        timer = self._timers.get(queue)
        if timer is None or timer.when() > at or timer.when() <= self._loop.time():
            self._stop_timer(queue)
            self._timers[queue] = self._loop.call_at(at, self._wake, queue)

    def _stop_timer(self, queue: str) -> None:
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()

    def stop(self) -> None:
        """End every poll; messages that arrive stay in the queue."""
        self._stopping = True
        for line in self._resting.values():
            for future in line:
                _wake(future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
