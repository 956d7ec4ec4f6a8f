"""The contract's chapter on large named claims, which a store may make, confirm and settle without looking at each message: the
rules, the order and the other users of the queue are the same as message by message."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from threading import Lock, Thread

import pytest

import penstock
from penstock import Broker, ClaimLapsed, Draft, Message, Queue
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies

PATIENCE = 120
"""Seconds for a race that takes a few on an idle machine."""


def send_ten(queue: Queue, clock: FakeClock) -> None:
    """Ten messages, of which the third, the fourth and the last are past their deadlines."""
    queue.send_many([Draft(b"%d" % place, deadline=5 if place in (2, 3, 9) else None) for place in range(10)])
    clock.advance(5)


class ClaimsAtOnce:
    @pytest.fixture(params=[1, 1000], ids=["judged one by one", "judged together"])
    def part(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
        """How many messages are judged at a time, between those that are claimed at once."""
        monkeypatch.setattr("penstock.queue.named_claims.AT_LEAST", request.param)
        size: int = request.param
        return size

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 9])
    def test_what_the_rules_refuse_amid_a_claim_makes_room_for_what_comes_after_it(
        self, broker: Broker, clock: FakeClock, part: int, limit: int
    ) -> None:
        queue = broker.create("orders", history=60)
        send_ten(queue, clock)
        good = [b"0", b"1", b"4", b"5", b"6", b"7", b"8"]
        assert queue.claim("spark", 1, limit).size == min(limit, 7)
        assert bodies(queue.read("spark", 1)) == good[:limit]
        assert queue.claim("spark", 2, 9).size == max(0, 7 - limit)
        assert bodies(queue.read("spark", 2)) == good[limit:]
        assert [(message.text, message.reason) for message in queue.settled(9)] == [(text, "deadline") for text in "239"]
        queue.confirm("spark", 1)
        queue.confirm("spark", 2)
        clock.advance(10**6)
        assert queue.receive(9) == []
        assert queue.settle("spark", 2) == 7
        assert queue.stats().messages == 0

    def test_poison_amid_a_claim_is_buried(self, broker: Broker, part: int) -> None:
        dead = broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        sent = queue.send_many([b"%d" % number for number in range(8)])
        assert len(queue.receive(8, visibility=100)) == 8
        clean = [place for place in range(8) if place not in (1, 5)]
        for place in (1, 5):
            assert queue.release(sent[place].id) is True
        queue.send_many([b"fresh"] * 2)
        assert queue.claim("spark", 1, 9).size == 2
        assert bodies(queue.read("spark", 1)) == [b"fresh"] * 2
        assert sorted(bodies(dead.receive(9))) == [b"1", b"5"]
        assert queue.stats().in_flight == len(clean) + 2

    def test_poison_that_has_nowhere_to_go_is_claimed_in_its_place(self, broker: Broker, clock: FakeClock, part: int) -> None:
        broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        queue.send_many([b"0", b"1", b"2", b"3"])
        clock.advance(1)
        for message in queue.receive(2):
            message.release()
        broker.delete("dead")
        queue.send(b"4")
        assert queue.claim("spark", 1, 9).size == 5
        found = queue.read("spark", 1)
        if broker.store.ordered:
            assert bodies(found) == [b"2", b"3", b"0", b"1", b"4"]
        assert {message.text: message.receives for message in found} == {"0": 2, "1": 2, "2": 1, "3": 1, "4": 1}
        assert queue.read("spark", 1) == found

    def test_a_claim_made_in_several_ways_lapses_as_one(self, broker: Broker, clock: FakeClock, part: int) -> None:
        queue = broker.create("orders")
        send_ten(queue, clock)
        claim = queue.claim("spark", 1, 9, ttl=10)
        assert claim.size == 7
        assert {message.visible_at for message in queue.read("spark", 1)} == {claim.lapses_at}
        assert queue.pulse().due_at in (claim.lapses_at, 0)
        clock.advance(9.5)
        assert (queue.receive(9), queue.stats().in_flight) == ([], 7)
        clock.advance(0.5)
        assert queue.stats().visible == 7
        with pytest.raises(ClaimLapsed):
            queue.confirm("spark", 1)
        assert queue.claim("other", 1, 9).size == 7
        assert [message.receives for message in queue.read("other", 1)] == [2] * 7

    def test_what_leaves_a_claim_made_in_several_ways_leaves_the_others_there(
        self, broker: Broker, clock: FakeClock, part: int
    ) -> None:
        queue = broker.create("orders")
        send_ten(queue, clock)
        queue.claim("spark", 1, 9, ttl=10)
        held = {message.text: message for message in queue.read("spark", 1)}
        assert queue.release(held["4"].id) is True
        assert queue.extend(held["0"].id, 3) is True
        assert queue.delete(held["8"].id) is True
        (mine,) = queue.receive(9, visibility=1000)
        assert (mine.text, mine.receives) == ("4", 2)
        assert queue.confirm("spark", 1).size == 7
        clock.advance(100)
        assert queue.receive(9) == []
        assert sorted(bodies(queue.read("spark", 1))) == [b"0", b"1", b"5", b"6", b"7"]
        assert queue.settle("spark", 1) == 5
        assert queue.delete(mine) is True

    def test_a_settled_claim_frees_its_own_keys_alone(self, broker: Broker) -> None:
        queue = broker.create("keyed", deduplicate=True)
        other = broker.create("other", deduplicate=True)
        for each in (queue, other):
            each.send_many([Draft(b"x", key=f"k{number}") for number in range(6)])
        queue.claim("spark", 1, 4)
        queue.confirm("spark", 1)
        first = queue.read("spark", 1)[0]
        assert queue.release(first.id) is True
        (mine,) = queue.receive(visibility=100)
        assert mine.id == first.id
        assert queue.settle("spark", 1) == 3
        again = [sent.duplicate for sent in queue.send_many([Draft(b"x", key=f"k{number}") for number in range(6)])]
        assert again == [True, False, False, False, True, True]
        assert [sent.duplicate for sent in other.send_many([Draft(b"x", key="k1"), Draft(b"x", key="k2")])] == [True] * 2

    def test_a_window_of_deduplication_outlasts_a_settled_claim(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("windowed", deduplicate=30)
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 4)
        queue.confirm("spark", 1)
        assert queue.settle("spark", 1) == 2
        assert [sent.duplicate for sent in queue.send_many([b"1", b"3"])] == [True, False]
        clock.advance(30)
        assert queue.send(b"1").duplicate is False

    def test_the_history_of_a_large_claim_has_each_message_as_it_was(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create("kept", history=60)
        queue.send_many([Draft(b"%d" % number, attributes={"n": number}) for number in range(5)])
        queue.claim("spark", 1, 5)
        queue.confirm("spark", 1)
        claimed = queue.read("spark", 1)
        clock.advance(7)
        assert queue.settle("spark", 1) == 5
        kept = queue.settled(9)
        assert [(message.body, message.attributes, message.receives, message.settled_at) for message in kept] == [
            (message.body, message.attributes, 1, clock.now) for message in claimed
        ]

    def test_readers_and_receivers_side_by_side_get_each_message_once(self, url: str) -> None:
        """One of the readers confirms about when its claim lapses: it has the messages, or others have."""
        with penstock.open(url) as broker:
            Race(broker.create("orders", visibility=3600)).run()


class Race:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.got: Counter[bytes] = Counter()
        self.give_up_at = time.monotonic() + PATIENCE
        self._lock = Lock()
        self._errors: list[BaseException] = []

    def run(self, total: int = 240) -> None:
        self.queue.send_many([b"%d" % number for number in range(total // 2)])
        work = [partial(self.read, "steady", 3600), partial(self.read, "hesitant", 0.01), self.receive, self.receive]
        threads = [Thread(target=self.until_all_are_there, args=(each, total)) for each in work]
        for thread in threads:
            thread.start()
        for number in range(total // 2, total, 10):
            self.queue.send_many([b"%d" % (number + step) for step in range(10)])
        for thread in threads:
            thread.join()
        assert not self._errors, self._errors
        assert self.got == Counter(b"%d" % number for number in range(total))
        assert self.queue.stats().messages == 0

    def until_all_are_there(self, work: Callable[[], None], total: int) -> None:
        try:
            while self.got.total() < total and time.monotonic() < self.give_up_at and not self._errors:
                work()
        except BaseException as error:
            self._errors.append(error)

    def note(self, messages: list[Message]) -> None:
        with self._lock:
            self.got.update(message.body for message in messages)

    def receive(self) -> None:
        messages = self.queue.receive(3)
        assert all(self.queue.delete_many(messages))
        self.note(messages)

    def read(self, reader: str, ttl: float) -> None:
        epoch = (self.queue.settled_epoch(reader) or 0) + 1
        size = self.queue.claim(reader, epoch, 10, ttl=ttl).size
        try:
            if not size:
                return
            time.sleep(min(ttl, 0.05) * 0.9)  # whether it lapses is for the race to decide
            assert self.queue.confirm(reader, epoch).size == size
        except ClaimLapsed:
            return
        messages = self.queue.read(reader, epoch)
        assert len(messages) == size
        assert self.queue.settle(reader, epoch) == size
        self.note(messages)
