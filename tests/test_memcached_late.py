"""A send or a move in memcached while other processes do a lot between two of its commands.

Its number is in a page that the others fill, empty, give up and pass meanwhile. However far they get, an acknowledged message
must arrive. Each test stops a process before each of its commands in turn: nothing depends on time or load.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

import penstock
from penstock import Broker, Message
from penstock.stores.memcached.formats import GONE, SLOTS, VOID, Page
from penstock.testing.servers import MemcachedServer

FARS = ("void", "tombstone", "past")
"""How far the others get: they give up the page's empty slots; leave nothing in it; move the tail past it."""
WINDOWS = {"plain": False, "window": 3600, "lasting": True}
"""How the queue deduplicates."""
COMMANDS = range(1, 40)


class Killed(BaseException):
    """A killed process: it does nothing more."""


def die() -> None:
    raise Killed


class Others:
    """The other processes, and everything they received."""

    def __init__(self, broker: Broker, name: str, far: str) -> None:
        self.queue = broker[name]
        self.far = far
        self.got: Counter[bytes] = Counter()
        self._serial = count(1)

    def begin(self, messages: int) -> None:
        """Send some messages and delete them. The first is kept if the tail is to stay."""
        self.queue.send_many(self._bodies(messages))
        held = self.queue.receive(messages)
        assert all(self.queue.delete_many(held[1:] if self.far == "tombstone" else held))

    def go_on(self) -> None:
        """Fill some pages, so that the empty slots before them are given up, and delete what arrives."""
        self.queue.send_many(self._bodies(4 * SLOTS))
        messages = self.receive()
        assert all(self.queue.delete_many(messages[1:] if self.far == "void" else messages))
        self.receive()  # finds nothing in these pages, and gives up their empty slots

    def receive(self) -> list[Message]:
        messages = self.queue.receive(999)
        self.got.update(message.body for message in messages)
        return messages

    def _bodies(self, messages: int) -> list[bytes]:
        return [b"other %d" % next(self._serial) for _ in range(messages)]


def before_command(broker: Broker, at: int | str, act: Callable[[], object]) -> Callable[[], bool]:
    """Do something once before a broker's n-th command from now on, or its first of a name.

    Returns a function that tells whether it was done.
    """
    (link,) = broker.store._servers.links  # type: ignore[attr-defined]
    send, commands = link._send, count(1)
    done: list[bool] = []

    def stop_and_send(verb: Any, *arguments: Any) -> Any:
        if at in (next(commands), verb.__name__) and not done:
            done.append(True)
            act()
        return send(verb, *arguments)

    link._send = stop_and_send
    return lambda: bool(done)


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("far", FARS)
def test_a_send_that_is_late_at_any_command_arrives_once(memcached: MemcachedServer, far: str, kind: str) -> None:
    for at in COMMANDS:
        url = memcached.new_url()
        with penstock.open(url) as late, penstock.open(url) as broker:
            queue = late.create("orders", visibility=3600, deduplicate=WINDOWS[kind])
            others = Others(broker, "orders", far)
            others.begin(SLOTS + 6)
            was_late = before_command(late, at, others.go_on)
            sent = queue.send(b"late")
            others.receive()
            assert others.got[b"late"] == 1, f"late at command {at}"
            assert sent.duplicate is False
            assert set(others.got.values()) == {1}
            assert queue.stats().lost == 0
        if not was_late():
            break
    assert at > 4


@pytest.mark.parametrize("kind", ["window", "lasting"])
def test_of_three_that_send_the_same_at_once_one_sends_it(memcached: MemcachedServer, kind: str) -> None:
    """The second sends between two commands of the first, and the third between two of the second: the queue's first page may
    be missing then, and is made of the records that are there."""
    for at in COMMANDS:
        for then_at in COMMANDS:
            url = memcached.new_url()
            with penstock.open(url) as one, penstock.open(url) as two, penstock.open(url) as three:
                first = one.create("orders", deduplicate=WINDOWS[kind])
                second, third = two["orders"], three["orders"]
                sent: list[penstock.Sent] = []
                was_late = before_command(one, at, lambda second=second, sent=sent: sent.append(second.send(b"x")))
                was_later = before_command(two, then_at, lambda third=third, sent=sent: sent.append(third.send(b"x")))
                sent.append(first.send(b"x"))
                stats = third.stats()
                assert (stats.messages, stats.lost) == (1, 0), f"late at commands {at} and {then_at}"
                assert sorted(answer.duplicate for answer in sent) == [False] + [True] * (len(sent) - 1)
                assert [message.body for message in third.receive(9)] == [b"x"]
            if not was_later():
                break
        if not was_late():
            break
    assert at > 4


@pytest.mark.parametrize("far", FARS)
def test_the_others_come_as_far_as_they_should(memcached: MemcachedServer, far: str) -> None:
    """Otherwise the test above would prove nothing."""
    url = memcached.new_url()
    with penstock.open(url) as late, penstock.open(url) as broker:
        queue = late.create("orders", visibility=3600)
        others = Others(broker, "orders", far)
        others.begin(SLOTS + 6)
        seen: list[bytes | None] = []
        keys = broker.store._catalogue.recall("orders").keys  # type: ignore[attr-defined]
        slot = (SLOTS + 7) % SLOTS

        def go_on() -> None:
            others.go_on()
            seen.append(keys.link.get([keys.key("p", 1)]).get(keys.key("p", 1)))

        before_command(late, "set_many", go_on)  # once it has its number
        queue.send(b"late")
        (page,) = seen
        if far == "past":
            assert page is None
        else:
            assert page is not None
            assert Page(page).states[slot] == VOID
            assert Page(page).states.count(GONE) == SLOTS - (1 if far == "tombstone" else 2)


