"""Which queues get what is published to an exchange: kept in the store, so that the processes of one store agree.

    queue "kombu.bindings"    a message for each binding, with its hash as the key, so that each is there once:
                              {"exchange": …, "queue": …, "key": the routing key, "expires": seconds | null}

A queue that expires (that of a command which waits for replies, of a monitor, …) is deleted when nobody has received from it
for that long. No process reports to be alive for this: a queue that somebody reads has no old message. One that is empty counts
as forgotten after a day; a consumer whose queue is gone declares it again.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

from penstock.broker import Broker
from penstock.errors import QueueNotFound
from penstock.message import MAX_NUMBER, SECOND, Message
from penstock.policy import is_name
from penstock.queue.protocol import Queue

TABLE = "kombu.bindings"
LEAST_EXPIRES = 60.0
FORGOTTEN_AFTER = 86400.0
CLEAR_EVERY = 60.0


@dataclass(frozen=True, slots=True)
class Binding:
    exchange: str
    queue: str
    key: str
    expires: float | None = None

    def pack(self) -> bytes:
        fields = {"exchange": self.exchange, "queue": self.queue, "key": self.key, "expires": self.expires}
        return json.dumps(fields, sort_keys=True).encode()


def unpack_binding(message: Message) -> Binding | None:
    try:
        fields = json.loads(message.body)
        return Binding(str(fields["exchange"]), str(fields["queue"]), str(fields["key"]), fields["expires"])
    except (ValueError, TypeError, KeyError):
        return None  # somebody else's message in our table


class Bindings:
    """The table of one store. Owns when it was last cleared."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: Queue | None = None
        self._clear_at = 0.0

    def add(self, binding: Binding) -> None:
        body = binding.pack()
        self._table().send(body, content_type="application/json", key=hashlib.sha256(body).hexdigest())

    def remove(self, *, queue: str | None = None, exchange: str | None = None, key: str | None = None) -> None:
        """Remove those that fit everything that is given."""
        table = self._table()
        for message, binding in self._entries():
            if queue in (None, binding.queue) and exchange in (None, binding.exchange) and (key is None or key == binding.key):
                table.delete(message.id)

    def of(self, exchange: str) -> list[Binding]:
        if time.monotonic() >= self._clear_at:
            self.clear()
        return [binding for _, binding in self._entries() if binding.exchange == exchange]

    def clear(self) -> None:
        """Delete the queues that have expired, and their bindings."""
        self._clear_at = time.monotonic() + CLEAR_EVERY
        gone: set[str] = set()
        for message, binding in self._entries():
            if binding.expires is not None and (binding.queue in gone or self._has_expired(binding, message)):
                if binding.queue not in gone:
                    gone.add(binding.queue)
                    delete_queue(self._broker, binding.queue)
                self._table().delete(message.id)

    def _has_expired(self, binding: Binding, message: Message) -> bool:
        assert binding.expires is not None
        try:
            pulse = self._broker.queue(queue_name(binding.queue)).pulse()
        except QueueNotFound:
            return True
        if pulse.due_at is not None:
            return pulse.at - pulse.due_at > max(binding.expires, LEAST_EXPIRES) * SECOND
        return pulse.at - message.sent_at > max(binding.expires, FORGOTTEN_AFTER) * SECOND

    def _entries(self) -> list[tuple[Message, Binding]]:
        return [(message, binding) for message in self._table().scan() if (binding := unpack_binding(message))]

    def _table(self) -> Queue:
        if self._known is None:
            self._known = self._broker.create(TABLE, exist_ok=True, retention=MAX_NUMBER, deduplicate=True)
        return self._known


def delete_queue(broker: Broker, queue: str) -> None:
    with suppress(QueueNotFound):  # another process did so first
        broker.delete(queue_name(queue))


def queue_name(queue: str) -> str:
    """A name of kombu's as a name that a queue can have; one that a queue cannot have is written as in a URL."""
    if is_name(queue) and "%" not in queue:
        return queue
    written = quote(queue, safe="@", errors="surrogatepass")
    return f"%2E{written[1:]}" if written.startswith(".") else written
