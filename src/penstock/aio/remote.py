"""The backend of a server: the verbs of `penstock.client`, on the connections of an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.aio.backend import Unseen
from penstock.aio.connections import AsyncLine
from penstock.client.broker import BrokerCalls, line_options
from penstock.client.queue import RemoteQueue
from penstock.message import Message, Mode, Receipt
from penstock.publishing.publishing import MAX_SEGMENT


class Remote:
    """Owns the connections to a server."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop, options: dict[str, Any]) -> None:
        self._line = AsyncLine(loop, url, **line_options(url, options))
        self._broker = BrokerCalls(self._line)
        self.unseen = Unseen(self.give_back)

    async def call(self, queue: str, verb: str, *arguments: Any, **named: Any) -> Any:
        self._line.check()
        return await self._line.follow(self._plan(queue, "_read_settings" if verb == "settings" else verb, *arguments, **named))

    def _plan(self, queue: str, verb: str, *arguments: Any, **named: Any) -> Any:
        """What a verb asks for."""
        return getattr(RemoteQueue, verb).__wrapped__(RemoteQueue(queue, self._line), *arguments, **named)

    async def call_broker(self, verb: str, *arguments: Any, **named: Any) -> Any:
        self._line.check()
        answer = await self._line.follow(getattr(BrokerCalls, verb).__wrapped__(self._broker, *arguments, **named))
        if verb == "describe":
            answer["max_segment"] = min(MAX_SEGMENT, int(answer["max_body"]) // 2)
        return answer

    async def receive(self, queue: str, limit: int, wait: float, mode: Mode | None, **terms: Any) -> list[Message]:
        self._line.check()

        async def undo(messages: list[Message]) -> None:
            self.unseen.leave(queue, mode, messages)

        asking = self._plan(queue, "receive", limit, wait=wait, mode=mode, **terms)
        messages: list[Message] = await self._line.follow(asking, undo)
        return messages

    async def exchange(
        self, queue: str, held: Sequence[Receipt | str], limit: int, **terms: Any
    ) -> tuple[list[bool], list[Message]]:
        self._line.check()

        async def undo(answer: tuple[list[bool], list[Message]]) -> None:
            await self._release(queue, [message.receipt for message in answer[1]])

        answer: tuple[list[bool], list[Message]] = await self._line.follow(
            self._plan(queue, "exchange", held, limit, **terms), undo
        )
        return answer

    async def pop(self, queue: str) -> str | bytes | None:
        self._line.check()

        async def undo(member: str | bytes | None) -> None:
            if member is not None:
                await self._line.follow(self._plan(queue, "sadd", member))

        member: str | bytes | None = await self._line.follow(self._plan(queue, "spop"), undo)
        return member

    def give_back(self, queue: str, held: list[Receipt]) -> None:
        self._line.begin(self._release(queue, held))

    async def _release(self, queue: str, held: list[Receipt]) -> None:
        for receipt in held:
            await self._line.follow(self._plan(queue, "release", receipt))

    async def close(self) -> None:
        self.unseen.give_back()
        await self._line.close()
        self.unseen.close()
