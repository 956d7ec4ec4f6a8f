"""Long polls without a thread each: a poll that finds nothing waits as a future until its queue changes.

One watcher thread serves all polls, and runs only while there are any. This process notifies it of its own changes; it polls
the store for those of other processes. Of the polls that wait on one queue, one looks; if it succeeds, it wakes the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from threading import Event, Thread

from penstock.broker import LocalBroker
from penstock.errors import PenstockError, QueueNotFound, StoreError
from penstock.message import Message
from penstock.policy import MAX_BODY, SECOND
from penstock.queue.queue import LocalQueue
from penstock.server.commits import Commits
from penstock.server.http.request_response import Request

LOOK_AGAIN = 1.0
"""Seconds until the watcher tries again after a failure of the store."""


class Polls:
    def __init__(self, broker: LocalBroker, commits: Commits, loop: asyncio.AbstractEventLoop, *, max_bytes: int) -> None:
        self._broker = broker
        self._max_bytes = max_bytes
        self._commits = commits
        self._loop = loop
        self._resting: dict[str, deque[asyncio.Future[None]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopping = False
        self.given_back = 0
        """How many messages were claimed for clients that disconnected."""
        self._somebody = Event()
        self._thread = Thread(target=self._watch, name="penstock-polls", daemon=True)
        self._thread.start()

    @property
    def resting(self) -> int:
        return sum(map(len, self._resting.values()))

    async def receive(
        self,
        request: Request,
        queue: str,
        limit: int,
        wait: float,
        *,
        visibility: float | None = None,
        mode: str | None = None,
        holder: str | None = None,
        unfinished: bool = False,
    ) -> list[Message]:
        """Up to ``limit`` messages; if there are none, wait up to ``wait`` seconds for one."""

        def take() -> tuple[list[Message], int, int | None]:
            events = self._broker.waiting.events()
            messages = self._receive(self._broker.queue(queue), limit, visibility, mode, holder, unfinished)
            return messages, events, None if messages or not wait else self._broker.store.queue(queue).due()

        give_up_at = self._loop.time() + wait
        rested = False
        while True:
            try:
                messages, events, due = await self._commits.run(
                    take, undo=lambda taken: self.give_back(taken[0]), promise=False
                )
            except BaseException:
                self._wake(queue)  # pass the wake-up on to another poll
                raise
            if messages:
                self._wake(queue)
                return messages
            if self._loop.time() >= give_up_at or self._stopping:
                return []
            if due is not None:
                self._wake_at(queue, self._loop.time() + (due - self._broker.clock()) / SECOND)
            if events == self._broker.waiting.events():
                request.resting = True
                await self._rest(queue, give_up_at, first=rested)
                rested = True

    def _receive(
        self,
        queue: LocalQueue,
        limit: int,
        visibility: float | None,
        mode: str | None,
        holder: str | None,
        unfinished: bool,
    ) -> list[Message]:
        """Receive some at a time, until one answer holds no more messages or bytes."""
        messages: list[Message] = []
        step = max(1, self._max_bytes // MAX_BODY)
        while len(messages) < limit:
            asked = min(limit - len(messages), step)
            try:
                more = queue.receive(asked, visibility=visibility, mode=mode, holder=holder, unfinished=unfinished is True)
            except (StoreError, QueueNotFound):
                if not messages:
                    raise
                break  # keep what was already taken: it may be settled
            messages += more
            again = any(message.visible_at <= (message.received_at or 0) for message in more)  # it would be received twice
            if len(more) < asked or again or sum(len(message.body) for message in messages) >= self._max_bytes:
                break
        return messages

    def give_back(self, messages: list[Message]) -> None:
        """Make messages visible again that no client will receive."""
        if messages:
            self.given_back += len(messages)
            self._commits.soon(lambda: [message.release() for message in messages])

    async def _rest(self, queue: str, until: float, *, first: bool) -> None:
        future = self._loop.create_future()
        line = self._resting.setdefault(queue, deque())
        line.appendleft(future) if first else line.append(future)
        self._somebody.set()
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
            if not self._resting:
                self._somebody.clear()

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

    def _wake_all(self) -> None:
        for queue in list(self._resting):
            self._wake(queue)

    def stop(self) -> None:
        """End every poll; messages that arrive stay in the queue."""
        self._stopping = True
        for line in self._resting.values():
            for future in line:
                _wake(future)
        self._somebody.set()

    def _watch(self) -> None:
        waiting = self._broker.waiting
        seen = waiting.events()
        while not self._stopping:
            self._somebody.wait()
            try:
                waiting.rest(seen, time.monotonic() + LOOK_AGAIN)
            except PenstockError:  # the store is failing; waiting polls see the error when they look
                time.sleep(LOOK_AGAIN)
            if waiting.events() != seen and not self._stopping:
                seen = waiting.events()
                self._loop.call_soon_threadsafe(self._wake_all)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
