"""The contract's chapter on forks: children are forked at any moment while threads send and receive, and also use the store.

    python -m penstock.testing.forked URL SEED COUNT

No thread waits forever (a watchdog ends the process and prints every stack), and in the end the account is exact.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import penstock
from penstock import Broker, Queue

FORKS = 40
PATIENCE = 60
"""Seconds after which a process is considered stuck."""


class Forked:
    def test_children_forked_at_any_moment_use_the_store_and_the_account_is_exact(self, url: str) -> None:
        seed = random.randrange(10**6)
        arguments = [sys.executable, "-m", "penstock.testing.forked", url, str(seed), str(FORKS)]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{' '.join(arguments[1:])}\n{done.stdout[-4000:]}{done.stderr[-8000:]}"


class Log:
    """What was asked and answered, written to one file by all processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, word: str, bodies: list[bytes]) -> None:
        os.write(self._handle, "".join(f"{word} {body.decode()}\n" for body in bodies).encode())

    def read(self, word: str) -> list[str]:
        return [line.split()[1] for line in self._path.read_text().splitlines() if line.split()[0] == word]


def send(queue: Queue, log: Log, bodies: list[bytes]) -> None:
    log.write("try", bodies)
    queue.send_many(bodies) if len(bodies) > 1 else queue.send(bodies[0])
    log.write("sent", bodies)


def receive(queue: Queue, log: Log, wait: float) -> None:
    messages = queue.receive(3, wait=wait)
    log.write("got", [message.body for message in messages])
    gone = queue.delete_many(messages)
    log.write("deleted", [message.body for message, done in zip(messages, gone, strict=True) if done])


def start_threads(broker: Broker, log: Log, stop: Event) -> list[Thread]:
    orders, dead, poison = broker["orders"], broker["dead"], broker["poison"]

    def sender() -> None:
        for number in range(10**6):
            if stop.is_set():
                return
            send(orders, log, [b"p-%d-%d" % (number, place) for place in range(1 + number % 3)])
            time.sleep(0.002)

    def receiver() -> None:
        while not stop.is_set():
            receive(orders, log, 0.01)

    def burier() -> None:
        while not stop.is_set():
            poison.send_many([b"x"] * 5)
            poison.receive(5)
            poison.receive(5)  # buries them, since they were received before
            dead.purge()

    def guarded(act: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                act()
            except BaseException:
                faulthandler.dump_traceback()
                sys.excepthook(*sys.exc_info())
                os._exit(3)

        return run

    threads = [Thread(target=guarded(act), daemon=True) for act in (sender, receiver, burier)]
    for thread in threads:
        thread.start()
    return threads


def be_child(broker: Broker, log: Log, name: str, shared: bool) -> None:
    status = 1
    try:
        signal.alarm(PATIENCE)
        orders = broker["orders"]
        if shared:
            send(orders, log, [f"c-{name}-{place}".encode() for place in range(3)])
            receive(orders, log, 0)
        else:  # the child has its own copy, which does not count
            orders.send(b"x")
            orders.delete_many(orders.receive(3))
        orders.stats()
        broker.close()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(url: str, seed: int, count: int) -> None:
    chance = random.Random(seed)
    faulthandler.register(signal.SIGALRM, chain=True)  # prints every thread's stack, then the signal ends the process
    signal.alarm(2 * PATIENCE)
    shared = not url.startswith("memory:")
    with tempfile.TemporaryDirectory() as folder, penstock.open(url) as broker:
        log = Log(Path(folder) / "log")
        broker.create("orders", visibility=600)
        broker.create("dead")
        broker.create("poison", redrive=("dead", 1), visibility=0)
        stop = Event()
        threads = start_threads(broker, log, stop)
        for number in range(count):
            time.sleep(chance.uniform(0, 0.02))
            child = os.fork()
            if child == 0:
                be_child(broker, log, str(number), shared)
            _, status = os.waitpid(child, 0)
            assert status == 0, f"child {number} has failed: {status}"
        stop.set()
        for thread in threads:
            thread.join()
        check(broker["orders"], log)


def check(queue: Queue, log: Log) -> None:
    left: Counter[str] = Counter()
    while messages := queue.receive(1000):
        left.update(message.text for message in messages)
        assert all(queue.delete_many(messages))
    assert queue.stats().messages == 0, f"{queue.stats()}: nobody can receive these"
    sent, deleted = Counter(log.read("sent")), Counter(log.read("deleted"))
    sys.stdout.write(f"{len(sent)} sent, {len(deleted)} deleted, {len(left)} left\n")
    assert set(log.read("got")) == set(deleted), "a receipt was stale"
    assert sent == deleted + left, f"lost {sent - deleted - left}, doubled {deleted + left - sent}"
    assert sent, "the threads did nothing"
    assert deleted, "the threads did nothing"


if __name__ == "__main__":
    url, seed, count = sys.argv[1:]
    main(url, int(seed), int(count))
