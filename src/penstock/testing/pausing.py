"""The contract's chapter on queues that are paused and resumed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from threading import Event, Thread

import pytest

import penstock
from penstock import BadSetting, Broker, Message, Queue
from penstock.broker import open_local
from penstock.testing.receiving import bodies
from penstock.testing.verbs import wrap_verb
from penstock.testing.waking import PROMISE, best_of


class Pausing:
    def test_from_a_paused_queue_nobody_receives(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2"])
        queue.receive()
        assert queue.pause().paused is True
        queue.send(b"3")
        assert queue.receive(9) == queue.receive(9, wait=0.01) == queue.receive(9, mode="at_most_once") == []
        assert queue.spop() is None
        assert queue.pulse().due_at is None
        assert (queue.stats().messages, queue.stats().visible, queue.stats().in_flight) == (3, 2, 1)
        assert bodies(queue.peek(9, state="queued")) == [b"2", b"3"]
        assert queue.resume().paused is False
        assert bodies(queue.receive(9)) == [b"2", b"3"]

    def test_what_is_held_can_be_settled_in_a_paused_queue(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3", b"4", b"5"])
        one, two, three, four, five = queue.receive(5)
        queue.pause()
        assert one.extend(60) and two.release() and three.delete() and queue.fail(four, "no")
        assert queue.exchange([five, three], 9) == ([True, False], [])
        assert queue.receive(9) == []
        queue.resume()
        assert bodies(queue.receive(9)) == [b"2"]
        assert bodies(queue.peek(9)) == [b"1", b"2"] or bodies(queue.peek(9)) == [b"2", b"1"]

    def test_a_receiver_that_knows_the_queue_sees_that_it_is_paused(self, broker: Broker, queue: Queue) -> None:
        """The receiver has read the settings before, and another has changed them since."""
        queue.send_many([b"1", b"2", b"3"])
        (held,) = queue.receive()
        broker["orders"].pause()
        assert queue.receive(9) == []
        assert queue.exchange([held], 9) == ([True], [])
        broker["orders"].resume()
        assert bodies(queue.receive()) == [b"2"]
        assert bodies(queue.exchange([], 9)[1]) == [b"3"]

    def test_a_named_claim_of_a_paused_queue_is_empty(self, queue: Queue) -> None:
        queue.send_many([b"1", b"2", b"3"])
        assert queue.claim("reader", 0, 1).size == 1
        queue.pause()
        assert queue.claim("reader", 0, 1).size == 1
        assert queue.claim("reader", 1, 9).size == queue.claim("other", 0, 9, max_bytes=1000).size == 0
        queue.confirm("reader", 0)
        assert bodies(queue.read("reader", 0)) == [b"1"]
        assert queue.settle("reader", 0) == 1
        queue.resume()
        assert queue.claim("reader", 1, 9).size == 2

    def test_a_paused_queue_stays_so(self, broker: Broker) -> None:
        assert broker.create("orders", paused=True).settings.paused is True
        broker["orders"].update(visibility=5)
        assert broker["orders"].settings.paused is True
        assert broker["orders"].resume() == broker.create("others", visibility=5).settings

    def test_letters_are_redriven_from_a_paused_queue_and_to_one(self, broker: Broker) -> None:
        broker.create("dead")
        queue = broker.create("orders", redrive=("dead", 1))
        queue.send(b"x")
        queue.receive(visibility=0)
        assert queue.receive() == []
        queue.pause()
        broker["dead"].pause()
        assert broker["dead"].redrive() == 1
        assert queue.receive() == []
        assert queue.purge() == 1

    @pytest.mark.parametrize("value", [None, 1, "yes"])
    def test_a_queue_is_paused_or_not(self, queue: Queue, value: object) -> None:
        with pytest.raises(BadSetting, match="paused must be True or False"):
            queue.update(paused=value)
        assert queue.settings.paused is False


class PausingLive:
    """With the real clock."""

    def test_a_long_poll_rests_until_its_queue_is_resumed(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("orders")

            def resume() -> float:
                broker["orders"].resume()
                return time.monotonic()

            assert best_of(30, lambda: _woken_by(queue, resume), PROMISE) < PROMISE

    def test_a_poll_that_rests_when_its_queue_is_paused_gets_nothing(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("orders")
            received: list[Message] = []
            poll = Thread(target=lambda: received.extend(queue.receive(wait=1)))
            poll.start()
            broker["orders"].pause()
            queue.send(b"x")
            poll.join()
            assert received == []


class PausingInside:
    """In the process that has the store open."""

    def test_to_wait_at_a_paused_queue_costs_next_to_nothing(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with open_local(url) as broker:
            queue = broker.create("orders", paused=True)
            queue.send(b"x")
            looks = 0

            def counted(look: Callable[..., object], *arguments: object) -> object:
                nonlocal looks
                looks += 1
                return look(*arguments)

            for verb in ("due", "claim"):
                wrap_verb(monkeypatch, broker, verb, lambda look, _name, *arguments: counted(look, *arguments))
            assert queue.receive(wait=1) == []
            assert 1 < looks < 100


PAUSER = """
import sys, time, penstock
with penstock.open(sys.argv[1]) as broker:
    queue = broker["orders"]
    print("ready", flush=True)
    for line in sys.stdin:
        getattr(queue, line.strip())()
        print(time.monotonic(), flush=True)
"""


class PausingAcross:
    def test_another_process_pauses_and_resumes(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("orders")
            arguments = [sys.executable, "-c", PAUSER, url]
            with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
                assert other.stdin and other.stdout
                assert other.stdout.readline() == "ready\n"

                def tell(verb: str) -> float:
                    assert other.stdin and other.stdout
                    other.stdin.write(f"{verb}\n")
                    other.stdin.flush()
                    return float(other.stdout.readline())

                def measure() -> float:
                    return _woken_by(queue, lambda: tell("resume"), pause=lambda: tell("pause"))

                assert best_of(30, measure, PROMISE) < PROMISE
                other.stdin.close()


def _woken_by(queue: Queue, resume: Callable[[], float], pause: Callable[[], object] | None = None) -> float:
    """How long a poll that waits at a paused queue with a message goes on waiting, once that is resumed."""
    (pause or queue.pause)()
    queue.send(b"x")
    woken: list[float] = []
    begun = Event()

    def wait() -> None:
        begun.set()
        queue.delete(queue.receive(wait=60)[0])
        woken.append(time.monotonic())

    poll = Thread(target=wait)
    poll.start()
    begun.wait()
    time.sleep(0.1)  # it waits by now; if not, it just finds the message sooner
    assert woken == []
    resumed = resume()
    poll.join()
    return woken[0] - resumed
