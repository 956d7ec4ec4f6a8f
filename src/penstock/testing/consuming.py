"""The contract's chapters on producers and consumers (gq)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest

import penstock
from penstock import BadInput, BadMessage, Broker, Draft, Message, OutcomeUnknown, Queue, QueueNotFound
from penstock.broker import LocalBroker
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies
from penstock.testing.verbs import wrap_verb

NEVER = 10**6


class Producing:
    def test_a_producer_pushes_when_its_batch_is_full(self, broker: Broker, queue: Queue) -> None:
        with broker.producer("orders", batch_size=3, max_delay=NEVER) as producer:
            producer.push(b"1")
            producer.push(b"2")
            assert queue.stats().messages == 0
            producer.push(b"3")
            assert queue.stats().messages == 3

    def test_a_message_waits_no_longer_than_max_delay(self, broker: Broker, queue: Queue) -> None:
        with broker.producer("orders", batch_size=100, max_delay=0.01) as producer:
            producer.push(b"1")
            assert bodies(queue.receive(wait=10)) == [b"1"]

    def test_what_is_gathered_is_pushed_by_a_flush_and_at_the_end(self, broker: Broker, queue: Queue) -> None:
        with broker.producer("orders", batch_size=100, max_delay=NEVER) as producer:
            producer.push(b"1")
            producer.flush()
            assert queue.stats().messages == 1
            producer.push(b"2", content_type="text/plain", attributes={"a": 1})
        assert [(message.body, message.attributes) for message in queue.receive(9)] == [(b"1", {}), (b"2", {"a": 1})]
        with pytest.raises(BadInput, match="was closed"):
            producer.push(b"3")

    def test_a_deadline_counts_from_the_push(self, broker: Broker, queue: Queue, clock: FakeClock) -> None:
        with broker.producer("orders", batch_size=100, max_delay=NEVER) as producer:
            producer.push(b"late", deadline=5)
            pushed_at = clock.now
            clock.advance(3)
        assert queue.peek()[0].deadline_at == pushed_at + 5_000_000
        clock.advance(2)
        assert queue.receive() == []

    def test_a_bad_message_is_refused_by_its_push_and_spoils_nothing(self, broker: Broker, queue: Queue) -> None:
        with broker.producer("orders", batch_size=100, max_delay=NEVER) as producer:
            producer.push(b"good")
            with pytest.raises(BadMessage, match="not str: 'text'"):
                producer.push("text")  # type: ignore[arg-type]
            with pytest.raises(BadMessage, match="colour"):
                producer.push(b"x", colour="red")
        assert bodies(queue.receive(9)) == [b"good"]

    def test_a_flush_that_fails_keeps_its_messages(self, broker: Broker, queue: Queue) -> None:
        producer = broker.producer("orders", batch_size=100, max_delay=NEVER)
        producer.push(b"1")
        broker.delete("orders")
        with pytest.raises(QueueNotFound):
            producer.flush()
        again = broker.create("orders")
        producer.close()
        assert bodies(again.receive(9)) == [b"1"]

    def test_a_batch_whose_answer_was_lost_is_not_doubled(self, broker: Broker, queue: Queue) -> None:
        producer = broker.producer("orders", batch_size=3, max_delay=NEVER)
        send = producer.queue.send_once

        def send_and_lose_the_answer(*arguments: Any, **options: Any) -> None:
            send(*arguments, **options)
            raise OutcomeUnknown("the connection was lost at the commit")

        producer.queue.send_once = send_and_lose_the_answer  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            for body in (b"1", b"2", b"3"):
                producer.push(body)
        with pytest.raises(OutcomeUnknown):
            producer.push(b"4")
        producer.queue.send_once = send  # type: ignore[method-assign]
        producer.push(b"5")
        producer.close()
        assert sorted(bodies(queue.peek(9))) == [b"1", b"2", b"3", b"4", b"5"]

    def test_a_producers_settings_have_limits(self, broker: Broker, queue: Queue) -> None:
        with pytest.raises(BadInput, match="batch_size 0"):
            broker.producer("orders", batch_size=0)
        with pytest.raises(BadInput, match="max_delay -1"):
            broker.producer("orders", max_delay=-1)
        with pytest.raises(QueueNotFound):
            broker.producer("nobody")


class Consuming:
    def test_what_a_callback_returns_from_is_processed(self, broker: Broker) -> None:
        queue = broker.create("orders", history=60)
        queue.send_many([b"%d" % number for number in range(25)])
        consumer = broker.consumer("orders", batch_size=10)
        seen: list[bytes] = []

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            assert payload == message.body
            seen.append(payload)

        assert consumer.run(until_empty=True).processed == 25
        assert seen == [b"%d" % number for number in range(25)]
        assert {message.state.name for message in queue.settled()} == {"PROCESSED"}
        assert queue.stats().messages == 0

    def test_what_a_callback_fails_on_is_queued_again_with_back_off(
        self, broker: Broker, queue: Queue, clock: FakeClock
    ) -> None:
        queue.send(b"x")
        consumer = broker.consumer("orders", back_off=2)
        tries: list[int] = []

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            tries.append(message.receives)
            raise OSError("no")

        for wait in (0, 1.9, 0.1, 3.9, 0.1):
            clock.advance(wait)
            consumer.run(until_empty=True)
        assert tries == [1, 2, 3]
        assert consumer.tally.retried == 3

    def test_past_its_deadline_it_has_failed(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("orders", history=60)
        queue.send(b"x", deadline=5)
        consumer = broker.consumer("orders")

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            clock.advance(5)
            raise OSError("no such customer")

        assert consumer.run(until_empty=True).failed == 1
        assert [(message.state.name, message.reason) for message in queue.settled()] == [
            ("FAILED", "OSError: no such customer")
        ]

    def test_at_most_once_nothing_runs_twice(self, broker: Broker, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2", b"3"])
        consumer = broker.consumer("orders", mode="at_most_once")
        seen: list[bytes] = []

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            seen.append(payload)
            raise OSError("no")

        consumer.run(until_empty=True)
        clock.advance(1000)
        consumer.run(until_empty=True)
        assert seen == [b"1", b"2", b"3"]
        assert consumer.tally.failed == 3

    @pytest.mark.parametrize("workers", [1, 2])
    def test_at_most_once_the_history_tells_how_each_one_ended(self, broker: Broker, clock: FakeClock, workers: int) -> None:
        queue = broker.create("orders", history=60, mode="at_most_once")
        queue.send_many([b"done", b"bad", Draft(b"late", deadline=5)])
        consumer = broker.consumer("orders", workers=workers, batch_size=3)
        seen: set[tuple[str, str | None]] = set()
        turn = threading.Lock()

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            with turn:
                seen.update((one.state.name, one.reason) for one in queue.settled() if one.id == message.id)
                if payload == b"late":
                    clock.advance(5)
                if payload != b"done":
                    raise OSError("smtp down")

        tally = consumer.run(until_empty=True)
        assert seen == {("FAILED", "unfinished")}, "so that a process that dies leaves it"
        assert (tally.processed, tally.failed) == (1, 2)
        assert {(message.text, message.state.name, message.reason) for message in queue.settled()} == {
            ("done", "PROCESSED", None),
            ("bad", "FAILED", "OSError: smtp down"),
            ("late", "FAILED", "OSError: smtp down"),
        }

    def test_a_consumer_that_was_too_slow_cannot_settle_what_others_hold(
        self, broker: Broker, queue: Queue, clock: FakeClock
    ) -> None:
        queue.send(b"x")
        consumer = broker.consumer("orders")
        others: list[Message] = []

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            clock.advance(31)
            others.extend(queue.receive())

        tally = consumer.run(until_empty=True)
        assert (tally.processed, tally.lost) == (0, 1)
        assert others[0].delete() is True

    @pytest.mark.parametrize("how", ["alone", "threads", "coroutines"])
    def test_what_is_finished_is_settled_while_the_next_one_runs(self, broker: Broker, queue: Queue, how: str) -> None:
        queue.send_many([b"1", b"2", b"3"])
        consumer = broker.consumer("orders", workers=2 if how == "threads" else 1)
        left: list[int] = []

        def handle(payload: bytes, message: Message) -> None:
            turn = len(left)
            left.append(0)
            left[turn] = wait_for_settlement(queue, 3 - turn)

        async def handle_async(payload: bytes, message: Message) -> None:
            await asyncio.to_thread(handle, payload, message)

        def handle_in_turn(payload: bytes, message: Message) -> None:
            with lock:
                handle(payload, message)

        lock = threading.Lock()
        consumer.process({"alone": handle, "threads": handle_in_turn, "coroutines": handle_async}[how])
        assert consumer.run(until_empty=True).processed == 3
        assert left == [3, 2, 1]

    def test_what_is_finished_shortly_before_its_deadline_is_settled_at_once(self, broker: Broker, queue: Queue) -> None:
        queue.send_many([Draft(b"%d" % number, deadline=0.5) for number in range(3)])
        consumer = broker.consumer("orders")
        left: list[int] = []
        consumer.process(lambda payload, message: left.append(queue.stats().messages))
        assert consumer.run(until_empty=True).processed == 3
        assert left == [3, 2, 1]

    def test_at_most_once_what_is_past_its_deadline_is_not_started(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("orders", history=60)
        queue.send_many([Draft(b"%d" % number, deadline=5) for number in range(3)])
        consumer = broker.consumer("orders", mode="at_most_once")
        ran: list[bytes] = []

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            ran.append(payload)
            clock.advance(5)

        tally = consumer.run(until_empty=True)
        assert ran == [b"0"]
        assert (tally.processed, tally.failed) == (1, 2)
        assert [(message.state.name, message.reason) for message in queue.settled()].count(("FAILED", "deadline")) == 2

    def test_at_least_once_what_is_past_its_deadline_is_left_to_others(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("orders", visibility=3600)
        queue.send_many([Draft(b"%d" % number, deadline=5) for number in range(3)])
        consumer = broker.consumer("orders", heartbeat=3600)
        ran: list[tuple[bytes, int]] = []

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            ran.append((payload, message.receives))
            if payload == b"0":
                clock.advance(5)

        tally = consumer.run(until_empty=True)
        assert ran == [(b"0", 1), (b"1", 2), (b"2", 2)], "others, who may be ourselves"
        assert (tally.processed, tally.lost, tally.failed) == (3, 2, 0)

    def test_what_is_past_its_lease_is_not_started(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("orders", visibility=3600)
        queue.send_many([b"0", b"1", b"2"])
        consumer = broker.consumer("orders", heartbeat=3600)
        ran: list[bytes] = []
        others: list[Message] = []

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            ran.append(payload)
            clock.advance(3600)
            others.extend(queue.receive(9, visibility=7200))

        tally = consumer.run(until_empty=True)
        assert ran == [b"0"]
        assert len(others) == 3
        assert (tally.processed, tally.lost) == (0, 3)
        assert queue.delete_many(others) == [True] * 3

    def test_leases_are_renewed_by_one_call_and_not_past_a_deadline(
        self, broker: LocalBroker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = broker.create("orders", visibility=30)
        queue.send_many([b"x"] * 20 + [Draft(b"soon", deadline=40), Draft(b"late", deadline=29), Draft(b"far", deadline=900)])
        leases = broker.consumer("orders", heartbeat=3600)._heart.leases
        assert leases
        held = queue.receive(50)
        leases.hold(held)
        calls: list[str] = []

        def noting(extend: Callable[..., list[bool]], name: str, *arguments: Any, **how: Any) -> list[bool]:
            calls.append(name)
            return extend(*arguments, **how)

        wrap_verb(monkeypatch, broker, "extend", noting)
        leases.renew()
        assert calls == [], "they last for now"
        clock.advance(15)
        leases.renew()
        assert len(calls) == 2, "the same end for all but one"
        ends = {b"x": 45, b"soon": 40, b"late": 29, b"far": 45}
        began = clock.now - 15_000_000
        assert {(one.body, one.visible_at) for one in held} == {(body, began + end * 10**6) for body, end in ends.items()}
        assert {(one.body, one.visible_at) for one in queue.peek(50)} == {(one.body, one.visible_at) for one in held}

    def test_who_was_struck_off_registers_again_before_it_takes_more(
        self, broker: LocalBroker, queue: Queue, clock: FakeClock
    ) -> None:
        queue.send_many([b"x"] * 9)
        consumer = broker.consumer("orders", batch_size=3, heartbeat=3600)
        living: list[int] = []

        @consumer.process
        def handle(payload: bytes, message: Message) -> None:
            if not living:
                broker.store.roster.strike("orders", clock.now + 1)
                broker.store.roster.beat("orders", "another", clock.now)
            living.append(len(broker.store.roster.living("orders")))

        consumer.run(until_empty=True)
        assert living == [1, 1, 1, 2, 2, 2, 2, 2, 2]
        assert consumer.place == 1, "the last born"

    def test_each_takes_its_share_and_helps_unless_told_not_to(
        self, broker: LocalBroker, queue: Queue, clock: FakeClock
    ) -> None:
        queue.send_many([b"x"] * 20)
        share = queue.receive(20, share=(1, 2))
        assert len(share) in (10, 20), "a store that cannot tell shares ignores them"
        for message in share:
            message.release()
        broker.store.roster.beat("orders", "an older one", clock())
        alone = broker.consumer("orders", helping=False)
        alone.process(lambda payload, message: None)
        tally = alone.run(until_empty=True)
        assert alone.place == 1
        assert tally.processed == len(share)
        helping = broker.consumer("orders")
        helping.process(lambda payload, message: None)
        assert tally.processed + helping.run(until_empty=True).processed == 20

    def test_the_place_is_that_in_the_birth_order_of_the_living(self, broker: Broker, queue: Queue, clock: FakeClock) -> None:
        consumers = [broker.consumer("orders", max_missed=2, heartbeat=2, check_every=1)._heart for _ in range(3)]
        for heart in consumers:
            heart.beat()
        clock.advance(2)
        for heart in consumers:
            heart.beat()
        assert [heart.share for heart in consumers] == [(0, 3), (1, 3), (2, 3)]
        first, *others = consumers
        for _ in range(2):  # the first misses two beats: it may still come back
            clock.advance(2)
            for heart in others:
                heart.beat()
        assert [heart.share for heart in others] == [(1, 3), (2, 3)]
        for _ in range(2):
            clock.advance(2)
            for heart in others:
                heart.beat()
        assert [heart.share for heart in others] == [(0, 2), (1, 2)]
        first.beat()  # removed, it registers again as the youngest
        assert first.share == (2, 3)

    def test_who_stops_takes_its_leave(self, broker: LocalBroker, queue: Queue) -> None:
        consumer = broker.consumer("orders")
        consumer.process(lambda payload, message: None)
        consumer.run(until_empty=True)
        assert broker.store.roster.living("orders") == []

    def test_told_to_stop_it_gives_back_what_it_has_not_begun(self, broker: Broker, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3"])
        consumer = broker.consumer("orders")
        consumer.process(lambda payload, message: consumer.stop())
        tally = consumer.run()
        assert (tally.processed, tally.given_back) == (1, 2)
        assert queue.stats().visible == 2

    @pytest.mark.parametrize("how", ["threads", "processes", "coroutines"])
    def test_callbacks_run_in_threads_processes_or_one_loop(self, broker: Broker, queue: Queue, how: str) -> None:
        queue.send_many([b"%d" % number for number in range(12)])
        consumer = broker.consumer("orders", workers=2, kind="processes" if how == "processes" else "threads")
        names: set[str] = set()

        async def handle_async(payload: bytes, message: Message) -> None:
            names.add(threading.current_thread().name)

        def handle(payload: bytes, message: Message) -> None:
            names.add(threading.current_thread().name)

        consumer.process(handle_in_a_process if how == "processes" else handle if how == "threads" else handle_async)
        assert consumer.run(until_empty=True).processed == 12
        assert all("penstock" in name for name in names)

    def test_a_consumers_settings_have_limits(self, broker: Broker, queue: Queue) -> None:
        for options, words in (
            ({"batch_size": 0}, "batch_size 0"),
            ({"workers": 0}, "workers 0"),
            ({"heartbeat": 0}, "heartbeat 0"),
            ({"max_missed": 0}, "max_missed 0"),
            ({"mode": "twice"}, "mode 'twice'"),
            ({"kind": "fibres"}, "kind 'fibres'"),
            ({"colour": "red"}, "colour"),
        ):
            with pytest.raises(BadInput, match=words):
                broker.consumer("orders", **options)
        with pytest.raises(QueueNotFound):
            broker.consumer("nobody")
        with pytest.raises(BadInput, match="no callback"):
            broker.consumer("orders").run()
        for share in ((1, 1), (-1, 2), "x"):
            with pytest.raises(BadMessage, match="share"):
                queue.receive(share=share)  # type: ignore[arg-type]

    def test_a_lease_is_extended_while_a_callback_runs_long(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("orders", visibility=0.6)
            queue.send(b"long")
            consumer = broker.consumer("orders")
            begun, end = Event(), Event()

            @consumer.process
            def handle(payload: bytes, message: Message) -> None:
                begun.set()
                end.wait(30)

            thread = Thread(target=lambda: consumer.run(until_empty=True))
            thread.start()
            assert begun.wait(30)
            assert queue.receive(wait=1.5) == []
            end.set()
            thread.join()
            assert consumer.tally.processed == 1

    def test_a_stopped_consumer_ends_soon(self, url: str) -> None:
        with penstock.open(url) as broker:
            broker.create("orders")
            consumer = broker.consumer("orders")
            consumer.process(lambda payload, message: None)
            thread = Thread(target=consumer.run)
            thread.start()
            started = time.monotonic()
            consumer.stop()
            thread.join()
            assert time.monotonic() - started < 5


def handle_in_a_process(payload: bytes, message: Message) -> None:
    assert message.body == payload


def wait_for_settlement(queue: Queue, left: int) -> int:
    """Wait until at most this many messages are left; returns how many."""
    give_up_at = time.monotonic() + 120
    while (messages := queue.stats().messages) > left and time.monotonic() < give_up_at:
        time.sleep(0.001)
    return messages
