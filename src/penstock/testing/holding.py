"""The contract's chapter on the holder of a message, and on delivery numbers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Broker, Message, Queue, Receipt, State
from penstock.message import SECOND
from penstock.policy import MAX_HOLDER
from penstock.testing.clock import FakeClock

LONGEST = "ü" * (MAX_HOLDER // 2)


def holders(messages: list[Message]) -> list[str | None]:
    return [message.holder for message in messages]


class Holding:
    def test_whoever_looks_sees_who_holds_a_message(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3", b"4"])
        assert holders(queue.receive(2, holder="worker 7")) == ["worker 7"] * 2
        assert holders(queue.receive(holder=LONGEST)) == [LONGEST]
        assert sorted(holders(queue.peek(4)), key=str) == sorted(["worker 7", "worker 7", LONGEST, None], key=str)
        assert sorted(holders(queue.scan()), key=str) == sorted(["worker 7", "worker 7", LONGEST, None], key=str)
        assert sorted(holders(queue.peek(4, state="consumed")), key=str) == sorted(["worker 7", "worker 7", LONGEST], key=str)

    def test_the_next_receiver_is_the_holder_whether_it_has_a_name_or_not(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        for holder in ("a longer name", "short", None, "again"):
            queue.receive(visibility=5, holder=holder)
            assert holders(queue.peek()) == [holder]
            clock.advance(6)

    def test_a_message_is_looked_up_by_its_number(self, queue: Queue, clock: FakeClock) -> None:
        """Whoever has received a message can ask how it is, without receiving it."""
        queue.send_many([b"1", b"2", b"3"])
        _, held, _ = queue.receive(3, visibility=5)

        def now() -> list[Message]:
            return queue.scan(held.number, held.number + 1, 1)

        assert now() == [held]
        assert (held.received_at, held.state) == (clock.now, State.CONSUMED)
        held.extend(60)
        assert [message.visible_at for message in now()] == [clock.now + 60 * SECOND]
        held.release()
        (released,) = now()
        assert (released.id, released.state, released.delivery) == (held.id, State.QUEUED, held.delivery)
        held.delete()
        assert now() == []

    def test_an_extension_keeps_the_holder(self, queue: Queue) -> None:
        queue.send(b"x")
        (held,) = queue.receive(holder="worker")
        assert held.extend(60)
        assert holders(queue.peek()) == ["worker"]

    def test_a_message_that_was_given_back_has_no_holder(self, queue: Queue) -> None:
        queue.send(b"x")
        (held,) = queue.receive(holder="worker")
        assert held.release(5)
        assert holders(queue.peek()) == [None]

    def test_a_message_whose_lease_has_lapsed_has_no_holder(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        queue.receive(visibility=5, holder="worker")
        clock.advance(5)
        assert holders(queue.peek()) == holders(queue.scan()) == [None]

    def test_a_dead_letter_has_no_holder_in_its_new_queue_or_back_in_its_own(self, broker: Broker) -> None:
        dead = broker.create("dead", history=60)
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send_many([b"1", b"2"])
        queue.receive(2, visibility=0, holder="worker")
        assert queue.receive(2, holder="worker") == []
        letters = dead.peek(2)
        assert holders(letters) == [None] * 2
        assert dead.delete(letters[0].id)
        assert holders(dead.settled()) == [None], "who held it in another queue is not its last holder here"
        dead.redrive()
        assert holders(queue.peek()) == [None]

    def test_an_exchange_names_the_holder_of_what_it_takes(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2"])
        _, taken = queue.exchange(queue.receive(holder="worker"), 1, holder="worker")
        assert holders(taken) == holders(queue.peek()) == ["worker"]

    @pytest.mark.parametrize("limit", [1, 2])
    def test_what_is_received_at_most_once_names_its_receiver(self, queue: Queue, limit: int) -> None:
        queue.send_many([b"1", b"2"])
        assert holders(queue.receive(limit, mode="at_most_once", holder="worker")) == ["worker"] * limit

    def test_the_history_tells_who_held_a_message(self, broker: Broker) -> None:
        queue = broker.create("kept", history=60)
        queue.send_many([b"1", b"2", b"3", b"4"])
        (first,), (second,) = queue.receive(holder="worker"), queue.receive()
        assert first.delete() and queue.fail(second, "no")
        queue.receive(mode="at_most_once", holder="once")
        (last,) = queue.receive(holder="worker")
        assert last.release() and queue.delete(last.id)
        assert sorted(holders(queue.settled()), key=str) == sorted(["worker", None, "once", None], key=str)

    def test_a_reader_holds_what_it_has_claimed(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3"])
        queue.claim("nightly", 1, 2)
        assert sorted(holders(queue.peek(3)), key=str) == sorted(["nightly", "nightly", None], key=str)
        queue.confirm("nightly", 1)
        assert holders(queue.read("nightly", 1)) == ["nightly"] * 2
        assert sorted(holders(queue.peek(3)), key=str) == sorted(holders(queue.scan()), key=str)
        queue.give_up("nightly")
        assert holders(queue.peek(3)) == holders(queue.scan()) == [None] * 3

    def test_a_reader_holds_what_others_have_received_before(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2"])
        for held in queue.receive(2, holder="worker"):
            held.release()
        queue.claim("nightly", 1, 2)
        assert holders(queue.peek(2)) == holders(queue.read("nightly", 1)) == ["nightly"] * 2
        assert queue.settle("nightly", 1) == 2

    @pytest.mark.parametrize("wrong", ["", "x" * (MAX_HOLDER + 1), LONGEST + "ü", 7, b"worker", "a\nb", "\ud800"])
    def test_a_holder_that_cannot_be_kept_is_refused(self, queue: Queue, wrong: Any) -> None:
        queue.send(b"x")
        for verb in (lambda: queue.receive(holder=wrong), lambda: queue.exchange([], holder=wrong)):
            with pytest.raises(ValueError, match="holder"):
                verb()
        assert queue.peek()[0].receives == 0

    def test_a_consumer_is_the_holder_of_what_it_works_on(self, broker: Broker, queue: Queue) -> None:
        seen: list[tuple[str | None, str | None]] = []
        consumer = broker.consumer("orders", batch_size=1)

        @consumer.process
        def look(payload: bytes, message: Message) -> None:
            seen.append((message.holder, queue.peek(state="consumed")[0].holder))

        queue.send_many([b"1", b"2"])  # an exchange takes the second
        consumer.run(until_empty=True)
        (name,) = {name for pair in seen for name in pair}
        assert name
        assert len(seen) == 2

    def test_of_two_receipts_for_one_message_in_one_call_the_first_deletes_it(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2"])
        first, second = (message.receipt for message in queue.receive(2))
        assert queue.delete_many([first, second, first]) == [True, True, False]

    # delivery numbers

    def test_a_delivery_is_numbered_by_its_instant_and_never_twice_the_same(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        assert [message.delivery for message in queue.peek(2)] == [0, 0]
        for _ in range(3):
            assert [message.delivery for message in queue.receive(2, visibility=1)] == [clock.now] * 2
            clock.advance(1)
        first, again = (queue.receive(2, visibility=0) for _ in range(2))
        assert [message.delivery for message in (*first, *again)] == [clock.now] * 2 + [clock.now + 1] * 2
        assert [message.delivery for message in queue.peek(2)] == [clock.now + 1] * 2

    def test_a_number_goes_on_when_the_clock_was_set_back(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        clock.advance(50)
        (late,) = queue.receive()
        clock.advance(-49)
        assert late.release()
        (early,) = queue.receive()
        assert early.delivery == late.delivery + 1
        assert [late.delete(), early.delete()] == [False, True]

    def test_a_number_is_of_one_message_of_a_named_claim_too(self, queue: Queue, clock: FakeClock) -> None:
        queue.send_many([b"1", b"2"])
        queue.claim("nightly", 1, 2)
        assert {message.delivery for message in queue.read("nightly", 1)} == {clock.now}
        queue.give_up("nightly")
        assert {message.delivery for message in queue.peek(2)} == {clock.now}
        assert {message.delivery for message in queue.receive(2)} == {clock.now + 1}

    def test_a_receipt_can_be_written_down_and_used(self, queue: Queue) -> None:
        queue.send(b"x")
        (held,) = queue.receive()
        assert queue.delete(Receipt("orders", held.id, held.delivery + 1)) is False
        assert queue.delete(Receipt("orders", held.id, held.delivery)) is True
