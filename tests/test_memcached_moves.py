"""A message that moves between queues in memcached is in one of them, whenever its mover dies or is delayed."""

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any
from zlib import crc32

import pytest

import penstock
from penstock import Broker
from penstock.stores.memcached.formats import SLOTS
from penstock.stores.memcached.link import Link
from penstock.testing import FakeClock
from penstock.testing.servers import MemcachedServer

MINUTE = 60
"""How long a mover owns its message."""


def prepare(url: str, *, orders: str = "orders", dead: str = "dead") -> None:
    """One dead letter."""
    with penstock.open(url, clock=FakeClock()) as broker:
        broker.create(dead)
        queue = broker.create(orders, redrive=(dead, 1))
        queue.send(b"poison")
        queue.receive(visibility=0)
        queue.receive()
        assert (queue.stats().messages, broker[dead].stats().messages) == (0, 1)


def redrive(url: str, when: int, act: Callable[[], list[bytes]], *, dead: str = "dead") -> tuple[list[bytes], bool]:
    """Redrive the letter, and call ``act`` before the n-th command; returns the result, and whether there were that many."""
    commands = 0
    given: list[bytes] = []
    send = Link._send

    def count(self: Link, verb: Any, *arguments: Any) -> Any:
        nonlocal commands
        commands += 1
        if commands == when:
            Link._send = send  # type: ignore[method-assign]
            given.extend(act())
            Link._send = count  # type: ignore[method-assign]
        return send(self, verb, *arguments)

    with penstock.open(url, clock=FakeClock()) as broker:
        Link._send = count  # type: ignore[method-assign]
        try:
            broker[dead].redrive()
        finally:
            Link._send = send  # type: ignore[method-assign]
    return given, commands >= when


def kill_me() -> list[bytes]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def die(url: str, when: int, *, dead: str = "dead") -> bool:
    """A redrive that is killed before its n-th command; False if it ended before."""
    child = os.fork()
    if child == 0:
        try:
            redrive(url, when, kill_me, dead=dead)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def drain(broker: Broker, name: str) -> list[bytes]:
    messages = broker[name].receive(99)
    assert all(broker[name].delete_many(messages))
    return [message.body for message in messages]


def receive(broker: Broker) -> list[bytes]:
    return drain(broker, "dead") + drain(broker, "orders")


def redrive_again(broker: Broker) -> list[bytes]:
    broker["dead"].redrive()
    assert broker["dead"].stats().messages == 0
    return drain(broker, "orders")


def redrive_elsewhere(broker: Broker) -> list[bytes]:
    broker.create("other")
    broker["dead"].redrive(to="other")
    assert broker["dead"].stats().messages == 0
    return drain(broker, "orders") + drain(broker, "other")


def sweep(broker: Broker) -> list[bytes]:
    broker.store.queue("dead").sweep(broker["dead"]._opened.clock())
    there = broker["dead"].stats().messages + broker["orders"].stats().messages
    return [b"poison"] * there if there != 1 else receive(broker)


@pytest.mark.parametrize("next_one", [receive, redrive_again, redrive_elsewhere, sweep])
def test_killed_at_any_command_of_a_move_the_message_is_in_one_queue(
    memcached: MemcachedServer, next_one: Callable[[Broker], list[bytes]]
) -> None:
    when, died = 0, True
    while died:
        when += 1
        url = memcached.new_url()
        prepare(url)
        died = die(url, when)
        clock = FakeClock()
        clock.advance(MINUTE + 1)
        with penstock.open(url, clock=clock) as broker:
            assert next_one(broker) == [b"poison"], f"killed at command {when}"
            clock.advance(MINUTE + 1)
            assert receive(broker) == []
    assert when > 10


def test_a_message_that_was_moved_and_deleted_does_not_come_again_even_if_its_page_is_gone(memcached: MemcachedServer) -> None:
    when, died, late = 0, True, 0
    while died:
        when += 1
        url = memcached.new_url()
        prepare(url)
        died = die(url, when)
        clock = FakeClock()
        with penstock.open(url, clock=clock) as broker:
            came = drain(broker, "orders")
            broker["orders"].send_many([b"x"] * 4 * SLOTS)
            while drain(broker, "orders"):
                pass
            clock.advance(MINUTE + 1)
            again = receive(broker)
            assert came + again == [b"poison"], f"killed at command {when}"
            late += bool(again)
    assert 1 < late < when - 1


def test_a_mover_that_comes_back_late_at_any_command_moves_nothing_twice(memcached: MemcachedServer) -> None:
    when, enough, taken = 0, True, 0
    while enough:
        when += 1
        url = memcached.new_url()
        prepare(url)
        clock = FakeClock()
        clock.advance(MINUTE + 1)
        with penstock.open(url, clock=clock) as broker:
            early, enough = redrive(url, when, partial(drain, broker, "dead"))
            clock.advance(MINUTE + 1)
            assert early + receive(broker) == [b"poison"], f"late at command {when}"
            taken += bool(early)
    assert 1 < taken < when - 1


def test_a_move_to_a_server_that_is_gone_blocks_nobody_here() -> None:
    with MemcachedServer() as one, MemcachedServer() as two:
        dead, orders = (next(f"q{n}" for n in range(99) if crc32(b"q%d" % n) % 2 == server) for server in (0, 1))
        url = f"memcached://127.0.0.1:{one.port},127.0.0.1:{two.port}/p"
        prepare(url, orders=orders, dead=dead)
        when = 1
        while die(url, when, dead=dead):  # killed before its last command, when the message has arrived
            when += 1
            with penstock.open(url, clock=FakeClock()) as broker:
                if broker[orders].stats().messages:
                    break
        clock = FakeClock()
        with penstock.open(url, clock=clock) as broker:
            broker[dead].send(b"next")
            two.stop()
            clock.advance(MINUTE + 1)
            assert [message.body for message in broker[dead].receive(9)] == [b"next"]


def test_a_mover_that_is_late_for_a_duplicate_does_not_take_the_message_along(memcached: MemcachedServer) -> None:
    """Between its look at an equal message and its retreat, that message is deleted, and another process moves the letter."""
    when, there = 0, True
    while there:
        when += 1
        url = memcached.new_url()
        clock = FakeClock()
        with penstock.open(url, clock=clock) as broker:
            broker.create("dead")
            orders = broker.create("orders", redrive=("dead", 1), deduplicate=True)
            orders.send(b"poison")
            orders.receive(visibility=0)
            orders.receive()
            orders.send(b"poison")

        def come_between(url: str) -> list[bytes]:
            later = FakeClock()
            later.advance(MINUTE + 1)
            with penstock.open(url, clock=later) as broker:
                came = drain(broker, "orders")
                broker["dead"].redrive()
            return came

        came, there = redrive(url, when, partial(come_between, url))
        clock.advance(3 * MINUTE)
        with penstock.open(url, clock=clock) as broker:
            left = receive(broker)
        assert came + left == [b"poison"] * 2, f"late at command {when}"
    assert when > 10
