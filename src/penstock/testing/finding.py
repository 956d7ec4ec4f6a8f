"""The contract's chapter on finding one message by its id or its key."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import BadMessage, Broker, Draft, Queue, State
from penstock.testing.clock import FakeClock


class Finding:
    def test_a_message_is_found_by_its_id_in_whatever_state_it_is(self, queue: Queue, clock: FakeClock) -> None:
        one, two = queue.send(b"1", attributes={"a": 1}), queue.send(b"2", delay=60)
        found = queue.find(one.id)
        assert found is not None
        assert (found.id, found.body, found.attributes, found.receives, found.home) == (one.id, b"1", {"a": 1}, 0, None)
        assert found == queue.peek(9)[0]
        (held,) = queue.receive(visibility=30, holder="worker 7")
        found = queue.find(held.id)
        assert found is not None
        assert (found.state, found.holder, found.delivery) == (State.CONSUMED, "worker 7", held.delivery)
        clock.advance(30)
        found = queue.find(held.id)
        assert found is not None
        assert found.holder is None, "its lease has lapsed"
        hidden = queue.find(id=two.id)
        assert hidden is not None
        assert hidden.body == b"2"
        queue.delete(one.id)
        assert queue.find(one.id) is None

    def test_a_message_is_found_by_its_key_as_long_as_it_makes_others_duplicates(
        self, broker: Broker, queue: Queue, clock: FakeClock
    ) -> None:
        once, window = broker.create("once", deduplicate=True), broker.create("window", deduplicate=60)
        for each in (once, window):
            sent = each.send_many([Draft(b"1", key="k"), Draft(b"2", key=b"l"), b"3"])
            keys: list[str | bytes] = ["k", b"l"]
            for number, key in enumerate(keys):
                found = each.find(key=key)
                assert found is not None
                assert (found.id, found.body, found.key) == (sent[number].id, b"%d" % (number + 1), b"kl"[number : number + 1])
            assert each.find(key="m") is None
            each.delete(sent[0].id)
            assert each.find(key="k") is None
        (again,) = once.send_many([Draft(b"4", key="k")])
        found = once.find(key="k")
        assert found is not None
        assert (found.id, found.body) == (again.id, b"4")
        queue.send(b"x", key="k")
        assert queue.find(key="k") is None, "the queue does not deduplicate"

    def test_an_id_of_another_queue_or_of_none_finds_nothing(self, broker: Broker, queue: Queue) -> None:
        other = broker.create("other")
        other.send(b"x")
        strange = ["", "0", "x", "é" * 300, "00000000-0000-8000-8000-000000000001"]
        assert [queue.find(id) for id in strange] == [None] * len(strange)
        assert queue.find(other.peek()[0].id) is None

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
    def test_find_needs_an_id_or_a_key(self, queue: Queue, how: dict[str, Any], words: str) -> None:
        with pytest.raises(BadMessage, match=words):
            queue.find(**how)
