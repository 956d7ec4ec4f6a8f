"""The contract's chapter on races: threads and processes share a queue, and each message is delivered once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import pytest

import penstock


def start_worker(url: str, queue: str, role: str, log: Path, name: str, batch: int, count: int) -> subprocess.Popen[bytes]:
    arguments = [url, queue, role, str(log), name, str(batch), str(count)]
    return subprocess.Popen([sys.executable, "-m", "penstock.testing.worker", *arguments])


def wait_for(log: Path, word: str, count: int, alive: Callable[[], bool]) -> None:
    """Wait until the workers have written the word this often; none of them may end before."""
    while log.read_text().count(word) < count:
        assert alive(), "a worker has ended by itself"
        time.sleep(0.01)


class ThreadRaces:
    def test_eight_threads_get_each_message_once(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("orders", visibility=600)
            total, threads = 400, 4
            received: list[bytes] = []
            begin = Barrier(2 * threads)

            def send(name: int) -> None:
                begin.wait()
                for number in range(0, total // threads, 5):
                    queue.send_many([b"%d-%d" % (name, number + step) for step in range(5)])

            def receive() -> None:
                begin.wait()
                while messages := queue.receive(3, wait=1):
                    assert all(queue.delete_many(messages))
                    received.extend(message.body for message in messages)

            workers = [Thread(target=send, args=(name,)) for name in range(threads)]
            workers += [Thread(target=receive) for _ in range(threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            assert len(received) == total == len(set(received))
            assert queue.stats().messages == 0

    def test_racing_for_one_message_one_wins(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("orders")
            for _ in range(20):
                queue.send(b"x")
                won: list[int] = []
                begin = Barrier(8)

                def take(begin: Barrier = begin, won: list[int] = won) -> None:
                    begin.wait()
                    won.extend(queue.delete(message) for message in queue.receive())

                threads = [Thread(target=take) for _ in range(8)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                assert won == [True]

    def test_racing_to_add_one_member_one_wins(self, url: str) -> None:
        with penstock.open(url) as broker:
            queue = broker.create("members")
            answers: list[bool] = []
            begin = Barrier(8)

            def add() -> None:
                begin.wait()
                answers.extend(queue.sadd(f"member {number}") for number in range(20))

            threads = [Thread(target=add) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sum(answers) == 20 == queue.scard()


class ProcessRaces:
    def test_four_processes_get_each_message_once(self, url: str, tmp_path: Path) -> None:
        with penstock.open(url) as broker:
            broker.create("orders", visibility=600)
            logs = [tmp_path / f"log-{number}" for number in range(4)]
            senders = [start_worker(url, "orders", "send", logs[number], f"s{number}", 7, 600) for number in (0, 1)]
            receivers = [start_worker(url, "orders", "receive", logs[number], "r", 10, 0) for number in (2, 3)]
            assert [process.wait() for process in senders + receivers] == [0] * 4
            receivers = [start_worker(url, "orders", "receive", logs[2], "r", 100, 0)]  # receive what came after they gave up
            assert receivers[0].wait() == 0
            lines = [line.split() for log in logs for line in log.read_text().splitlines()]
            sent = {line[1] for line in lines if line[0] == "sent"}
            got = Counter(line[2] for line in lines if line[0] == "got")
            assert len(sent) == 1200
            assert got.keys() == sent
            assert set(got.values()) == {1}
            assert broker["orders"].stats().messages == 0

    @pytest.mark.parametrize("turn", range(3))
    def test_processes_may_create_the_store_together(self, url: str, turn: int) -> None:
        program = "import sys, penstock\nwith penstock.open(sys.argv[1]) as b: b.create('orders', exist_ok=True).send(b'x')"
        processes = [subprocess.Popen([sys.executable, "-c", program, url]) for _ in range(4)]
        assert [process.wait() for process in processes] == [0] * 4
        with penstock.open(url) as broker:
            assert broker["orders"].stats().messages == 4
