"""The contract's chapter on messages that come out as they went in."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

from penstock import BadMessage, Broker, Draft, Queue, State
from penstock.message import SECOND
from penstock.policy import MAX_BODY, MAX_MESSAGE
from penstock.testing.clock import FakeClock


class SendingChapter:
    def test_a_batch_that_is_sent_once_is_known_by_its_token(self, queue: Queue, clock: FakeClock) -> None:
        for token, count in (("a", 3), ("a", 3), ("b", 6), ("a", 6)):
            queue.send_once([b"1", b"2", b"3"], token)
            assert queue.stats().messages == count
        assert sorted(message.body for message in queue.receive(9)) == [b"1", b"1", b"2", b"2", b"3", b"3"]
        for count in (7, 7):
            queue.send_once([b"4"], "c")
            assert queue.stats().messages == count
        queue.update(visibility=7)
        queue.send_once([b"5", b"6"], "d")
        assert queue.stats().messages == 9
        clock.advance(601)
        queue.send_once([b"1", b"2", b"3"], "a")
        assert queue.stats().messages == 12

    def test_a_message_is_delayed_to_any_microsecond_and_not_in_flight(self, queue: Queue, clock: FakeClock) -> None:
        clock.advance(0.000001)
        queue.send(b"x", delay=5)
        assert (queue.stats().delayed, queue.stats().in_flight) == (1, 0)
        assert queue.peek()[0].state is State.QUEUED
        clock.advance(5.001)
        assert len(queue.receive()) == 1

    def test_a_token_is_remembered_for_as_long_as_its_sender_asks(self, queue: Queue, clock: FakeClock) -> None:
        for after, count in ((0, 2), (7199, 2), (2, 4)):
            clock.advance(after)
            queue.send_once([b"1", b"2"], "a", remember=7200)
            assert queue.stats().messages == count
        for remember in (0, 0.5, float("nan"), 7 * 86400 + 1, "1", None):
            with pytest.raises(BadMessage, match="remember"):
                queue.send_once([b"3"], "b", remember=remember)  # type: ignore[arg-type]
        assert queue.stats().messages == 4

    def test_a_message_comes_back_as_it_was_sent(self, queue: Queue, clock: FakeClock) -> None:
        attributes: dict[str, str | int | float | bytes] = {
            "text": "größe",
            "number": 7,
            "big": 2**100,
            "real": 1.5,
            "negative": -3,
            "bytes": b"\x00\xff",
            "empty": "",
        }
        sent = queue.send(
            b"hello", content_type="text/plain", attributes=attributes, group=" ../g:漢", visibility=90, deadline=600
        )
        clock.advance(1)
        (message,) = queue.receive()
        assert (message.id, message.body, message.content_type, message.text) == (sent.id, b"hello", "text/plain", "hello")
        assert message.attributes == attributes
        assert [type(message.attributes[name]) for name in attributes] == [type(value) for value in attributes.values()]
        assert (message.group, message.visibility, message.key) == (" ../g:漢", 90, None)
        assert message.sent_at == clock.now - SECOND
        assert message.deadline_at == clock.now - SECOND + 600 * SECOND
        assert (message.receives, message.first_received_at, message.received_at) == (1, clock.now, clock.now)

    def test_attributes_may_be_as_long_as_a_body(self, broker: Broker) -> None:
        dead = broker.create("dead")
        queue = broker.create("orders", redrive=("dead", 1), visibility=0)
        blob = {"blob": os.urandom(MAX_MESSAGE - 6)}
        texts = {f"text {place}": '"\\é\n\x01' * 18_000 for place in range(10)}
        texts["rest"] = "x" * (MAX_MESSAGE - 4 - 10 * (6 + 6 * 18_000) - len("body"))
        sent = [Draft(b"ab", attributes=blob), Draft(b"body", attributes=texts)]
        for draft in sent:
            with pytest.raises(BadMessage, match="the limit of both together is 1114112"):
                queue.send_many([Draft(draft.body + b"!", attributes=draft.attributes)])
        assert queue.stats().messages == 0
        queue.send_many(sent)
        for received in (queue.peek(2), queue.receive(2), queue.receive(2) or dead.receive(2)):
            found = {message.body: message.attributes for message in received}
            assert found == {b"ab": blob, b"body": texts}

    def test_a_plain_message_has_the_default_type_and_no_attributes(self, queue: Queue) -> None:
        queue.send(b"x")
        (message,) = queue.receive()
        assert (message.content_type, message.attributes, message.group) == ("application/octet-stream", {}, None)

    @pytest.mark.parametrize(
        "body",
        [b"", b"\x00", bytes(range(256)) * 5, "ünïcode".encode(), b"\r\n\r\n"],
        ids=["empty", "nul", "binary", "utf8", "crlf"],
    )
    def test_any_bytes_are_a_body(self, queue: Queue, body: bytes) -> None:
        queue.send(body)
        assert queue.peek()[0].body == body
        assert queue.receive()[0].body == body

    def test_a_body_may_have_one_mebibyte_and_no_byte_more(self, queue: Queue) -> None:
        body = os.urandom(MAX_BODY)
        queue.send(body)
        with pytest.raises(BadMessage, match="1048577 bytes, the limit is 1048576"):
            queue.send(body + b"x")
        assert [message.body for message in queue.receive(2)] == [body]

    def test_a_buffer_is_a_body_too(self, queue: Queue) -> None:
        queue.send_many([Draft(bytearray(b"array")), Draft(memoryview(b"view"))])  # type: ignore[arg-type]
        assert [message.body for message in queue.receive(2)] == [b"array", b"view"]

    def test_ids_are_unique_and_never_used_again(self, queue: Queue) -> None:
        ids = [sent.id for sent in queue.send_many([b"x"] * 50)]
        queue.delete_many(queue.receive(50))
        for _ in range(2):
            ids += [sent.id for sent in queue.send_many([b"x"] * 50)]
            queue.purge()
        for _ in range(5):
            ids.append(queue.send(b"x").id)
            assert queue.delete(queue.receive()[0])
        assert len(set(ids)) == 155

    def test_a_batch_keeps_its_order(self, queue: Queue) -> None:
        bodies = [b"%d" % number for number in range(250)]
        sent = queue.send_many(bodies)
        received = queue.receive(250)
        assert [message.body for message in received] == bodies
        assert [message.id for message in received] == [answer.id for answer in sent]

    def test_a_batch_mixes_bytes_and_drafts(self, queue: Queue) -> None:
        queue.send_many([b"plain", Draft(b"draft", attributes={"a": 1}, delay=5)])
        assert [message.body for message in queue.receive(2)] == [b"plain"]
        assert queue.stats().delayed == 1

    def test_an_empty_batch_does_nothing(self, queue: Queue) -> None:
        assert queue.send_many([]) == []
        assert queue.delete_many([]) == []

    def test_one_bad_draft_refuses_the_whole_batch(self, queue: Queue) -> None:
        with pytest.raises(BadMessage, match="delay -1"):
            queue.send_many([b"good", Draft(b"bad", delay=-1)])
        assert queue.stats().messages == 0

    def test_a_delay_hides_a_message_until_its_instant(self, queue: Queue, clock: FakeClock) -> None:
        queue.send(b"x", delay=5)
        clock.advance(4.999999)
        assert queue.receive() == []
        clock.advance(0.000001)
        assert queue.receive()[0].body == b"x"

    def test_the_queue_s_delay_is_for_messages_that_name_none(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("slow", delay=10)
        queue.send(b"now", delay=0)
        queue.send(b"slow")
        assert [message.body for message in queue.receive(2)] == [b"now"]
        clock.advance(10)
        assert [message.body for message in queue.receive(2)] == [b"slow"]

    def test_a_deadline_may_be_a_date(self, queue: Queue) -> None:
        queue.send(b"x", deadline=datetime(2100, 1, 1, tzinfo=UTC))
        assert queue.receive()[0].deadline_at == 4102444800 * SECOND
