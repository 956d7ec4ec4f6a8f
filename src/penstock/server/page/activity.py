"""What requests do to queues, as far as a page shows it: which queues they use, how many messages come and leave, who receives.

Requests only note it, which costs a fraction of a microsecond; whoever shows it works it out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from math import log
from typing import NamedTuple

from penstock.message import SECOND, Message

MOST_QUEUES = 10_000
"""Queues of which something is noted."""
MOST_RECEIVERS = 1000
"""Connections that receive from one queue, as far as they are told apart."""
RECEIVES_WITHIN = 75.0
"""Seconds after which a connection that asks for no more messages is no consumer any more."""
SAMPLES = 512
"""Durations that a queue remembers, the last ones."""
EACH = 10
"""Messages of one request whose durations are noted."""
MOST_TIMED = 2000
"""Queues whose durations are remembered, at 9 kB each at most."""


class Flow:
    """Messages that this process has put into a queue and taken out of it, since it began to count."""

    __slots__ = ("came", "left")

    def __init__(self) -> None:
        self.came = self.left = 0


class PollingClient(NamedTuple):
    """A connection on which messages are received, under this name."""

    client: object
    holder: str | None


class Activity:
    """Owns what is noted. Used in the event loop only."""

    def __init__(self, open: Collection[object] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """``open``: the connections that are open."""
        self.flows: dict[str, Flow] = {}
        self.catalogue = 0
        """Counts the queues that were created and deleted here."""
        self._open = open
        self._clock = clock
        self._used: set[str] = set()
        self._overflow = False
        self._receivers: dict[str, dict[PollingClient, float]] = {}
        """By queue: when each has last asked."""
        self.waiting = Durations()
        """From the send to the first receive."""
        self.handling = Durations()
        """From a receive until the message is deleted."""

    # what requests note

    def use(self, queue: str) -> None:
        """A request has done something to this queue, or may have."""
        if len(self._used) < MOST_QUEUES:
            self._used.add(queue)
        else:
            self._overflow = True

    def count(self, deed: str, queue: str, number: int) -> None:
        if not number or deed == "received":
            return
        flow = self.flows.get(queue)
        if flow is None:
            if len(self.flows) >= MOST_QUEUES:
                self.flows.clear()
            flow = self.flows[queue] = Flow()
        if deed == "sent":
            flow.came += number
        else:
            flow.left += number

    def receives(self, queue: str, client: object, holder: object) -> None:
        """A connection asks for messages."""
        receivers = self._receivers.setdefault(queue, {}) if len(self._receivers) < MOST_QUEUES else {}
        receiver = PollingClient(client, holder if isinstance(holder, str) else None)
        if receiver in receivers or len(receivers) < MOST_RECEIVERS:
            receivers[receiver] = self._clock()

    def received(self, queue: str, messages: Sequence[Message]) -> None:
        for message in messages[:EACH]:
            if message.receives == 1 and message.received_at is not None:
                self.waiting.add(queue, (message.received_at - message.sent_at) / SECOND)

    def settled(self, queue: str, deliveries: Sequence[int | None], now: int) -> None:
        """Messages were deleted by the receipts of these deliveries, whose numbers are the instants of the claims."""
        for delivery in islice(deliveries, EACH):
            if delivery:
                self.handling.add(queue, (now - delivery) / SECOND)

    # what is made of it

    @property
    def connections(self) -> int:
        return len(self._open)

    def take_used(self) -> tuple[set[str], bool]:
        """The queues that were used since the last call, and whether there were too many to remember."""
        used, overflow = self._used, self._overflow
        self._used, self._overflow = set(), False
        return used, overflow

    def receivers(self, queue: str) -> list[str | None]:
        """Who receives from a queue now: names, and None for each connection that gives none."""
        known = self._receivers.get(queue)
        if not known:
            return []
        since = self._clock() - RECEIVES_WITHIN
        living = {receiver: at for receiver, at in known.items() if at >= since and receiver.client in self._open}
        if living:
            self._receivers[queue] = living
        else:
            del self._receivers[queue]
        named = {receiver.holder for receiver in living if receiver.holder is not None}
        return [*sorted(named), *(None for receiver in living if receiver.holder is None)]

    def forget(self, queue: str) -> None:
        """It is gone."""
        self.flows.pop(queue, None)
        self._receivers.pop(queue, None)
        self.waiting.forget(queue)
        self.handling.forget(queue)


class Durations:
    """The last durations of each queue, in steps of a tenth: a byte would do for each, and a few bytes take them."""

    def __init__(self) -> None:
        self._steps: dict[str, deque[int]] = {}

    def add(self, queue: str, seconds: float) -> None:
        steps = self._steps.get(queue)
        if steps is None:
            if len(self._steps) >= MOST_TIMED:
                self._steps.pop(next(iter(self._steps)))
            steps = self._steps[queue] = deque(maxlen=SAMPLES)
        steps.append(round(log(max(seconds, 1e-6)) * 10))

    def forget(self, queue: str) -> None:
        self._steps.pop(queue, None)

    def percentiles(self, queue: str) -> dict[str, float | int | None]:
        steps = sorted(self._steps.get(queue, ()))
        found: dict[str, float | int | None] = {
            f"p{part}": float(f"{2.718281828459045 ** (steps[min(len(steps) - 1, len(steps) * part // 100)] / 10):.3g}")
            if steps
            else None
            for part in (50, 90, 99)
        }
        return {**found, "count": len(steps)}
