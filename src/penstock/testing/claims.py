"""The contract's chapter on named durable claims: replay, confirmation, lapse, settlement, giving back."""

from __future__ import annotations

from itertools import product

import pytest

import penstock
from penstock import BadInput, Broker, Claim, ClaimLapsed, Queue, ReaderSetBack, Receipt
from penstock.broker import LocalBroker
from penstock.message import Settlement, State
from penstock.queue.queue import LocalQueue
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies


class Claims:
    def test_a_claim_gives_the_oldest_in_order(self, queue: Queue) -> None:
        queue.send_many([b"%d" % number for number in range(5)])
        claim = queue.claim("spark", 1, 3)
        assert (claim.reader, claim.epoch, claim.size, claim.confirmed) == ("spark", 1, 3, False)
        assert bodies(queue.read("spark", 1)) == [b"0", b"1", b"2"]

    def test_the_same_name_gives_the_same_messages(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3"])
        claim = queue.claim("spark", 1, 2)
        queue.send(b"4")
        assert queue.claim("spark", 1, 100) == claim
        assert bodies(queue.read("spark", 1)) == [b"1", b"2"]

    def test_a_claim_is_read_in_parts_and_again(self, queue: Queue) -> None:
        queue.send_many([b"%d" % number for number in range(10)])
        queue.claim("spark", 1, 10)
        parts = [queue.read("spark", 1, start, start + 4) for start in (0, 4, 8)]
        assert [bodies(part) for part in parts] == [[b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"], [b"8", b"9"]]
        assert queue.read("spark", 1, 4, 8) == parts[1]

    def test_a_claim_that_is_given_up_while_it_is_read_has_lapsed(
        self, queue: LocalQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.send(b"1")
        queue.claim("r", 1, 10)
        looked = queue._claims._claimed

        def given_up_after(reader: str, epoch: int) -> Claim:
            claim = looked(reader, epoch)
            queue.give_up(reader)
            return claim

        monkeypatch.setattr(queue._claims, "_claimed", given_up_after)
        with pytest.raises(ClaimLapsed, match="'r' has no claim for epoch 1 any more"):
            queue.read("r", 1)

    def test_an_epoch_that_is_settled_late_does_not_set_the_reader_back(
        self, queue: Queue, broker: LocalBroker, clock: FakeClock
    ) -> None:
        """Two processes of a reader may settle at once, and the later epoch may be first."""
        readers, how = broker.store.queue("orders").readers, Settlement(State.PROCESSED, clock())
        for epoch in (5, 3):
            with broker.store.batch():
                broker.store.reserve("orders")
                assert readers.settle("r", epoch, how) == 0
            assert queue.settled_epoch("r") == 5

    def test_a_message_can_be_set_aside_before_anybody_has_received_it(self, queue: Queue, broker: LocalBroker) -> None:
        queue.send_many([b"1", b"2"])
        one = queue.peek()[0]
        assert broker.store.queue(queue.name).set_aside([Receipt(queue.name, one.id, None)]) == [True]
        assert [message.id for message in queue.peek(9, state="damaged")] == [one.id]
        assert one.id not in [message.id for message in queue.receive(9)]
        assert (queue.stats().damaged, queue.stats().messages) == (1, 2)

    def test_what_is_set_aside_is_not_settled(self, queue: Queue, broker: LocalBroker) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 2)
        queue.confirm("spark", 1)
        one, _ = queue.read("spark", 1)
        broker.store.queue(queue.name).set_aside([one])
        assert queue.stats().damaged == 1
        assert queue.settle("spark", 1) == 1
        assert (queue.stats().messages, queue.stats().damaged, queue.readers()) == (1, 1, {"spark": []})
        assert [queue.delete(message.id) for message in queue.peek(state="damaged")] == [True]

    def test_reading_again_counts_no_receive(self, queue: Queue) -> None:
        queue.send(b"x")
        queue.claim("spark", 1, 1)
        assert [queue.read("spark", 1)[0].receives for _ in range(3)] == [1, 1, 1]

    def test_others_do_not_get_what_is_claimed(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3"])
        queue.claim("spark", 1, 2)
        assert queue.claim("other", 1, 9).size == 1
        assert queue.receive(9) == []
        assert queue.stats().in_flight == 3

    def test_a_tentative_claim_lapses(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 2, ttl=10)
        clock.advance(10)
        for call in (queue.confirm, queue.read):
            with pytest.raises(ClaimLapsed, match=r"'spark'.*epoch 1"):
                call("spark", 1)
        assert bodies(queue.receive(9)) == [b"1", b"2"]

    def test_what_lapsed_is_visible_to_whoever_looks(self, broker: Broker, clock: FakeClock) -> None:
        queues = [broker.create(name) for name in ("counted", "looked-at", "taken", "claimed")]
        for queue in queues:
            queue.send_many([b"1", b"2"])
            claim = queue.claim("spark", 1, 2, ttl=0.5)
            queue.send(b"later", delay=20)
            assert queue.stats().in_flight == 2
            assert queue.pulse().due_at in (claim.lapses_at, 0)  # a store of files does not report since when
        clock.advance(0.5)
        counted, looked_at, taken, claimed = queues
        assert (counted.stats().visible, counted.stats().in_flight) == (2, 0)
        assert bodies(looked_at.peek(9))[:2] == [b"1", b"2"]
        assert bodies(taken.receive(mode="at_most_once")) == [b"1"]
        assert bodies(taken.receive(9)) == [b"2"]
        assert claimed.claim("other", 1, 9).size == 2
        assert [message.receives for message in claimed.read("other", 1)] == [2, 2]

    def test_what_lapsed_waits_behind_what_was_there_before(self, broker: Broker, queue: Queue, clock: FakeClock) -> None:
        for mode, received in product(("at_least_once", "at_most_once"), (False, True)):
            queue.send(b"1")
            if received:
                queue.receive()[0].release()
            queue.claim(f"{mode}-{received}", 1, 1, ttl=10)
            queue.send(b"2")
            clock.advance(10)
            queue.send(b"3")
            order = [queue.receive(mode=mode, visibility=100)[0].body for _ in range(3)]
            assert order == [b"2", b"1", b"3"] if broker.store.ordered else sorted(order) == [b"1", b"2", b"3"]

    def test_whoever_gets_what_lapsed_keeps_it(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 2, ttl=10)
        clock.advance(10)
        (mine,) = queue.receive(visibility=100)
        assert queue.claim("spark", 1, 9, ttl=10).size == 1
        queue.confirm("spark", 1)
        assert queue.settle("spark", 1) == 1
        assert queue.delete(mine) is True
        assert queue.stats().messages == 0

    def test_what_others_deleted_of_a_claim_is_not_settled(self, queue: Queue) -> None:
        first, second = queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 2)
        queue.confirm("spark", 1)
        assert queue.delete(first.id) is True
        assert bodies(queue.read("spark", 1)) == [b"2"]
        assert queue.settle("spark", 1) == 1
        assert queue.delete(second.id) is False

    def test_what_was_released_from_a_claim_is_whose_who_gets_it(self, queue: Queue) -> None:
        first, _ = queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 2)
        queue.confirm("spark", 1)
        assert queue.release(first.id) is True
        (mine,) = queue.receive(9, visibility=100)
        assert queue.settle("spark", 1) == 1
        assert queue.delete(mine) is True

    def test_consumers_beside_a_claim_get_what_comes_after_it(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 9)
        queue.confirm("spark", 1)
        queue.send_many([b"3", b"4", b"5"])
        (third,), (fourth,) = queue.receive(visibility=100), queue.receive(mode="at_most_once")
        assert [third.body, fourth.body] == [b"3", b"4"]
        assert (queue.stats().visible, queue.stats().in_flight) == (1, 3)
        assert bodies(queue.peek(9, state="queued")) == [b"5"]
        assert queue.delete(third) is True
        assert queue.claim("other", 1, 9).size == 1
        assert queue.settle("spark", 1) == 2
        assert bodies(queue.read("other", 1)) == [b"5"]

    def test_what_comes_back_beside_a_claim_is_not_settled_with_it(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3"])
        (first,) = queue.receive(visibility=100)
        queue.claim("spark", 1, 9)
        queue.confirm("spark", 1)
        assert first.release() is True
        assert queue.settle("spark", 1) == 2
        assert bodies(queue.receive(9)) == [b"1"]

    def test_what_is_sent_beside_a_claim_while_the_clock_is_set_back_is_not_settled_with_it(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        for batch in ([b"new"], [b"new"] * 200):
            queue = broker.create(f"set-back-{len(batch)}")
            queue.send(b"old")
            queue.claim("spark", 1, 9)
            queue.confirm("spark", 1)
            clock.advance(-60)
            queue.send_many(batch)
            assert queue.stats().visible == len(batch)
            assert queue.settle("spark", 1) == 1
            assert bodies(queue.receive(1000)) == batch

    def test_what_is_given_back_while_the_clock_is_set_back_is_not_settled_with_another_claim(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        queue.send(b"1")
        clock.advance(10)
        queue.send(b"2")
        queue.claim("first", 1, 1)
        queue.claim("second", 1, 1)
        clock.advance(-5)
        assert queue.give_up("first") == 1
        assert queue.settle("second", 1) == 1
        assert bodies(queue.receive(9)) == [b"1"]

    def test_a_clock_that_is_set_back_a_little_shows_no_more_as_visible_than_can_be_received(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        queue.send_many([b"1", b"2", b"3"])
        queue.claim("spark", 1, 2)
        before = queue.stats()
        clock.advance(-0.5)
        stats, received = queue.stats(), queue.receive(9)
        assert (stats.messages, stats.in_flight, stats.visible) == (3, 2, len(received))
        clock.advance(0.5)
        assert queue.delete_many(received) == [True] * len(received)
        assert (before.visible, queue.stats().visible) == (1, 1 - len(received))

    def test_the_history_of_a_claim_that_was_settled_unconfirmed_tells_until_when_it_was_hidden(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        queue = broker.create("kept", history=60)
        queue.send(b"x")
        queue.claim("spark", 1, 1, ttl=40)
        assert queue.settle("spark", 1) == 1
        assert [message.visible_at for message in queue.settled()] == [clock.now + 40_000_000]

    def test_a_clock_that_is_set_back_does_not_change_a_claim(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"0", b"1", b"2"])
        queue.receive(visibility=100)
        queue.claim("spark", 1, 1)
        queue.confirm("spark", 1)
        clock.advance(-2)
        queue.receive(visibility=0.5)
        claimed = bodies(queue.read("spark", 1))
        assert len(claimed) == 1
        assert queue.settle("spark", 1) == 1
        clock.advance(200)
        assert sorted([*claimed, *bodies(queue.receive(9))]) == [b"0", b"1", b"2"]

    def test_what_was_extended_alone_of_a_claim_goes_its_own_way(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 9, ttl=60)
        assert queue.extend(queue.read("spark", 1)[0], 5) is True
        assert queue.confirm("spark", 1).size == 2
        clock.advance(10)
        assert queue.receive(9) == []
        assert queue.settle("spark", 1) == 2

    def test_what_is_moved_beside_a_claim_is_not_settled_with_it(self, broker: Broker) -> None:
        dead = broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send(b"1")
        dead.send(b"2")
        queue.receive()[0].release()
        dead.claim("spark", 1, 9)
        dead.confirm("spark", 1)
        assert queue.receive() == []
        assert dead.settle("spark", 1) == 1
        assert bodies(dead.receive(9)) == [b"1"]

    def test_what_was_claimed_can_be_settled_by_its_receipt(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2"])
        seen = queue.peek(1)
        queue.claim("spark", 1, 9)
        queue.confirm("spark", 1)
        assert queue.delete(seen[0]) is False
        (first, _) = queue.read("spark", 1)
        assert (first.receives, first.state.name) == (1, "CONSUMED")
        assert queue.delete(first) is True
        assert queue.settle("spark", 1) == 1

    def test_a_receipt_from_before_a_claim_is_stale(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (mine,) = queue.receive(visibility=5)
        clock.advance(5)
        queue.claim("spark", 1, 9)
        assert [mine.delete(), mine.extend(9), mine.release()] == [False] * 3
        queue.confirm("spark", 1)
        assert queue.settle("spark", 1) == 1

    def test_dead_letters_are_redriven_once_their_claim_has_lapsed(self, broker: Broker, clock: FakeClock) -> None:
        dead = broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send_many([b"1", b"2"])
        for message in queue.receive(2):
            message.release()
        assert queue.receive() == []
        dead.claim("spark", 1, 9, ttl=10)
        assert dead.redrive() == 0
        clock.advance(10)
        assert dead.redrive() == 2

    def test_settings_changed_beside_a_claim_hold_for_its_settlement(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 9)
        queue.confirm("spark", 1)
        queue.update(history=60)
        assert queue.settle("spark", 1) == 2
        assert sorted(bodies(queue.settled())) == [b"1", b"2"]

    def test_a_lapsed_claim_leaves_what_came_meanwhile(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 1, ttl=10)
        queue.claim("other", 1, 1, ttl=20)
        queue.confirm("other", 1)
        clock.advance(10)
        assert bodies(queue.receive(9, visibility=100)) == [b"1"]
        assert bodies(queue.read("other", 1)) == [b"2"]
        assert queue.settle("other", 1) == 1
        assert queue.stats().in_flight == 1

    def test_a_confirmed_claim_that_is_limited_by_bytes_never_lapses(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 2, ttl=10, max_bytes=100)
        queue.confirm("spark", 1)
        clock.advance(10**8)
        assert queue.receive(9) == []
        assert queue.settle("spark", 1) == 2

    def test_a_claim_outlasts_a_deadline(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"brief", deadline=5)
        queue.claim("spark", 1, 1, ttl=10)
        clock.advance(6)
        assert queue.receive() == []
        queue.confirm("spark", 1)
        clock.advance(6)
        assert queue.receive() == []
        assert queue.settle("spark", 1) == 1

    def test_a_lapsed_claim_is_made_anew(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 2, ttl=10)
        clock.advance(10)
        queue.delete(queue.receive()[0])
        assert queue.claim("spark", 1, 9, ttl=10).size == 1
        assert bodies(queue.read("spark", 1)) == [b"2"]

    def test_a_confirmed_claim_never_lapses(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 2, ttl=10)
        assert queue.confirm("spark", 1).confirmed is True
        clock.advance(10**8)
        assert queue.receive(9) == []
        assert queue.stats().in_flight == 2
        assert bodies(queue.read("spark", 1)) == [b"1", b"2"]
        assert queue.confirm("spark", 1).confirmed is True

    def test_retention_does_not_touch_a_confirmed_claim(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("brief", retention=10)
        queue.send(b"x")
        queue.claim("spark", 1, 1)
        queue.confirm("spark", 1)
        clock.advance(100)
        queue.send(b"tend")
        assert queue.stats().messages == 2
        assert queue.purge() == 1
        assert bodies(queue.read("spark", 1)) == [b"x"]

    def test_a_claim_of_nothing_is_a_claim(self, queue: Queue) -> None:
        assert queue.claim("spark", 1, 5).size == 0
        queue.confirm("spark", 1)
        queue.send(b"x")
        assert queue.claim("spark", 1, 5).size == 0
        assert queue.read("spark", 1) == []
        assert queue.settle("spark", 1) == 0

    def test_a_tentative_claim_of_nothing_takes_what_comes(self, queue: Queue) -> None:
        assert queue.claim("spark", 1, 5).size == 0
        queue.send(b"x")
        assert queue.claim("spark", 1, 5).size == 1
        assert bodies(queue.read("spark", 1)) == [b"x"]

    def test_a_claim_can_be_limited_by_bytes(self, queue: Queue) -> None:
        queue.send_many([b"x" * 100] * 50)
        claim = queue.claim("spark", 1, 99, max_bytes=1000)
        assert claim.size == 10
        assert queue.stats().visible == 40
        assert queue.claim("spark", 2, 3, max_bytes=1000).size == 3
        assert queue.claim("spark", 3, 9, max_bytes=1).size == 1

    def test_a_claim_can_leave_what_came_after_an_instant(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"early")
        target = queue.pulse().at
        clock.advance(1)
        queue.send(b"late")
        assert queue.claim("spark", 1, 9, visible_by=target, ttl=60).size == 1
        assert bodies(queue.read("spark", 1)) == [b"early"]
        assert queue.claim("spark", 2, 9, visible_by=target).size == 0
        assert [message.receives for message in queue.peek(9, state="queued")] == [0]
        clock.advance(59)
        assert queue.confirm("spark", 1).size == 1

    def test_what_lapsed_before_an_instant_is_found_by_who_reads_up_to_it(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 1, ttl=5)
        clock.advance(10)
        target = clock()
        queue.claim("spark", 2, 1, visible_by=target)
        queue.confirm("spark", 2)
        clock.advance(1)
        assert queue.settle("spark", 2) == 1  # also forgets the lapsed claim, whose message has been visible for a while
        assert queue.claim("spark", 3, 9, visible_by=target).size == 1

    def test_the_pulse_tells_the_time_and_what_is_due(self, queue: Queue, clock: FakeClock) -> None:
        assert (queue.pulse().at, queue.pulse().due_at) == (clock(), None)
        queue.send(b"x", delay=5)
        assert queue.pulse().due_at == clock() + 5_000_000

    def test_settling_deletes_all_up_to_the_epoch(self, queue: Queue) -> None:
        for epoch in (1, 2, 3):
            queue.send(b"%d" % epoch)
            queue.claim("spark", epoch, 9)
            queue.confirm("spark", epoch)
        assert queue.settle("spark", 2) == 2
        assert queue.settled_epoch("spark") == 2
        assert bodies(queue.read("spark", 3)) == [b"3"]
        assert queue.stats().messages == 1
        assert queue.settle("spark", 2) == 0

    def test_a_reader_set_back_is_noticed(self, queue: Queue) -> None:
        queue.send(b"x")
        queue.claim("spark", 5, 1)
        queue.confirm("spark", 5)
        queue.settle("spark", 5)
        for call in (lambda: queue.claim("spark", 4, 1), lambda: queue.confirm("spark", 5), lambda: queue.read("spark", 5)):
            with pytest.raises(ReaderSetBack, match="settled all up to 5"):
                call()
        assert queue.settle("spark", 3) == 0
        assert queue.settled_epoch("spark") == 5

    def test_a_lapsed_claim_cannot_be_settled(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        queue.claim("spark", 1, 1, ttl=10)
        clock.advance(10)
        with pytest.raises(ClaimLapsed, match="'spark'"):
            queue.settle("spark", 1)
        assert len(queue.receive()) == 1

    def test_an_earlier_claim_that_lapsed_does_not_hold_up_a_settlement(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 1, ttl=10)
        queue.claim("spark", 2, 1, ttl=10)
        queue.confirm("spark", 2)
        clock.advance(10)
        assert queue.settle("spark", 2) == 1
        assert bodies(queue.receive(9)) == [b"1"]

    def test_giving_up_returns_all_messages_of_a_reader(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3"])
        queue.claim("spark", 1, 1)
        queue.confirm("spark", 1)
        queue.claim("spark", 2, 1)
        queue.claim("other", 1, 1)
        assert sorted(queue.readers()) == ["other", "spark"]
        assert queue.give_up("spark") == 2
        assert queue.readers().keys() == {"other"}
        assert bodies(queue.receive(9)) == [b"1", b"2"]
        assert queue.give_up("nobody") == 0

    def test_a_reader_given_up_with_a_clock_set_back_gives_each_message_once(self, queue: Queue, clock: FakeClock) -> None:
        for epoch in (1, 2):
            queue.send_many([b"%d" % epoch] * 3)
            clock.advance(10)
            queue.claim("spark", epoch, 10, ttl=600)
            clock.advance(10)
        clock.advance(-25)  # before the second batch was sent
        assert queue.give_up("spark") == 6
        clock.advance(100)
        assert [message.receives for message in queue.receive(10)] == [2] * 6

    def test_the_judged_are_not_claimed(self, broker: Broker, clock: FakeClock) -> None:
        dead = broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send(b"poison")
        queue.receive()[0].release()
        queue.send(b"late", deadline=5)
        clock.advance(5)
        queue.send(b"good")
        assert queue.claim("spark", 1, 9).size == 1
        assert bodies(queue.read("spark", 1)) == [b"good"]
        assert dead.stats().messages == 1

    def test_what_was_received_too_often_is_not_claimed(self, broker: Broker) -> None:
        dead = broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send_many([b"poison", b"good"])
        queue.receive()[0].release()
        assert queue.claim("spark", 1, 9).size == 1
        assert bodies(queue.read("spark", 1)) == [b"good"]
        assert bodies(dead.peek()) == [b"poison"]

    def test_what_has_outlived_its_retention_is_not_claimed(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("brief", retention=10)
        queue.send_many([b"old"] * 2)
        clock.advance(10)
        queue.send(b"new")
        assert queue.claim("spark", 1, 9).size == 1
        assert bodies(queue.read("spark", 1)) == [b"new"]

    def test_retention_that_was_shortened_holds_for_claims(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("shortened")
        queue.send(b"old")
        clock.advance(10)
        queue.update(retention=10)
        queue.send(b"new")
        assert queue.claim("spark", 1, 9).size == 1

    def test_a_settled_claim_frees_its_keys(self, broker: Broker) -> None:
        queue = broker.create("keyed", deduplicate=True)
        queue.send(b"x", key=b"k")
        queue.claim("spark", 1, 9)
        queue.confirm("spark", 1)
        assert queue.send(b"x", key=b"k").duplicate is True
        assert queue.settle("spark", 1) == 1
        assert queue.send(b"x", key=b"k").duplicate is False

    def test_settled_claims_enter_the_history(self, broker: Broker) -> None:
        queue = broker.create("kept", history=60)
        queue.send(b"x")
        queue.claim("spark", 1, 1)
        queue.confirm("spark", 1)
        queue.settle("spark", 1)
        assert [message.state.name for message in queue.settled()] == ["PROCESSED"]

    def test_names_and_numbers_are_checked(self, queue: Queue) -> None:
        for reader, epoch, limit, ttl in (("a/b", 1, 1, 1), ("a", -1, 1, 1), ("a", 1, 0, 1), ("a", 1, 1, -1)):
            with pytest.raises(BadInput):
                queue.claim(reader, epoch, limit, ttl=ttl)
        assert queue.readers() == {}
        queue.claim("spark", 1, 1)
        for start, stop in ((-1, 2), (0, -1), (2**70, None)):
            with pytest.raises(BadInput, match=r"start|stop"):
                queue.read("spark", 1, start, stop)

    def test_claims_survive_a_restart(self, broker: Broker, url: str, clock: FakeClock) -> None:
        if not broker.store.durable:
            assert broker.store.durable is False
            return
        queue = broker.create("kept")
        queue.send_many([b"1", b"2", b"3", b"4"])
        queue.claim("spark", 1, 1)
        queue.confirm("spark", 1)
        queue.settle("spark", 1)
        queue.claim("spark", 2, 2)
        queue.confirm("spark", 2)
        queue.claim("spark", 3, 1, ttl=10)
        broker.close()
        with penstock.open(url, clock=clock) as again:
            kept = again["kept"]
            assert kept.settled_epoch("spark") == 1
            assert bodies(kept.read("spark", 2)) == [b"2", b"3"]
            assert kept.claim("spark", 3, 9).size == 1
            clock.advance(10)
            assert bodies(kept.receive(9)) == [b"4"]
            assert kept.settle("spark", 2) == 2
