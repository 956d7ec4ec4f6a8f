"""The contract's chapter on cancelling: a message that nobody holds is taken back, by its id or its key."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

import penstock
from penstock import BadMessage, Broker, Draft, Message, Queue
from penstock.broker import LocalBroker
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies
from penstock.testing.verbs import wrap_verb

RACED = 60


class Cancelling:
    def test_a_message_that_waits_is_cancelled_once(self, queue: Queue) -> None:
        one, two = queue.send(b"1"), queue.send(b"2", delay=60)
        queue.send(b"3")
        assert [queue.cancel(each.id) for each in (one, two, one, two)] == [True, True, False, False]
        assert bodies(queue.receive(9)) == [b"3"]
        assert queue.stats().messages == 1

    def test_what_somebody_holds_is_not_cancelled(self, queue: Queue) -> None:
        sent = queue.send(b"x")
        (held,) = queue.receive()
        assert queue.cancel(sent.id) is False
        assert held.extend(60) is True
        assert held.delete() is True
        assert queue.cancel(sent.id) is False

    def test_what_was_given_back_or_has_lapsed_is_cancelled(self, queue: Queue, clock: FakeClock) -> None:
        sent = queue.send_many([b"1", b"2", b"3"])
        one, two, three = queue.receive(9, visibility=30)
        assert one.release() and two.release(delay=60)
        assert [queue.cancel(each.id) for each in sent] == [True, True, False]
        clock.advance(30)
        assert queue.cancel(sent[2].id) is True
        assert three.delete() is False
        assert queue.stats().messages == 0

    def test_a_key_stands_for_the_message_that_makes_others_duplicates(self, broker: Broker) -> None:
        queue = broker.create("once", deduplicate=True)
        queue.send_many([Draft(b"1", key="a"), Draft(b"2", key=b"b"), b"3"])
        assert queue.cancel(key="a") is True
        assert [queue.cancel(key="a"), queue.cancel(key="c")] == [False, False]
        (held, _) = queue.receive(9)
        assert (held.key, queue.cancel(key="b")) == (b"b", False)
        assert queue.send(b"4", key="a").duplicate is False
        assert queue.cancel(key=b"a") is True

    def test_a_key_of_a_window_is_found_within_it(self, broker: Broker) -> None:
        queue = broker.create("window", deduplicate=300)
        first = queue.send(b"x", key="k")
        assert queue.cancel(key="k") is True
        assert queue.send(b"x", key="k") == (first.id, True)
        assert queue.cancel(key="k") is False

    def test_a_key_that_marks_nothing_finds_nothing(self, queue: Queue) -> None:
        queue.send(b"x", key="k")
        assert queue.cancel(key="k") is False
        assert queue.stats().messages == 1

    def test_the_history_tells_that_it_was_cancelled(self, broker: Broker) -> None:
        queue = broker.create("kept", history=60)
        assert queue.cancel(queue.send(b"x").id)
        (told,) = queue.settled()
        assert (told.state.name, told.reason, told.receives) == ("FAILED", "cancelled", 0)

    def test_a_redriven_message_is_cancelled_by_the_id_that_it_has(self, broker: Broker) -> None:
        dead = broker.create("dead")
        queue = broker.create("orders", redrive=("dead", 1))
        queue.send_many([b"1", b"2"])
        queue.receive(9, visibility=0)
        assert queue.receive(9) == []
        letter = dead.peek(9)[1]
        assert dead.cancel(letter.id) is True
        assert dead.redrive() == 1
        assert queue.cancel(queue.peek()[0].id) is True
        assert queue.stats().messages == dead.stats().messages == 0

    def test_a_named_claim_holds_its_messages_until_it_lapses(self, queue: Queue, clock: FakeClock) -> None:
        sent = queue.send_many([b"1", b"2", b"3"])
        queue.claim("reader", 0, 2, ttl=60)
        assert [queue.cancel(each.id) for each in sent] == [False, False, True]
        assert len(queue.read("reader", 0)) == 2
        clock.advance(60)
        assert queue.cancel(sent[0].id) is True
        assert bodies(queue.receive(9)) == [b"2"]
        queue.release(queue.peek()[0])
        queue.claim("reader", 1, 1)
        queue.confirm("reader", 1)
        assert queue.cancel(sent[1].id) is False
        assert queue.settle("reader", 1) == 1

    def test_an_id_of_another_queue_or_of_none_cancels_nothing(self, broker: Broker, queue: Queue) -> None:
        queue.send(b"x")
        strange = ["", "0", "x", "é" * 300, "00000000-0000-8000-8000-000000000001"]
        assert [queue.cancel(id) for id in strange] == [False] * len(strange)
        assert broker.create("others").cancel(queue.peek()[0].id) is False
        assert queue.stats().messages == 1

    @pytest.mark.parametrize(
        ("how", "words"),
        [
            ({}, "the id of a message, or its key"),
            ({"id": "x", "key": "k"}, "the id of a message, or its key"),
            ({"id": 5}, "an id is text, not int: 5"),
            ({"key": 5}, "a key is text or bytes, not int: 5"),
            ({"key": "k" * 300}, "it must have 1 to 256"),
        ],
    )
    def test_an_id_or_a_key_is_needed(self, queue: Queue, how: dict[str, Any], words: str) -> None:
        with pytest.raises(BadMessage, match=words):
            queue.cancel(**how)


class CancellingInside:
    """In the process that has the store open."""

    def test_a_receiver_that_comes_in_between_has_the_message(
        self, broker: LocalBroker, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent = queue.send(b"x")
        received: list[Message] = []

        def receive_after(look: Callable[..., object], _name: str, *arguments: object) -> object:
            seen = look(*arguments)
            received.extend(broker["orders"].receive())
            return seen

        with monkeypatch.context() as patched:
            wrap_verb(patched, broker, "scan", receive_after)
            assert queue.cancel(sent.id) is False
        assert [message.delete() for message in received] == [True]

    def test_of_a_cancel_and_a_receive_one_has_each_message(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("raced")
            sent = [each.id for each in queue.send_many([b"%d" % number for number in range(RACED)])]
            cancelled: list[str] = []
            thread = Thread(target=lambda: cancelled.extend(id for id in reversed(sent) if broker["raced"].cancel(id)))
            thread.start()
            received: list[str] = []
            while thread.is_alive() or queue.stats().messages:
                messages = queue.receive()
                assert queue.delete_many(messages) == [True] * len(messages)
                received += [message.id for message in messages]
            thread.join()
            assert sorted(received + cancelled) == sorted(sent)


class CancellingGroups:
    def test_a_blocked_message_is_cancelled_and_the_first_frees_the_next(self, broker: Broker) -> None:
        queue = broker.create("grouped", groups=True)
        one, two, three = queue.send_many([Draft(b"%d" % number, group="g") for number in (1, 2, 3)])
        assert queue.cancel(two.id) is True
        assert queue.cancel(one.id) is True
        assert bodies(queue.receive(9)) == [b"3"]
        assert queue.cancel(three.id) is False

    def test_those_received_together_with_the_first_are_held(self, broker: Broker) -> None:
        queue = broker.create("grouped", groups=True)
        sent = queue.send_many([Draft(b"%d" % number, group="g") for number in (1, 2, 3)])
        assert len(queue.receive(2, together=True)) == 2
        assert [queue.cancel(each.id) for each in sent] == [False, False, True]
