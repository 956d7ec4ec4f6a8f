"""Kombu on Penstock, in this process: routing, acknowledging, prefetching, leases, expiry, outages, forks."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kombu import Connection, Consumer, Exchange, Queue
from kombu.asynchronous import Hub
from kombu.exceptions import ChannelError

import penstock
from penstock.contrib.kombu import bindings, intake
from penstock.contrib.kombu.bindings import queue_name
from penstock.contrib.kombu.sharing import SHARED
from penstock.server import BackgroundServer, ServerSettings
from penstock.testing.clock import FakeClock
from penstock.testing.servers import free_port
from penstock.testing.serving import until

PATIENCE = 60
NEWS, EVENTS = Exchange("news", "fanout"), Exchange("events", "topic")
Connect = Callable[..., Connection]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    made: list[Connection] = []

    def make(**options: Any) -> Connection:
        made.append(Connection(f"penstock+{url}", transport_options=options))
        return made[-1]

    yield make
    for connection in made:
        connection.release()
    assert url not in {key[0] for key in SHARED._open}, "the last connection closes the store"


def drain(connection: Connection, times: int = 1) -> None:
    for _ in range(times):
        connection.drain_events(timeout=PATIENCE)


def collect(connection: Connection, queue: Queue | list[Queue], into: list[Any], **options: Any) -> Consumer:
    queues = queue if isinstance(queue, list) else [queue]
    consumer = Consumer(connection.channel(), queues, on_message=into.append, auto_declare=True, **options)
    consumer.consume()
    return consumer


def in_flight(url: str, queue: str) -> int:
    with penstock.open(url) as broker:
        return broker[queue].stats().in_flight


@pytest.mark.parametrize("store", ["memory", "sqlite", "vsqs", "spool", "memcached", "postgresql", "mariadb", "http"])
def test_kombu_works_on_every_store(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if store == "http":
        with penstock.open(f"sqlite:///{tmp_path}/served.db") as broker, BackgroundServer(broker) as server:
            take_a_round(server.url)
    elif store in ("sqlite", "vsqs", "spool"):
        take_a_round(f"{store}:///{tmp_path}/queue")
    elif store == "memory":
        take_a_round("memory://")
    else:
        take_a_round(request.getfixturevalue(store).new_url())


def take_a_round(url: str) -> None:
    """A task now and one later, a broadcast and a topic, between two connections."""
    with Connection(f"penstock+{url}") as receiver, Connection(f"penstock+{url}") as sender:
        tasks, got = Queue("tasks", Exchange("tasks"), routing_key="do"), []
        later = datetime.now(UTC) + timedelta(seconds=1.5)
        producer = sender.Producer()
        producer.publish(
            {"n": 2}, exchange=tasks.exchange, routing_key="do", declare=[tasks], headers={"eta": later.isoformat()}
        )
        producer.publish({"n": 1}, exchange=tasks.exchange, routing_key="do")
        collect(receiver, tasks, got)
        drain(receiver)
        got[0].requeue()
        drain(receiver, 2)
        assert [message.payload["n"] for message in got] == [1, 1, 2]
        assert [message.delivery_info["redelivered"] for message in got] == [False, True, False]
        assert datetime.now(UTC) >= later
        for message in got[1:]:
            message.ack()
        until(lambda: tasks(sender.channel()).queue_declare(passive=True).message_count == 0)
        queues = [Queue("one", NEWS), Queue("two", NEWS), Queue("all", EVENTS, routing_key="#")]
        queues += [Queue("some", EVENTS, routing_key="worker.*"), Queue("none", EVENTS, routing_key="task.*")]
        heard: list[Any] = []
        collect(receiver, queues, heard, no_ack=True)
        producer.publish("to all", exchange=NEWS, declare=[NEWS])
        producer.publish("up", exchange=EVENTS, routing_key="worker.up", declare=[EVENTS])
        drain(receiver, 4)
        assert sorted(message.payload for message in heard) == ["to all", "to all", "up", "up"]


def test_celery_finds_the_scheme_without_an_import() -> None:
    program = "import celery, sys; celery.Celery(broker='penstock+memory://').connection_for_write().connect(); print('ok')"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout == "ok\n", ran.stderr


def test_without_kombu_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['kombu'] = None\n"
        "import penstock\n"
        "try:\n    import penstock.contrib.kombu\n"
        "except penstock.MissingExtra as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == 'penstock.contrib.kombu needs an optional library: pip install "penstock[celery]"\n'


@pytest.mark.parametrize(
    "name", ["plain", "celery@host.pidbox", "a/b:c\\d", "100%", ".hidden", " x ", "e\u0301", "new\nline", "{'a': 1}", "\udcff"]
)
def test_any_name_of_kombu_is_a_queue_of_its_own(name: str) -> None:
    made = queue_name(name)
    assert penstock.policy.is_name(made)
    assert (made == name) == (penstock.policy.is_name(name) and "%" not in name)
    assert queue_name(made) != made or "%" not in made, "no two names become one"


def test_bodies_and_headers_arrive_as_they_were_sent(connect: Connect, url: str) -> None:
    with connect() as connection:
        queue, got = Queue("tasks"), []
        collect(connection, queue, got)
        producer = connection.Producer(routing_key="tasks")
        when = datetime(2027, 1, 1, tzinfo=UTC)
        producer.publish({"x": "é"}, headers={"when": when, "depth": {"a": [1, None]}}, correlation_id="7", reply_to="me")
        producer.publish([1], serializer="pickle")
        producer.publish(b"\x00\xff", content_type="application/data", content_encoding="binary")
        producer.publish({"x": 1}, compression="zlib")
        drain(connection, 4)
        plain, pickled, raw, squeezed = got
        assert (plain.payload, plain.headers["when"], plain.headers["depth"]) == ({"x": "é"}, when, {"a": [1, None]})
        assert (plain.properties["correlation_id"], plain.properties["reply_to"]) == ("7", "me")
        assert pickled.content_type == "application/x-python-serialize"
        pickled.accept = {"application/x-python-serialize"}
        assert pickled.decode() == [1]
        assert bytes(raw.body) == b"\x00\xff"
        assert squeezed.payload == {"x": 1}
        with penstock.open(url) as broker:
            assert broker["tasks"].peek(1, state="consumed")[0].text == '{"x": "\\u00e9"}', "people can read it"


def test_what_another_program_has_sent_is_delivered_too(connect: Connect, url: str) -> None:
    with connect() as connection, penstock.open(url) as broker:
        queue = broker.create("tasks")
        queue.send(b'{"x": 1}', content_type="application/json")
        queue.send(b"{}", content_type="application/json", attributes={"kombu": "{no json"})
        got: list[Any] = []
        collect(connection, Queue("tasks"), got)
        drain(connection, 2)
        assert [message.payload for message in got] == [{"x": 1}, {}]
        assert got[0].delivery_info["routing_key"] == "tasks"


def test_at_most_as_many_are_held_as_prefetched(connect: Connect, url: str) -> None:
    with connect() as connection:
        queues, got = [Queue("one"), Queue("two")], []
        producer = connection.Producer()
        for number in range(10):
            for queue in queues:
                producer.publish(number, routing_key=queue.name, declare=[queue])
        collect(connection, queues, got, prefetch_count=3)
        drain(connection, 3)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.3)
        until(lambda: in_flight(url, "one") + in_flight(url, "two") == 3)
        while len(got) < 20:
            assert sum(not message.acknowledged for message in got) <= 3
            next(message for message in got if not message.acknowledged).ack()
            drain(connection)
        for message in got[-3:]:
            message.acknowledged or message.ack()
        until(lambda: in_flight(url, "one") + in_flight(url, "two") == 0)
        assert sorted(message.payload for message in got) == sorted([*range(10), *range(10)])


@pytest.mark.parametrize("prefetch", [1, 10])
def test_a_busy_consumer_receives_again_when_half_of_what_it_may_have_is_done(
    prefetch: int, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before: one receive takes several. Not later: it would run out of messages."""
    monkeypatch.setattr(intake, "TOGETHER", 3600)
    rooms: list[int] = []
    receive = penstock.queue.queue.LocalQueue.receive

    def counting(queue: Any, limit: int, **options: Any) -> Any:
        if queue.name == "halves":  # a consumer of an earlier test may still wait for its own queue
            rooms.append(limit)
        return receive(queue, limit, **options)

    monkeypatch.setattr(penstock.queue.queue.LocalQueue, "receive", counting)
    half = (prefetch + 1) // 2
    with connect() as connection:
        got: list[Any] = []
        producer = connection.Producer()
        for number in range(prefetch + 2 * half):
            producer.publish(number, routing_key="halves", declare=[Queue("halves")])
        collect(connection, Queue("halves"), got, prefetch_count=prefetch)
        drain(connection, prefetch)
        for turn in range(2):
            *some, last = got[turn * half : (turn + 1) * half]
            for message in some:
                message.ack()
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.3)
            assert len(rooms) == turn + 1
            last.ack()
            drain(connection, half)
    assert rooms == [prefetch, half, half]
    assert [message.payload for message in got] == list(range(prefetch + 2 * half))


