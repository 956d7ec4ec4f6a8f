"""The contract's chapter on waiting. These tests use the real clock; a time limit applies to the best of several tries."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from threading import Thread

import pytest

import penstock
from penstock import Draft
from penstock.broker import open_local
from penstock.testing.verbs import wrap_verb

PROMISE = 0.05


def best_of(tries: int, measure: Callable[[], float], enough: float = 0) -> float:
    """The best of several tries, or the first that is good ``enough``: on a busy machine most are slow."""
    best = measure()
    while best >= enough and (tries := tries - 1) > 0:
        best = min(best, measure())
    return best


class Waking:
    def test_a_receiver_waits_no_longer_than_asked(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("orders")
            started = time.monotonic()
            assert queue.receive(wait=0.2) == []
            assert time.monotonic() - started >= 0.2

    def test_a_message_of_the_same_process_wakes_at_once(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("orders")

            def measure() -> float:
                woken: list[float] = []

                def wait() -> None:
                    queue.delete(queue.receive(wait=30)[0])
                    woken.append(time.monotonic())

                waiter = Thread(target=wait)
                waiter.start()
                time.sleep(0.1)  # the thread is asleep by now; if not, it just finds the message sooner
                queue.send(b"x")
                sent = time.monotonic()
                waiter.join()
                return woken[0] - sent

            assert best_of(30, measure, PROMISE) < PROMISE

    @pytest.mark.parametrize("hidden_by", ["delay", "visibility", "release", "group"])
    def test_a_message_wakes_when_it_becomes_visible(self, url: str, hidden_by: str) -> None:
        with penstock.open(url) as broker:
            if hidden_by == "group" and not broker.store.groups:
                return
            queue = broker.create("orders", groups=hidden_by == "group")

            def measure() -> float:
                if hidden_by == "delay":
                    queue.send(b"x", delay=0.15)
                    due = time.monotonic() + 0.15
                elif hidden_by == "group":
                    queue.send_many([Draft(b"x", group="a", delay=0.15)])
                    due = time.monotonic() + 0.15
                else:
                    queue.send(b"x")
                    (message,) = queue.receive(visibility=0.15)
                    due = time.monotonic() + 0.15
                    if hidden_by == "release":
                        message.release(delay=0.15)
                        due = time.monotonic() + 0.15
                (message,) = queue.receive(wait=30)
                message.delete()
                return time.monotonic() - due

            assert best_of(30, measure, PROMISE) < PROMISE

    def test_waiting_costs_next_to_nothing(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A receiver looks at the store some thirty times a second, and sleeps in between."""
        with open_local(url) as broker:
            queue = broker.create("orders")
            queue.send(b"later", delay=3600)
            queue.receive()
            looks = 0

            def counted(look: Callable[..., object], *arguments: object) -> object:
                nonlocal looks
                looks += 1
                return look(*arguments)

            for verb in ("due", "claim"):
                wrap_verb(monkeypatch, broker, verb, lambda look, _name, *arguments: counted(look, *arguments))
            version = broker.store.version
            monkeypatch.setattr(broker.store, "version", lambda: counted(version))
            assert queue.receive(wait=1) == []
            assert 1 < looks < 100


SENDER = """
import sys, time, penstock
with penstock.open(sys.argv[1]) as broker:
    queue = broker["orders"]
    print("ready", flush=True)
    for line in sys.stdin:
        queue.send(b"x")
        print(time.monotonic(), flush=True)
"""


class WakingAcross:
    def test_a_message_of_another_process_wakes_within_the_promise(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("orders")
            arguments = [sys.executable, "-c", SENDER, url]
            with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as sender:
                assert sender.stdin and sender.stdout
                assert sender.stdout.readline() == "ready\n"

                def measure() -> float:
                    assert sender.stdin and sender.stdout
                    woken: list[float] = []

                    def wait() -> None:
                        queue.delete(queue.receive(wait=30)[0])
                        woken.append(time.monotonic())

                    waiter = Thread(target=wait)
                    waiter.start()
                    time.sleep(0.1)
                    sender.stdin.write("send\n")
                    sender.stdin.flush()
                    sent = float(sender.stdout.readline())
                    waiter.join()
                    return woken[0] - sent

                assert best_of(30, measure, PROMISE) < PROMISE
                sender.stdin.close()
