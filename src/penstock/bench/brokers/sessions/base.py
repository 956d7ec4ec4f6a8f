"""What a client does, whichever server it talks to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

QUEUE = "bench"
LEASE = 3600
"""Seconds for which a received message stays hidden: longer than any measurement."""


@dataclass(frozen=True, slots=True)
class Held:
    """A received message: its body, and what `Session.settle` needs."""

    body: bytes
    handle: Any


class Session(ABC):
    """One connection. A session that blocks (``threaded``) is given a thread of its own, and shares nothing with the others
    but what its library shares."""

    threaded = False

    @abstractmethod
    async def send(self, bodies: Sequence[bytes]) -> None:
        """Send the messages; they are on stable storage when this returns."""

    @abstractmethod
    async def receive(self, wait: float) -> Held | None:
        """Receive a message; None if none came in ``wait`` seconds."""

    @abstractmethod
    async def settle(self, held: Held) -> None:
        """Acknowledge the message, so that it never comes again."""

    async def wake(self, body: bytes) -> None:
        """Send one message in such a way that a waiting consumer learns of it."""
        await self.send([body])

    async def rest(self) -> None:  # noqa: B027 (most hold nothing)
        """Hold no message that another session may wait for."""

    @abstractmethod
    async def empty(self) -> None:
        """Remove all messages; no other session is at work. Never timed."""

    @abstractmethod
    async def close(self) -> None: ...