@pytest.mark.parametrize("kind", ["window", "lasting"])
@pytest.mark.parametrize("far", FARS)
def test_an_equal_message_is_no_duplicate_of_one_whose_sender_was_late_and_died(
    memcached: MemcachedServer, far: str, kind: str
) -> None:
    for at in COMMANDS:
        url = memcached.new_url()
        with penstock.open(url) as late, penstock.open(url) as broker:
            queue = late.create("orders", visibility=3600, deduplicate=WINDOWS[kind])
            others = Others(broker, "orders", far)
            others.begin(SLOTS + 6)

            def go_on_and_die(others: Others = others) -> None:
                others.go_on()
                die()

            was_late = before_command(late, at, go_on_and_die)
            try:
                queue.send(b"late")
            except Killed:
                others.queue.send(b"late")
            others.receive()
            assert others.got[b"late"] >= 1, f"late at command {at}"
            assert kind == "lasting" or others.got[b"late"] == 1
        if not was_late():
            break
    assert at > 4


def test_the_mark_of_a_sender_that_wrote_it_when_its_page_was_past_and_died_does_not_count(memcached: MemcachedServer) -> None:
    url = memcached.new_url()
    with penstock.open(url) as late, penstock.open(url) as broker:
        queue = late.create("orders", visibility=3600, deduplicate=3600)
        others = Others(broker, "orders", "past")
        others.begin(SLOTS + 6)

        def go_on() -> None:
            others.go_on()
            before_command(late, "gets_many", die)  # once the record and the mark are written

        before_command(late, "set_many", go_on)  # once it has its number
        with pytest.raises(Killed):
            queue.send(b"late")
        assert others.queue.send(b"late").duplicate is False
        assert others.queue.send(b"late").duplicate is True
        assert [message.body for message in others.receive()] == [b"late"]


@pytest.mark.parametrize("kind", ["window", "lasting"])
def test_a_message_whose_sender_died_before_its_mark_has_the_mark_once_others_find_it(
    memcached: MemcachedServer, kind: str
) -> None:
    url = memcached.new_url()
    with penstock.open(url) as late, penstock.open(url) as broker:
        queue = late.create("orders", deduplicate=WINDOWS[kind])
        before_command(late, "add", die)  # the record is written, the mark is not, and there is no page yet
        with pytest.raises(Killed):
            queue.send(b"late")
        assert broker["orders"].stats().messages == 1
        assert broker["orders"].send(b"late").duplicate is True
        assert [message.body for message in broker["orders"].receive(9)] == [b"late"]


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("late_at", range(3, 7))
def test_a_page_that_a_late_receiver_makes_again_takes_no_message(memcached: MemcachedServer, late_at: int, dies: bool) -> None:
    """A receiver finds a page missing, is delayed, and creates it after the tail has passed. A delayed sender has a slot there.

    The message may come twice: a receiver may have built the page from the sender's record, and others received it from there.
    """
    for at in COMMANDS:
        url = memcached.new_url()
        with penstock.open(url) as late, penstock.open(url) as slow, penstock.open(url) as broker:
            queue = late.create("orders", visibility=3600)
            others = Others(broker, "orders", "past")
            others.begin(SLOTS - 1)  # the next number is the first of a page
            slow["orders"].receive()  # so that it knows the queue
            was_slow = before_command(slow, at, others.go_on)
            before_command(slow, at + 1 if dies else 0, die)

            def receive(others: Others = others, slow: Broker = slow) -> None:
                with suppress(Killed):
                    others.got.update(message.body for message in slow["orders"].receive(999))

            before_command(late, late_at, receive)
            queue.send(b"late")
            others.receive()
            assert others.got[b"late"] >= 1, f"slow at command {at}"
            assert queue.stats().lost == 0
            keys = broker.store._catalogue.recall("orders").keys  # type: ignore[attr-defined]
            left = keys.link.get([keys.key("p", 1), keys.key("tail")])
            assert dies or keys.key("p", 1) not in left or left[keys.key("tail")] == b"1", f"slow at command {at}: it stays"
        if not was_slow():
            break
    assert at > 4


@pytest.mark.parametrize("far", FARS)
def test_a_burial_that_is_late_at_any_command_loses_nothing(memcached: MemcachedServer, far: str) -> None:
    for at in COMMANDS:
        url = memcached.new_url()
        with penstock.open(url) as late, penstock.open(url) as broker:
            late.create("dead", visibility=3600)
            jobs = late.create("jobs", redrive=("dead", 1))
            jobs.send(b"poison")
            jobs.receive(visibility=0)
            others = Others(broker, "dead", far)
            others.begin(SLOTS + 6)
            was_late = before_command(late, at, others.go_on)
            assert jobs.receive() == []
            others.receive()
            assert others.got[b"poison"] >= 1, f"late at command {at}"
        if not was_late():
            break
    assert at > 8
