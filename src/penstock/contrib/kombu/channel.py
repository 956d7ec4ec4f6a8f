"""A channel of kombu on a store of Penstock: publishing, consuming, acknowledging and declaring."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments

from penstock.contrib.keeping import delete, fail, release
from penstock.contrib.kombu.bindings import Binding, delete_queue, queue_name
from penstock.contrib.kombu.envelope import MILLISECONDS, pack, unpack, utc_now
from penstock.contrib.kombu.intake import BATCH, Incoming, Intake
from penstock.errors import QueueNotFound
from penstock.forking import watch
from penstock.message import MAX_NUMBER, SECOND, Message, Mode
from penstock.queue.protocol import Queue

if TYPE_CHECKING:
    from penstock.contrib.kombu.sharing import SharedStore

LOOK = 1000
"""Messages of a queue that a purge looks at, and deletes, at a time."""
reject = fail("rejected")


@dataclass(frozen=True, slots=True)
class Declared:
    """A queue as kombu's user declared it. ``expires``, ``ttl``: seconds."""

    name: str
    auto_delete: bool
    expires: float | None
    ttl: float | None


class Channel(virtual.Channel):
    """Owns its consumers, and the messages that are delivered and not acknowledged yet."""

    closed: bool
    supports_fanout = True
    body_encoding = None
    from_transport_options = ("deadletter_queue",)

    def __init__(self, connection: Any, **options: Any) -> None:
        super().__init__(connection, **options)
        self._shared: SharedStore = connection.shared
        self._intakes: dict[str, Intake] = {}
        self._unacked: dict[str, Message] = {}
        self._declared: dict[str, Declared] = {}
        self._bound: set[Binding] = set()
        self._prefetch = 0
        self._used = 0
        """Messages that count for the prefetch: in the inbox, or not acknowledged."""
        self._changed = Condition()
        watch(self)

    def before_fork(self) -> None:
        self._changed.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:  # what is held, and the threads that receive, are the parent's
            self._changed = Condition()
            self._unacked.clear()
            self._intakes.clear()
        else:
            self._changed.release()

    # declaring

    def prepare_queue_arguments(self, arguments: Any, **options: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **options)

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, auto_delete: bool = False, arguments: Any = None, **_: Any
    ) -> Any:
        queue = queue or f"amq.gen-{uuid4()}"
        if not passive:
            given = arguments or {}
            self._declare(Declared(queue, auto_delete, _seconds(given, "x-expires"), _seconds(given, "x-message-ttl")))
        try:
            return queue_declare_ok_t(queue, self._size(queue), 0)
        except QueueNotFound:
            raise ChannelError(f"NOT_FOUND - no queue {queue!r}", (50, 10), "Channel.queue_declare", "404") from None

    def _declare(self, declared: Declared) -> None:
        self._declared[declared.name] = declared
        self._create(declared.name)
        if declared.expires is not None:
            self._bind(Binding("", declared.name, declared.name, declared.expires))

    def declare_again(self, queue: str) -> None:
        """It was deleted while we consume from it."""
        self._create(queue)
        for binding in [binding for binding in self._bound if binding.queue == queue]:
            self._bind(binding)

    def _create(self, queue: str) -> Queue:
        broker, visibility = self._shared.broker, self._shared.visibility
        return broker.create(queue_name(queue), exist_ok=True, retention=MAX_NUMBER, visibility=visibility)

    def _bind(self, binding: Binding) -> None:
        self._bound.add(binding)
        self._shared.bindings.add(binding)

    def queue_bind(self, queue: str, exchange: str | None = None, routing_key: str = "", *_: Any, **__: Any) -> None:
        declared = self._declared.get(queue)
        self._bind(Binding(exchange or "amq.direct", queue, routing_key or "", declared.expires if declared else None))

    def queue_unbind(self, queue: str, exchange: str | None = None, routing_key: str = "", *_: Any, **__: Any) -> None:
        exchange = exchange or "amq.direct"
        self._bound = {each for each in self._bound if (each.queue, each.exchange, each.key) != (queue, exchange, routing_key)}
        self._shared.bindings.remove(queue=queue, exchange=exchange, key=routing_key or "")

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        with suppress(QueueNotFound):
            if if_empty and self._size(queue):
                return
        self._declared.pop(queue, None)
        self._bound = {each for each in self._bound if each.queue != queue}
        self._shared.bindings.remove(queue=queue)
        delete_queue(self._shared.broker, queue)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Its queues stay, as with a broker of AMQP."""
        self._shared.bindings.remove(exchange=exchange)
        self.state.exchanges.pop(exchange, None)

    def list_bindings(self) -> Any:
        return (
            (each.queue, exchange, each.key) for exchange in self.state.exchanges for each in self._shared.bindings.of(exchange)
        )

    def get_table(self, exchange: str) -> Any:
        prepare = self.typeof(exchange).prepare_bind
        return [prepare(each.queue, exchange, each.key, None) for each in self._shared.bindings.of(exchange)]

    # publishing

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        """As with a broker of AMQP, what is sent to a queue that does not exist is dropped, such as a reply that comes too
        late. A task of Celery is not."""
        draft = pack(message, utc_now())
        try:
            self._queue(queue).send_many([draft])
        except QueueNotFound:
            if "task" in message["headers"]:
                self._create(queue).send_many([draft])

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any) -> None:
        for _key, _pattern, queue in self.get_table(exchange):
            self._put(queue, message)

    def _queue(self, queue: str) -> Queue:
        return self._shared.queue(queue_name(queue))

    # looking

    def _size(self, queue: str) -> int:
        """Without those that consumers hold, as a broker of AMQP counts."""
        stats = self._queue(queue).stats()
        return stats.messages - stats.in_flight

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return queue_name(queue) in self._shared.broker

    def _purge(self, queue: str) -> int:
        """Also tasks that wait for their instant, and without those that consumers hold: these are not lost if one dies."""
        found, purged = self._queue(queue), 0
        while waiting := found.peek(LOOK, state="queued"):
            deleted = sum(found.delete_many([message.receipt for message in waiting]))
            purged += deleted
            if not deleted:
                break  # a consumer was faster each time
        return purged

    # consuming

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        with self._changed:
            self._prefetch = prefetch_count
            self._changed.notify_all()

    def basic_consume(self, queue: str, no_ack: bool, callback: Callable[[Any], Any], consumer_tag: str, **_: Any) -> str:
        tag = consumer_tag or str(uuid4())
        intake = Intake(self, queue, lambda: self._queue(queue), self._shared.visibility, callback, no_ack=no_ack)
        self._intakes[tag] = intake
        self._consumers.add(tag)
        intake.start()
        return tag

    def basic_cancel(self, consumer_tag: str) -> None:
        intake = self._intakes.pop(consumer_tag, None)
        self._consumers.discard(consumer_tag)
        if intake is None:
            return
        with self._changed:
            intake.stopped = True
            left = self.connection.inbox.remove(intake)
            self._used -= 0 if intake.no_ack else len(left)
            self._changed.notify_all()
        if left and not intake.no_ack:
            self._shared.keeper(queue_name(intake.name)).done(release, *left)
        self._shared.wake(queue_name(intake.name))
        declared = self._declared.get(intake.name)
        if declared is not None and declared.auto_delete and all(each.name != intake.name for each in self._intakes.values()):
            self.queue_delete(intake.name)

    def wait_for_room(self, intake: Intake, patience: float) -> int:
        with self._changed:
            most = BATCH if intake.no_ack or not self._prefetch else min(BATCH, self._prefetch)
            self._wait_for(intake, (most + 1) // 2, max(0.0, patience))
            self._wait_for(intake, 1, None)
            return 0 if intake.stopped else self._room(intake)

    def _wait_for(self, intake: Intake, enough: int, seconds: float | None) -> None:
        intake.enough = enough
        self._changed.wait_for(lambda: intake.stopped or self._room(intake) >= enough, seconds)

    def _wake(self) -> None:
        """Wake those that wait for room if there is enough. Otherwise they would only look, at each acknowledgement."""
        if any(self._room(intake) >= intake.enough for intake in list(self._intakes.values())):
            self._changed.notify_all()

    def _room(self, intake: Intake) -> int:
        room = BATCH - intake.waiting
        return room if intake.no_ack or not self._prefetch else min(room, self._prefetch - self._used)

    def keep(self, intake: Intake, messages: list[Message]) -> None:
        if not intake.no_ack:
            self._shared.keeper(queue_name(intake.name)).hold(messages)
        with self._changed:
            kept = [] if intake.stopped else messages[: max(0, self._room(intake))]
            intake.waiting += len(kept)
            self._used += 0 if intake.no_ack else len(kept)
            if kept:
                self.connection.inbox.put([Incoming(intake, message) for message in kept])
        if not intake.no_ack and len(kept) < len(messages):
            self._shared.keeper(queue_name(intake.name)).done(release, *messages[len(kept) :])

    def deliver(self, intake: Intake, message: Message) -> None:
        payload = unpack(message, intake.name)
        with self._changed:
            intake.waiting -= 1
            if not intake.no_ack:
                self._unacked[payload["properties"]["delivery_tag"]] = message
            self._wake()
        delivered = self.Message(payload, channel=self)
        if not self._is_old(intake.name, message):
            intake.callback(delivered)
        elif not intake.no_ack:
            delivered.ack()

    def _is_old(self, queue: str, message: Message) -> bool:
        declared = self._declared.get(queue)
        if declared is None or declared.ttl is None:
            return False
        return self._shared.broker.clock() - message.sent_at > declared.ttl * SECOND

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        how: dict[str, Any] = {"mode": Mode.AT_MOST_ONCE} if no_ack else {"visibility": self._shared.visibility}
        for message in self._queue(queue).receive(1, **how):
            payload = unpack(message, queue)
            if not no_ack:
                self._shared.keeper(queue_name(queue)).hold([message])
                self._unacked[payload["properties"]["delivery_tag"]] = message
                with self._changed:
                    self._used += 1
            return self.Message(payload, channel=self)
        return None

    # acknowledging

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        self._answer(delivery_tag, delete, multiple=multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._answer(delivery_tag, release if requeue else reject)

    def basic_recover(self, requeue: bool = False) -> None:
        if not requeue:
            raise NotImplementedError("a message can be recovered only by putting it back into its queue")
        for tag in list(self._unacked):
            self._answer(tag, release)

    def _answer(self, delivery_tag: str, settle: Any, *, multiple: bool = False) -> None:
        tags = list(self._unacked)
        tags = tags[: tags.index(delivery_tag) + 1] if multiple and delivery_tag in self._unacked else [delivery_tag]
        for tag in tags:
            message = self._unacked.pop(tag, None)
            if message is not None:
                self._settle(settle, message)
                with self._changed:
                    self._used -= 1
                    self._wake()

    def _settle(self, settle: Any, message: Message) -> None:
        self._shared.keeper(message.queue).done(settle, message)

    def close(self) -> None:
        """Cancel the consumers, and give back what was not acknowledged."""
        if self.closed:
            return
        self.closed = True
        for tag in list(self._intakes):
            self.basic_cancel(tag)
        for tag in list(self._unacked):
            self._answer(tag, release)
        if self.connection is not None:
            self.connection.close_channel(self)
        self.exchange_types = None


def _seconds(arguments: dict[str, Any], name: str) -> float | None:
    milliseconds = arguments.get(name)
    return None if milliseconds is None else milliseconds / MILLISECONDS
