"""The contract's chapter on settled messages (gq's four statuses)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock import BadInput, Broker, Queue, Receipt, State
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies


class HistoryChapter:
    @pytest.fixture
    def kept(self, broker: Broker) -> Queue:
        return broker.create("kept", history=100)

    def test_by_default_nothing_is_kept(self, queue: Queue) -> None:
        queue.send(b"x")
        queue.receive()[0].delete()
        assert queue.settled() == []

    def test_all_four_statuses_can_be_seen(self, kept: Queue, clock: FakeClock) -> None:
        kept.send_many([b"processed", b"failed", b"consumed", b"queued"])
        one, two, _ = kept.receive(3)
        kept.delete(one)
        kept.fail(two, "no such customer")
        seen = {message.text: message.state.name.lower() for message in [*kept.peek(9), *kept.settled()]}
        assert all(body == state for body, state in seen.items())
        assert len(seen) == 4
        assert kept.stats().settled == 2

    def test_times_counts_and_reason_are_kept(self, kept: Queue, clock: FakeClock) -> None:
        kept.send(b"x", attributes={"a": 1}, content_type="text/plain")
        sent_at = clock.now
        clock.advance(1)
        kept.receive()[0].release()
        clock.advance(1)
        (message,) = kept.receive()
        clock.advance(1)
        kept.fail(message, "bad")
        (settled,) = kept.settled()
        assert (settled.sent_at, settled.first_received_at, settled.received_at, settled.settled_at) == tuple(
            sent_at + seconds * 1_000_000 for seconds in (0, 1, 2, 3)
        )
        assert (settled.receives, settled.reason, settled.attributes, settled.id) == (2, "bad", {"a": 1}, message.id)

    def test_history_ends_after_its_time(self, kept: Queue, clock: FakeClock) -> None:
        kept.send(b"x")
        kept.receive()[0].delete()
        clock.advance(99)
        kept.send(b"tend")
        assert len(kept.settled()) == 1
        clock.advance(31)
        kept.send(b"tend")
        assert kept.settled() == []

    def test_settling_twice_is_kept_once(self, kept: Queue) -> None:
        kept.send(b"x")
        (message,) = kept.receive()
        assert kept.delete_many([message, message, message.id]) == [True, False, False]
        assert kept.delete(message) is False
        assert bodies(kept.settled()) == [b"x"]

    def test_a_stale_receipt_leaves_no_history(self, kept: Queue, clock: FakeClock) -> None:
        kept.send(b"x")
        (stale,) = kept.receive()
        clock.advance(31)
        kept.receive()
        assert kept.delete(stale) is False
        assert kept.settled() == []

    def test_the_expired_are_failed_with_their_reason(self, kept: Queue, clock: FakeClock) -> None:
        kept.send(b"late", deadline=5)
        clock.advance(5)
        kept.receive()
        kept.update(retention=10)
        kept.send(b"old")
        clock.advance(10)
        kept.stats()
        assert [(message.text, message.state.name, message.reason) for message in kept.settled()] == [
            ("late", "FAILED", "deadline"),
            ("old", "FAILED", "retention"),
        ]

    def test_at_most_once_is_processed_when_received(self, kept: Queue) -> None:
        kept.send(b"x")
        kept.receive(mode="at_most_once")
        assert [message.state.name for message in kept.settled()] == ["PROCESSED"]

    def test_at_most_once_what_is_unfinished_has_failed_until_it_is_told_how_it_ended(
        self, kept: Queue, clock: FakeClock
    ) -> None:
        kept.send_many([b"done", b"bad", b"died"])
        taken = {message.text: message for message in kept.receive(3, mode="at_most_once", unfinished=True)}
        assert {(message.text, message.state.name, message.reason) for message in kept.settled()} == {
            (body, "FAILED", "unfinished") for body in ("done", "bad", "died")
        }
        before = {message.text: message for message in kept.settled()}
        clock.advance(1)
        assert kept.finish([taken["done"]]) == [True]
        assert kept.finish([taken["bad"]], "no such customer") == [True]
        stale = Receipt("kept", taken["died"].id, taken["died"].delivery + 1)
        assert kept.finish([stale, stale.id + "0"]) == [False, False]
        ends = {"done": ("PROCESSED", None), "bad": ("FAILED", "no such customer"), "died": ("FAILED", "unfinished")}
        after = {message.text: message for message in kept.settled()}
        assert {text: (message.state.name, message.reason) for text, message in after.items()} == ends
        unchanged = {text: replace(one, state=State.FAILED, reason="unfinished") for text, one in after.items()}
        assert unchanged == before
        assert kept.stats().settled == 3
        assert kept.stats().messages == 0
        with pytest.raises(BadInput, match="reason"):
            kept.finish([taken["died"]], 5)  # type: ignore[arg-type]

    def test_without_history_there_is_nothing_to_tell(self, queue: Queue) -> None:
        queue.send(b"x")
        (message,) = queue.receive(mode="at_most_once", unfinished=True)
        assert message.reason is None
        assert queue.finish([message]) == [False]
        assert queue.settled() == []

    def test_history_comes_in_the_order_of_settling(self, kept: Queue, clock: FakeClock) -> None:
        kept.send_many([b"1", b"2", b"3"])
        for message in reversed(kept.receive(3)):
            clock.advance(1)
            message.delete()
        assert bodies(kept.settled()) == [b"3", b"2", b"1"]
        assert bodies(kept.settled(1)) == [b"3"]

    def test_a_queue_and_its_history_are_looked_at_by_number(self, kept: Queue) -> None:
        kept.send_many([b"%d" % number for number in range(6)])
        kept.receive(1)
        for message in kept.receive(2):
            message.delete()
        everything = kept.scan()
        assert {message.body for message in everything} == {b"0", b"3", b"4", b"5"}
        numbers = [message.number for message in everything]
        assert numbers == sorted(numbers)
        assert kept.span() == (4, numbers[0], numbers[-1])
        assert kept.scan(numbers[1], numbers[3]) == everything[1:3]
        assert kept.scan(numbers[1], limit=1) == everything[1:2]
        past = kept.scan(settled=True)
        assert past == sorted(kept.settled(), key=lambda message: message.number)
        assert kept.span(settled=True) == (2, past[0].number, past[1].number)
        assert kept.scan(past[1].number, settled=True) == past[1:]

    def test_the_span_of_nothing_is_nothing(self, queue: Queue) -> None:
        assert queue.span() == queue.span(settled=True) == (0, 0, 0)
        assert queue.scan() == queue.scan(settled=True) == []
        for limits in ((-1, 5, 1), (0, -1, 1), (0, 5, 0)):
            with pytest.raises(BadInput):
                queue.scan(*limits)