def test_a_consumer_that_has_ended_leaves_messages_to_the_next(connect: Connect, url: str) -> None:
    """Its thread may still wait for them: a reply would be lost with one that acknowledges nothing."""
    with connect() as connection, penstock.open(url) as other:
        queue, got = Queue("replies"), []
        for number in range(3):
            with Consumer(connection.channel(), [queue], on_message=got.append, no_ack=True), pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.2)
            with Consumer(connection.channel(), [queue], on_message=got.append, no_ack=True):
                other["replies"].send(str(number).encode())
                drain(connection)
        assert [message.body for message in got] == [b"0", b"1", b"2"]
        until(lambda: other["replies"].stats().messages == 0)


def test_a_rejected_message_has_failed_and_a_requeued_one_comes_again(connect: Connect, url: str) -> None:
    with penstock.open(url) as broker, connect() as connection:
        kept = broker.create("tasks", history=3600)
        got: list[Any] = []
        for number in range(2):
            connection.Producer(routing_key="tasks").publish(number)
        collect(connection, Queue("tasks"), got)
        drain(connection, 2)
        got[0].reject()
        got[1].reject(requeue=True)
        drain(connection)
        assert got[2].payload == 1
        until(lambda: [message.reason for message in kept.settled()] == ["rejected"])


def test_a_closed_channel_gives_back_what_was_not_acknowledged(connect: Connect) -> None:
    with connect() as first, connect() as second:
        for number in range(30):
            first.Producer(routing_key="tasks").publish(number, declare=[Queue("tasks")])
        got: list[Any] = []
        consumer = collect(first, Queue("tasks"), got)
        drain(first, 4)
        got[0].ack()
        consumer.channel.close()
        rest: list[Any] = []
        collect(second, Queue("tasks"), rest)
        drain(second, 29)
        assert sorted(message.payload for message in rest) == list(range(1, 30))


