"""Every queue as a set (SimpleMessageQueue): a member is a message that is in the queue at most once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from penstock import policy
from penstock.clock import Clock
from penstock.errors import BadMessage
from penstock.message import Message, Mode, Sent, Settings
from penstock.queue.waiting import Waiting
from penstock.stores.ports import StoredQueue


class Sets(ABC):
    """The set methods of a `Queue`."""

    name: str
    _stored: StoredQueue
    _waiting: Waiting
    _clock: Clock

    @abstractmethod
    def _decide(self, act: Callable[[Settings], list[Sent] | None]) -> list[Sent]: ...

    @abstractmethod
    def _take(self, limit: int, visibility: float | None, mode: Mode | None) -> list[Message]: ...

    def sadd(self, member: str | bytes) -> bool:
        """Add a member. Returns False if it is already in the set."""
        now = self._clock()
        sent = self._decide(lambda settings: self._stored.insert([policy.admit_member(member, settings, now)], now, settings))
        self._waiting.notify()
        return not sent[0].duplicate

    def spop(self) -> str | bytes | None:
        """Remove and return a member: text if it was added as text, None if the set is empty."""
        for message in self._take(1, None, Mode.AT_MOST_ONCE):
            try:
                return message.text if message.content_type == policy.TEXT else message.body
            except BadMessage:  # a sender labelled bytes as text; they must not be lost
                return message.body
        return None

    def sismember(self, member: str | bytes) -> bool:
        return self._stored.marked(policy.member_mark(member)) > 0

    def scard(self) -> int:
        """The number of members."""
        return self._stored.marked()
