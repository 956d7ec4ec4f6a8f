"""The backend of a store that this process has open, on the bridge that the server has: verbs share commits, and long polls
rest without threads."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from penstock.aio.backend import Unseen
from penstock.bridge.commits import Commits
from penstock.bridge.polls import Polls
from penstock.bridge.taking import How, Unbounded
from penstock.bridge.verbs import BridgedVerbs
from penstock.broker import LocalBroker
from penstock.errors import BadInput, StoreClosed
from penstock.message import Message, Mode, Receipt
from penstock.queue.queue import LocalQueue
from penstock.queue.sending import Batch

LOOKS = frozenset(
    {"peek", "settled", "span", "scan", "stats", "pulse", "read", "readers", "settled_epoch", "sismember", "scard", "settings"}
    | {"find"}
)
"""Verbs that change nothing, and need no commit of their own."""


class Waiter:
    """A task that receives; see `penstock.bridge.taking.Receiver`."""

    __slots__ = ("copies", "held", "resting")

    def __init__(self) -> None:
        self.resting, self.copies, self.held = False, 1, 0


class Embedded:
    """Owns the broker, and the threads in which its store is called."""

    def __init__(self, broker: LocalBroker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._commits = Commits(broker, loop, max_pending=None, tasks=True)
        self._polls = Polls(broker, self._commits, loop, max_bytes=sys.maxsize, room=Unbounded())
        self._polls.keep = self._keep
        self._verbs = BridgedVerbs(broker, self._commits)
        self._closed = False
        self.unseen = Unseen(self.give_back)

    async def call(self, queue: str, verb: str, *arguments: Any, **named: Any) -> Any:
        self._check()
        if verb in ("send_many", "send_once"):
            batch = Batch(*arguments, **named)
            return (await self._commits.send(queue, batch)).sent if batch.drafts else []
        if verb == "delete_many":
            return await self._verbs.delete_many(queue, *arguments)
        if verb == "purge":
            return await self._verbs.purge(queue)
        return await self._commits.run(
            partial(self._act, queue, verb, arguments, named), promise=verb not in LOOKS, alone=verb == "redrive"
        )

    def _act(self, queue: str, verb: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """In a thread of commits."""
        found = getattr(self._broker.queue(queue), verb)
        return found if verb == "settings" else found(*arguments, **named)

    async def call_broker(self, verb: str, *arguments: Any, **named: Any) -> Any:
        self._check()
        if verb == "delete":
            return await self._verbs.delete_queue(*arguments)
        if verb == "describe":
            store = self._broker.store
            traits = {name: getattr(store, name) for name in ("durable", "ordered", "groups")}
            return traits | {"max_segment": self._broker.max_segment}
        alone = verb in ("stage", "unstage", "publish") or "schedule" in verb
        act: Callable[[], Any] = partial(getattr(self._broker, verb), *arguments, **named)
        if verb == "create":
            await self._commits.run(act)
            return None
        return await self._commits.run(act, promise=not alone and verb != "queues", alone=alone)

    async def receive(self, queue: str, limit: int, wait: float, mode: Mode | None, **terms: Any) -> list[Message]:
        self._check()
        messages = await self._polls.receive(Waiter(), queue, limit, wait, mode=mode, **terms)
        if not messages:
            self._check()
        return messages

    async def exchange(
        self, queue: str, held: Sequence[Receipt | str], limit: int, **terms: Any
    ) -> tuple[list[bool], list[Message]]:
        self._check()
        return await self._polls.exchange(Waiter(), queue, held, limit, **terms)

    async def pop(self, queue: str) -> str | bytes | None:
        self._check()
        act: Callable[[], str | bytes | None] = partial(self._act, queue, "spop", (), {})
        return await self._commits.run(act, undo=partial(self._put_back, queue))

    def _put_back(self, queue: str, member: str | bytes | None) -> None:
        self._commits.soon(partial(self._act, queue, "sadd", (member,), {}))

    def give_back(self, queue: str, held: list[Receipt]) -> None:
        if not self._closed:  # otherwise they are visible again when their visibility ends
            self._commits.soon(partial(self._release, queue, held))

    def _release(self, queue: str, held: list[Receipt]) -> None:
        """In a thread of commits."""
        home: LocalQueue = self._broker.queue(queue)
        for receipt in held:
            home.release(receipt)

    def _keep(self, how: How, messages: list[Message]) -> None:
        self.unseen.leave(how.queue, None if how.mode is None else Mode(how.mode), messages)

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed(f"{self._broker.store} was closed")
        if asyncio.get_running_loop() is not self._loop:
            raise BadInput("this broker was opened in another event loop; open one in each")

    async def close(self) -> None:
        """Finish what has begun, give back what nobody has seen, and close the store."""
        self.unseen.give_back()
        self._closed = True
        self._polls.stop()
        try:
            await self._commits.stop()
        finally:
            self.unseen.close()
            await self._loop.run_in_executor(None, self._broker.close)