def test_a_lease_is_extended_while_a_task_runs(connect: Connect, url: str) -> None:
    with connect(visibility_timeout=1) as connection:
        connection.Producer(routing_key="tasks").publish("slow", declare=[Queue("tasks")])
        got: list[Any] = []
        collect(connection, Queue("tasks"), got)
        drain(connection)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=2.5)
        got[0].ack()
        with penstock.open(url) as broker:
            until(lambda: broker["tasks"].stats().messages == 0)


def test_a_purge_leaves_what_consumers_hold(connect: Connect, url: str) -> None:
    with connect() as connection:
        queue, got = Queue("tasks")(connection.channel()), []
        later = datetime.now(UTC) + timedelta(hours=1)
        for headers in ({}, {}, {}, {"eta": later.isoformat()}):
            connection.Producer(routing_key="tasks").publish("x", headers=headers, declare=[queue])
        assert queue.queue_declare(passive=True).message_count == 4
        collect(connection, queue, got, prefetch_count=1)
        drain(connection)
        assert queue.purge() == 3
        assert in_flight(url, "tasks") == 1
        assert queue.queue_declare(passive=True).message_count == 0


def test_a_queue_that_does_not_exist_is_not_found_and_gets_tasks_only(connect: Connect, url: str) -> None:
    with connect() as connection, penstock.open(url) as broker:
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            Queue("none")(connection.channel()).queue_declare(passive=True)
        producer = connection.Producer()
        producer.publish("a reply that is too late", routing_key="none")
        assert "none" not in broker
        producer.publish("work", routing_key="none", headers={"task": "add"})
        assert broker["none"].stats().messages == 1


