"""The contract's chapter on redrives: what comes back from a dead letter queue is in its queue again, and nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock import Broker, Draft, Queue
from penstock.broker import LocalBroker
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies


def bury(queue: Queue, limit: int = 9) -> None:
    """Kill all visible messages of a queue that allows one receive."""
    queue.receive(limit, visibility=0)
    assert queue.receive(limit) == []


def let_die(broker: Broker, queue: Queue, drafts: Sequence[Draft | bytes]) -> Queue:
    """Send messages and let each die before the next one is sent; returns the dead letter queue."""
    for draft in drafts:
        queue.send_many([draft])
        bury(queue)
    return broker["dead"]


class Redriving:
    @pytest.fixture
    def once(self, broker: Broker) -> Queue:
        """A queue that refuses equal messages and has a dead letter queue."""
        broker.create("dead")
        return broker.create("once", deduplicate=True, redrive=("dead", 1))

    def test_a_letter_has_the_uuid_that_it_had_where_it_died(self, broker: LocalBroker, once: Queue) -> None:
        uuids = broker.store.uuids
        sent = [once.send(b"1").id, once.send(b"2").id]
        bury(once)
        letters = broker["dead"].receive(2)
        deaths = [letter.death.queue for letter in letters if letter.death is not None]
        assert deaths == ["once", "once"]
        assert {uuids.of("once", letter.id) for letter in letters} == {uuids.of("once", id) for id in sent}

    # deadlines

    @pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
    def test_a_letter_past_its_deadline_has_a_new_life_after_a_redrive(
        self, broker: Broker, clock: FakeClock, mode: str
    ) -> None:
        broker.create("dead")
        queue = broker.create("jobs", redrive=("dead", 1))
        dead = let_die(broker, queue, [Draft(b"invoice", deadline=60)])
        clock.advance(3600)
        assert dead.redrive() == 1
        clock.advance(3600)
        (message,) = queue.receive(mode=mode)
        assert (message.body, message.deadline_at, message.intact) == (b"invoice", None, True)

    def test_a_redrive_keeps_a_deadline_that_is_still_to_come(self, broker: Broker, clock: FakeClock) -> None:
        broker.create("dead")
        queue = broker.create("jobs", history=60, redrive=("dead", 1))
        dead = let_die(broker, queue, [Draft(b"offer", deadline=60)])
        (letter,) = dead.peek()
        clock.advance(59)
        assert dead.redrive() == 1
        assert queue.peek()[0].deadline_at == letter.deadline_at
        clock.advance(1)
        assert queue.receive() == []
        assert [message.reason for message in queue.settled()] == ["deadline"]

    # duplicates

    @pytest.mark.parametrize("key", [None, "k"])
    def test_an_equal_message_is_a_duplicate_of_a_redriven_one(self, broker: Broker, once: Queue, key: str | None) -> None:
        dead = let_die(broker, once, [Draft(b"x", key=key)])
        assert dead.redrive() == 1
        (message,) = once.peek()
        assert message.key == (key and key.encode())
        assert once.send_many([Draft(b"x", key=key)]) == [(message.id, True)]
        assert once.stats().messages == 1

    def test_a_dead_letter_keeps_its_key(self, broker: Broker, once: Queue) -> None:
        dead = let_die(broker, once, [Draft(b"x", key="k")])
        assert [letter.key for letter in dead.peek()] == [b"k"]
        elsewhere = broker.create("elsewhere")
        assert dead.redrive(to="elsewhere") == 1
        assert [message.key for message in elsewhere.receive()] == [b"k"]

    @pytest.mark.parametrize("leave", ["delete", "purge", "bury", "at_most_once", "expire"])
    def test_a_redriven_message_is_marked_as_long_as_it_is_there(
        self, broker: Broker, once: Queue, clock: FakeClock, leave: str
    ) -> None:
        let_die(broker, once, [b"x"]).redrive()
        if leave == "delete":
            once.delete(once.receive()[0])
        elif leave == "purge":
            once.purge()
        elif leave == "bury":
            bury(once)
        elif leave == "at_most_once":
            assert bodies(once.receive(mode="at_most_once")) == [b"x"]
        else:
            clock.advance(once.settings.retention)
            assert once.receive() == []
        assert once.send(b"x").duplicate is False
        assert once.send(b"x").duplicate is True

    def test_a_letter_stays_as_long_as_an_equal_message_is_in_its_queue(self, broker: Broker, once: Queue) -> None:
        dead = let_die(broker, once, [b"x", b"y"])
        (letter,) = dead.peek()
        once.send(b"x")
        redriven = dead.redrive()
        assert (redriven, redriven.duplicates, redriven.homeless) == (1, 1, 0)
        assert dead.peek(9) == [letter]  # unchanged
        redriven = dead.redrive(ids=[letter.id])
        assert (redriven, redriven.duplicates) == (0, 1)
        assert sorted(bodies(once.peek(9))) == [b"x", b"y"]
        once.delete_many(once.receive(9))
        assert dead.redrive() == 1
        assert bodies(once.receive(9)) == [b"x"]

    def test_a_letter_that_stays_can_be_received_and_settled_where_it_is(self, broker: Broker, once: Queue) -> None:
        dead = let_die(broker, once, [b"x"])
        once.send(b"x")
        (held,) = dead.receive(visibility=0)
        assert dead.redrive() == 0
        assert held.delete()
        assert dead.stats().messages == 0

    def test_of_two_equal_letters_one_goes_back(self, broker: Broker, once: Queue) -> None:
        dead = let_die(broker, once, [b"x", b"x", b"y", b"x"])
        redriven = dead.redrive()
        assert (redriven, redriven.duplicates) == (2, 2)
        assert sorted(bodies(once.receive(9))) == [b"x", b"y"]
        assert bodies(dead.peek(9)) == [b"x", b"x"]

    def test_letters_that_stay_do_not_use_up_a_redrive_s_limit(self, broker: Broker, once: Queue) -> None:
        dead = let_die(broker, once, [b"x", b"x", b"y", b"z"])
        once.send(b"x")
        redriven = dead.redrive(1)
        assert (redriven, redriven.duplicates) == (1, 2)
        assert sorted(bodies(once.peek(9))) == [b"x", b"y"]
        assert bodies(dead.peek(9)) == [b"x", b"x", b"z"]

    def test_a_dead_letter_queue_takes_equal_letters_whatever_its_setting(self, broker: Broker, once: Queue) -> None:
        broker["dead"].update(deduplicate=True)
        dead = let_die(broker, once, [b"x", b"x"])
        assert bodies(dead.peek(9)) == [b"x", b"x"]
        assert dead.send(b"x").duplicate is False

    def test_where_equal_messages_are_taken_all_letters_go(self, broker: Broker, once: Queue) -> None:
        elsewhere = broker.create("elsewhere")
        dead = let_die(broker, once, [b"x", b"x"])
        assert dead.redrive(to="elsewhere") == 2
        assert elsewhere.scard() == 0

    def test_a_window_counts_from_the_send_and_not_from_a_redrive(self, broker: Broker, clock: FakeClock) -> None:
        broker.create("dead")
        queue = broker.create("window", deduplicate=300, redrive=("dead", 1))
        dead = let_die(broker, queue, [b"x"])
        clock.advance(200)
        assert dead.redrive() == 1
        (message,) = queue.peek()
        assert queue.send(b"x") == (message.id, True)
        clock.advance(100)
        assert queue.send(b"x").duplicate is False
        bury(queue)
        assert (dead.redrive(), dead.redrive().duplicates) == (2, 0)

    # sets

    def test_a_redriven_member_is_a_member(self, broker: Broker, queue: Queue) -> None:
        dead = broker.create("dead")
        queue.update(redrive=("dead", 1))
        queue.sadd("x")
        bury(queue)
        assert (queue.sismember("x"), dead.sismember("x"), dead.scard()) == (False, False, 0)
        assert dead.redrive() == 1
        assert (queue.sismember("x"), queue.scard(), queue.sadd("x")) == (True, 1, False)
        assert bodies(queue.peek(9)) == [b"x"]
        assert queue.spop() == "x"
        assert (queue.sismember("x"), queue.scard(), queue.sadd("x")) == (False, 0, True)

    def test_a_member_stays_dead_while_it_is_in_the_set_again(self, broker: Broker, queue: Queue) -> None:
        dead = broker.create("dead", deduplicate=True)
        queue.update(redrive=("dead", 1))
        queue.sadd("x")
        bury(queue)
        queue.sadd("x")
        redriven = dead.redrive()
        assert (redriven, redriven.duplicates, queue.scard(), dead.stats().messages) == (0, 1, 1, 1)
        queue.spop()
        assert dead.redrive() == 1
        assert (queue.sismember("x"), queue.scard()) == (True, 1)

    # which letters

    def test_a_redrive_counts_the_letters_that_have_no_queue(self, broker: Broker) -> None:
        dead = broker.create("dead")
        let_die(broker, broker.create("a", redrive=("dead", 1)), [b"1"])
        let_die(broker, broker.create("b", redrive=("dead", 1)), [b"2"])
        dead.send(b"3")
        broker.delete("a")
        redriven = dead.redrive()
        assert (redriven, redriven.duplicates, redriven.homeless) == (1, 0, 2)
        assert sorted(bodies(dead.peek(9))) == [b"1", b"3"]


class RedrivingGroups:
    def test_a_redrive_goes_through_whole_groups(self, broker: Broker, clock: FakeClock, queue: Queue) -> None:
        dead = broker.create("dead", groups=True)
        for body, group in [(b"1", "g"), (b"2", "g"), (b"3", "g"), (b"x", None)]:
            dead.send(body, group=group)
            clock.advance(1)
        assert dead.redrive(to="orders") == 4
        assert dead.stats().messages == 0

    def test_a_letter_that_stays_holds_up_its_group(self, broker: Broker, clock: FakeClock) -> None:
        dead = broker.create("dead", groups=True)
        queue = broker.create("once", groups=True, deduplicate=True)
        queue.send(b"1")
        for body, group in [(b"1", "g"), (b"2", "g"), (b"3", "h"), (b"4", "h")]:
            dead.send(body, group=group)
            clock.advance(1)
        redriven = dead.redrive(to="once")
        assert (redriven, redriven.duplicates) == (2, 1)
        assert bodies(dead.peek(9)) == [b"1", b"2"]
