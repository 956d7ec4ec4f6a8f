"""The contract's chapter on delivery: order, visibility, retention, deadlines, both modes."""

from __future__ import annotations

from penstock import Broker, Queue
from penstock.testing.clock import FakeClock


def bodies(messages: list) -> list[bytes]:  # type: ignore[type-arg]
    return [message.body for message in messages]


class ReceivingChapter:
    def test_an_empty_queue_gives_nothing(self, queue: Queue) -> None:
        assert queue.receive() == []
        assert queue.receive(10) == []

    def test_messages_come_in_the_order_sent(self, queue: Queue, clock: FakeClock) -> None:
        for body in (b"1", b"2", b"3"):
            queue.send(body)
            clock.advance(0.001)
        assert bodies(queue.receive(2)) == [b"1", b"2"]
        assert bodies(queue.receive(2)) == [b"3"]

    def test_order_is_by_the_time_of_becoming_visible_or_of_sending(
        self, broker: Broker, queue: Queue, clock: FakeClock
    ) -> None:
        queue.send(b"late", delay=10)
        queue.send(b"early", delay=5)
        clock.advance(7)
        queue.send(b"middle")
        clock.advance(7)
        ordered = [b"early", b"middle", b"late"]
        assert bodies(queue.receive(3)) == (ordered if broker.store.ordered else [b"late", b"early", b"middle"])

    def test_no_more_than_the_limit_is_given(self, queue: Queue) -> None:
        queue.send_many([b"x"] * 5)
        assert len(queue.receive(3)) == 3
        assert len(queue.receive(3)) == 2

    def test_a_received_message_is_hidden_until_its_visibility_ends(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x")
        (first,) = queue.receive()
        assert first.visible_at == clock.now + 30_000_000
        clock.advance(29.999999)
        assert queue.receive() == []
        clock.advance(0.000001)
        (second,) = queue.receive()
        assert (second.id, second.receives) == (first.id, 2)
        assert (second.first_received_at, second.received_at) == (first.received_at, clock.now)

    def test_visibility_is_the_receiver_s_then_the_message_s_then_the_queue_s(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x", visibility=5)
        assert queue.receive()[0].visible_at == clock.now + 5_000_000
        clock.advance(5)
        assert queue.receive(visibility=2)[0].visible_at == clock.now + 2_000_000
        clock.advance(2)
        assert len(queue.receive()) == 1

    def test_a_visibility_of_zero_gives_a_message_once_an_answer(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2"])
        assert bodies(queue.receive(10, visibility=0)) == [b"1", b"2"]
        assert bodies(queue.receive(10, visibility=0)) == [b"1", b"2"]
        assert [message.receives for message in queue.peek(2)] == [2, 2]

    def test_a_message_s_own_visibility_of_zero_gives_it_once_an_answer(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"late", deadline=1)
        queue.send(b"zero", visibility=0)
        clock.advance(2)
        assert bodies(queue.receive(2)) == [b"zero"]

    def test_a_message_is_kept_for_the_retention_and_no_longer(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("brief", retention=10)
        queue.send(b"x")
        clock.advance(9.999999)
        assert queue.stats().messages == 1
        queue.receive(visibility=0)
        clock.advance(0.000001)
        assert queue.stats().messages == 0
        assert queue.receive() == []

    def test_what_has_outlived_its_retention_is_never_delivered(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("brief", retention=10)
        queue.send_many([b"old"] * 7)
        clock.advance(10)
        queue.send(b"new")
        assert bodies(queue.receive(3)) == [b"new"]
        assert queue.stats().messages == 1

    def test_a_message_in_hand_outlives_its_retention(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("brief", retention=10, visibility=60)
        queue.send(b"x")
        (message,) = queue.receive()
        clock.advance(30)
        assert queue.stats().in_flight == 1
        assert message.delete() is True

    def test_past_its_deadline_a_waiting_message_fails(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"late", deadline=5)
        queue.send(b"ever")
        clock.advance(5)
        assert bodies(queue.receive(2)) == [b"ever"]
        assert queue.stats().messages == 1

    def test_until_its_deadline_a_message_is_delivered(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x", deadline=5)
        clock.advance(4.999999)
        assert bodies(queue.receive()) == [b"x"]

    def test_at_least_once_others_may_take_a_message_whose_deadline_passed_in_hand(
        self, queue: Queue, clock: FakeClock
    ) -> None:
        queue.send(b"x", deadline=5)
        assert queue.receive()[0].visible_at == clock.now + 5_000_000
        clock.advance(5)
        (again,) = queue.receive()
        assert (again.body, again.receives) == (b"x", 2)

    def test_a_released_message_fails_at_its_deadline(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x", deadline=5)
        queue.receive()[0].release()
        clock.advance(5)
        assert queue.receive() == []
        assert queue.stats().messages == 0

    def test_at_most_once_a_claim_settles_the_message(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("once", mode="at_most_once")
        queue.send_many([b"1", b"2"])
        messages = queue.receive(2)
        assert bodies(messages) == [b"1", b"2"]
        assert queue.stats().messages == 0
        assert messages[0].delete() is False
        assert messages[1].release() is False
        clock.advance(3600)
        assert queue.receive() == []

    def test_at_most_once_past_its_deadline_a_message_is_failed_never_retried(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("once", mode="at_most_once", history=3600)
        queue.send(b"x", deadline=5)
        clock.advance(5)
        assert queue.receive() == []
        assert [(message.state.name, message.reason) for message in queue.settled()] == [("FAILED", "deadline")]

    def test_a_receiver_may_choose_the_mode(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2"])
        queue.receive(mode="at_most_once")
        queue.receive(mode="at_least_once")
        assert queue.stats().messages == 1

    def test_a_look_changes_nothing(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2"])
        assert bodies(queue.peek(5)) == [b"1", b"2"]
        assert [message.receives for message in queue.peek(5)] == [0, 0]
        assert bodies(queue.receive(2)) == [b"1", b"2"]
        assert [message.state.name for message in queue.peek(5)] == ["CONSUMED", "CONSUMED"]
        assert bodies(queue.peek(5, state="queued")) == []
        assert bodies(queue.peek(1, state="consumed")) == [b"1"]

    def test_to_change_a_message_changes_only_this_copy(self, queue: Queue) -> None:
        queue.send(b"x", attributes={"a": 1})
        (seen,) = queue.peek()
        seen.attributes["b"] = 2  # type: ignore[index]
        seen.body = b"y"
        (message,) = queue.receive()
        assert (message.body, message.attributes) == (b"x", {"a": 1})
