"""kombu by itself: send, receive with long polls, acknowledge, reject, purge, several consumers."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from expecting import PREFIX, REGION, URL, expect, until
from kombu import Connection, Consumer, Producer, Queue

OPTIONS = {
    "region": REGION,
    "is_secure": False,
    "queue_name_prefix": PREFIX,
    "visibility_timeout": 3600,
    "wait_time_seconds": 1,
    "polling_interval": 0,
}


def connect() -> Any:
    return Connection(URL.replace("http://", "sqs://test:test@"), transport_options=OPTIONS)


def simple(connection: Any) -> None:
    with connection.SimpleQueue("simple") as queue:
        for number in range(5):
            queue.put({"number": number, "text": "é\r\n<&>"})
        got = [queue.get(timeout=30) for _ in range(5)]
        expect("the payloads", sorted(message.payload["number"] for message in got), list(range(5)))
        expect("a text", {message.payload["text"] for message in got}, {"é\r\n<&>"})
        got.pop().requeue()
        for message in got:
            message.ack()
        again = queue.get(timeout=30)
        again.ack()
        with suppress(queue.Empty):
            queue.get(block=False)
            raise SystemExit("an acknowledged message came again")
        queue.put("rest")
        queue.clear()
        expect("a purged queue", queue.qsize(), 0)


def consumers(connection: Any) -> None:
    """Two consumers of one queue get each message once."""
    queue = Queue("shared")
    producer = Producer(connection.channel())
    for number in range(40):
        producer.publish({"number": number}, routing_key="shared", declare=[queue], retry=True)
    found: list[int] = []

    def take(payload: dict[str, int], message: Any) -> None:
        found.append(payload["number"])
        message.ack()

    def drain(each: Any) -> None:
        with suppress(socket.timeout):
            each.drain_events(timeout=1)

    with connect() as other, Consumer(connection, [queue], callbacks=[take]), Consumer(other, [queue], callbacks=[take]):
        until("all messages", lambda: [drain(connection), drain(other), len(found) >= 40][-1])
    expect("each message once", sorted(found), list(range(40)))


with connect() as connection:
    simple(connection)
    consumers(connection)
