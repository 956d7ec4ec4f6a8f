"""The contract's chapter on duplicates: while one is in the queue (mqs), within a window (Amazon SQS), and sets."""

from __future__ import annotations

import pytest

from penstock import BadMessage, Broker, Draft, Queue
from penstock.policy import MAX_BODY
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies


class Duplicates:
    def test_without_deduplication_equal_messages_are_two(self, queue: Queue) -> None:
        assert [sent.duplicate for sent in queue.send_many([b"x", b"x", Draft(b"x", key="k"), Draft(b"x", key="k")])] == [
            False
        ] * 4
        assert queue.stats().messages == 4

    def test_an_equal_message_in_the_queue_is_a_duplicate(self, broker: Broker) -> None:
        queue = broker.create("once", deduplicate=True)
        first = queue.send(b"x")
        assert queue.send(b"x", content_type="text/plain", attributes={"a": 1}) == (first.id, True)
        assert queue.send(b"y").duplicate is False
        assert bodies(queue.receive(9)) == [b"x", b"y"]

    def test_a_message_in_hand_is_still_in_the_queue(self, broker: Broker) -> None:
        queue = broker.create("once", deduplicate=True)
        queue.send(b"x")
        queue.receive()
        assert queue.send(b"x").duplicate is True

    def test_once_deleted_an_equal_message_is_new(self, broker: Broker) -> None:
        queue = broker.create("once", deduplicate=True)
        queue.send(b"x")
        queue.delete(queue.receive()[0])
        assert queue.send(b"x").duplicate is False
        assert queue.send(b"x").duplicate is True

    @pytest.mark.parametrize("leave", ["purge", "expire", "bury", "at_most_once"])
    def test_however_a_message_left_an_equal_one_is_new(self, broker: Broker, clock: FakeClock, leave: str) -> None:
        broker.create("dead")
        queue = broker.create("once", deduplicate=True, retention=100, redrive=("dead", 1))
        queue.send(b"x")
        if leave == "purge":
            queue.purge()
        elif leave == "expire":
            clock.advance(100)
            assert queue.receive() == []
        elif leave == "bury":
            queue.receive(visibility=0)
            assert queue.receive() == []
        else:
            queue.receive(mode="at_most_once")
        assert queue.send(b"x").duplicate is False

    def test_a_batch_is_deduplicated_within_itself(self, broker: Broker) -> None:
        queue = broker.create("once", deduplicate=True)
        one, two, three = queue.send_many([b"x", b"x", b"y"])
        assert (two.id, two.duplicate, three.duplicate) == (one.id, True, False)
        assert queue.stats().messages == 2

    def test_a_key_takes_the_place_of_the_content(self, broker: Broker) -> None:
        queue = broker.create("once", deduplicate=True)
        queue.send(b"x", key="k")
        assert queue.send(b"y", key="k").duplicate is True
        assert queue.send(b"y", key=b"k").duplicate is True
        assert queue.send(b"x", key="other").duplicate is False
        assert queue.send(b"x").duplicate is False
        assert [message.key for message in queue.receive(9)] == [b"k", b"other", None]

    def test_within_the_window_it_is_a_duplicate_even_after_the_first_was_deleted(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        queue = broker.create("window", deduplicate=300)
        first = queue.send(b"x")
        queue.delete(queue.receive()[0])
        clock.advance(299)
        assert queue.send(b"x") == (first.id, True)
        assert queue.receive() == []
        clock.advance(1)
        assert queue.send(b"x").duplicate is False

    def test_a_window_outlives_a_big_message_that_goes_into_the_history(self, broker: Broker) -> None:
        queue = broker.create("window", deduplicate=300, history=60)
        first = queue.send(b"x" * MAX_BODY)
        queue.delete(queue.receive()[0])
        assert queue.send(b"x" * MAX_BODY) == (first.id, True)

    def test_past_the_window_it_is_new_though_the_first_is_still_there(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("window", deduplicate=300)
        queue.send(b"x", key="k")
        clock.advance(300)
        assert queue.send(b"y", key="k").duplicate is False
        assert queue.send(b"z", key="k").duplicate is True
        assert queue.stats().messages == 2

    def test_a_duplicate_does_not_stretch_the_window(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("window", deduplicate=300)
        queue.send(b"x")
        clock.advance(200)
        assert queue.send(b"x").duplicate is True
        clock.advance(100)
        assert queue.send(b"x").duplicate is False

    def test_windows_survive_their_queue_s_housekeeping(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("window", deduplicate=3600)
        queue.send(b"x")
        for _ in range(5):
            clock.advance(600)
            queue.delete_many(queue.receive(9))
        assert queue.send(b"x").duplicate is True

    def test_turned_on_it_does_not_consider_messages_already_there(self, queue: Queue) -> None:
        queue.send(b"x")
        queue.update(deduplicate=True)
        assert queue.send(b"x").duplicate is False
        assert queue.send(b"x").duplicate is True

    def test_queues_do_not_share_their_duplicates(self, broker: Broker) -> None:
        for name in ("a", "b"):
            assert broker.create(name, deduplicate=60).send(b"x").duplicate is False


class SetsChapter:
    def test_a_member_is_there_once(self, queue: Queue) -> None:
        assert queue.sadd("x") is True
        assert queue.sadd("x") is False
        assert queue.sadd("y") is True
        assert queue.scard() == 2

    def test_members_are_popped_once_each(self, queue: Queue) -> None:
        for member in ("a", b"\x00\xff", ""):
            queue.sadd(member)
        assert [queue.spop() for _ in range(3)] == ["a", b"\x00\xff", ""]
        assert queue.spop() is None
        assert queue.scard() == 0

    def test_membership_ends_with_the_pop(self, queue: Queue) -> None:
        queue.sadd("x")
        assert queue.sismember("x") is True
        assert queue.sismember(b"x") is True
        assert queue.sismember("y") is False
        queue.spop()
        assert queue.sismember("x") is False
        assert queue.sadd("x") is True

    def test_a_member_in_hand_is_still_a_member(self, queue: Queue) -> None:
        queue.sadd("x")
        (message,) = queue.receive()
        assert queue.sismember("x") is True
        assert queue.sadd("x") is False
        assert queue.spop() is None
        message.delete()
        assert queue.sismember("x") is False

    def test_a_window_does_not_keep_a_member_out(self, broker: Broker) -> None:
        queue = broker.create("window", deduplicate=300)
        queue.send(b"x")
        assert queue.sismember("x") is False
        assert queue.sadd("x") is True
        queue.receive(2, mode="at_most_once")
        assert queue.sadd("x") is True

    def test_what_was_sent_as_text_but_is_not_is_popped_as_bytes(self, queue: Queue) -> None:
        queue.send(b"\xff", content_type="text/plain; charset=utf-8")
        assert queue.spop() == b"\xff"

    @pytest.mark.parametrize("member", [1, None, ["x"]])
    def test_a_member_is_text_or_bytes(self, queue: Queue, member: object) -> None:
        for verb in (queue.sadd, queue.sismember):
            with pytest.raises(BadMessage, match="text or bytes"):
                verb(member)  # type: ignore[arg-type]
