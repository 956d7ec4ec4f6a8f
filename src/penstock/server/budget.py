"""One budget of bytes for all that the service holds for its clients: request bodies, answers, decoded values, caches."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from penstock.message import Message, weigh
from penstock.policy import MAX_MESSAGE
from penstock.server.http.request_response import Refused, Request

WIDE = 4
"""Bytes of each character of a text in memory, if one of them is unusual."""
MESSAGE = 2048
"""What a message takes beside its bytes, with its part of the answer."""


class Budget:
    """Counts bytes that are held. The event loop and the threads beside it share one budget."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self.used = 0

    def take(self, count: int) -> None:
        """Count ``count`` bytes more, or raise `Refused` and count nothing if that would pass the limit."""
        with self._lock:
            if self.used + count <= self._most:
                self.used += count
                return
        raise Refused(
            503,
            f"{count} bytes more do not fit: {self.used} of {self._most} bytes (max_memory) are in use",
            {"Retry-After": "1"},
        )

    def hold(self, request: Request, count: int) -> None:
        """As `take`, until the request is answered."""
        self.take(count)
        request.held += count

    def take_some(self, wanted: int, each: int, least: int = 1) -> int:
        """Count as many of ``wanted`` things of ``each`` bytes as fit into three quarters of what is left, or else ``least``.
        Returns how many, or raises `Refused`. (The last quarter is for others.)"""
        with self._lock:
            count = max(least, min(wanted, (self._most - self.used) * 3 // 4 // each))
            if self.used + count * each <= self._most:
                self.used += count * each
                return count
        raise Refused(
            503,
            f"a message may not fit: {self.used} of {self._most} bytes (max_memory) are in use",
            {"Retry-After": "1"},
        )

    def make(self, wanted: int, copies: int) -> int:
        """See `penstock.bridge.taking.Room`."""
        return self.take_some(wanted, room_for(copies))

    def keep(self, made: int, messages: Sequence[Message], copies: int) -> None:
        self.give(made * room_for(copies) - self.cost(messages, copies))

    def cost(self, messages: Sequence[Message], copies: int) -> int:
        return sum(cost(message, copies) for message in messages)

    def count(self, count: int) -> None:
        """Count bytes that exist already, even beyond the limit; whatever asks for more is then refused."""
        with self._lock:
            self.used += count

    def give(self, count: int) -> None:
        with self._lock:
            self.used -= count


def room_for(copies: int) -> int:
    """Bytes that a message may take of which nothing is known yet. A database's driver has it too for a moment."""
    return MESSAGE + max(copies, WIDE) * MAX_MESSAGE


def cost(message: Message, copies: int) -> int:
    """What a message takes of which an answer makes so many copies in all."""
    return MESSAGE + copies * weigh(message)
