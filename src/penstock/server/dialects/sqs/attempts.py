"""ReceiveRequestAttemptId: a receiver that never got its answer asks again and gets the same messages."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from penstock.message import SECOND, Message, Receipt, State, micros
from penstock.server.dialects.base import Core
from penstock.server.dialects.sqs.call import Call

WINDOW = 300 * SECOND
MOST_ATTEMPTS = 10_000
"""Attempts that are remembered, which takes about 20 MB if each has received ten messages."""


class HeldMessage(NamedTuple):
    """A message that was received: its number, its receipt, and until when it was hidden then."""

    number: int
    receipt: Receipt
    visible_at: int


class Attempts:
    """Owns the attempts of the last five minutes at this server. What they have received is read again from the store."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._kept: OrderedDict[tuple[str, str, str], tuple[int, list[HeldMessage]]] = OrderedDict()

    def keep(self, call: Call, attempt: str, messages: list[Message]) -> None:
        now = self._core.broker.clock()
        while self._kept:
            oldest, (at, _) = next(iter(self._kept.items()))
            if len(self._kept) < MOST_ATTEMPTS and now - at <= WINDOW:
                break
            del self._kept[oldest]
        held = [HeldMessage(message.number, message.receipt, message.visible_at) for message in messages]
        self._kept[_key(call, attempt)] = now, held

    async def repeat(self, call: Call, attempt: str, visibility: int | None) -> list[Message]:
        """What this attempt has received, if its receiver holds all of it and has changed nothing; else nothing. The time for
        which it is hidden begins anew."""
        key = _key(call, attempt)
        at, held = self._kept.get(key, (0, []))
        if not held:
            return []
        del self._kept[key]
        if self._core.broker.clock() - at > WINDOW:
            return []
        messages = await self._core.run(lambda: self._read(call.queue or "", held, visibility))
        if messages:
            self.keep(call, attempt, messages)
        return messages

    def _read(self, queue: str, held: list[HeldMessage], visibility: int | None) -> list[Message]:
        """In a thread of commits."""
        home = self._core.broker.queue(queue)
        now = self._core.broker.clock()
        messages: list[Message] = []
        for number, receipt, visible_at in held:
            found = home.scan(number, number + 1, 1)
            if not found or not _is_held(found[0], receipt, visible_at, now):
                return []
            messages += found
        seconds = home.settings.visibility if visibility is None else visibility
        if not all(home.extend_many([receipt for _, receipt, _ in held], seconds)):
            return []
        for message in messages:
            message.visible_at = now + micros(seconds)
        return messages


def _is_held(message: Message, receipt: Receipt, visible_at: int, now: int) -> bool:
    return (
        message.id == receipt.id
        and message.state is State.CONSUMED
        and message.delivery == receipt.delivery
        and message.visible_at == visible_at > now
    )


def _key(call: Call, attempt: str) -> tuple[str, str, str]:
    return call.queue or "", call.request.grant.name, attempt
