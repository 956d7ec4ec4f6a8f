"""On a database server: lost connections, restarts and unknown commits neither lose nor duplicate anything."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from struct import pack
from threading import Barrier, Event, Thread
from typing import TypeVar

import pytest
from starting import start

import penstock
from penstock.publishing.segments import pack_drafts
from penstock.stores.dbserver.staging import AHEAD
from penstock.testing.proxy import HOWS, Proxy
from penstock.testing.servers import DatabaseServer, MariadbServer, PostgresqlServer

POINTS = 12
Answer = TypeVar("Answer")


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    return request.getfixturevalue(request.param)


@pytest.fixture
def url(server: DatabaseServer) -> str:
    return server.new_url()


@pytest.fixture(params=[PostgresqlServer, MariadbServer], ids=["postgresql", "mariadb"])
def own(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """A server that a test may stop."""
    yield from start(request.param)


def bodies(queue: penstock.Queue) -> Counter[str]:
    return Counter(message.text for message in queue.peek(100_000))


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("how", HOWS)
def test_cut_at_any_point_a_send_is_done_once_or_not_at_all(server: DatabaseServer, url: str, how: str, changed: bool) -> None:
    """Also if the settings have changed, so that the first send, which relies on cached ones, inserts nothing."""
    cut_sends(server, url, how, changed=changed)


def refusal(severity: str, code: str) -> bytes:
    """An error message of PostgreSQL's protocol."""
    text = b"".join(kind + value.encode() + b"\0" for kind, value in ((b"S", severity), (b"C", code), (b"M", "no more")))
    return b"E" + pack(">i", 5 + len(text)) + text + b"\0"


LAST_WORDS = {
    "panic": refusal("PANIC", "58030"),
    "error, then panic": refusal("ERROR", "53100") + refusal("PANIC", "XX000"),
    "done, then panic": b"C" + pack(">i", 11) + b"COMMIT\0" + refusal("PANIC", "XX000"),
}


@pytest.mark.parametrize("words", LAST_WORDS)
@pytest.mark.parametrize("how", HOWS)
def test_a_server_that_panics_is_a_connection_that_is_lost(postgresql: PostgresqlServer, how: str, words: str) -> None:
    """As when it runs out of space after writing a commit: it reports that, cannot undo the commit, and panics."""
    cut_sends(postgresql, postgresql.new_url(), how, LAST_WORDS[words])


def cut_sends(server: DatabaseServer, url: str, how: str, last_words: bytes = b"", *, changed: bool = False) -> None:
    with Proxy(server.port, last_words) as proxy, penstock.open(url) as direct:
        looking = direct.create("orders")
        for point in range(1, POINTS):
            with penstock.open(url.replace(f":{server.port}/", f":{proxy.port}/")) as broker:
                queue = broker["orders"]
                queue.send(b"warm")
                looking.purge()
                if changed:
                    looking.update(visibility=point)
                proxy.cut_at(point, how)
                expected: Counter[str] = Counter()
                for batch in (["one"], ["two", "three"], ["four", "five"]):  # the last takes the COPY path
                    attributes = {"a": 1} if batch[0] == "four" else {}
                    try:
                        queue.send_many([penstock.Draft(body.encode(), attributes=attributes) for body in batch])
                        expected.update(batch)
                    except penstock.StoreUnreachable:
                        pass
                proxy.cut_at(0, how)
                assert bodies(looking) == expected, f"cut {how} {point}"
        assert proxy.cuts >= 5


@pytest.mark.parametrize("history", [0, 3600])  # history takes the slow path
@pytest.mark.parametrize("how", HOWS)
def test_cut_at_any_point_a_delete_is_answered_as_it_was_done(
    server: DatabaseServer, url: str, how: str, history: float
) -> None:
    with Proxy(server.port) as proxy, penstock.open(url) as direct:
        looking = direct.create("orders", history=history)
        for point in range(1, POINTS):
            with penstock.open(url.replace(f":{server.port}/", f":{proxy.port}/")) as broker:
                queue = broker["orders"]
                looking.send_many([b"one", b"two"])
                before = looking.stats().settled
                messages = queue.receive(2)
                proxy.cut_at(point, how)
                try:
                    deleted = queue.delete_many(messages).count(True)
                except penstock.StoreUnreachable:
                    deleted = 0
                proxy.cut_at(0, how)
                assert (deleted, looking.stats().messages) in [(2, 0), (0, 2)], f"cut {how} {point}"
                assert looking.stats().settled == (before + deleted if history else 0)
                looking.purge()
        assert proxy.cuts >= 1


