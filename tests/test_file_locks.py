"""The locks of the file stores: no process waits for one forever, and a forked child never keeps one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest

import penstock
from penstock.clock import system_clock
from penstock.errors import BadURL, StoreBusy
from penstock.patience import Patience
from penstock.publishing.segments import pack_drafts
from penstock.stores import locks
from penstock.stores.locks import FileLock, Locks

HOLDER = """
import os, signal, sys, penstock
broker = penstock.open(sys.argv[1])
store = broker.store
lock = store.outbox.ledger.publishing("writer") if sys.argv[2] == "writer" else store.queue("orders").sidecar.lock()
with lock:
    print("locked", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
print("given back", flush=True)
"""
KILLED = """
import os, signal, sys, time, penstock
broker = penstock.open(sys.argv[1])
store = broker.store
lock = store.outbox.ledger.publishing("writer") if sys.argv[2] == "writer" else store.queue("orders").sidecar.lock()
with lock:
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(600)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
LOCKS = ["orders", "writer"]


@pytest.fixture(params=["vsqs", "spool"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url = f"{request.param}:///{tmp_path}/root"
    with penstock.open(url) as broker:
        broker.create("orders").send(b"first")
    return url


@contextmanager
def frozen(url: str, lock: str) -> Iterator[Callable[[], None]]:
    """A process that is stopped while it holds a lock, and a function that resumes it."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, url, lock], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    os.waitpid(process.pid, os.WUNTRACED)

    def thaw() -> None:
        process.send_signal(signal.SIGCONT)

    def thaw_and_wait() -> None:
        thaw()
        assert process.stdout is not None
        assert process.stdout.readline() == "given back\n"
        process.wait(60)

    watchdog = Timer(60, thaw)  # so that a deadlock fails the test instead of hanging it
    watchdog.start()
    try:
        yield thaw_and_wait
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def stage(broker: Any) -> None:
    broker.stage("writer", 1, "one", pack_drafts("orders", [penstock.Draft(b"published")]))


@pytest.mark.parametrize(
    "verb",
    [
        lambda queue: queue.send(b"x"),
        lambda queue: queue.send_many([b"x"] * 20),
        lambda queue: queue.receive(),
        lambda queue: queue.stats(),
        lambda queue: queue.purge(),
    ],
)
def test_a_process_frozen_inside_a_lock_makes_a_queue_busy(url: str, verb: Callable[[penstock.Queue], object]) -> None:
    with frozen(url, "orders") as thaw, penstock.open(f"{url}?timeout=0.05") as broker:
        with pytest.raises(StoreBusy, match=r"queue 'orders' .* was locked by others for more than 0.05 s"):
            verb(broker["orders"])
        broker.create("others").send(b"another queue is not concerned")
        thaw()
        verb(broker["orders"])


def test_a_writer_frozen_while_it_publishes_makes_its_next_publication_busy(url: str) -> None:
    with frozen(url, "writer") as thaw, penstock.open(url, timeout=0.05) as broker:
        stage(broker)
        with pytest.raises(StoreBusy, match=r"writer 'writer' .* was locked by others for more than 0.05 s"):
            broker.publish("writer", 1, {"one": 1})
        broker["orders"].send(b"sends are not concerned")
        thaw()
        assert broker.publish("writer", 1, {"one": 1}) == 1


def test_who_tends_what_writers_left_passes_over_one_that_is_frozen(url: str) -> None:
    with frozen(url, "writer"), penstock.open(url, timeout=0.05) as broker:
        for writer in ("writer", "zebra"):
            broker.stage(writer, 1, "one", pack_drafts("orders", [penstock.Draft(writer.encode())]))
            manifest = b'{"segments": {"one": 1}, "bad_rows": null, "once": false, "rows": 500}'
            broker.store.outbox.staging.stage(writer, 1, ".manifest", manifest, 0)
        broker._publishing.sweep(system_clock())
        assert sorted(message.body for message in broker["orders"].peek(9)) == [b"first", b"zebra"]


def test_the_timeout_is_checked(url: str) -> None:
    with pytest.raises(BadURL, match="timeout is '-1': it must be between 0 and 86400"):
        penstock.open(f"{url}?timeout=-1")


def test_waiting_for_another_thread_counts_as_waiting(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a thousand threads would time out one after the other while a process is frozen."""

    class Contended:
        """A lock that another thread releases after a millisecond."""

        def __enter__(self) -> None:
            given_at = time.monotonic() + 0.001
            while time.monotonic() < given_at:
                pass

        def __exit__(self, *_: object) -> None: ...

    with penstock.open(url) as broker, monkeypatch.context() as patch:
        transactions = broker.store._transactions  # type: ignore[attr-defined]
        patch.setattr(transactions, "lock", Contended())
        with broker.store.batch():
            assert transactions.locks.spent >= 0.001
    path, locks = str(tmp_path / "lock"), Locks(Patience(3600))
    first, second = FileLock(path, "it", locks), FileLock(path, "it", locks)
    for lock in (first, second):
        lock.open()
    first.take()
    locks.spent = 3601
    monkeypatch.setattr(Patience, "pause", lambda *_: pytest.fail("it waits"))
    with pytest.raises(StoreBusy):
        second.take()
    first.give()


def test_a_child_forked_while_a_writer_publishes_does_not_keep_its_lock(url: str) -> None:
    with penstock.open(url, timeout=0) as broker:
        inside, leave = Event(), Event()

        def publish() -> None:
            with broker.store.outbox.ledger.publishing("writer"):
                inside.set()
                leave.wait(60)

        thread = Thread(target=publish)
        thread.start()
        inside.wait(60)
        with child():
            leave.set()
            thread.join()
            with broker.store.outbox.ledger.publishing("writer"):
                pass


def test_a_lock_is_free_once_it_is_given_back_whoever_has_a_copy_of_its_file(url: str) -> None:
    """Such as a child between fork and exec, or one forked by a C library."""
    with penstock.open(url, timeout=0) as broker:
        with broker.store.outbox.ledger.publishing("writer"):
            copies = [os.dup(lock.handle) for lock in locks._open]
        with broker.store.outbox.ledger.publishing("writer"):
            pass
        assert copies
        for copy in copies:
            os.close(copy)


@pytest.mark.parametrize("lock", LOCKS)
def test_a_child_that_leaves_the_lock_of_its_parent_does_not_give_it_back(url: str, lock: str) -> None:
    with penstock.open(url, timeout=0) as broker, penstock.open(url, timeout=0) as other:

        def locked(store: Any) -> Any:
            return store.outbox.ledger.publishing("writer") if lock == "writer" else store.queue("orders").sidecar.lock()

        other["orders"].stats()
        with locked(broker.store):
            pid = os.fork()
            if not pid:
                broker.store.queue("orders").sidecar.give()
                os._exit(0)
            os.waitpid(pid, 0)
            with pytest.raises(StoreBusy), locked(other.store):
                pass
        with locked(other.store):
            pass


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_of_a_parent_that_was_killed_is_not_left_to_its_child(url: str, lock: str) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, url, lock], stdout=subprocess.PIPE, text=True, timeout=60)
    grandchild = int(process.stdout)
    try:
        with penstock.open(url, timeout=0) as broker:
            broker["orders"].send(b"x")
            with broker.store.outbox.ledger.publishing("writer"):
                pass
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_an_interrupt_leaves_no_lock_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(url, timeout=0) as broker, penstock.open(url, timeout=0) as other:
        store: Any = broker.store
        sidecar = store.queue("orders").sidecar
        take = sidecar.take

        def interrupted() -> None:
            take()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(sidecar, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                broker["orders"].receive()
        other["orders"].send(b"x")


def test_a_second_interrupt_while_the_first_is_cleared_up_leaves_no_lock_behind(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(url, timeout=0) as broker, penstock.open(url, timeout=0) as other:
        store: Any = broker.store
        sidecar = store.queue("orders").sidecar
        take = sidecar.take

        def interrupted() -> None:
            take()
            raise KeyboardInterrupt

        def interrupted_again() -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(sidecar, "take", interrupted)
            patch.setattr(sidecar, "give", interrupted_again)
            with pytest.raises(KeyboardInterrupt):
                broker["orders"].receive()
        store.names()
        other["orders"].send(b"x")


@contextmanager
def child() -> Iterator[None]:
    """A forked child that stays alive."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            os.close(writing)
            os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)
        os.waitpid(pid, 0)
