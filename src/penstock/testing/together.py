"""The contract's chapter on messages of one group that a receiver takes together."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest

import penstock
from penstock import BadInput, Broker, Draft, Message, Queue
from penstock.broker import LocalBroker
from penstock.message import State
from penstock.policy import settlement
from penstock.stores.requests import Claiming, Deleting
from penstock.testing.clock import FakeClock
from penstock.testing.receiving import bodies


def send(lines: Queue, text: str) -> None:
    """Send messages in one commit, such as ``a1 b1 a2``; the group is the first letter."""
    lines.send_many([Draft(name.encode(), group=name[0]) for name in text.split()])


def take(lines: Queue, limit: int = 9, visibility: float | None = None) -> list[Message]:
    return lines.receive(limit, visibility=visibility, together=True)


def texts(messages: list[Message]) -> str:
    return " ".join(message.text for message in messages)


class Together:
    @pytest.fixture
    def lines(self, broker: Broker) -> Queue:
        return broker.create("lines", groups=True)

    def test_a_receiver_gets_messages_of_a_group_together_and_in_order(self, lines: Queue) -> None:
        send(lines, "a1 b1 a2 a3")
        lines.send(b"alone")
        messages = take(lines)
        assert texts(messages) == "a1 a2 a3 b1 alone"
        assert {(message.state, message.receives, message.lapsed) for message in messages} == {(State.CONSUMED, 1, False)}
        assert len({message.visible_at for message in messages}) == 1
        assert take(lines) == []

    def test_the_limit_counts_all_of_them(self, lines: Queue) -> None:
        send(lines, "a1 b1 a2 a3 b2")
        assert texts(take(lines, 2)) == "a1 a2"
        assert texts(take(lines, 1)) == "b1"

    def test_while_one_of_a_group_is_in_hand_nobody_gets_others(self, lines: Queue) -> None:
        send(lines, "a1 a2 a3 b1")
        first, second = take(lines, 2)
        assert texts(take(lines)) == "b1"
        assert first.delete()
        assert take(lines) == [], "a2 is still in hand"
        send(lines, "a4")
        assert take(lines) == [] == lines.receive(9)
        assert second.delete()
        assert texts(take(lines)) == "a3 a4"

    def test_one_in_the_middle_leaves_without_changing_the_order(self, lines: Queue) -> None:
        send(lines, "a1 a2 a3 a4")
        first, second, third = take(lines, 3)
        assert second.delete()
        assert take(lines) == []
        assert first.delete()
        assert take(lines) == []
        assert third.delete()
        assert texts(take(lines)) == "a4"

    def test_messages_that_lapse_come_again_together_behind_groups_that_waited(self, lines: Queue, clock: FakeClock) -> None:
        send(lines, "a1 a2 a3 a4 b1 c1")
        assert texts(take(lines, 2)) == "a1 a2"
        clock.advance(1)
        assert texts(take(lines, 1)) == "b1"
        clock.advance(30)
        again = take(lines)
        assert texts(again) == "c1 a1 a2 a3 a4 b1"
        assert [message.receives for message in again] == [1, 2, 2, 1, 1, 2]
        assert [message.lapsed for message in again] == [False, True, True, False, False, True]

    def test_with_a_visibility_of_nothing_they_come_again_at_once(self, lines: Queue, clock: FakeClock) -> None:
        send(lines, "a1 b1 b2 c1 a2")
        clock.advance(1)
        assert texts(take(lines, 3, visibility=0)) == "a1 a2 b1"
        assert texts(take(lines, visibility=0)) == "c1 a1 a2 b1 b2"

    @pytest.mark.parametrize("way", ["release", "extend", "lapse"])
    def test_a_first_that_is_visible_again_comes_alone_while_others_are_in_hand(
        self, lines: Queue, clock: FakeClock, way: str
    ) -> None:
        send(lines, "a1 a2 b1 a3")
        first, second = take(lines, 2)
        clock.advance(1)
        if way == "release":
            assert first.release()
        else:
            assert first.extend(0 if way == "extend" else 1)
            clock.advance(2)
        (waiting, again) = take(lines)
        assert (waiting.text, again.text) == ("b1", "a1")
        assert again.lapsed is (way != "release")
        assert first.delete() is False, "its receipt is stale"
        assert second.delete() is True, "this one has stayed in the same hands"
        assert take(lines) == []
        assert again.delete()
        assert texts(take(lines)) == "a3"

    def test_those_that_are_visible_again_come_with_the_first_up_to_one_in_hand(self, lines: Queue) -> None:
        send(lines, "a1 a2 a3 a4")
        held = take(lines, 3)
        assert held[1].release()
        assert take(lines) == [], "the first is in hand"
        assert held[0].release()
        assert texts(take(lines)) == "a1 a2"
        assert held[2].delete() is True

    def test_a_blocked_message_that_is_in_hand_is_extended_and_released(self, lines: Queue, clock: FakeClock) -> None:
        send(lines, "a1 a2 a3")
        first, second, third = take(lines)
        assert second.extend(100)
        assert third.release(delay=50)
        assert first.delete()
        clock.advance(40)
        assert take(lines) == [], "a2 is in hand"
        clock.advance(60)
        assert texts(take(lines)) == "a2 a3"
        assert (second.delete(), third.delete()) == (False, False)

    def test_a_delayed_one_ends_what_comes_together(self, lines: Queue, clock: FakeClock) -> None:
        send(lines, "a1")
        lines.send(b"a2", group="a", delay=10)
        send(lines, "a3")
        (first,) = take(lines)
        assert first.delete()
        assert take(lines) == []
        clock.advance(10)
        assert texts(take(lines)) == "a2 a3"

    def test_those_in_hand_are_counted_and_shown_as_such(self, lines: Queue, clock: FakeClock) -> None:
        send(lines, "a1 a2 a3 a4")
        lines.receive(3, together=True, holder="worker 7", visibility=10)
        lines.send(b"a5", group="a", delay=100)
        stats = lines.stats()
        assert (stats.messages, stats.visible, stats.in_flight, stats.delayed, stats.blocked) == (5, 0, 3, 0, 2)
        seen = {message.text: message for message in lines.peek(9)}
        assert [(text, seen[text].holder, seen[text].state.name, seen[text].blocked) for text in ("a1", "a2", "a4")] == [
            ("a1", "worker 7", "CONSUMED", False),
            ("a2", "worker 7", "CONSUMED", True),
            ("a4", None, "QUEUED", True),
        ]
        assert {message.text for message in lines.peek(9, state="consumed")} == {"a1", "a2", "a3"}
        assert seen["a2"].visible_at == seen["a1"].visible_at == clock.now + 10_000_000
        clock.advance(10)
        stats = lines.stats()
        assert (stats.visible, stats.in_flight, stats.blocked) == (1, 0, 4)

    def test_one_after_the_other_dies_and_the_rest_keeps_its_order(self, lines: Queue, broker: Broker) -> None:
        dead = broker.create("dead", groups=True)
        lines.update(redrive=("dead", 1))
        send(lines, "a1 a2 b1")
        assert texts(take(lines, 1, visibility=0)) == "a1"
        send(lines, "a3")
        assert texts(take(lines)) == "a2 a3 b1", "a1 has died, and a2 is first now"
        assert texts(take(dead)) == "a1"

    def test_a_blocked_one_that_dies_leaves_the_others_in_hand(self, lines: Queue, broker: Broker) -> None:
        dead = broker.create("dead")
        lines.update(redrive=("dead", 1))
        send(lines, "a1 a2 a3 a4")
        first, second, _ = take(lines, 3)
        assert first.release() and second.release()
        assert lines.update(redrive=("dead", 2)).redrive is not None
        assert texts(take(lines, visibility=0)) == "a1 a2"
        assert lines.update(redrive=("dead", 1)).redrive is not None
        assert lines.delete(first.id)
        send(lines, "b1 a5")
        assert texts(take(lines)) == "b1"
        assert texts(dead.peek(9)) == "a2"
        assert lines.stats().in_flight == 2, "a3, and b1"

    def test_one_whose_time_has_passed_is_left_out(self, lines: Queue, clock: FakeClock) -> None:
        lines.update(history=1000)
        send(lines, "a1")
        lines.send(b"a2", group="a", deadline=10)
        lines.send(b"a3", group="a", deadline=100, visibility=70)
        clock.advance(10)
        messages = take(lines)
        assert texts(messages) == "a1 a3"
        assert [(message.visible_at - clock.now) // 1_000_000 for message in messages] == [30, 70]
        assert [(message.text, message.reason) for message in lines.settled()] == [("a2", "deadline")]
        assert messages[0].delete()
        clock.advance(60)
        assert take(lines) == [], "a3 is hidden for its own visibility"
        clock.advance(10)
        assert texts(take(lines)) == "a3"

    def test_at_most_once_a_receive_takes_them_together_and_for_good(self, lines: Queue) -> None:
        send(lines, "a1 a2 b1 a3")
        assert texts(lines.receive(2, mode="at_most_once", together=True)) == "a1 a2"
        assert texts(lines.receive(9, mode="at_most_once", together=True)) == "b1 a3"
        assert lines.stats().messages == 0

    def test_the_history_lists_those_that_left_while_they_were_blocked(self, lines: Queue) -> None:
        lines.update(history=1000)
        send(lines, "a1 a2 a3")
        for message in reversed(take(lines)):
            assert message.delete()
        listed, place = "", None
        while page := lines.settled(1, after=place):
            listed, place = f"{listed} {page[0].text}", page[0].place
            assert not page[0].blocked
        assert listed == " a1 a2 a3"

    def test_a_message_that_is_moved_here_waits_for_those_in_hand(self, lines: Queue, broker: Broker) -> None:
        source = broker.create("source")
        source.send(b"a0", group="a")
        send(lines, "a1 a2 a3")
        first, second = take(lines, 2)
        assert source.redrive(to="lines") == 1
        assert first.delete()
        assert take(lines) == [], "a2 is in hand, and a0 does not overtake it"
        assert second.delete()
        assert texts(take(lines)) == "a0 a3"

    def test_a_purge_takes_those_in_hand_too(self, lines: Queue) -> None:
        send(lines, "a1 a2 a3")
        messages = take(lines, 2)
        assert lines.purge() == 3
        assert lines.delete_many(messages) == [False, False]
        send(lines, "a4 a5")
        assert texts(take(lines)) == "a4 a5"

    def test_a_named_claim_takes_what_lapsed_in_other_hands(self, lines: Queue, clock: FakeClock) -> None:
        send(lines, "a1 a2")
        first, second = take(lines)
        assert first.delete()
        assert lines.claim("reader", 0, 5).size == 0
        clock.advance(30)
        assert lines.claim("reader", 1, 5).size == 1
        assert second.delete() is False
        assert take(lines) == []
        assert lines.settle("reader", 1) == 1

    def test_without_ordered_groups_it_changes_nothing(self, queue: Queue) -> None:
        send(queue, "a1 b1 a2")
        assert texts(queue.receive(2, together=True)) == "a1 b1"

    def test_it_is_yes_or_no(self, lines: Queue) -> None:
        with pytest.raises(BadInput, match="together must be True or False, not 'yes'"):
            lines.receive(together="yes")  # type: ignore[arg-type]

    def test_a_store_deletes_and_claims_together_in_one_step(self, broker: LocalBroker, lines: Queue, clock: FakeClock) -> None:
        send(lines, "a1 a2 a3")
        held, known = take(lines, 1), lines.settings
        deleting = Deleting(held, settlement(known, State.PROCESSED, None, clock.now))
        claiming = Claiming(9, clock.now, clock.now + 1, known, deleting=deleting, together=True)
        claimed = broker.store.queue("lines").claim(claiming)
        assert claimed is not None
        assert (claimed.deleted, bodies(claimed.messages)) == ([True], [b"a2", b"a3"])

    def test_threads_never_hold_messages_of_one_group_at_the_same_time(self, url: str) -> None:
        with penstock.open(url) as broker:
            lines = broker.create("lines", groups=True, visibility=600)
            groups, total, threads = "abc", 60, 4
            holders: dict[str, int] = {}
            received: dict[str, list[int]] = {group: [] for group in groups}
            failed: list[object] = []
            begin = Barrier(threads + 1)

            def work(me: int) -> None:
                begin.wait()
                while sum(map(len, received.values())) < total * len(groups) and not failed:
                    messages = lines.receive(5, wait=1, together=True)
                    for message in messages:
                        assert message.group is not None
                        if holders.setdefault(message.group, me) != me:
                            failed.append((message.group, me, holders[message.group]))
                        received[message.group].append(int(message.text[1:]))
                    for group in {message.group for message in messages}:
                        assert group is not None
                        mine = [message for message in messages if message.group == group]
                        assert all(lines.delete_many(mine[:-1]))
                        del holders[group]  # before the last one leaves, and others may come
                        assert mine[-1].delete()

            workers = [Thread(target=work, args=(number,)) for number in range(threads)]
            for worker in workers:
                worker.start()
            begin.wait()
            for number in range(0, total, 4):
                send(lines, " ".join(f"{group}{number + step}" for step in range(4) for group in groups))
            for worker in workers:
                worker.join()
            assert failed == []
            assert received == {group: list(range(total)) for group in groups}
