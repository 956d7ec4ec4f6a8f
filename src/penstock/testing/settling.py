"""The contract's chapter on settling: receipts and their fencing, release, extension, dead letters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock import BadMessage, Broker, Death, Queue, Receipt
from penstock.broker import LocalBroker
from penstock.queue.queue import LocalQueue
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies


class SettlingChapter:
    def test_a_deleted_message_is_gone(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (message,) = queue.receive()
        assert queue.delete(message) is True
        assert queue.delete(message) is False
        clock.advance(3600)
        assert queue.receive() == []
        assert queue.stats().messages == 0

    def test_many_are_deleted_with_an_answer_each(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3"])
        one, two, three = queue.receive(3)
        assert queue.delete(two)
        assert queue.delete_many([one, two, three, three]) == [True, False, True, False]
        assert queue.stats().messages == 0

    def test_messages_received_once_and_more_often_are_deleted_together(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3"])
        for again in queue.receive(2):
            again.release()
        held = queue.receive(3)
        first, *others = sorted(message.delivery for message in held)
        assert others == [first + 1] * 2
        assert queue.delete_many([*held, held[0].id]) == [True, True, True, False]
        assert queue.stats().messages == 0

    def test_of_a_stale_and_a_good_receipt_for_one_message_the_good_one_counts(self, queue: Queue) -> None:
        queue.send(b"x")
        (stale,) = queue.receive(visibility=0)
        (held,) = queue.receive()
        assert queue.delete_many([stale, held, held.id]) == [False, True, False]

    def test_an_exchange_settles_and_takes_the_next(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"%d" % number for number in range(5)])
        held, seen = queue.receive(2), []
        while held:
            seen += bodies(held)
            answers, taken = queue.exchange(held, 2, visibility=60)
            assert answers == [True] * len(held)
            assert all((message.visible_at, message.receives) == (clock.now + 60_000_000, 1) for message in taken)
            held = taken
        assert sorted(seen) == [b"%d" % number for number in range(5)]
        assert queue.stats().messages == 0
        assert queue.exchange([]) == ([], [])

    def test_an_exchange_has_an_answer_for_each_and_settles_before_it_takes(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2", b"3"])
        stale = queue.receive(1)[0]
        clock.advance(31)
        held = queue.receive(3)
        clock.advance(31)  # these have lapsed too, but nobody has received them since
        mine = [message for message in held if message.id != stale.id]
        answers, taken = queue.exchange([stale, *mine, mine[0].id], 3)
        assert (answers, bodies(taken)) == ([False, True, True, False], [stale.body])
        assert queue.delete_many(taken) == [True]

    def test_an_exchange_of_nothing_for_something_notices_that_the_settings_have_changed(self, queue: LocalQueue) -> None:
        queue.send(b"1")
        queue._opened.known = replace(queue.settings, visibility=99)  # as if another process had changed them since
        assert [bodies(taken) for taken in queue.exchange([], 1)[1:]] == [[b"1"]]
        assert queue._opened.known == queue.settings

    def test_an_exchange_that_had_to_wait_gives_whole_leases(
        self, broker: Broker, queue: LocalQueue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue.send_many([b"1", b"2"])
        held = queue.receive()
        stored = queue._opened.stored
        act = stored.claim

        def slowly(*arguments: Any) -> Any:
            answer = act(*arguments)
            clock.advance(60)  # as if it had waited for locks
            return answer

        monkeypatch.setattr(stored, "claim", slowly)
        answers, taken = queue.exchange(held, visibility=30)
        assert (answers, [message.visible_at for message in taken]) == ([True], [clock.now + 30_000_000])
        assert queue.receive() == []
        assert queue.delete_many(taken) == [True]

    def test_an_exchange_delivers_by_the_rules_of_the_queue_as_they_are_now(
        self, broker: Broker, queue: Queue, clock: FakeClock
    ) -> None:
        broker.create("dead")
        queue.send_many([b"1", b"2"])
        (held,) = queue.receive()
        other = queue.receive()[0]
        other.release()
        broker["orders"].update(redrive=("dead", 1), history=60)
        assert queue.exchange([held], 2) == ([True], [])
        assert bodies(queue.settled()) == [held.body]
        assert bodies(broker["dead"].receive()) == [other.body]

    def test_a_receipt_outlives_its_time_until_the_next_claim(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (message,) = queue.receive()
        clock.advance(31)
        assert queue.delete(message) is True

    def test_a_stale_receipt_cannot_delete(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (stale,) = queue.receive()
        clock.advance(31)
        (held,) = queue.receive()
        assert stale.delete() is False
        assert queue.stats().in_flight == 1
        assert held.delete() is True

    def test_many_are_extended_together_by_the_same_time_or_each_by_its_own(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2", b"3"])
        held = queue.receive(3)
        (other,) = [message for message in held if message.body == b"2"]
        assert other.delete()
        assert queue.extend_many(held, 50) == [message is not other for message in held]
        assert {message.visible_at for message in queue.peek(9)} == {clock.now + 50_000_000}
        seconds = [{b"1": 70, b"2": 80, b"3": 90}[message.body] for message in held]
        assert queue.extend_many(held, seconds) == [message is not other for message in held]
        assert sorted((message.body, message.visible_at - clock.now) for message in queue.peek(9)) == [
            (b"1", 70_000_000),
            (b"3", 90_000_000),
        ]
        assert queue.extend_many([], 5) == []
        with pytest.raises(BadMessage, match="2 visibilities for 3 messages"):
            queue.extend_many(held, [1, 2])
        with pytest.raises(BadMessage, match="visibility -1"):
            queue.extend_many(held, -1)

    def test_a_stale_receipt_cannot_extend(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (stale,) = queue.receive()
        clock.advance(31)
        queue.receive()
        assert stale.extend(3600) is False
        clock.advance(31)
        assert len(queue.receive()) == 1

    def test_a_stale_receipt_cannot_release(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (stale,) = queue.receive()
        clock.advance(31)
        queue.receive()
        assert stale.release() is False
        assert queue.receive() == []

    def test_a_stale_receipt_cannot_fail_a_message(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (stale,) = queue.receive()
        clock.advance(31)
        queue.receive()
        assert queue.fail(stale) is False
        assert queue.stats().in_flight == 1

    def test_an_id_alone_deletes_whoever_holds_the_message(self, queue: Queue) -> None:
        waiting, held = queue.send_many([b"1", b"2"])
        queue.receive()
        assert queue.delete(waiting.id) is True
        assert queue.delete(held.id) is True
        assert queue.delete(held.id) is False

    @pytest.mark.parametrize("id", ["", "x", "1", "../x", "00000000-0000-8000-8000-000000000001", "\0", "é" * 36])
    def test_a_foreign_id_settles_nothing(self, queue: Queue, id: str) -> None:
        queue.send(b"x")
        assert queue.delete(id) is False
        assert queue.release(Receipt("orders", id, 0)) is False
        assert queue.stats().messages == 1

    def test_an_extension_hides_from_now_on(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (message,) = queue.receive()
        clock.advance(20)
        assert message.extend(60) is True
        clock.advance(59)
        assert queue.receive() == []
        assert message.extend(5) is True
        clock.advance(5)
        assert queue.receive()[0].receives == 2

    def test_an_extended_receipt_still_settles(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (message,) = queue.receive()
        message.extend(60)
        clock.advance(45)
        assert message.delete() is True

    def test_a_released_message_is_visible_at_once(self, queue: Queue) -> None:
        queue.send(b"x")
        assert queue.receive()[0].release() is True
        (again,) = queue.receive()
        assert again.receives == 2

    def test_a_message_may_be_released_for_later(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        queue.receive()[0].release(delay=10)
        stats = queue.stats()
        assert (stats.in_flight, stats.delayed) == (0, 1)
        clock.advance(9)
        assert queue.receive() == []
        clock.advance(1)
        assert len(queue.receive()) == 1

    def test_what_was_not_received_cannot_be_extended_or_released(self, queue: Queue, clock: FakeClock) -> None:
        sent = queue.send(b"x")
        assert queue.extend(sent.id, 3600) is False
        assert queue.release(sent.id, 3600) is False
        assert len(queue.receive()) == 1

    def test_received_too_often_it_goes_to_the_dead_letter_queue(self, broker: Broker, clock: FakeClock) -> None:
        dead = broker.create("dead", retention=100)
        queue = broker.create("jobs", redrive=("dead", 2), visibility=5)
        sent = queue.send(b"poison", content_type="text/x", attributes={"a": b"b"})
        for receives in (1, 2):
            assert queue.receive()[0].receives == receives
            clock.advance(5)
        assert dead.stats().messages == 0
        assert queue.receive() == []
        assert queue.stats().messages == 0
        (letter,) = dead.receive()
        assert (letter.id, letter.body, letter.content_type, letter.attributes) == (sent.id, b"poison", "text/x", {"a": b"b"})
        assert letter.death == Death("jobs", "max_receives", 2, clock.now)
        assert (letter.receives, letter.moved_at, letter.expires_at) == (1, clock.now, clock.now + 100_000_000)

    def test_a_receive_looks_past_the_dead(self, broker: Broker) -> None:
        broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send_many([b"poison"] * 3)
        for message in queue.receive(3):
            message.release()
        queue.send(b"good")
        assert bodies(queue.receive(2)) == [b"good"]
        assert broker["dead"].stats().messages == 3

    def test_dead_letters_go_back_to_where_they_died(self, broker: Broker) -> None:
        dead = broker.create("dead")
        queues = [broker.create(name, redrive=("dead", 1)) for name in ("a", "b")]
        for queue in queues:
            queue.send(queue.name.encode())
            queue.receive(visibility=0)
            assert queue.receive() == []
        dead.send(b"sent here")
        assert dead.redrive() == 2
        for queue in queues:
            (message,) = queue.receive()
            assert (message.body, message.receives, message.death) == (queue.name.encode(), 1, None)
        assert bodies(dead.peek(9)) == [b"sent here"]

    def test_a_redrive_may_go_elsewhere_and_be_limited(self, broker: Broker, queue: Queue) -> None:
        dead = broker.create("dead")
        dead.send_many([b"1", b"2", b"3"])
        dead.receive()
        assert dead.redrive(1, to="orders") == 1
        assert bodies(queue.receive(9)) == [b"2"]
        assert dead.redrive(to="orders") == 1
        assert dead.stats().in_flight == 1

    def test_a_redrive_of_chosen_messages_leaves_the_others_untouched(
        self, broker: Broker, queue: Queue, clock: FakeClock
    ) -> None:
        dead = broker.create("dead")
        dead.send_many([b"0", b"1", b"2"])
        clock.advance(5)
        dead.send_many([b"3", b"4"])
        (held,) = dead.receive()
        before = {message.id: message for message in dead.peek(9)}
        free = sorted(before.keys() - {held.id})
        chosen = [free[1], free[3], held.id, free[1], "00000000-0000-8000-8000-000000000000"]
        assert dead.redrive(ids=chosen, to="orders") == 2
        assert {message.id for message in queue.peek(9)} == {free[1], free[3]}
        assert {message.id: message for message in dead.peek(9)} == {id: before[id] for id in (free[0], free[2], held.id)}
        assert dead.redrive(ids=chosen, to="orders") == 0
        assert dead.redrive(ids=[], to="orders") == 0
        assert held.delete()

    def test_a_redrive_may_begin_at_an_instant(self, broker: Broker, queue: Queue, clock: FakeClock) -> None:
        dead = broker.create("dead")
        sent = [sent.id for sent in dead.send_many([b"0", b"1"])]
        clock.advance(5)
        sent += [sent.id for sent in dead.send_many([b"2", b"3"])]
        assert dead.redrive(ids=sent[3:], since_at=clock.now, to="orders") == 1
        assert dead.redrive(1, ids=sent[2:], since_at=clock.now, to="orders") == 1
        assert sorted(bodies(queue.receive(9))) == [b"2", b"3"]
        assert sorted(bodies(dead.receive(9))) == [b"0", b"1"]

    def test_dead_letters_whose_queue_is_gone_stay_and_hold_up_nobody(
        self, broker: Broker, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        dead = broker.create("dead")
        other = broker.create("other", redrive=("dead", 1))
        queue.update(redrive=("dead", 1))
        for source in (queue, other):
            source.send(source.name.encode())
            source.receive(visibility=0)
            source.receive()
        broker.delete("orders")
        assert dead.redrive() == 1
        assert bodies(other.receive(9)) == [b"other"]
        assert bodies(dead.peek(9)) == [b"orders"]
        assert "queue 'orders', where they died, is gone" in caplog.text

    def test_a_limited_redrive_passes_over_letters_whose_queue_is_gone(self, broker: Broker) -> None:
        dead = broker.create("dead")
        for name in ("one", "two"):
            queue = broker.create(name, redrive=("dead", 1))
            queue.send(name.encode())
            queue.receive(visibility=0)
            assert queue.receive() == []
        broker.delete("one")
        assert dead.redrive(1) == 1
        assert bodies(broker["two"].receive()) == [b"two"]
        assert dead.redrive(1) == 0

    def test_a_receipt_from_before_a_redrive_settles_nothing_after_it(self, broker: Broker) -> None:
        dead = broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send(b"x")
        (slow,) = queue.receive(visibility=0)
        assert queue.receive() == []
        dead.redrive()
        (held,) = queue.receive()
        assert (slow.id, slow.receives, held.receives) == (held.id, 1, 1)
        assert [slow.delete(), slow.extend(5), slow.release(), queue.fail(slow)] == [False] * 4
        assert held.delete() is True

    def test_a_receipt_from_before_a_burial_at_most_once_settles_nothing_after_it(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        dead = broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send(b"x")
        (slow,) = queue.receive(visibility=0)
        clock.advance(1)
        assert queue.receive(2, mode="at_most_once") == []
        (buried,) = dead.peek()
        assert (buried.received_at, buried.delivery) == (clock.now, clock.now)  # the receive that buried it
        assert dead.redrive() == 1
        assert [slow.delete(), slow.extend(5), slow.release(), queue.fail(slow)] == [False] * 4
        assert bodies(queue.receive()) == [b"x"]

    def test_what_was_buried_at_most_once_is_redriven_in_the_same_batch(self, broker: LocalBroker) -> None:
        dead = broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send(b"x")
        queue.receive(visibility=0)
        with broker.store.batch():
            assert queue.receive(2, mode="at_most_once") == []
            assert dead.redrive() == 1
        assert bodies(queue.receive()) == [b"x"]

    def test_a_redriven_message_has_its_whole_retention_before_it(self, broker: Broker, clock: FakeClock) -> None:
        dead = broker.create("dead", retention=1000)
        queue = broker.create("jobs", retention=10, redrive=("dead", 1))
        queue.send(b"x")
        queue.receive(visibility=0)
        queue.receive()
        clock.advance(100)
        assert dead.redrive() == 1
        clock.advance(9)
        assert bodies(queue.receive()) == [b"x"]

    def test_a_dead_letter_outlives_its_deadline(self, broker: Broker, clock: FakeClock) -> None:
        dead = broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send(b"x", deadline=5)
        queue.receive(visibility=0)
        queue.receive()
        clock.advance(10)
        assert bodies(dead.receive()) == [b"x"]
