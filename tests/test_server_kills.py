"""kill -9 of the service under load, in every dialect and through the client at once: whatever was answered is so."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from threading import Event, Thread

from test_serve import serving

import penstock
from penstock import Broker, PenstockError
from penstock.message import Draft
from penstock.publishing.segments import pack_drafts
from penstock.server.http.multipart import boundary_of, join_parts, split_parts
from penstock.testing.http import Http
from penstock.testing.serving import until

KILLS = 3
EACH = 3
"""Clients of each kind; and how much each kind has sent and deleted before the next kill."""
HOUR = 3600


class Account:
    """What the clients were told."""

    def __init__(self) -> None:
        self.tried: set[str] = set()
        self.sent: set[str] = set()
        self.batches: list[set[str]] = []
        """Those that are sent whole or not at all."""
        self.deleting: set[str] = set()
        self.deleted: set[str] = set()
        self.progress: Counter[tuple[str, str]] = Counter()

    def send(self, kind: str, bodies: list[str], act: Callable[[], object]) -> None:
        """``act`` is false if the answer does not promise anything."""
        self.tried.update(bodies)
        self.batches.append({*bodies})
        if act():
            self.sent.update(bodies)
            self.progress[kind, "sent"] += 1

    def delete(self, kind: str, bodies: Iterable[bytes], act: Callable[[], object]) -> None:
        texts = [body.decode() for body in bodies]
        self.deleting.update(texts)
        if texts and act():
            self.deleted.update(texts)
            self.progress[kind, "deleted"] += 1


Names = Callable[[], str]
"""Each call makes a new body."""


def by_mqs(account: Account, url: str, names: Names, stop: Event) -> None:
    http = Http(url)
    while not stop.is_set():
        body = names()
        account.send("mqs", [body], lambda body=body: http("POST", "/messages/orders", body.encode()).status == 201)  # type: ignore[misc]
        got = http("GET", "/messages/orders", X_MQS_MAX_WAIT_TIME="1")
        if got.status == 200:
            path = f"/messages/{got.headers['x-mqs-message-id']}"
            account.delete("mqs", [got.body], lambda path=path: http("DELETE", path).status == 204)  # type: ignore[misc]


def by_parts(account: Account, url: str, names: Names, stop: Event) -> None:
    http = Http(url)
    while not stop.is_set():
        bodies = [names() for _ in range(4)]
        content_type, parts = join_parts([({}, body.encode()) for body in bodies])
        account.send("parts", bodies, lambda: http("POST", "/messages/orders", parts, Content_Type=content_type).status == 201)  # noqa: B023
        got = http("GET", "/messages/orders", X_MQS_MAX_MESSAGES="3")
        boundary = boundary_of(got.headers.get("content-type", ""))
        if got.status == 200 and boundary:
            for part in split_parts(got.body, boundary, 3):
                path = f"/messages/{part.headers['x-mqs-message-id']}"
                account.delete("parts", [part.body], lambda path=path: http("DELETE", path).status == 204)  # type: ignore[misc]


def by_mqcore(account: Account, url: str, names: Names, stop: Event) -> None:
    http = Http(url)
    while not stop.is_set():
        body = names()
        account.send("MQ-Core", [body], lambda body=body: http("POST", "/orders/messages", body.encode()).status == 201)  # type: ignore[misc]
        got = http("GET", "/orders/messages")
        if got.status == 200:
            path = f"/orders/messages/{got.headers['x-message-id']}"
            account.delete("MQ-Core", [got.body], lambda path=path: http("DELETE", path).status == 204)  # type: ignore[misc]


def by_client(account: Account, url: str, names: Names, stop: Event) -> None:
    with penstock.open(url, timeout=10) as broker:
        queue = broker["orders"]
        held: list[penstock.Message] = []
        while not stop.is_set():
            bodies = [names() for _ in range(4)]
            account.send("client", bodies, lambda: queue.send_many([body.encode() for body in bodies]))  # noqa: B023

            def exchange() -> bool:
                nonlocal held
                deleted, held = queue.exchange(held, 3)
                return all(deleted)

            if held:
                account.delete("client", [message.body for message in held], exchange)
            else:
                held = queue.receive(3, wait=1)


class Once:
    """A writer and a reader whose names survive the server: they go on where they were."""

    def __init__(self) -> None:
        self.batch = 0
        self.bodies: list[str] = []

    def publish(self, account: Account, url: str, names: Names, stop: Event) -> None:
        with penstock.open(url, timeout=10) as broker:
            while not stop.is_set():
                self.bodies = self.bodies or [names() for _ in range(5)]  # else: what was not answered is published again
                account.send("writer", self.bodies, lambda: self._publish(broker))
                self.batch, self.bodies = self.batch + 1, []

    def _publish(self, broker: Broker) -> bool:
        segment = pack_drafts("orders", [Draft(body.encode()) for body in self.bodies])
        broker.stage("writer", self.batch, "only", segment)
        return broker.publish("writer", self.batch, {"only": 5}) in (5, None)

    def read(self, account: Account, url: str, names: Names, stop: Event) -> None:
        with penstock.open(url, timeout=10) as broker:
            queue = broker["orders"]
            while not stop.is_set():
                last = queue.settled_epoch("reader")
                epoch = 0 if last is None else last + 1
                size = queue.claim("reader", epoch, 3, ttl=HOUR).size
                queue.confirm("reader", epoch)
                bodies = [message.body for message in queue.read("reader", epoch)]
                assert len(bodies) == size
                account.delete("reader", bodies, lambda epoch=epoch: queue.settle("reader", epoch))  # type: ignore[misc]


def quietly(work: Callable[[Account, str, Names, Event], None], account: Account, url: str, name: str, stop: Event) -> Thread:
    """Start a client that ends when its server dies: requests in progress then have an unknown outcome."""
    made = Counter[str]()

    def names() -> str:
        made[name] += 1
        return f"{name}-{made[name]}"

    def run() -> None:
        with suppress(OSError, HTTPException, PenstockError):
            work(account, url, names, stop)

    thread = Thread(target=run)
    thread.start()
    return thread


def test_after_kill_9_every_answer_holds_in_every_dialect_and_for_the_client(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders", visibility=HOUR)
    account, once = Account(), Once()
    works = [*[by_mqs, by_parts, by_mqcore, by_client] * EACH, once.publish, once.read]
    senders, receivers = {"mqs", "parts", "MQ-Core", "client", "writer"}, {"mqs", "parts", "MQ-Core", "client", "reader"}
    goals = [(kind, "sent") for kind in senders] + [(kind, "deleted") for kind in receivers]
    for turn in range(KILLS):
        with serving(store, "--access-log", "off") as (process, url):
            stop = Event()
            account.progress.clear()
            clients = [quietly(work, account, url, f"{turn}.{place}", stop) for place, work in enumerate(works)]
            until(lambda: all(account.progress[goal] >= EACH for goal in goals))
            process.kill()
            stop.set()
            for client in clients:
                client.join()
    with penstock.open(store, clock=lambda: time.time_ns() // 1000 + 2 * HOUR * 1_000_000) as broker:
        queue = broker["orders"]
        queue.give_up("reader")
        left: Counter[str] = Counter()
        while messages := queue.receive(1000):
            left.update(message.text for message in messages)
            queue.delete_many(messages)
    assert set(left.values()) == {1}, "messages came twice"
    assert account.sent - account.deleting - left.keys() == set(), "answered sends were lost"
    assert account.deleted & left.keys() == set(), "deleted messages came back"
    assert left.keys() | account.deleting <= account.tried
    for batch in account.batches:
        assert batch & (left.keys() | account.deleting) in (set(), batch), "a batch was sent in part"
