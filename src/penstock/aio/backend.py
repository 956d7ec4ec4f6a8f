"""What is behind a broker under asyncio: the bridge of a store in this process, or the connections to a server."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from penstock.aio.message import AsyncMessage
from penstock.message import Message, MessageFields, Mode, Receipt

logger = logging.getLogger("penstock")


class Backend(Protocol):
    """Performs verbs. Whatever a cancelled verb has taken from a queue, it gives back."""

    unseen: Unseen

    async def call(self, queue: str, verb: str, *arguments: Any, **named: Any) -> Any:
        """A verb of a queue."""

    async def call_broker(self, verb: str, *arguments: Any, **named: Any) -> Any: ...

    async def receive(self, queue: str, limit: int, wait: float, mode: Mode | None, **terms: Any) -> list[Message]: ...

    async def exchange(
        self, queue: str, held: Sequence[Receipt | str], limit: int, **terms: Any
    ) -> tuple[list[bool], list[Message]]: ...

    async def pop(self, queue: str) -> str | bytes | None:
        """A member of the queue as a set."""

    def give_back(self, queue: str, held: list[Receipt]) -> None:
        """Release messages that nobody has seen, as soon as possible; no caller waits for it."""

    async def close(self) -> None: ...


class Unseen:
    """Messages that were received, and that no caller has seen: those that a loop over `AsyncQueue.messages` has not come to
    yet; and those that were settled when a receiver took them (at most once) that was cancelled: the next receiver gets them.
    """

    def __init__(self, give_back: Callable[[str, list[Receipt]], None]) -> None:
        """``give_back``: releases messages of a queue, as soon as possible."""
        self._give_back = give_back
        self._held: list[tuple[str, Mode | None, deque[AsyncMessage]]] = []
        self._settled: dict[tuple[str, Mode | None], deque[MessageFields]] = {}

    @contextmanager
    def hold(self, queue: str, mode: Mode | None, left: deque[AsyncMessage]) -> Iterator[None]:
        """Whatever is left in ``left`` in the end is given back; also if the broker is closed first."""
        held = (queue, mode, left)
        self._held.append(held)
        try:
            yield
        finally:
            self._held = [each for each in self._held if each is not held]
            self.leave(*held)

    def leave(self, queue: str, mode: Mode | None, messages: Collection[MessageFields]) -> None:
        """Their receiver has left."""
        settled = [message for message in messages if message.settled_at is not None]
        if settled:
            self._settled.setdefault((queue, mode), deque()).extend(settled)
        if len(settled) < len(messages):
            self._give_back(queue, [message.receipt for message in messages if message.settled_at is None])

    def take(self, queue: str, mode: Mode | None, limit: int) -> list[MessageFields]:
        """What another receiver in the same mode has left."""
        settled = self._settled.get((queue, mode))
        if settled is None:
            return []
        taken = [settled.popleft() for _ in range(min(limit, len(settled)))]
        if not settled:
            del self._settled[queue, mode]
        return taken

    def give_back(self) -> None:
        """The broker is being closed."""
        for queue, mode, left in self._held:
            self.leave(queue, mode, left)
            left.clear()

    def close(self) -> None:
        count = sum(map(len, self._settled.values()))
        if count:
            logger.warning(
                "%d messages, received at most once, are lost: their receivers were cancelled, and no other came", count
            )
