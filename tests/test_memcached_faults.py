"""Queues in memcached when processes die between two commands, or the server loses data, refuses or is gone."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheServerError

import penstock
from penstock import BadURL, Broker, Draft, Queue, QueueNotFound, StoreBusy, StoreFull, StoreUnreachable
from penstock.clock import system_clock
from penstock.message import SECOND
from penstock.publishing.segments import pack_drafts
from penstock.stores.memcached import link as memcached_link
from penstock.stores.memcached import records as memcached_records
from penstock.stores.memcached.catalogue import CLEARED, MemcachedCatalogue
from penstock.stores.memcached.contents import Contents
from penstock.stores.memcached.documents import Documents
from penstock.stores.memcached.formats import PAGE_BYTES, SLOTS, Page, Record
from penstock.stores.memcached.link import Link
from penstock.stores.memcached.records import Keyspace
from penstock.stores.memcached.sweeping import RECORDS
from penstock.testing import FakeClock
from penstock.testing.servers import MemcachedServer
from penstock.testing.verbs import wrap_verb

DAY = 86400
LOCKED = ("claim", "settle")
"""Steps that hold the lock, which costs each check a second, so only some of their commands are tried."""
STEPS: dict[str, Callable[[Queue, Broker], object]] = {
    "put": lambda queue, _: queue.send(b"new"),
    "put_many": lambda queue, _: queue.send_many([b"new", b"newer", b"x" * 600_000]),
    "put_once": lambda queue, broker: broker["once"].send(b"new"),
    "get": lambda queue, _: queue.receive(2),
    "delete": lambda queue, _: queue.delete(queue.peek(9, state="consumed")[0].receipt),
    "delete_last": lambda queue, broker: broker["last"].delete_many([m.receipt for m in broker["last"].peek(99)]),
    "sadd": lambda queue, broker: broker["set"].sadd("new"),
    "spop": lambda queue, broker: broker["set"].spop(),
    "bury": lambda queue, broker: broker["jobs"].receive(),
    "claim": lambda queue, _: (queue.claim("reader", 1, 2), queue.confirm("reader", 1)),
    "settle": lambda queue, broker: broker["read"].settle("reader", 1),
    "update": lambda queue, _: queue.update(retention=7 * DAY),
    "give_up": lambda queue, broker: broker["kept"].give_up("reader"),
}


def prepare(url: str) -> None:
    with penstock.open(url, clock=FakeClock()) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2", b"3"])
        queue.receive()
        members = broker.create("set")
        members.sadd("a")
        members.sadd("b")
        broker.create("once", deduplicate=True).send(b"old")
        broker.create("dead")
        broker.create("jobs", redrive=("dead", 1)).send(b"poison")
        broker["jobs"].receive(visibility=0)
        broker.create("read").send_many([b"r1", b"r2"])
        broker["read"].claim("reader", 1, 2)
        broker["read"].confirm("reader", 1)
        kept = broker.create("kept")
        kept.send_many([b"k%d" % number for number in range(63)])  # a full page
        kept.claim("reader", 1, 63)
        kept.confirm("reader", 1)
        assert kept.receive() == []  # from now on, receivers skip that page
        last = broker.create("last")
        last.send_many([b"l%d" % number for number in range(63)])  # a full page
        last.receive(63)


def bodies(broker: Broker) -> Counter[bytes]:
    return Counter(message.body for queue in broker for message in queue.peek(999))


def account(url: str) -> Counter[bytes]:
    with penstock.open(url, clock=FakeClock()) as broker:
        return bodies(broker)


def die_at(url: str, step: str, when: int) -> bool:
    """Run one step in a child, which is killed before its n-th command; False if it ended by itself."""
    child = os.fork()
    if child == 0:
        try:
            run_step(url, step, when)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def run_step(url: str, step: str, when: int) -> None:
    commands = 0
    send = Link._send

    def count(self: Link, verb: Any, *arguments: Any) -> Any:
        nonlocal commands
        commands += 1
        if commands == when:
            os.kill(os.getpid(), signal.SIGKILL)
        return send(self, verb, *arguments)

    with penstock.open(url, clock=FakeClock()) as broker:
        queue = broker["orders"]
        Link._send = count  # type: ignore[method-assign]
        STEPS[step](queue, broker)


@pytest.mark.parametrize("step", STEPS)
def test_killed_between_any_two_commands_nothing_is_lost_and_the_next_proceeds(
    memcached: MemcachedServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(memcached_link, "LOCK_SECONDS", 1)  # how long a process waits for a dead one's lock
    url = memcached.new_url()
    prepare(url)
    before = account(url)
    assert die_at(url, step, 0) is False
    after = account(url)

    when, died = 0, True
    while died:
        when += 4 if step in LOCKED else 1
        url = memcached.new_url()
        prepare(url)
        died = die_at(url, step, when)
        check_account(url, before, after, f"{step} {when}")
    assert when > 3, "the step gave no commands?"


def check_account(url: str, before: Counter[bytes], after: Counter[bytes], name: str) -> None:
    there = account(url)
    assert not (before & after) - there, f"{name}: lost"
    twice = there - (before | after)
    assert not twice or (name.startswith("bury") and twice == {b"poison": 1}), f"{name}: came back, or is there twice"
    clock = FakeClock()
    started = time.monotonic()
    with penstock.open(url, clock=clock) as broker:  # the next process proceeds at once, or when the lock has expired
        assert broker["set"].sadd("next") is True
        assert broker["set"].sadd("new") in (True, False)
        assert broker["set"].sadd("new") is False
        assert broker["set"].sismember("new")
        broker["orders"].update(visibility=10)
        broker["once"].send(b"new")
        assert b"new" in {message.body for message in broker["once"].peek(9)}
    assert time.monotonic() - started < 1 + 3
    clock.advance(DAY)
    with penstock.open(url, clock=clock) as broker:
        assert broker["jobs"].receive() == []  # an interrupted burial is finished, once
        there = bodies(broker)
        assert there[b"poison"] == 1
        members = broker["set"].scard()
        assert members == len(broker["set"].peek(9))
        for queue in broker:
            queue.give_up("reader")
            broker.store.queue(queue.name).sweep(clock())
            stats = queue.stats()
            assert (stats.messages, stats.lost) == (stats.visible, 0), f"{name}: something is stuck in {queue.name}"
        left: Counter[bytes] = Counter()
        for queue in sorted(broker, key=lambda queue: queue.name, reverse=True):  # dead letters late
            if queue.name == "set":
                while (member := queue.spop()) is not None:
                    left[str(member).encode()] += 1
            while messages := queue.receive(99):
                left.update(message.body for message in messages)
                assert all(queue.delete_many(messages))
        for queue in broker:
            while messages := queue.receive(99):
                left.update(message.body for message in messages)
                assert all(queue.delete_many(messages))
        assert left == there, f"{name}: what was there could not be received"


def raw(keys: Keyspace) -> Client:
    """The underlying client, to treat keys as the server might."""
    return keys.link._client


def keys_of(queue: Queue) -> Keyspace:
    return queue._opened.store._catalogue.recall(queue.name).keys  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def broker(memcached: MemcachedServer) -> Iterator[Broker]:
    with penstock.open(memcached.new_url()) as broker:
        yield broker


@pytest.fixture
def queue(broker: Broker) -> Queue:
    return broker.create("orders")


# what the server evicts


def test_an_evicted_message_is_counted_as_lost_and_the_others_come(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.send_many([b"1", b"2", b"3"])
    assert raw(keys_of(queue)).delete(keys_of(queue).key("m", 2))
    assert [message.body for message in queue.receive(9)] == [b"1", b"3"]
    assert (queue.stats().messages, queue.stats().lost) == (2, 1)
    assert "which is lost" in caplog.text


def test_an_evicted_part_of_a_message_is_a_lost_message(queue: Queue) -> None:
    queue.send(b"x" * 1_000_000)
    assert raw(keys_of(queue)).delete(keys_of(queue).key("m", "1.1"))
    assert queue.receive() == []
    assert (queue.stats().messages, queue.stats().lost) == (0, 1)


def test_an_evicted_page_is_rebuilt_from_its_messages(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.send_many([b"%d" % number for number in range(100)])
    queue.delete_many(queue.receive(10))
    (held,) = queue.receive()
    assert raw(keys_of(queue)).delete(keys_of(queue).key("p", 0))
    assert "was rebuilt with 53 messages" in (queue.stats() and caplog.text)
    assert [int(message.body) for message in queue.receive(99)] == list(range(10, 100))
    assert queue.delete(held) is False
    assert queue.stats().lost == 0


def test_evicted_hints_cost_only_a_look(queue: Queue) -> None:
    queue.send_many([b"%d" % number for number in range(200)])
    queue.receive(100)
    raw(keys_of(queue)).delete(keys_of(queue).key("b", 0))
    assert [int(message.body) for message in queue.receive(999)] == list(range(100, 200))


def test_what_is_released_behind_a_full_page_that_was_passed_is_found(queue: Queue) -> None:
    queue.send_many([b"%d" % number for number in range(200)])
    held = queue.receive(130)
    assert queue.receive()[0].body == b"130"  # receivers have read and passed the pages before it
    assert queue.release(held[3]) is True
    assert queue.receive()[0].body == b"3"
    assert queue.extend(held[70], 0) is True
    assert queue.receive()[0].body == b"70"


@pytest.mark.parametrize("end", ["head", "tail"])
def test_an_evicted_end_of_the_queue_is_found_again(queue: Queue, caplog: pytest.LogCaptureFixture, end: str) -> None:
    queue.send_many([b"%d" % number for number in range(300)])
    queue.delete_many(queue.receive(150))
    assert raw(keys_of(queue)).delete(keys_of(queue).key(end))
    queue.send(b"300")
    assert [int(message.body) for message in queue.receive(999)] == list(range(150, 301))
    assert f"has evicted where it {'begins' if end == 'tail' else 'ends'}" in caplog.text


def test_an_evicted_record_of_the_catalogue_is_restored_by_who_knows_it(
    broker: Broker, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.send(b"1")
    assert raw(keys_of(queue)).delete(broker.store._catalogue._bucket("orders"))  # type: ignore[attr-defined]
    assert [message.body for message in queue.receive()] == [b"1"]
    assert "it was restored" in caplog.text
    assert broker.queues().names == ["orders"]


def test_an_evicted_mark_is_written_again_by_a_sweep(lone: Broker, caplog: pytest.LogCaptureFixture) -> None:
    queue = lone.create("orders")
    queue.sadd("a")
    keys = keys_of(queue)
    (key,) = [key for key in stored_keys(keys) if key.startswith(keys.key("k"))]
    assert raw(keys).delete(key)
    lone.store.queue("orders").sweep(0)
    assert queue.sismember("a") is True
    assert queue.sadd("a") is False
    assert "has evicted a mark" in caplog.text


@pytest.fixture
def lone() -> Iterator[Broker]:
    """A broker on a server of its own, whose keys can be listed."""
    with MemcachedServer() as server, penstock.open(server.new_url()) as broker:
        yield broker


def stored_keys(keys: Keyspace) -> list[str]:
    """Every key of a queue; only a test may list them."""
    time.sleep(1.1)  # the crawler sees keys older than a second
    dump = raw(keys).raw_command("lru_crawler metadump all", "END\r\n").decode()
    stored = [line.split()[0].removeprefix("key=").replace("%3A", ":") for line in dump.splitlines() if line.startswith("key=")]
    return [key for key in stored if key.startswith(keys.key(""))]


def test_what_is_deleted_leaves_nothing_behind(lone: Broker) -> None:
    lone.create("dead")
    queue = lone.create("orders")
    queue.update(redrive=("dead", 1), history=0)
    for _ in range(3):
        queue.send_many([b"x" * size for size in (1, 5000, 600_000) for _ in range(30)])
        queue.delete_many(queue.receive(99))
    for number in range(70):
        queue.sadd(f"{number}")
        queue.spop()
    queue.send(b"poison")
    queue.receive(visibility=0)
    queue.receive()
    keys = keys_of(queue)
    kinds = {re.sub(r"\d+$", "", key.removeprefix(keys.key(""))) for key in stored_keys(keys)}
    assert {"head", "tail"} <= kinds <= {"head", "tail", "stir", "lost", "spare", "b", "p"}
    assert len(stored_keys(keys)) < 12
    queue.send_many([b"x"] * 300)
    lone.delete("orders")
    assert stored_keys(keys) == []


# sweeping


def test_old_history_goes_a_slice_at_a_time(memcached: MemcachedServer) -> None:
    clock = FakeClock()
    with penstock.open(memcached.new_url(), clock=clock) as broker:
        queue, stored = broker.create("orders", history=1), broker.store.queue("orders")
        queue.send_many([b"%d" % number for number in range(600)])
        assert all(queue.delete_many(queue.receive(600)))
        clock.advance(2)
        left = []
        while stored.sweep(clock()).more:
            left.append(len(stored.history.browse(999)))
        assert len(left) > 1
        assert all(before - after <= RECORDS + SLOTS for before, after in pairwise([600, *left]))
        assert left[-1] == 0


def test_what_is_settled_during_a_sweep_stays_in_the_history(
    memcached: MemcachedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with penstock.open(memcached.new_url(), clock=clock) as broker:
        queue, stored = broker.create("orders", history=60), broker.store.queue("orders")
        queue.send_many([b"old", b"new"])
        old, late = queue.receive(2, visibility=600)
        queue.delete(old)
        clock.advance(61)
        clear = Contents.clear

        def settle_first(self: Contents, *arguments: Any) -> list[int]:
            assert queue.delete(late)
            return clear(self, *arguments)

        monkeypatch.setattr(Contents, "clear", settle_first)
        assert stored.sweep(clock()).more
        assert [message.body for message in queue.settled()] == [b"new"]


def test_what_a_killed_process_left_of_a_dropped_queue_goes_a_slice_at_a_time(
    lone: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, other = lone.create("orders"), lone.create("other")
    queue.send_many([b"x"] * 1500)
    keys = keys_of(queue)
    with monkeypatch.context() as killed:
        killed.setattr(MemcachedCatalogue, "_clear", lambda *_: False)
        lone.store.drop("orders")
    records = [keys.key("m", number) for number in range(1, 1501)]
    assert len(keys.link.get(records)) == 1500
    slices = 1
    while lone.store.queue(other.name).sweep(0).more:
        slices += 1
    assert slices == -(-1500 // (CLEARED * SLOTS))
    assert keys.link.get(records) == {}
    assert stored_keys(keys) == []


def test_a_confirmation_that_was_cut_short_is_undone_by_a_sweep(
    memcached: MemcachedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with penstock.open(memcached.new_url(), clock=clock) as broker:
        queue, stored = broker.create("orders"), broker.store.queue("orders")
        queue.send_many([b"1", b"2", b"3"])
        queue.claim("reader", 1, 2)
        queue.claim("safe", 1, 1)
        queue.confirm("safe", 1)
        with monkeypatch.context() as killed:
            killed.setattr(Documents, "change", lambda *_: None)
            queue.confirm("reader", 1)
        clock.advance(DAY)
        assert stored.browse(9, now=clock()) == []
        stored.sweep(clock())
        assert [message.body for message in queue.receive(9)] == [b"1", b"2"]


# interrupted while the settings are read from the catalogue


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("known", [False, True])
def test_interrupted_while_it_reads_the_settings_a_process_reads_them_again(
    memcached: MemcachedServer, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    url = memcached.new_url()
    with penstock.open(url) as broker, penstock.open(url) as other:
        other.create("orders")
        if known:  # with the settings that it had until now
            broker["orders"].receive()
        other["orders"].update(deduplicate=True)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(memcached_records, "unpack_settings", interrupt)
            broker["orders"].receive()
        assert [broker["orders"].send(b"1").duplicate for _ in range(2)] == [False, True]


def test_a_queue_whose_settings_a_process_never_finished_reading_is_not_restored_by_it(
    memcached: MemcachedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = memcached.new_url()
    with penstock.open(url) as broker, penstock.open(url) as other:
        queue = other.create("orders", visibility=7)
        queue.send(b"1")
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(memcached_records, "unpack_settings", interrupt)
            broker["orders"].receive()
        assert raw(keys_of(queue)).delete(other.store._catalogue._bucket("orders"))  # type: ignore[attr-defined]
        with pytest.raises(QueueNotFound):
            broker["orders"].receive()
        assert [message.body for message in queue.receive()] == [b"1"]
        assert broker["orders"].settings.visibility == 7
        assert "was restarted or flushed" not in caplog.text


# the server is gone, empty, slow, full


def test_restarted_empty_the_queue_is_usable_and_says_that_it_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    with MemcachedServer() as server, penstock.open(server.new_url()) as broker:
        queue = broker.create("orders", visibility=7)
        queue.send_many([b"1", b"2"])
        server.stop()
        with pytest.raises(StoreUnreachable, match=str(server.port)):
            queue.send(b"3")
        with pytest.raises(StoreUnreachable):
            queue.receive()
        server.start()
        queue.send(b"4")
        assert [message.body for message in queue.receive(9)] == [b"4"]
        assert "was restarted or flushed, and all messages of the queue are lost" in caplog.text
        assert (queue.stats().lost, queue.settings.visibility) == (2, 7)
        server.stop()
        server.start()
        assert queue.receive() == []
        assert broker.queues().names == ["orders"]


def test_an_exchange_whose_receive_fails_returns_what_it_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    with MemcachedServer() as server, penstock.open(server.new_url()) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2"])
        (held,) = queue.receive()
        delete = Contents.delete

        def stop_after(self: Contents, *arguments: Any) -> list[bool]:
            answers = delete(self, *arguments)
            server.stop()
            return answers

        monkeypatch.setattr(Contents, "delete", stop_after)
        assert queue.exchange([held]) == ([True], [])
        with pytest.raises(StoreUnreachable):
            queue.receive()


def test_a_slow_server_is_an_error_in_time_and_mends_itself() -> None:
    with MemcachedServer() as server, penstock.open(server.new_url(), timeout=0.2) as broker:
        queue = broker.create("orders")
        queue.send(b"1")
        server.freeze()
        for call in (lambda: queue.send(b"2"), queue.receive, queue.stats):
            with pytest.raises(StoreUnreachable, match=r"0\.2 s"):
                call()
        server.thaw()
        assert queue.receive()[0].body == b"1"


def test_full_a_send_is_refused_and_the_queue_can_still_be_emptied() -> None:
    with MemcachedServer("-M", "-m", "8") as server, penstock.open(server.new_url()) as broker:
        queue = broker.create("orders", visibility=600)
        sent = 0
        with pytest.raises(StoreFull, match="no memory left"):
            for number in range(100_000):
                queue.send(b"%d" % number + b"x" * 1000)
                sent += 1
        assert sent > 500
        with pytest.raises(MemcacheServerError, match="out of memory"):  # another program takes the memory left for pages
            for number in range(100_000):
                raw(keys_of(queue)).set(f"filler{number}", bytes(PAGE_BYTES))
        got = []
        while messages := queue.receive(50):
            got += [int(message.body.rstrip(b"x")) for message in messages]
            assert all(queue.delete_many(messages))
        assert got == list(range(sent))
        queue.send(b"again")
        assert queue.stats().messages == 1


@pytest.mark.parametrize(("kind", "number"), [("p", 1), ("b", 0)])
def test_what_was_sent_before_the_server_was_full_is_received(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, kind: str, number: int
) -> None:
    """There is no memory left for the second page, or for the block, which is only a hint."""
    cas = Link.cas

    def refuse(self: Link, key: str, *rest: Any) -> bool | None:
        if key == keys_of(queue).key(kind, number):
            raise StoreFull("no memory left")
        return cas(self, key, *rest)

    with monkeypatch.context() as full:
        full.setattr(Link, "cas", refuse)
        try:
            queue.send_many([b"%d" % number for number in range(100)])
            sent = 100
        except StoreFull:
            sent = SLOTS - 1
        assert (kind == "b") == (sent == 100)
        assert [int(message.body) for message in queue.receive(100)] == list(range(sent))
    assert queue.stats().lost == 0


def test_a_message_over_the_item_size_is_split(queue: Queue) -> None:
    body = os.urandom(1024 * 1024)
    queue.send(body, attributes={"a": "x" * 60_000})
    (message,) = queue.receive()
    assert (message.body == body, message.attributes["a"]) == (True, "x" * 60_000)


def test_a_damaged_message_is_set_aside(queue: Queue) -> None:
    queue.send(b"hello")
    client, key = raw(keys_of(queue)), keys_of(queue).key("m", 1)
    client.set(key, client.get(key).replace(b"hello", b"hellp"))
    assert queue.receive() == []
    assert queue.stats().damaged == 1


# locks and servers


def test_a_lock_that_has_expired_is_not_taken_from_its_new_holder(broker: Broker, queue: Queue) -> None:
    store = broker.store
    assert queue.receive() == []
    client = raw(keys_of(queue))
    with store.batch():
        store.reserve("orders")
        (key,) = store._servers._locks  # type: ignore[attr-defined]
        client.set(key, b"another's")  # ours has expired, and another process has it
    assert client.get(key) == b"another's"
    client.delete(key)
    with store.batch():
        store.reserve("orders")
        assert client.get(key)
    assert client.get(key) is None


def test_two_brokers_changing_one_queue_lose_no_change(memcached: MemcachedServer) -> None:
    url = memcached.new_url()
    with penstock.open(url) as one, penstock.open(url) as other:
        one.create("orders")

        def change(broker: Broker, name: str) -> None:
            for number in range(1, 20):
                broker["orders"].update(**{name: number})

        threads = [threading.Thread(target=change, args=pair) for pair in ((one, "visibility"), (other, "delay"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (one["orders"].settings.visibility, one["orders"].settings.delay) == (19, 19)


def test_queues_are_spread_over_the_servers_and_one_that_is_gone_takes_only_its_own() -> None:
    with MemcachedServer() as one, MemcachedServer() as two:
        url = f"memcached://127.0.0.1:{one.port},127.0.0.1:{two.port}/p"
        with penstock.open(url) as broker:
            for number in range(20):
                broker.create(f"q{number}").send(b"x")
            assert len(broker.queues().names) == 20
            two.stop()
            answers: Counter[object] = Counter()
            for number in range(20):
                try:
                    answers[len(broker[f"q{number}"].receive())] += 1
                except StoreUnreachable:
                    answers["gone"] += 1
            assert answers.keys() == {1, "gone"}


@pytest.mark.parametrize(
    "url",
    [
        "memcached://",
        "memcached://h",
        "memcached://h:1/",
        "memcached://h:x/p",
        "memcached://h:1/a b",
        "memcached:///p",
        "memcached://h:1/p?x=1",
    ],
)
def test_a_bad_url_is_refused(url: str) -> None:
    with pytest.raises(BadURL, match="memcached"):
        penstock.open(url)


# races


def test_eight_processes_race_with_kills_at_random_commands_and_each_message_arrives_once(
    memcached: MemcachedServer, tmp_path: Path
) -> None:
    """Two minutes with PENSTOCK_LONG set, otherwise a few seconds."""
    url = memcached.new_url()
    seconds = 120 if os.environ.get("PENSTOCK_LONG") else 6
    with penstock.open(url) as broker:
        broker.create("orders", visibility=2)
    chance = random.Random(3)
    until = time.monotonic() + seconds
    children: dict[int, int] = {}
    serial = 0
    while time.monotonic() < until or children:
        while len(children) < 8 and time.monotonic() < until:
            serial += 1
            children[race(url, tmp_path / f"{serial}", serial, chance.randrange(20, 2000))] = serial
        child, _ = os.wait()
        children.pop(child, None)
    lines = [line.split() for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    sent, got, deleted = ({line[1] for line in lines if line[0] == word} for word in ("sent", "try-delete", "deleted"))
    tried = {line[1] for line in lines if line[0] == "try"}
    with penstock.open(url, clock=lambda: system_clock() + 3600 * SECOND) as broker:
        queue = broker["orders"]
        stats = queue.stats()
        assert (stats.messages, stats.lost) == (stats.visible, 0)
        left: Counter[str] = Counter()
        while messages := queue.receive(999):
            left.update(message.text for message in messages)
            assert all(queue.delete_many(messages))
    assert serial > 16
    assert set(left.values()) <= {1}
    assert sent - deleted - got - left.keys() == set(), "lost"
    assert deleted & left.keys() == set(), "came back"
    assert left.keys() <= tried


def test_of_eight_processes_that_add_a_member_one_does_and_one_pops_it(memcached: MemcachedServer, tmp_path: Path) -> None:
    url = memcached.new_url()
    with penstock.open(url) as broker:
        broker.create("set")
        begin = time.time() + 0.5
        added = together(lambda queue: [str(number) for number in range(60) if queue.sadd(str(number))], url, tmp_path, begin)
        assert Counter(added) == Counter(map(str, range(60)))
        queue = broker["set"]
        assert queue.scard() == 60
        assert all(queue.sismember(str(number)) for number in range(60))
        popped = together(lambda queue: iter(queue.spop, None), url, tmp_path, time.time() + 0.2)
        assert Counter(popped) == Counter(map(str, range(60)))
        assert queue.scard() == 0


def together(act: Callable[[Queue], Any], url: str, folder: Path, begin: float) -> list[str]:
    """The results of eight processes that do the same at the same time."""
    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            try:
                with penstock.open(url) as broker:
                    queue = broker["set"]
                    time.sleep(max(0, begin - time.time()))
                    (folder / str(number)).write_text("\n".join(act(queue)))
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    return [line for number in range(8) for line in (folder / str(number)).read_text().split()]


def race(url: str, log: Path, serial: int, commands: int) -> int:
    """A child that sends and receives until it is killed at one of its commands."""
    child = os.fork()
    if child:
        return child
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        send, left = Link._send, [commands]

        def count(self: Link, verb: Any, *arguments: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return send(self, verb, *arguments)

        Link._send = count  # type: ignore[method-assign]
        with penstock.open(url) as broker:
            queue = broker["orders"]
            for number in range(10**6):
                body = f"{serial}-{number}"
                os.write(handle, f"try {body}\n".encode())
                queue.send(body.encode())
                os.write(handle, f"sent {body}\n".encode())
                for message in queue.receive(2):
                    os.write(handle, f"try-delete {message.text}\n".encode())
                    if queue.delete(message):
                        os.write(handle, f"deleted {message.text}\n".encode())
    finally:
        os._exit(1)
    return 0


def test_without_the_library_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['pymemcache'] = None\nimport penstock; penstock.open('memcached://localhost/p')"
    done = subprocess.run([sys.executable, "-c", program], check=False, stderr=subprocess.PIPE, text=True)
    assert 'MissingExtra: the memcached store needs an optional library: pip install "penstock[memcached]"' in done.stderr


@pytest.mark.parametrize("slow_at", [1, 2, 3])
def test_a_publication_that_outlasts_its_lock_is_finished_by_another_and_doubles_nothing(
    memcached: MemcachedServer, monkeypatch: pytest.MonkeyPatch, slow_at: int
) -> None:
    url = memcached.new_url()
    with penstock.open(url) as slow, penstock.open(url) as other:
        queue = slow.create("orders")
        segments = {f"s{number}": 10 for number in range(4)}
        for name in segments:
            slow.stage("w", 1, name, pack_drafts("orders", [Draft(f"{name} {row}".encode()) for row in range(10)]))
        calls = [0]

        def outlast(insert: Callable[..., Any], _: str, *arguments: Any) -> Any:
            calls[0] += 1
            sent = insert(*arguments)
            if calls[0] == slow_at:
                locks = slow.store._servers._locks  # type: ignore[attr-defined]
                locks.copy().popitem()[1][0].forget(locks)
                assert other.publish("w", 1, segments) in (40, None)
            return sent

        wrap_verb(monkeypatch, slow, "insert", outlast)
        with pytest.raises(StoreBusy, match="another process may have it"):
            slow.publish("w", 1, segments)
        assert slow.publish("w", 1, segments) is None
        assert Counter(message.body for message in queue.peek(100)).most_common(1)[0][1] == 1
        assert queue.stats().messages == 40


def test_a_publication_leaves_no_marks(broker: Broker, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[bytes] = []

    def watch(insert: Callable[..., Any], _: str, entries: Any, *rest: Any) -> Any:
        marks.extend(entry.mark for entry in entries)
        return insert(entries, *rest)

    wrap_verb(monkeypatch, broker, "insert", watch)
    broker.stage("w", 0, "a", pack_drafts("orders", [Draft(b"1"), Draft(b"2")]))
    assert broker.publish("w", 0, {"a": 2}) == 2
    assert len(set(marks)) == 2
    keys = keys_of(queue)
    assert keys.link.get([keys.mark(mark) for mark in marks]) == {}


def old_page(page: bytes) -> bytes:
    """A page as written before there were holders: deliveries have four bytes, and come last."""
    deliveries = array("I", [number % 2**31 for number in array("q", page[24 * SLOTS : 32 * SLOTS])])
    return page[: 24 * SLOTS] + page[32 * SLOTS : 36 * SLOTS] + deliveries.tobytes() + page[36 * SLOTS : 37 * SLOTS]


def test_a_page_from_before_there_were_holders_is_read(broker: Broker, queue: Queue) -> None:
    queue.send_many([b"1", b"2", b"3"])
    (first,) = queue.receive(holder="worker")
    keys = keys_of(queue)
    key = keys.key("p", 0)
    before = keys.link.get([key])[key]
    assert len(old_page(before)) == 33 * SLOTS
    raw(keys).set(key, old_page(before))
    seen = {message.body: message for message in queue.peek(3)}
    assert (seen[b"1"].delivery, seen[b"1"].receives, seen[b"1"].holder) == (first.delivery % 2**31, 1, None)
    assert [message.receives for message in (seen[b"2"], seen[b"3"])] == [0, 0]
    assert queue.delete(seen[b"1"].receipt)
    assert sorted(message.body for message in queue.receive(3, holder="other")) == [b"2", b"3"]
    assert [message.holder for message in queue.peek(3)] == ["other"] * 2


def test_a_record_from_before_deliveries_were_instants_is_read() -> None:
    record = Record(5, 6, 7, None, 8, 9, 9, 0, 3, None, None, b"m", b"body")
    packed = bytearray(record.pack())
    assert Record.unpack(bytes(packed)) == record
    packed[56:68] = (0).to_bytes(8, "little") + (3).to_bytes(4, "little")  # the old layout: mark_until, then the delivery
    assert Record.unpack(bytes(packed)) == record
    late = record._replace(delivery=2**52)
    assert Record.unpack(late.pack()) == late


def test_a_page_keeps_as_many_names_as_fit_in_its_space() -> None:
    page = Page.new(0)
    for slot in range(1, SLOTS):
        page.hold(slot, f"{slot} " + "x" * 60)
    packed = page.pack()
    assert len(packed) <= PAGE_BYTES + SLOTS + 320
    kept = Page(packed).holders
    assert 4 <= len(kept) < SLOTS
    assert kept.items() <= page.holders.items()
