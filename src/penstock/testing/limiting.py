"""The contract's chapter on limits: receivers hold at most so many messages of a queue together."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest

import penstock
from penstock import BadSetting, Broker, Message, Queue
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies

RACERS = 4


class Limiting:
    def test_receivers_hold_at_most_so_many_messages_together(self, broker: Broker) -> None:
        queue = broker.create("limited", max_in_flight=3)
        queue.send_many([b"%d" % number for number in range(6)])
        first, second = queue.receive(2), broker["limited"].receive(9)
        assert (len(first), len(second), queue.receive(9)) == (2, 1, [])
        assert queue.stats().in_flight == 3
        assert first[0].delete() and first[1].release(delay=60)
        assert len(queue.receive(9)) == 2
        assert queue.receive(9) == []

    def test_a_lease_that_lapses_or_ends_makes_room(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("limited", max_in_flight=2)
        queue.send_many([b"1", b"2", b"3"])
        one, _ = queue.receive(9, visibility=30)
        assert one.extend(60)
        clock.advance(30)
        assert len(queue.receive(9)) == 1
        assert one.extend(0)
        assert len(queue.receive(9)) == 1

    def test_an_exchange_is_limited_after_it_has_settled(self, broker: Broker) -> None:
        queue = broker.create("limited", max_in_flight=2)
        queue.send_many([b"1", b"2", b"3", b"4"])
        held = queue.receive(9)
        settled, taken = queue.exchange(held[:1], 9)
        assert (settled, len(taken)) == ([True], 1)
        assert queue.exchange([], 9) == ([], [])

    def test_a_receiver_that_knows_the_queue_sees_that_the_limit_was_changed(self, broker: Broker) -> None:
        queue = broker.create("limited", max_in_flight=1)
        queue.send_many([b"1", b"2", b"3", b"4"])
        assert len(queue.receive(9)) == 1
        assert queue.receive(9) == []
        broker["limited"].update(max_in_flight=3)
        assert len(queue.receive(9)) == 2
        broker["limited"].update(max_in_flight=None)
        assert len(queue.receive(9)) == 1

    def test_a_limit_that_is_lowered_takes_nothing_away(self, broker: Broker) -> None:
        queue = broker.create("limited")
        queue.send_many([b"1", b"2", b"3"])
        held = queue.receive(2)
        queue.update(max_in_flight=1)
        assert queue.receive(9) == []
        assert queue.delete_many(held) == [True, True]
        assert len(queue.receive(9)) == 1

    def test_what_is_received_at_most_once_is_held_by_nobody(self, broker: Broker) -> None:
        queue = broker.create("limited", max_in_flight=1)
        queue.send_many([b"1", b"2", b"3"])
        assert len(queue.receive()) == 1
        assert len(queue.receive(9, mode="at_most_once")) == 2

    @pytest.mark.parametrize("history", [0, 60])
    def test_a_named_claim_has_what_there_is_room_for(self, broker: Broker, history: int) -> None:
        queue = broker.create("limited", max_in_flight=3, history=history)
        queue.send_many([b"%d" % number for number in range(6)])
        (held,) = queue.receive()
        assert [queue.claim("reader", 0, 9).size, queue.claim("reader", 1, 9).size] == [2, 0]
        assert queue.receive(9) == []
        assert held.delete()
        assert queue.claim("reader", 1, 9, max_bytes=1000).size == 1
        assert queue.settle("reader", 1) == 3
        assert len(queue.receive(9)) == 2

    def test_the_limit_stays(self, broker: Broker) -> None:
        assert broker.create("limited", max_in_flight=7).settings.max_in_flight == 7
        broker["limited"].update(visibility=5)
        assert broker["limited"].settings.max_in_flight == 7

    @pytest.mark.parametrize("value", [0, -1, 2**31, 1.5, True, "3"])
    def test_a_limit_is_a_number(self, queue: Queue, value: Any) -> None:
        with pytest.raises(BadSetting, match="max_in_flight"):
            queue.update(max_in_flight=value)
        assert queue.settings.max_in_flight is None


class LimitingLive:
    """With the real clock."""

    @pytest.mark.parametrize("end", ["delete", "release", "lapse"])
    def test_a_poll_rests_while_there_is_no_room_and_gets_what_comes_then(self, url: str, end: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("limited", max_in_flight=1)
            queue.send_many([b"1", b"2"])
            (held,) = queue.receive(visibility=2 if end == "lapse" else 600)
            received: list[Message] = []
            poll = Thread(target=lambda: received.extend(broker["limited"].receive(wait=3600)))
            poll.start()
            if end != "lapse":
                assert getattr(held, end)()
            poll.join(60)
            assert len(received) == 1
            assert queue.stats().in_flight == 1

    def test_receivers_that_race_never_hold_more(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("limited", max_in_flight=3)
            queue.send_many([b"%d" % number for number in range(40)])
            counts: list[int] = []
            done: list[str] = []

            def work() -> None:
                mine = broker.queue("limited")
                while len(done) < 40:
                    for message in mine.receive(2, visibility=600):
                        counts.append(mine.stats().in_flight)
                        assert message.delete()
                        done.append(message.id)

            racers = [Thread(target=work) for _ in range(RACERS)]
            for racer in racers:
                racer.start()
            for racer in racers:
                racer.join()
            assert max(counts) <= 3
            assert len(set(done)) == 40


class LimitingAcross:
    def test_another_process_counts_too_and_changes_the_limit(self, url: str) -> None:
        with penstock.open(url) as broker, penstock.open(url) as other:
            queue = broker.create("limited", max_in_flight=2)
            queue.send_many([b"%d" % number for number in range(6)])
            assert len(other["limited"].receive()) == len(queue.receive(9)) == 1
            assert queue.receive(9) == other["limited"].receive(9) == []
            other["limited"].update(max_in_flight=3)
            assert len(queue.receive(9)) == 1
            other["limited"].update(max_in_flight=None)
            assert len(queue.receive(9)) == 3


class LimitingGroups:
    def test_messages_of_a_group_that_come_together_count(self, broker: Broker) -> None:
        queue = broker.create("grouped", groups=True, max_in_flight=2)
        queue.send_many([penstock.Draft(b"%d" % number, group="g") for number in range(4)])
        assert bodies(queue.receive(9, together=True)) == [b"0", b"1"]
        assert queue.receive(9, together=True) == []
