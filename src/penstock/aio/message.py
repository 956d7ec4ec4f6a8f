"""A received message under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Protocol, Self

from penstock.errors import BadMessage
from penstock.message import MessageFields, Receipt, Retried

_values = attrgetter(*(each.name for each in fields(MessageFields)))


class AsyncHome(Protocol):
    """The queue that can settle a delivered message."""

    async def extend(self, message: Receipt, visibility: float) -> bool: ...

    async def release(self, message: Receipt, delay: float = 0, error: str | None = None) -> bool: ...

    async def retry(self, message: AsyncMessage, error: BaseException | str) -> Retried: ...

    async def delete(self, message: Receipt) -> bool: ...

    def let_go(self, message: Receipt) -> None:
        """Release it as soon as possible; no caller waits for it."""


@dataclass(slots=True)
class AsyncMessage(MessageFields):
    """A message, and the verbs of its receiver as coroutines."""

    home: AsyncHome | None = field(default=None, repr=False, compare=False)

    async def extend(self, visibility: float) -> bool:
        """Hide it for this many seconds from now; False if another consumer may hold it by now."""
        return await self._home().extend(self.receipt, visibility)

    async def release(self, delay: float = 0, error: str | None = None) -> bool:
        """Return it to the queue, visible after ``delay`` seconds; False if another consumer may hold it by now. With an
        ``error``, its handler has failed: the message keeps the error, and counts the failure."""
        return await self._home().release(self.receipt, delay, error)

    async def delete(self) -> bool:
        """Delete it: it was processed. False if another consumer may hold it by now."""
        return await self._home().delete(self.receipt)

    async def __aenter__(self) -> Self:
        """``async with message:`` deletes it at the end of the block. If the block raises an error, `AsyncQueue.retry` says
        what becomes of the message; if the task is cancelled, it is released at once."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self.settled_at is not None:
            return
        if error is None:
            await asyncio.shield(self.delete())  # it was processed, and is not to come again
        elif isinstance(error, Exception):
            await asyncio.shield(self._home().retry(self, error))
        else:
            self._home().let_go(self.receipt)

    def _home(self) -> AsyncHome:
        if self.home is None:
            raise BadMessage(f"message {self.id} was not received, only looked at: only a receiver can settle it")
        return self.home


def adopt(messages: Iterable[MessageFields], home: AsyncHome | None) -> list[AsyncMessage]:
    """The same messages, for tasks; without a home if they were only looked at."""
    adopted = [AsyncMessage(*_values(message)) for message in messages]
    for message in adopted:
        message.home = home
    return adopted
