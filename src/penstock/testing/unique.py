"""The contract's chapter on unique messages: one with a key while it is in the queue, received or not."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import pytest

import penstock
from penstock import BadMessage, Broker, Draft, Queue, RetryPolicy
from penstock.message import Retried
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies

SETTINGS: list[dict[str, Any]] = [{}, {"deduplicate": True}, {"deduplicate": 1}]
RACERS = 4


class Unique:
    @pytest.mark.parametrize("settings", SETTINGS)
    def test_a_unique_message_is_there_once_while_it_is_queued_or_held(self, broker: Broker, settings: dict[str, Any]) -> None:
        queue = broker.create("tasks", **settings)
        first = queue.send(b"1", key="k", unique=True, delay=5)
        assert queue.send(b"2", key="k", unique=True) == (first.id, True)
        assert queue.send(b"3", key="l", unique=True).duplicate is False
        (other,) = queue.receive(9)
        assert other.key == b"l"
        assert queue.send(b"4", key=b"l", unique=True) == (other.id, True)
        assert other.delete()
        assert queue.send(b"5", key="l", unique=True).duplicate is False

    @pytest.mark.parametrize("settings", SETTINGS)
    def test_it_is_so_for_as_long_as_it_is_there(self, broker: Broker, clock: FakeClock, settings: dict[str, Any]) -> None:
        queue = broker.create("tasks", **settings)
        queue.send(b"1", key="k", unique=True)
        for _ in range(3):
            clock.advance(1000)
            assert bodies(queue.receive()) == [b"1"]
            assert queue.send(b"2", key="k", unique=True).duplicate is True

    @pytest.mark.parametrize("leave", ["cancel", "purge", "expire", "bury", "at_most_once", "fail"])
    def test_however_it_left_the_next_is_new(self, broker: Broker, clock: FakeClock, leave: str) -> None:
        broker.create("dead")
        queue = broker.create("tasks", retention=100, redrive=("dead", 1))
        queue.send(b"x", key="k", unique=True)
        if leave == "cancel":
            assert queue.cancel(key="k") is True
        elif leave == "purge":
            queue.purge()
        elif leave == "expire":
            clock.advance(100)
            assert queue.receive() == []
        elif leave == "bury":
            queue.receive(visibility=0)
            assert queue.receive() == []
            assert broker["dead"].peek()[0].key == b"k"
        elif leave == "fail":
            assert queue.fail(queue.receive()[0])
        else:
            queue.receive(mode="at_most_once")
        assert queue.send(b"y", key="k", unique=True).duplicate is False

    @pytest.mark.parametrize("history", [0, 60])
    def test_a_named_claim_takes_unique_messages_that_have_failed_before(self, broker: Broker, history: int) -> None:
        queue, policy = broker.create("tasks", max_in_flight=2, history=history), RetryPolicy(4, delay=0)
        queue.send_many([Draft(b"x", key=f"k{place}", unique=True, retry=policy) for place in range(2)])
        for message in queue.receive(9):
            assert queue.retry(message, f"no {message.number}") is Retried.AGAIN
        assert queue.claim("reader", 0, 9).size == 2
        queue.confirm("reader", 0)
        assert queue.send(b"y", key="k2", unique=True).duplicate is False
        assert queue.receive(9) == []
        held = queue.read("reader", 0)
        assert [(each.failures, each.error, each.retry) for each in held] == [(1, f"no {each.number}", policy) for each in held]
        for message in held:
            assert getattr(queue.find(key=message.key), "id", None) == message.id
            assert queue.send(b"y", key=message.key, unique=True).duplicate is True
        assert queue.settle("reader", 0) == 2
        assert [queue.send(b"y", key=f"k{place}", unique=True).duplicate for place in range(3)] == [False, False, True]

    def test_messages_that_are_not_unique_are_as_many_as_are_sent(self, queue: Queue) -> None:
        sent = [queue.send(b"x", key="k", unique=unique).duplicate for unique in (False, True, False, True)]
        assert sent == [False, False, False, True]

    def test_a_batch_has_it_once(self, queue: Queue) -> None:
        batch: list[Draft | bytes] = [
            Draft(b"1", key="k", unique=True),
            b"2",
            Draft(b"3", key="k", unique=True),
            Draft(b"4", key="k"),
        ]
        sent = queue.send_many(batch)
        assert [each.duplicate for each in sent] == [False, False, True, False]
        assert sent[2].id == sent[0].id
        assert sorted(bodies(queue.receive(9))) == [b"1", b"2", b"4"]

    def test_a_batch_that_is_sent_again_adds_nothing(self, queue: Queue) -> None:
        batch: list[Draft | bytes] = [b"1", Draft(b"2", key="k", unique=True), b"3"]
        first = queue.send_many(batch, token="token")
        again = queue.send_many(batch, token="token")
        assert [each.id for each in again] == [each.id for each in first]
        assert [each.duplicate for each in again] == [False, True, False]
        assert sorted(bodies(queue.receive(9))) == [b"1", b"2", b"3"]

    def test_a_redriven_message_is_unique_again(self, broker: Broker) -> None:
        dead = broker.create("dead")
        queue = broker.create("tasks", redrive=("dead", 1))
        queue.send(b"1", key="k", unique=True)
        queue.receive(visibility=0)
        assert queue.receive() == []
        assert dead.redrive() == 1
        assert queue.send(b"2", key="k", unique=True).duplicate is True

    def test_a_letter_stays_while_another_with_its_key_is_there(self, broker: Broker) -> None:
        dead = broker.create("dead")
        queue = broker.create("tasks", redrive=("dead", 1))
        queue.send(b"1", key="k", unique=True)
        queue.receive(visibility=0)
        assert queue.receive() == []
        queue.send(b"2", key="k", unique=True)
        redriven = dead.redrive()
        assert (int(redriven), redriven.duplicates) == (0, 1)
        assert queue.delete_many(queue.receive(9)) == [True]
        assert dead.redrive() == 1
        assert bodies(queue.receive(9)) == [b"1"]

    def test_a_key_finds_the_unique_message_to_cancel(self, broker: Broker) -> None:
        queue = broker.create("window", deduplicate=300)
        queue.send_many([Draft(b"1", key="k"), Draft(b"2", key="k", unique=True)])
        assert queue.cancel(key="k") is True
        assert bodies(queue.peek(9)) == [b"1"]
        assert queue.cancel(key="k") is True

    @pytest.mark.parametrize(
        ("how", "words"),
        [
            ({"unique": True}, "a unique message needs a key"),
            ({"unique": 1, "key": "k"}, "unique must be True or False, not 1"),
            ({"unique": None, "key": "k"}, "unique must be True or False, not None"),
        ],
    )
    def test_a_unique_message_has_a_key(self, queue: Queue, how: dict[str, Any], words: str) -> None:
        with pytest.raises(BadMessage, match=words):
            queue.send(b"x", **how)
        with pytest.raises(BadMessage, match=words):
            queue.send_many([b"x", Draft(b"x", **how)])
        assert queue.stats().messages == 0


class UniqueLive:
    def test_of_those_who_send_it_at_once_one_does(self, url: str) -> None:
        with penstock.open(url) as broker:
            broker.create("raced")
            barrier = Barrier(RACERS)
            answers: list[bool] = []

            def send() -> None:
                for number in range(10):
                    barrier.wait()
                    answers.append(broker["raced"].send(b"x", key=f"{number}", unique=True).duplicate)

            racers = [Thread(target=send) for _ in range(RACERS)]
            for racer in racers:
                racer.start()
            for racer in racers:
                racer.join()
            assert (answers.count(False), answers.count(True)) == (10, 10 * (RACERS - 1))
            assert broker["raced"].stats().messages == 10


class UniqueGroups:
    def test_a_unique_message_that_is_blocked_is_there(self, broker: Broker) -> None:
        queue = broker.create("grouped", groups=True)
        queue.send_many([Draft(b"1", group="g"), Draft(b"2", group="g", key="k", unique=True)])
        assert queue.send(b"3", group="h", key="k", unique=True).duplicate is True
