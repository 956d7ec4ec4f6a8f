"""The contract's chapter on ordered groups."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import pytest

from penstock import BadSetting, Broker, Draft, Queue, Unsupported
from penstock.broker import LocalBroker
from penstock.publishing import segments
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies

LONG_ENOUGH = 0.3
"""Seconds for which a batch is kept open: a thread that has to wait for it waits anyway, the others finish within this time."""


class GroupsRefused:
    def test_a_queue_with_ordered_groups_is_refused(self, broker: Broker) -> None:
        assert broker.store.groups is False
        with pytest.raises(Unsupported, match=r"'lines'.*groups"):
            broker.create("lines", groups=True)
        assert broker.queues().total == 0


class Groups:
    @pytest.fixture
    def lines(self, broker: Broker) -> Queue:
        return broker.create("lines", groups=True)

    def test_while_one_is_in_hand_no_later_one_of_its_group_is_given(self, lines: Queue) -> None:
        lines.send_many([Draft(b"a1", group="a"), Draft(b"a2", group="a"), Draft(b"b1", group="b"), Draft(b"a3", group="a")])
        first = lines.receive(9)
        assert bodies(first) == [b"a1", b"b1"]
        assert lines.receive(9) == []
        first[0].delete()
        assert bodies(lines.receive(9)) == [b"a2"]

    def test_groups_go_in_parallel(self, lines: Queue) -> None:
        lines.send_many([Draft(b"%d" % number, group=f"g{number % 3}") for number in range(9)])
        order = []
        while messages := lines.receive(9):
            assert len(messages) == 3
            order += bodies(messages)
            lines.delete_many(messages)
        assert order == [b"%d" % number for number in range(9)]

    def test_a_group_is_any_printable_text(self, lines: Queue) -> None:
        names = ["a/b", "a:b", "../up", ".a", " a", "a", "a ", "A", "é", "e\u0301", "%_'\"\\", "\U0001f680" * 128]
        lines.send_many([Draft(b"%d%d" % (turn, place), group=name) for turn in (1, 2) for place, name in enumerate(names)])
        for turn in (1, 2):
            messages = lines.receive(30)
            assert [message.group for message in messages] == names
            assert {message.body[:1] for message in messages} == {b"%d" % turn}
            lines.delete_many(messages)

    def test_a_message_without_a_group_stands_alone(self, lines: Queue) -> None:
        lines.send_many([b"1", b"2", Draft(b"a", group="a"), Draft(b"b", group="a")])
        assert bodies(lines.receive(9)) == [b"1", b"2", b"a"]

    def test_a_lapsed_first_comes_again_before_the_second(self, lines: Queue, clock: FakeClock) -> None:
        lines.send_many([Draft(b"1", group="a"), Draft(b"2", group="a")])
        assert bodies(lines.receive(9)) == [b"1"]
        clock.advance(31)
        (again,) = lines.receive(9)
        assert again.body == b"1"
        again.release(delay=10)
        assert lines.receive(9) == []
        clock.advance(10)
        assert bodies(lines.receive(9)) == [b"1"]

    def test_a_delayed_first_holds_up_its_group_alone(self, lines: Queue, clock: FakeClock) -> None:
        lines.send(b"1", group="a", delay=10)
        lines.send(b"2", group="a")
        lines.send(b"3", group="b")
        assert bodies(lines.receive(9)) == [b"3"]
        clock.advance(10)
        assert bodies(lines.receive(9)) == [b"1"]

    def test_a_delay_counts_from_the_send_not_from_the_turn(self, lines: Queue, clock: FakeClock) -> None:
        lines.send(b"1", group="a")
        lines.send(b"2", group="a", delay=10)
        (first,) = lines.receive()
        clock.advance(4)
        first.delete()
        assert lines.receive() == []
        clock.advance(6)
        assert bodies(lines.receive()) == [b"2"]

    @pytest.mark.parametrize("leave", ["bury", "expire", "at_most_once", "by id"])
    def test_however_the_first_leaves_the_next_is_free(
        self, lines: Queue, broker: Broker, clock: FakeClock, leave: str
    ) -> None:
        broker.create("dead")
        lines.update(redrive=("dead", 1))
        sent = lines.send(b"1", group="a", deadline=50)
        lines.send(b"2", group="a")
        if leave == "bury":
            lines.receive(visibility=0)
        elif leave == "expire":
            clock.advance(50)
        elif leave == "at_most_once":
            lines.receive(mode="at_most_once")
        else:
            lines.delete(sent.id)
        assert bodies(lines.receive()) == [b"2"]

    def test_deleting_one_that_waits_frees_nobody(self, lines: Queue) -> None:
        _, two, _ = lines.send_many([Draft(b"%d" % number, group="a") for number in (1, 2, 3)])
        (first,) = lines.receive()
        assert lines.delete(two.id) is True
        assert lines.receive() == []
        first.delete()
        assert bodies(lines.receive()) == [b"3"]

    def test_those_that_wait_for_their_turn_are_counted(self, lines: Queue) -> None:
        lines.send_many([Draft(b"%d" % number, group="a") for number in range(4)])
        lines.receive()
        stats = lines.stats()
        assert (stats.messages, stats.visible, stats.in_flight, stats.delayed, stats.blocked) == (4, 0, 1, 0, 3)
        assert bodies(lines.peek(9)) == [b"0", b"1", b"2", b"3"]

    def test_a_moved_message_takes_its_turn_where_it_arrives(self, lines: Queue, broker: Broker) -> None:
        source = broker.create("source")
        source.send(b"moved", group="a")
        lines.send(b"1", group="a")
        source.redrive(to="lines")
        (first,) = lines.receive(9)
        assert first.body == b"1"
        first.delete()
        assert bodies(lines.receive(9)) == [b"moved"]

    @pytest.mark.parametrize("way", ["send", "redrive", "bury", "publish"])
    def test_of_two_that_enter_a_group_at_once_the_later_one_waits(self, entering: Entering, way: str) -> None:
        entering.race(entering.way("redrive", b"first"), entering.way(way, b"second"))
        assert bodies(entering.lines.receive(9)) == [b"first"]
        assert entering.lines.stats().blocked == 1

    @pytest.mark.parametrize("way", ["send", "bury"])
    def test_of_two_that_enter_a_group_at_once_the_redriven_one_waits(self, entering: Entering, way: str) -> None:
        entering.race(entering.way(way, b"first"), entering.way("redrive", b"second"))
        assert bodies(entering.lines.receive(9)) == [b"first"]
        assert entering.lines.stats().blocked == 1

    @pytest.mark.parametrize("way", ["delete", "fail", "purge", "settle", "redrive", "set aside"])
    def test_who_enters_a_group_while_its_first_leaves_is_free(self, entering: Entering, way: str) -> None:
        lines, broker = entering.lines, entering.broker
        sent = lines.send(b"leaving", group="a")
        broker.create("elsewhere")

        def leave() -> None:
            if way == "settle":
                lines.settle("reader", 0)
            elif way == "redrive":
                assert lines.redrive(to="elsewhere", ids=[sent.id]) == 1
            elif way == "set aside":
                assert broker.store.queue("lines").set_aside([lines.peek()[0]]) == [True]
            elif way == "purge":
                assert lines.purge() == 1
            else:
                assert getattr(lines, way)(sent.id) is True

        if way == "settle":
            lines.claim("reader", 0, 1, ttl=60)
        entering.race(leave, entering.way("redrive", b"entering"))
        assert bodies(lines.receive(9)) == [b"entering"]

    @pytest.fixture
    def entering(self, broker: LocalBroker, lines: Queue) -> Entering:
        return Entering(broker, lines)

    def test_what_is_set_aside_of_a_claim_is_not_settled_and_the_next_are_free(self, broker: LocalBroker, lines: Queue) -> None:
        lines.send_many([Draft(b"%d" % number, group=group) for number, group in enumerate("aabb")])
        assert lines.claim("reader", 0, 9).size == 2
        lines.confirm("reader", 0)
        broker.store.queue("lines").set_aside([lines.read("reader", 0)[0]])
        assert lines.settle("reader", 0) == 1
        assert (lines.stats().damaged, sorted(bodies(lines.receive(9)))) == (1, [b"1", b"3"])

    def test_a_purge_forgets_what_makes_duplicates(self, broker: Broker) -> None:
        queue = broker.create("once", groups=True, deduplicate=300)
        first = queue.send(b"1", group="a", key="same")
        assert queue.send(b"1", group="a", key="same") == (first.id, True)
        queue.purge()
        assert not queue.send(b"1", group="a", key="same").duplicate

    def test_a_purge_empties_the_line(self, lines: Queue) -> None:
        lines.send_many([Draft(b"x", group="a")] * 3)
        lines.receive()
        assert lines.purge() == 3
        lines.send(b"new", group="a")
        assert bodies(lines.receive(9)) == [b"new"]

    def test_groups_are_fixed_when_the_queue_is_made(self, queue: Queue) -> None:
        with pytest.raises(BadSetting, match="groups cannot be changed"):
            queue.update(groups=True)

    def test_in_a_queue_without_ordered_groups_a_group_is_a_label(self, queue: Queue) -> None:
        queue.send_many([Draft(b"1", group="a"), Draft(b"2", group="a")])
        assert [(message.body, message.group) for message in queue.receive(2)] == [(b"1", "a"), (b"2", "a")]


class Entering:
    """Two threads that each add a message to one group of a queue, or take one out."""

    def __init__(self, broker: LocalBroker, lines: Queue) -> None:
        self.broker = broker
        self.lines = lines
        self._source = broker.create("source")
        self._work = broker.create("work", redrive=("lines", 1))

    def way(self, name: str, body: bytes) -> Callable[[], None]:
        """Prepare one way into the group; the returned function takes it."""
        draft = Draft(body, group="a")

        def redrive() -> None:
            assert self._source.redrive(to="lines", ids=[letter.id]) == 1

        def bury() -> None:
            assert self._work.receive() == []

        def publish() -> None:
            assert self.broker.publish("writer", 0, {"part": 1}) == 1

        if name == "redrive":
            letter = self._source.send(body, group="a")
            return redrive
        if name == "bury":
            self._work.send_many([draft])
            self._work.receive(visibility=0)
            return bury
        if name == "publish":
            self.broker.stage("writer", 0, "part", segments.pack_drafts("lines", [draft]))
            return publish

        def send() -> None:
            self.lines.send_many([draft])

        return send

    def race(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Start the second after the first has done its work, but before it commits."""
        done = Event()
        failed: list[BaseException] = []

        def follow() -> None:
            try:
                second()
            except BaseException as error:
                failed.append(error)
            done.set()

        other = Thread(target=follow)
        with self.broker.store.batch():
            first()
            other.start()
            done.wait(LONG_ENOUGH)
        other.join()
        assert failed == []