@pytest.mark.parametrize("how", HOWS)
def test_cut_at_any_point_an_exchange_is_answered_as_it_was_done(server: DatabaseServer, url: str, how: str) -> None:
    with Proxy(server.port) as proxy, penstock.open(url) as direct:
        looking = direct.create("orders")
        for point in range(1, POINTS):
            with penstock.open(url.replace(f":{server.port}/", f":{proxy.port}/")) as broker:
                queue = broker["orders"]
                looking.send_many([b"0", b"1", b"2", b"3", b"4"])
                (first,) = queue.receive()
                answers, held = queue.exchange([first], 2)
                assert (answers, len(held)) == ([True], 2)
                proxy.cut_at(point, how)
                try:
                    answers, taken = queue.exchange(held, 2)
                except penstock.StoreUnreachable:
                    answers, taken = [False, False], []
                proxy.cut_at(0, how)
                settled = {message.text for message in held} - bodies(looking).keys()
                assert (answers, len(settled)) in [([True, True], 2), ([False, False], 0)], f"cut {how} {point}"
                assert queue.delete_many(taken) == [True] * len(taken), "what was taken is ours"
                looking.purge()
        assert proxy.cuts >= 1


def test_restarted_under_load_nothing_acknowledged_is_lost_and_nothing_doubled(own: DatabaseServer) -> None:
    hows = [PostgresqlServer.FAST, PostgresqlServer.IMMEDIATE]
    if isinstance(own, MariadbServer):
        hows = [signal.SIGTERM, signal.SIGKILL]
    stop = Event()
    sent: Counter[str] = Counter()
    refused: list[str] = []
    unknown: list[str] = []
    deleted: Counter[str] = Counter()
    with penstock.open(own.new_url(), timeout=30) as broker:
        queue = broker.create("orders", visibility=1)

        def send(name: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                batch = [f"{name}-{number}-{place}" for place in range(1 + number % 3)]
                try:
                    queue.send_many([body.encode() for body in batch])
                    sent.update(batch)
                except penstock.StoreUnreachable:
                    refused.extend(batch)
                except penstock.OutcomeUnknown:
                    unknown.extend(batch)

        def receive() -> None:
            while not stop.is_set():
                try:
                    messages = queue.receive(5, wait=0.2)
                    answers = queue.delete_many(messages)
                except penstock.StoreUnreachable:
                    continue
                deleted.update(message.text for message, done in zip(messages, answers, strict=True) if done)

        threads = [Thread(target=send, args=(name,)) for name in range(3)] + [Thread(target=receive) for _ in range(2)]
        for thread in threads:
            thread.start()
        for how in hows:
            time.sleep(1)
            own.stop(how)
            own.start()
        time.sleep(1)
        stop.set()
        for thread in threads:
            thread.join()
        left = bodies(queue)
    assert unknown == []
    assert set((deleted + left).values()) == {1}, "nothing is doubled"
    assert (deleted + left).keys() == sent.keys(), "what was answered is there, and what was refused is not"
    assert len(sent) > 100


def test_who_has_the_number_of_a_lost_connection_now_is_left_alone(own: DatabaseServer) -> None:
    """A restarted server numbers its connections from one again."""
    with penstock.open(own.new_url(), timeout=30) as broker:
        driver = broker.store.database.driver
        lost = driver.open()
        own.stop(signal.SIGKILL if isinstance(own, MariadbServer) else PostgresqlServer.IMMEDIATE)
        own.start()
        others = [driver.open() for _ in range(20)]  # if numbers are reused, one of them has it
        driver.end(others[0], lost)
        for other in others:
            assert driver.ask(other, "SELECT 1")[0], "it was taken for the lost one"
        for session in (lost, *others):
            driver.shut(session)


def test_a_server_that_stays_away_is_told(own: DatabaseServer) -> None:
    with penstock.open(own.new_url(), timeout=0.5) as broker:
        queue = broker.create("orders")
        own.stop(signal.SIGKILL if isinstance(own, MariadbServer) else PostgresqlServer.IMMEDIATE)
        with pytest.raises(penstock.StoreUnreachable, match=f"127.0.0.1:{own.port}"):
            queue.send(b"x")
        own.start()
        queue.send(b"x")
        assert queue.stats().messages == 1


def test_a_commit_whose_server_does_not_come_back_is_unknown_and_said_so(own: DatabaseServer) -> None:
    with penstock.open(own.new_url(), timeout=0.5) as broker:
        queue = broker.create("orders")
        with pytest.raises(penstock.OutcomeUnknown, match="unknown"), broker.store.batch():
            queue.send(b"x")
            own.stop(signal.SIGKILL if isinstance(own, MariadbServer) else PostgresqlServer.IMMEDIATE)
            transactions = broker.store.database.transactions
            original = transactions.write_token  # as if the server had gone just after the promise was recorded
            transactions.write_token = lambda session: None
        transactions.write_token = original
        own.start()
        assert queue.stats().messages == 0


SEGMENTS = AHEAD + 2


def stage(broker: penstock.Broker, writer: str) -> dict[str, int]:
    """More segments of plain messages than are read ahead."""
    for part in range(SEGMENTS):
        broker.stage(writer, 0, f"s{part}", pack_drafts("orders", [penstock.Draft(b"%d" % part), penstock.Draft(b"x")]))
    return {f"s{part}": 2 for part in range(SEGMENTS)}


@pytest.mark.parametrize("how", HOWS)
def test_cut_at_any_point_a_batch_is_published_once(server: DatabaseServer, url: str, how: str) -> None:
    with Proxy(server.port) as proxy, penstock.open(url) as direct:
        looking = direct.create("orders")
        for point in count(1 + HOWS.index(how), 3):
            cuts = proxy.cuts
            with penstock.open(url.replace(f":{server.port}/", f":{proxy.port}/")) as broker:
                segments = stage(direct, f"w{point}")
                proxy.cut_at(point, how)
                for _ in range(3):
                    with suppress(penstock.StoreUnreachable):
                        broker.publish(f"w{point}", 0, segments)
                        break
            assert looking.stats().messages == 2 * SEGMENTS, f"cut at point {point}"
            assert direct.store.outbox.staging.staged() == []
            looking.purge()
            if proxy.cuts == cuts:
                break
        assert point > 2 * SEGMENTS


def test_segments_that_a_crash_of_the_server_took_are_missed(own: DatabaseServer) -> None:
    with penstock.open(own.new_url()) as broker:
        queue = broker.create("orders")
        segments = stage(broker, "w")
        own.stop(signal.SIGKILL if isinstance(own, MariadbServer) else PostgresqlServer.IMMEDIATE)
        own.start()
        if isinstance(own, PostgresqlServer):
            with pytest.raises(penstock.SegmentLost, match="segment 's0' of batch 0 of writer 'w' is not there"):
                broker.publish("w", 0, segments)
            assert queue.stats().messages == 0
            stage(broker, "w")
        assert broker.publish("w", 0, segments) == 2 * SEGMENTS
        assert queue.stats().messages == 2 * SEGMENTS


def test_without_a_connection_to_read_ahead_by_a_batch_is_published_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send(b"first")  # so that all connections that a publication needs exist
        segments = stage(broker, "w")

        def refuse() -> None:
            raise penstock.StoreUnreachable("there are too many clients already")

        monkeypatch.setattr(broker.store.database.driver, "open", refuse)
        assert broker.publish("w", 0, segments) == 2 * SEGMENTS
        assert queue.stats().messages == 2 * SEGMENTS + 1
        assert broker.store.outbox.staging.staged() == []


def test_a_connection_to_read_ahead_by_that_is_lost_is_not_missed(server: DatabaseServer, url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        segments = stage(broker, "w")
        publishing = broker.store.outbox.ledger.publishing

        @contextmanager
        def without_it(writer: str) -> Iterator[object]:
            driver.shut(opened[-1])
            with publishing(writer) as last:
                yield last

        opened = []
        driver = broker.store.database.driver
        first = driver.open
        driver.open = lambda: opened.append(first()) or opened[-1]
        broker.store.outbox.ledger.publishing = without_it  # type: ignore[method-assign]
        assert broker.publish("w", 0, segments) == 2 * SEGMENTS
        assert queue.stats().messages == 2 * SEGMENTS
        assert broker.store.outbox.staging.staged() == []


SKEWED = """
import sys, time
shift = float(sys.argv[2]) * 10**9
time.time_ns = lambda real=time.time_ns: int(real() + shift)
time.time = lambda: time.time_ns() / 10**9
import penstock
with penstock.open(sys.argv[1]) as broker:
    print(broker["orders"].receive(visibility=5), flush=True)
    broker["orders"].send(b"from the other")
    print([message.body for message in broker["orders"].receive()], flush=True)
"""


@pytest.mark.parametrize("shift", [-30, 30])
def test_a_node_whose_clock_is_wrong_breaks_no_lease_and_hides_no_message(url: str, shift: int) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders", visibility=10)
        queue.send(b"held here")
        (held,) = queue.receive()
        output = subprocess.run(
            [sys.executable, "-c", SKEWED, url, str(shift)], check=True, capture_output=True, text=True
        ).stdout
        assert output == "[]\n[b'from the other']\n"
        assert queue.receive() == []
        assert queue.delete(held) is True


def test_the_clock_is_the_servers(url: str) -> None:
    with penstock.open(url) as broker:
        clock = broker.store.clock()
        assert abs(clock() - time.time_ns() // 1000) < 1_000_000
        assert clock() <= clock()


def test_a_statement_that_takes_too_long_is_given_up(server: DatabaseServer, url: str) -> None:
    with penstock.open(url, timeout=1, statement_timeout=1) as broker:
        slow = (
            "SELECT pg_sleep(30)"
            if isinstance(server, PostgresqlServer)
            else "SELECT SUM(a.seq * b.seq) FROM seq_1_to_1000000 a, seq_1_to_1000000 b"
        )
        with pytest.raises(penstock.StoreBusy, match="too long"):
            broker.store.database._look(slow)  # type: ignore[attr-defined]
        broker.create("orders").send(b"x")


def test_a_lock_that_others_keep_is_waited_for_no_longer_than_asked(url: str) -> None:
    with penstock.open(url) as holder, penstock.open(url, timeout=1) as broker:
        queue = holder.create("orders")
        with holder.store.batch():
            holder.store.reserve("orders")
            started = time.monotonic()
            with pytest.raises(penstock.StoreBusy):
                broker["orders"].send(b"x")
            assert 0.9 < time.monotonic() - started < 5
        assert queue.stats().messages == 0


def test_more_threads_than_connections_take_turns(url: str) -> None:
    with penstock.open(url, pool=2) as broker:
        queue = broker.create("orders")
        threads = [Thread(target=lambda: [queue.send(b"x") for _ in range(10)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert queue.stats().messages == 80


def test_a_forked_child_has_connections_of_its_own(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send(b"parent")
        child = os.fork()
        if child == 0:
            try:
                faulthandler.dump_traceback_later(60, exit=True)  # a child that hangs prints its stacks
                queue.send(b"child")
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        queue.send(b"parent again")
        assert queue.stats().messages == 3


def test_a_store_that_was_closed_is_in_no_forks_way(url: str) -> None:
    closed = penstock.open(url)
    closed.create("orders").receive(wait=0.1)  # a waiting receiver starts a listener, where there is one
    closed.close()
    for _ in range(2):  # the first must not leave anything locked
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(penstock.StoreClosed):
        closed.queues()


def test_an_unfinished_schema_is_finished_by_the_next(url: str) -> None:
    penstock.open(url).close()
    with penstock.open(url) as broker, broker.store.batch(durable=False):
        broker.store.database.run("change_meta", {"name": "version", "value": 1})  # type: ignore[attr-defined]
        for table in ("penstock_session", "penstock_consumer", "penstock_staged", "penstock_writer"):
            broker.store.database.script(f"DROP TABLE {table}")  # type: ignore[attr-defined]
        if url.startswith("postgresql:"):  # its schema changes are atomic
            for column in ("asleep", "run_at", "begin_at", "begin_number", "end_at", "end_number"):
                broker.store.database.script(f"ALTER TABLE penstock_claim DROP COLUMN {column}")  # type: ignore[attr-defined]
            for column in ("floor_at", "floor_number"):
                broker.store.database.script(f"ALTER TABLE penstock_queue DROP COLUMN {column}")  # type: ignore[attr-defined]
            for table in ("penstock_message", "penstock_settled"):
                broker.store.database.script(f"ALTER TABLE {table} DROP COLUMN holder")  # type: ignore[attr-defined]
    with penstock.open(url) as broker:
        broker.create("orders").send(b"x")


def test_a_newer_schema_is_refused(url: str) -> None:
    with penstock.open(url) as broker, broker.store.batch():
        broker.store.database.run("change_meta", {"name": "version", "value": 99})  # type: ignore[attr-defined]
    with pytest.raises(penstock.StoreVersion, match="99"):
        penstock.open(url)


def test_two_nodes_that_change_settings_at_once_lose_no_change(url: str) -> None:
    with penstock.open(url) as one, penstock.open(url) as other:
        one.create("orders")
        threads = [
            Thread(target=lambda: [one["orders"].update(visibility=number) for number in range(20)]),
            Thread(target=lambda: [other["orders"].update(retention=1 + number) for number in range(20)]),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (one["orders"].settings.visibility, one["orders"].settings.retention) == (19, 20)


def test_after_a_deadlock_nothing_of_the_batch_is_done_and_nobody_is_told_otherwise(url: str) -> None:
    """MariaDB rolls back the whole transaction, not only to the savepoint."""
    together = Barrier(2)
    answers: dict[bytes, bool] = {}

    def work(broker: penstock.Broker, first: str, second: str, name: bytes) -> None:
        try:
            with broker.store.batch():
                broker[first].send(name + b" first")
                with suppress(penstock.StoreError), broker.store.batch():
                    together.wait(30)
                    broker[second].send(name + b" second")
                broker[first].send(name + b" third")
            answers[name] = True
        except penstock.StoreError:
            answers[name] = False

    with penstock.open(url) as one, penstock.open(url) as other:
        for name in ("a", "b"):
            one.create(name, deduplicate=True)
        threads = [
            Thread(target=work, args=(one, "a", "b", b"one")),
            Thread(target=work, args=(other, "b", "a", b"other")),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        there = {message.body for queue in ("a", "b") for message in one[queue].peek(9)}
    assert True in answers.values()
    for name, done in answers.items():
        expected = {name + b" first", name + b" third"} if done else set()
        assert there & {name + b" first", name + b" third"} == expected
        assert done or name + b" second" not in there


@pytest.mark.parametrize("how", HOWS)
def test_cut_at_any_point_a_named_claim_is_made_confirmed_and_settled_once(server: DatabaseServer, url: str, how: str) -> None:
    """Whatever is repeated, as Spark's driver repeats it, gives the same messages in the same order."""
    with Proxy(server.port) as proxy, penstock.open(url) as direct:
        looking = direct.create("orders")
        for point in count(1 + HOWS.index(how), 5):
            cuts = proxy.cuts
            with penstock.open(url.replace(f":{server.port}/", f":{proxy.port}/")) as broker:
                queue = broker["orders"]
                sent = [b"%d" % number for number in range(6)]
                looking.send_many([penstock.Draft(body, deadline=0 if body == b"3" else None) for body in sent])
                proxy.cut_at(point, how)
                claim = again(partial(queue.claim, "spark", point, 5))
                assert again(partial(queue.confirm, "spark", point)).size == claim.size == 5
                expected = [body for body in sent if body != b"3"]
                assert [message.body for message in looking.read("spark", point)] == expected
                assert [message.receives for message in looking.read("spark", point)] == [1] * 5
                again(partial(queue.settle, "spark", point))
                proxy.cut_at(0, how)
            assert (looking.stats().messages, looking.readers()) == (0, {"spark": []}), f"cut at point {point}"
            if proxy.cuts == cuts:
                break
        assert point > 15


def again(verb: Callable[[], Answer]) -> Answer:
    with suppress(penstock.StoreUnreachable):
        return verb()
    return verb()
