"""A broker of Dramatiq on any store: ``dramatiq.set_broker(PenstockBroker("sqlite:///jobs.db"))``.

    send ──► <queue>, a delayed message visible when it is due ──► a worker's thread ──ack──► deleted
                                                                                  └──nack──► <queue>.XQ, for dead_message_ttl

Dramatiq's other brokers deliver delayed messages at once, through a queue <queue>.DQ, and a worker keeps them until they are
due. Here they wait in the store.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from threading import Condition, RLock
from typing import Any

import penstock
from penstock.contrib.keeping import Keeper, delete, release
from penstock.errors import BadInput, MissingExtra, QueueNotFound, StoreError
from penstock.forking import watch
from penstock.message import MAX_NUMBER, OCTETS, Draft, Message
from penstock.policy import check_seconds
from penstock.queue.protocol import Queue

try:
    import dramatiq
except ImportError:
    raise MissingExtra("penstock.contrib.dramatiq", "dramatiq") from None

from dramatiq import errors
from dramatiq.encoder import JSONEncoder
from dramatiq.message import get_encoder

logger = logging.getLogger("penstock")
VISIBILITY = 30.0
WEEK = 7 * 86400 * 1000
MILLISECONDS = 1000
JOIN_EVERY = 0.1


class PenstockBroker(dramatiq.Broker):
    """``visibility``: seconds until the messages of a worker that was killed come again; one that lives extends them for as
    long as they take. ``dead_message_ttl``: milliseconds for which dead letters are kept. Other options are those of
    `penstock.open`.

    Nothing is opened before the first message is sent or a worker starts."""

    def __init__(
        self,
        url: str,
        *,
        middleware: Any = None,
        visibility: float = VISIBILITY,
        dead_message_ttl: int = WEEK,
        **options: Any,
    ) -> None:
        super().__init__(middleware=middleware)
        self.queues: dict[str, Queue | None] = {}
        self.visibility = check_seconds(visibility, "visibility", 1, BadInput)
        self.dead_message_ttl = check_seconds(dead_message_ttl / MILLISECONDS, "dead_message_ttl", 1, BadInput)
        self._url, self._options = url, options
        self._opened: penstock.Broker | None = None
        self._keepers: dict[str, Keeper] = {}
        self._lock = RLock()
        watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        self._lock.release()

    @property
    def store(self) -> penstock.Broker:
        with self._lock:
            if self._opened is None:
                self._opened = penstock.open(self._url, **self._options)
            return self._opened

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
            keepers, self._keepers = self._keepers, {}
            self.queues = dict.fromkeys(self.queues)
        for keeper in keepers.values():
            keeper.close()
        if opened is not None:
            opened.close()

    def declare_queue(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def queue(self, queue_name: str) -> Queue:
        """The queue of the store, which is created when it is first used."""
        found = self.queues.get(queue_name)
        if found is None:
            if queue_name not in self.queues:
                raise errors.QueueNotFound(queue_name)
            found = self.store.create(queue_name, exist_ok=True, retention=MAX_NUMBER, visibility=self.visibility)
            self.queues[queue_name] = found
        return found

    def keeper(self, queue_name: str) -> Keeper:
        queue = self.queue(queue_name)
        with self._lock:
            if queue_name not in self._keepers:
                self._keepers[queue_name] = Keeper(queue, self.store.clock, self.visibility)
            return self._keepers[queue_name]

    def enqueue(self, message: Any, *, delay: int | None = None) -> Any:
        queue = self.queue(message.queue_name)
        self.emit_before("enqueue", message, delay)
        kind = "application/json" if isinstance(get_encoder(), JSONEncoder) else OCTETS
        draft = Draft(message.encode(), kind, delay=None if delay is None else max(0, delay) / MILLISECONDS)
        try:
            try:
                queue.send_many([draft])
            except QueueNotFound:  # it was deleted since
                self.queues[message.queue_name] = None
                self.queue(message.queue_name).send_many([draft])
        except StoreError as error:
            raise errors.ConnectionClosed(error) from error
        self.emit_after("enqueue", message, delay)
        return message

    def bury(self, queue: Queue, messages: list[Message]) -> Sequence[bool]:
        """Move messages to the queue of dead letters. If this is interrupted between its two steps and done again, the token
        keeps the letter from being there twice."""
        dead = self.store.create(f"{queue.name}.XQ", exist_ok=True, retention=self.dead_message_ttl)
        for message in messages:
            letter = Draft(message.body, message.content_type, message.attributes)
            dead.send_many([letter], token=f"{message.id}-{message.delivery}")
        return queue.delete_many(messages)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> PenstockConsumer:
        return PenstockConsumer(self, queue_name, prefetch, timeout / MILLISECONDS)

    def flush(self, queue_name: str) -> None:
        self.queue(queue_name).purge()

    def flush_all(self) -> None:
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until the queue is empty, for tests; delayed messages count."""
        give_up_at = None if timeout is None else time.monotonic() + timeout / MILLISECONDS
        queue = self.queue(queue_name)
        while queue.stats().messages:
            if give_up_at is not None and time.monotonic() >= give_up_at:
                raise errors.QueueJoinTimeout(queue_name)
            time.sleep(JOIN_EVERY)


class LeasedMessage(dramatiq.MessageProxy):
    """A message of Dramatiq, and the one of the store by which it is settled."""

    def __init__(self, message: Any, held: Message) -> None:
        super().__init__(message)
        self.held = held


class PenstockConsumer(dramatiq.Consumer):
    """Made by `PenstockBroker.consume`, for one thread; other threads acknowledge. Owns what it has prefetched."""

    def __init__(self, broker: PenstockBroker, queue_name: str, prefetch: int, timeout: float) -> None:
        self._broker = broker
        self._queue = broker.queue(queue_name)
        self._keeper = broker.keeper(queue_name)
        self._prefetch = prefetch
        self._timeout = timeout
        self._fetched: deque[Message] = deque()
        self._out: set[int] = set()
        """The messages that workers have, by their identity."""
        self._changed = Condition()

    def __next__(self) -> LeasedMessage | None:
        if not self._fetched and not self._fetch():
            return None
        message = self._fetched.popleft()
        try:
            decoded = dramatiq.Message.decode(message.body)
        except errors.DecodeError as error:
            logger.error(
                "message %s of queue %r is not one of Dramatiq, and a dead letter now: %s", message.id, message.queue, error
            )
            self._keeper.done(self._broker.bury, message)
            return None
        with self._changed:
            self._out.add(id(message))
        return LeasedMessage(decoded, message)

    def _fetch(self) -> bool:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._out) < self._prefetch, self._timeout):
                return False
            room = self._prefetch - len(self._out)
        try:
            messages = self._queue.receive(room, wait=self._timeout, visibility=self._broker.visibility)
        except StoreError as error:
            raise errors.ConnectionClosed(error) from error
        self._keeper.hold(messages)
        self._fetched += messages
        return bool(messages)

    def ack(self, message: Any) -> None:
        self._keeper.done(delete, self._back(message))

    def nack(self, message: Any) -> None:
        self._keeper.done(self._broker.bury, self._back(message))

    def requeue(self, messages: Iterable[Any]) -> None:
        self._keeper.done(release, *map(self._back, messages))

    def _back(self, message: Any) -> Message:
        held: Message = message.held
        with self._changed:
            self._out.discard(id(held))
            self._changed.notify()
        return held

    def close(self) -> None:
        """Give back what no worker has, and wait until all is settled: the process may end now."""
        left, self._fetched = self._fetched, deque()
        self._keeper.done(release, *left)
        self._keeper.flush()
