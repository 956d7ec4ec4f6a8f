"""A signal handler that uses the store while its own thread is inside a batch."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import penstock
from penstock.errors import StoreBusy
from penstock.patience import Patience


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "vsqs", "spool"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[penstock.Queue]:
    if request.param in ("postgresql", "mariadb"):
        url = str(request.getfixturevalue(request.param).new_url())
    else:
        url = f"{request.param}:///{tmp_path}/queues"
    with penstock.open(url) as broker:
        yield broker.create("orders")


def test_a_signal_handler_inside_a_batch_is_refused_by_name(queue: penstock.Queue) -> None:
    refused: list[StoreBusy] = []

    def handle(*_: object) -> None:
        try:
            queue.send(b"from the handler")
        except StoreBusy as error:
            refused.append(error)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(RuntimeError), queue._opened.store.batch():
            signal.raise_signal(signal.SIGUSR1)
            raise RuntimeError
        assert ["a signal handler has interrupted" in str(error) for error in refused] == [True]
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 1
    assert queue.stats().messages == 1


def test_a_signal_handler_may_have_a_batch_of_its_own(queue: penstock.Queue) -> None:
    def handle(*_: object) -> None:
        with queue._opened.store.batch():
            queue.send_many([b"one", b"two"])
            queue.send(b"three")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert queue.stats().messages == 3


def test_a_signal_handler_inside_a_statement_that_waits_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would become part of that statement's transaction, and be rolled back with it."""
    path = tmp_path / "queue.db"
    refused: list[StoreBusy] = []
    with penstock.open(f"sqlite:///{path}") as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2"])
        queue.send_many([b"3", b"4"])  # from here on, a send is one statement, like a delete
        message = queue.receive()[0]
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")

        def handle(*_: object) -> None:
            other.execute("ROLLBACK")
            try:
                queue.send(b"from the handler")
            except StoreBusy as error:
                refused.append(error)
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, StoreBusy)):
                patch.setattr(Patience, "pause", lambda *_: signal.raise_signal(signal.SIGUSR1))
                queue.delete(message)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert ["a signal handler has interrupted" in str(error) for error in refused] == [True]
        other.close()
        queue.send(b"after")
        assert sorted(message.body for message in queue.peek(9)) == [b"1", b"2", b"3", b"4", b"after"]