def test_a_queue_deleted_under_its_consumer_is_declared_again(connect: Connect, url: str) -> None:
    with connect() as connection, penstock.open(url) as broker:
        got: list[Any] = []
        collect(connection, Queue("one", NEWS, expires=60), got)
        broker.delete("one")
        broker[bindings.TABLE].purge()
        until(lambda: "one" in broker and broker[bindings.TABLE].stats().messages == 2)
        with connect() as sender:
            sender.Producer().publish("again", exchange=NEWS, declare=[NEWS])
        drain(connection)
        assert got[0].payload == "again"


def test_queues_expire_when_nobody_receives_from_them() -> None:
    clock = FakeClock()
    with penstock.open("memory:", clock=clock) as broker:
        table = bindings.Bindings(broker)
        for name, expires in (("read", 10), ("forgotten", 10), ("empty", 10), ("kept", None)):
            broker.create(name)
            table.add(bindings.Binding("news", name, "", expires))
            table.add(bindings.Binding("news", name, "", expires))
        broker["forgotten"].send(b"x")
        broker["kept"].send(b"x")
        clock.advance(59)
        table.clear()
        assert len(table.of("news")) == 4, "each once"
        clock.advance(2)
        broker["read"].send(b"x")
        table.clear()
        assert {each.queue for each in table.of("news")} == {"read", "empty", "kept"}
        broker["read"].purge()
        clock.advance(86400)
        broker["read"].send(b"x")
        table.clear()
        assert {each.queue for each in table.of("news")} == {"read", "kept"}
        assert "forgotten" not in broker
        assert "empty" not in broker


def test_a_queue_that_its_last_consumer_leaves_is_deleted_if_it_was_declared_so(connect: Connect, url: str) -> None:
    with connect() as connection, penstock.open(url) as broker:
        consumer = collect(connection, Queue("mine", NEWS, auto_delete=True), [])
        assert "mine" in broker
        consumer.cancel()
        assert "mine" not in broker
        assert not bindings.Bindings(broker).of("news")


def test_an_old_event_is_dropped_and_a_message_past_its_expiration_too(connect: Connect) -> None:
    with connect() as connection:
        events, tasks, got = Queue("events", message_ttl=0.2), Queue("tasks"), []
        producer = connection.Producer()
        producer.publish("old", routing_key="events", declare=[events])
        producer.publish("old", routing_key="tasks", declare=[tasks], expiration=0.2)
        time.sleep(0.5)
        collect(connection, [events, tasks], got)
        producer.publish("new", routing_key="events")
        producer.publish("new", routing_key="tasks")
        with pytest.raises(TimeoutError):
            for _ in range(10):
                connection.drain_events(timeout=1)
        assert [message.payload for message in got] == ["new", "new"]


