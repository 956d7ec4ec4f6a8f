"""What a framework's worker holds of one queue: leases are renewed while it works, and what it is done with is settled.

    receive ──hold──► held, leases renewed ──done──► waiting ──LINGER──► settled by our thread, in one commit with others
                                                       ▲                        │ the store fails
                                                       └──────ERROR_PAUSE───────┘

A framework acknowledges in the thread that also receives, and does not expect to wait for a disk. As with a broker, an
acknowledgement is safe a few milliseconds later; if the process is killed before, the message comes again. While the store is
out of reach, what waits is kept and tried again, so that finished work is done once although the server was restarted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Condition, Thread

from penstock.errors import PenstockError, QueueNotFound, StoreError
from penstock.forking import watch
from penstock.message import Message
from penstock.policy import check_reason
from penstock.queue.protocol import Queue
from penstock.workers.leases import Leases

logger = logging.getLogger("penstock")
LINGER = 0.005
"""Seconds for which a finished message waits for others to share its commit."""
ERROR_PAUSE = 1.0
PATIENCE = 5.0
"""Seconds that a closing process waits for a store that is out of reach."""
Settle = Callable[[Queue, list[Message]], Sequence[bool]]


def delete(queue: Queue, messages: list[Message]) -> Sequence[bool]:
    return queue.delete_many(messages)


def release(queue: Queue, messages: list[Message]) -> Sequence[bool]:
    return [queue.release(message) for message in messages]


def fail(reason: str) -> Settle:
    check_reason(reason)

    def settle(queue: Queue, messages: list[Message]) -> Sequence[bool]:
        return [queue.fail(message, reason) for message in messages]

    return settle


class Keeper:
    """Thread-safe. A forked child holds nothing: what the parent holds is the parent's."""

    def __init__(self, queue: Queue, clock: Callable[[], int], visibility: float) -> None:
        self.queue = queue
        self._clock = clock
        self._visibility = visibility
        self._begin()
        watch(self)

    def _begin(self) -> None:
        self._leases = Leases(self.queue, self._clock, self._visibility)
        self._condition = Condition()
        self._waiting: list[tuple[Settle, Message]] = []
        self._busy = False
        self._end = False
        self._thread: Thread | None = None

    def before_fork(self) -> None:
        self._condition.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._begin()
        else:
            self._condition.release()

    def hold(self, messages: Sequence[Message]) -> None:
        """Renew the leases of these until they are done."""
        self._leases.hold(messages)
        with self._condition:
            self._wake()

    def done(self, settle: Settle, *messages: Message) -> None:
        """Have these settled soon."""
        with self._condition:
            self._waiting += [(settle, message) for message in messages]
            self._wake()

    def flush(self, patience: float = PATIENCE) -> None:
        """Wait until everything that is done is settled."""
        with self._condition:
            if not self._condition.wait_for(lambda: not (self._waiting or self._busy), patience):
                logger.warning(
                    "%d messages of queue %r could not be settled yet, and may come again", len(self._waiting), self.queue.name
                )

    def close(self) -> None:
        """Flush, and end the thread. What is still held lapses."""
        self.flush()
        with self._condition:
            self._end = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(PATIENCE)

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, args=(self._leases,), name="penstock keeper", daemon=True)
            self._thread.start()
        self._condition.notify_all()

    def _run(self, leases: Leases) -> None:
        renew_at = time.monotonic() + leases.renew_every
        while not self._end:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._end, max(0.0, renew_at - time.monotonic()))
                lingers = bool(self._waiting) and not self._end
            if lingers:
                time.sleep(LINGER)
            with self._condition:
                taken, self._waiting = self._waiting, []
                self._busy = bool(taken)
            try:
                left = self._settle(taken, leases) if taken else []
                if time.monotonic() >= renew_at:
                    renew_at = time.monotonic() + leases.renew_every
                    self._renew(leases)
            except BaseException:  # whatever the error, go on: without this thread all leases would lapse
                logger.exception("%d messages of queue %r could not be settled", len(taken), self.queue.name)
                leases.let_go(*(message for _, message in taken))
                left = []
            with self._condition:
                self._waiting = left + self._waiting
                self._busy = False
                self._condition.notify_all()
                if left:
                    self._condition.wait_for(lambda: self._end, ERROR_PAUSE)

    def _settle(self, taken: list[tuple[Settle, Message]], leases: Leases) -> list[tuple[Settle, Message]]:
        """Returns what is left to be tried again."""
        alike: dict[Settle, list[Message]] = {}
        for settle, message in taken:
            alike.setdefault(settle, []).append(message)
        left: list[tuple[Settle, Message]] = []
        for settle, messages in alike.items():
            try:
                answers = settle(self.queue, messages)
            except QueueNotFound:
                answers = [True] * len(messages)  # it was deleted, with them
            except StoreError as error:
                logger.warning("%d messages of queue %r are not settled yet: %s", len(messages), self.queue.name, error)
                left += [(settle, message) for message in messages]
                continue
            leases.let_go(*messages)
            if lost := len(answers) - sum(answers):
                logger.warning(
                    "%d settled messages of queue %r were no longer ours: their leases had lapsed", lost, self.queue.name
                )
        return left

    def _renew(self, leases: Leases) -> None:
        try:
            leases.renew()
        except PenstockError as error:
            logger.warning("the leases of queue %r could not be renewed, and will be again: %s", self.queue.name, error)
