"""Every queue as a set (SimpleMessageQueue): a member is a message that is in the queue at most once."""

from __future__ import annotations

from penstock import policy
from penstock.errors import BadMessage, StoreFull
from penstock.message import Mode
from penstock.queue.opened import OpenQueue
from penstock.queue.receiving import Receiving, Terms


class Sets:
    """The members of one queue."""

    def __init__(self, queue: OpenQueue, receiving: Receiving) -> None:
        self._queue = queue
        self._receiving = receiving

    def add(self, member: str | bytes) -> bool:
        queue = self._queue
        now = queue.clock()
        try:
            sent, _ = queue.decide(lambda known: queue.stored.insert([policy.admit_member(member, known, now)], now, known))
        except StoreFull:
            queue.tend_for_space(now)
            raise
        queue.tell()
        return not sent[0].duplicate

    def pop(self) -> str | bytes | None:
        for message in self._receiving.take(1, Terms(mode=Mode.AT_MOST_ONCE)):
            try:
                return message.text if message.content_type == policy.TEXT else message.body
            except BadMessage:  # a sender labelled bytes as text; they must not be lost
                return message.body
        return None

    def has(self, member: str | bytes) -> bool:
        return self._queue.stored.marked(policy.member_mark(member)).lasting > 0

    def size(self) -> int:
        return self._queue.stored.marked().lasting