def test_an_event_loop_is_woken_and_misses_nothing(connect: Connect) -> None:
    with connect() as connection, connect() as sender:
        hub, got = Hub(), []
        connection.connect()
        connection.register_with_event_loop(hub)
        collect(connection, Queue("tasks"), got)
        for number in range(50):
            sender.Producer(routing_key="tasks").publish(number)
        give_up_at = time.monotonic() + PATIENCE
        while len(got) < 50 and time.monotonic() < give_up_at:
            hub.run_once()
        assert [message.payload for message in got] == list(range(50))
        connection.release()
        hub.close()


def test_an_error_in_a_callback_leaves_the_others_for_the_loop(connect: Connect) -> None:
    with connect() as connection:
        hub, got = Hub(), []
        connection.connect()
        connection.register_with_event_loop(hub)
        hub.propagate_errors = (ArithmeticError,)

        def stumble(message: Any) -> None:
            got.append(message)
            if len(got) == 1:
                raise ArithmeticError

        for number in range(5):
            connection.Producer(routing_key="tasks").publish(number, declare=[Queue("tasks")])
        Consumer(connection.channel(), [Queue("tasks")], on_message=stumble).consume()
        until(lambda: len(connection.transport.inbox) == 5)
        with pytest.raises(ArithmeticError):
            hub.run_once()
        for _ in range(5):
            hub.run_once()
        assert [message.payload for message in got] == list(range(5))
        connection.release()
        hub.close()


def test_acknowledgements_wait_for_a_server_that_is_started_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = ServerSettings(port=free_port())
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        with BackgroundServer(broker, settings) as server:
            connection = Connection(f"penstock+{server.url}", transport_options={"open_options": {"timeout": 2}})
            for number in range(5):
                connection.Producer(routing_key="tasks").publish(number, declare=[Queue("tasks")])
            got: list[Any] = []
            collect(connection, Queue("tasks"), got)
            drain(connection, 5)
        for message in got:
            message.ack()
        until(lambda: "not settled yet" in caplog.text)
        assert broker["tasks"].stats().messages == 5
        with BackgroundServer(broker, settings):
            until(lambda: broker["tasks"].stats().messages == 0)
            connection.Producer(routing_key="tasks").publish("more", retry=True)
            drain(connection)
            assert got[-1].payload == "more", "the consumer receives again"
            connection.release()


def test_a_forked_child_publishes_and_leaves_what_its_parent_holds(connect: Connect, url: str) -> None:
    with connect() as connection:
        got: list[Any] = []
        for number in range(3):
            connection.Producer(routing_key="tasks").publish(number, declare=[Queue("tasks")])
        consumer = collect(connection, Queue("tasks"), got)
        drain(connection, 3)

        def work() -> None:
            got[0].ack()
            consumer.channel.close()
            with Connection(f"penstock+{url}") as own:
                own.Producer(routing_key="tasks").publish("of the child")

        for _ in range(3):
            child = multiprocessing.get_context("fork").Process(target=work)
            child.start()
            child.join(PATIENCE)
            assert child.exitcode == 0
        drain(connection, 3)
        assert in_flight(url, "tasks") == 6, "the child has neither acknowledged nor given back"
        for message in got:
            message.ack()
        until(lambda: in_flight(url, "tasks") == 0)
        with penstock.open(url) as broker:
            assert broker["tasks"].stats().messages == 0


def test_a_waiting_consumer_asks_the_store_rarely(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    receive = penstock.queue.queue.LocalQueue.receive

    def counting(queue: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(queue.name)
        return receive(queue, *arguments, **options)

    monkeypatch.setattr(penstock.queue.queue.LocalQueue, "receive", counting)
    with connect() as connection:
        collect(connection, [Queue(f"q{number}") for number in range(10)], [])
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=1.5)
    assert len(asked) <= 20


def test_what_is_wrong_with_the_options_is_said_at_once() -> None:
    with pytest.raises(penstock.BadInput, match="visibility_timeout"):
        Connection("penstock+memory://", transport_options={"visibility_timeout": "soon"}).connect()
    with pytest.raises(penstock.BadURL, match="oracle"):
        Connection(f"penstock+oracle://{uuid4()}").connect()
