"""Takes the messages of one queue for a consumer of kombu, in a thread that rests in a long poll while there are none.

    receive ──► ours, in the inbox ──deliver (the consumer's thread)──► unacknowledged ──ack, reject──► the keeper settles it

A channel's prefetch count limits how many are in the inbox or unacknowledged; of those that wait in the inbox there are never
more than BATCH for one consumer.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Any, NamedTuple, Protocol

from penstock.contrib.keeping import delete, release
from penstock.errors import PenstockError, QueueNotFound
from penstock.message import Message
from penstock.queue.protocol import Queue

logger = logging.getLogger("penstock")
BATCH = 10
WAIT = 10.0
"""Seconds of one long poll. A thread that is told to stop gives back what it still receives."""
TOGETHER = 0.002
"""Seconds for which a busy consumer waits, so that one receive takes several messages. It does not wait while it has less to
do than half of what it may have: it would run out of messages."""
ERROR_PAUSE = 1.0


class Incoming(NamedTuple):
    """A message in the inbox."""

    intake: Intake
    message: Message

    def deliver(self) -> None:
        self.intake.owner.deliver(self.intake, self.message)


class Inbox:
    """What was received for a connection of kombu and is to be delivered in its own thread."""

    def __init__(self, ring: Callable[[], object]) -> None:
        """``ring`` is called when something has come."""
        self._ring = ring
        self._arrived: deque[Incoming] = deque()
        self._condition = Condition()

    def put(self, taken: list[Incoming]) -> None:
        with self._condition:
            self._arrived += taken
            self._condition.notify()
        self._ring()

    def get(self, timeout: float | None) -> Incoming | None:
        with self._condition:
            if not self._condition.wait_for(lambda: self._arrived, timeout):
                return None
            return self._arrived.popleft()

    def remove(self, intake: Intake) -> list[Message]:
        """Take out what was received for a consumer that has ended."""
        with self._condition:
            removed = [taken.message for taken in self._arrived if taken.intake is intake]
            self._arrived = deque(taken for taken in self._arrived if taken.intake is not intake)
            return removed

    def __len__(self) -> int:
        return len(self._arrived)


class Owner(Protocol):
    """The channel of an intake."""

    def wait_for_room(self, intake: Intake, patience: float) -> int:
        """How many messages may be received now; 0 if the intake has stopped meanwhile. Waits so many seconds at most for
        half of the room that there can be, and then for any."""

    def keep(self, intake: Intake, messages: list[Message]) -> None:
        """Put them into the inbox, and give back those for which there is no room."""

    def deliver(self, intake: Intake, message: Message) -> None:
        """Hand it to the consumer, in the consumer's own thread."""

    def declare_again(self, queue: str) -> None: ...


class Intake:
    def __init__(
        self,
        owner: Owner,
        name: str,
        queue: Callable[[], Queue],
        visibility: float,
        callback: Callable[[Any], Any],
        *,
        no_ack: bool,
    ) -> None:
        """``name``: kombu's of the queue. ``no_ack``: the consumer acknowledges nothing."""
        self.name = name
        self.callback = callback
        self.no_ack = no_ack
        self.waiting = 0
        """Messages in the inbox; the owner's to change."""
        self.enough = 1
        """The room for which the thread waits; the owner's to change."""
        self.stopped = False
        self.owner = owner
        self._queue = queue
        self._visibility = visibility
        self._thread = Thread(target=self._run, name=f"penstock intake of {name}"[:80], daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        received_at = 0.0
        while room := self.owner.wait_for_room(self, received_at + TOGETHER - time.monotonic()):
            self._survive(self._take, room)
            received_at = time.monotonic()

    def _take(self, room: int) -> None:
        try:
            queue = self._queue()
            messages = queue.receive(room, wait=WAIT, visibility=self._visibility)
            if self.no_ack and messages:
                messages = self._settle(queue, messages)
            if messages:
                self.owner.keep(self, messages)
        except QueueNotFound:
            if not self.stopped:
                self.owner.declare_again(self.name)

    def _settle(self, queue: Queue, messages: list[Message]) -> list[Message]:
        """Returns those to deliver. When we have stopped, they are for the consumer that comes after us."""
        if self.stopped:
            release(queue, messages)
            return []
        delete(queue, messages)
        return messages

    def _survive(self, act: Callable[[int], None], room: int) -> None:
        """Whatever the error, try again: without this thread its consumer would starve."""
        try:
            act(room)
        except PenstockError as error:
            if not self.stopped:
                logger.warning("queue %r cannot be consumed for now: %s", self.name, error)
                time.sleep(ERROR_PAUSE)
        except BaseException:
            logger.exception("queue %r cannot be consumed for now", self.name)
            time.sleep(ERROR_PAUSE)
