"""A producer gathers messages and sends them to the queue in batches (gq)."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from datetime import datetime
from threading import Condition, Thread
from typing import Any, Self

from penstock import policy
from penstock.errors import BadInput, BadMessage, PenstockError
from penstock.forking import watch
from penstock.message import Draft, Settings, to_datetime
from penstock.queue.protocol import Queue

logger = logging.getLogger("penstock")
ERROR_PAUSE = 1.0


class Producer:
    """Made by `Broker.producer`. Use it in a ``with`` statement, or `close` it, to push the last batch.

    A message is safe when a `flush` after its `push` has returned; `push` itself flushes when ``batch_size`` messages are
    gathered, and a thread flushes when the oldest has waited ``max_delay`` seconds. A flush that fails keeps its messages. The
    next one sends the same batch with the same token, so a batch that did arrive is not added twice. A forked child starts with
    an empty batch; the parent sends what was gathered."""

    def __init__(self, queue: Queue, clock: Callable[[], int], *, batch_size: int = 1, max_delay: float = 0.05) -> None:
        policy.check_count(batch_size, "batch_size", 1, policy.MAX_BATCH, BadInput)
        policy.check_seconds(max_delay, "max_delay", error=BadInput)
        self.queue = queue
        self._clock = clock
        self._batch_size = batch_size
        self._max_delay = max_delay
        self._gathered: list[Draft] = []
        self._sending: tuple[str, list[Draft]] | None = None
        """A token and its batch, until the store has confirmed that the batch is safe."""
        self._oldest = 0.0
        self._condition = Condition()
        self._closed = False
        self._thread: Thread | None = None
        watch(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def push(self, payload: bytes, deadline: float | datetime | None = None, **draft: Any) -> None:
        """Add a message to the next batch; ``deadline`` counts from now. Other fields of a `Draft` are keyword arguments."""
        try:
            made = Draft(payload, deadline=deadline, **draft)
        except TypeError as error:
            raise BadMessage(f"this cannot be a message: {error}") from None
        now = self._clock()
        entry = policy.admit(made, Settings(), now)  # refuse a bad message now, so that it does not spoil the batch
        if entry.deadline_at is not None:
            made = Draft(payload, deadline=to_datetime(entry.deadline_at), **draft)
        with self._condition:
            if self._closed:
                raise BadInput(f"the producer of queue {self.queue.name!r} was closed")
            if not self._waiting():
                self._oldest = time.monotonic()
            self._gathered.append(made)
            if self._waiting() >= self._batch_size:
                self._push()
            elif self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._watch, name="penstock producer", daemon=True)
                self._thread.start()
            else:
                self._condition.notify()

    def flush(self) -> None:
        """Push the gathered messages; when this returns, they are safe."""
        with self._condition:
            self._push()

    def _push(self) -> None:
        while self._waiting():
            if self._sending is None:
                batch, rest = self._gathered[: policy.MAX_BATCH], self._gathered[policy.MAX_BATCH :]
                token = secrets.token_hex(16)
                self._sending, self._gathered = (token, batch), rest
            token, batch = self._sending
            self.queue.send_once(batch, token)
            self._sending = None

    def _waiting(self) -> int:
        """How many messages are not known to be safe."""
        return len(self._gathered) + (len(self._sending[1]) if self._sending else 0)

    def _watch(self) -> None:
        with self._condition:
            while not self._closed:
                if not self._waiting():
                    self._condition.wait()
                elif (left := self._oldest + self._max_delay - time.monotonic()) > 0:
                    self._condition.wait(left)
                else:
                    try:
                        self._push()
                    except PenstockError as error:
                        logger.warning(
                            "%d messages for queue %r could not be pushed yet: %s", self._waiting(), self.queue.name, error
                        )
                        self._oldest = time.monotonic() + ERROR_PAUSE

    def close(self) -> None:
        """Push the gathered messages, and end the thread."""
        with self._condition:
            self._push()
            self._closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def before_fork(self) -> None:
        """Does not take our lock: the thread that holds it may be waiting for the store, which is already quiesced."""

    def after_fork(self, *, child: bool) -> None:
        if child:  # the thread and its batch belong to the parent, which pushes them
            self._condition = Condition()
            self._gathered = []
            self._sending = None
            self._thread = None
