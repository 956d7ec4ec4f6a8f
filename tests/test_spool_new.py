"""A sent message passes through new/, as MQ-Core says, and is never there unless it is complete."""

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from foreign import mq_mover

import penstock
from penstock.testing import FakeClock

IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE = 0x8, 0x40, 0x80, 0x100
EVENT = struct.Struct("iIII")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with penstock.open(f"spool:///{tmp_path}/spool") as broker:
        broker.create("orders")
    return tmp_path / "spool"


@contextmanager
def watching(folder: Path) -> Iterator[Callable[[], list[tuple[int, str]]]]:
    """The events that another program watching a folder gets: (event, name)."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    events = IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE
    assert libc.inotify_add_watch(handle, os.fsencode(folder), events) > 0

    def told() -> list[tuple[int, str]]:
        found, data = [], os.read(handle, 65536)
        while data:
            _, event, _, size = EVENT.unpack_from(data)
            found.append((event, data[EVENT.size : EVENT.size + size].rstrip(b"\0").decode()))
            data = data[EVENT.size + size :]
        return found

    yield told
    os.close(handle)


def at_rename(monkeypatch: pytest.MonkeyPatch, into: str, act: Callable[[Path], object]) -> None:
    """Call a function with each file that is renamed into this folder."""
    rename = os.rename

    def renamed(source: Any, target: Any) -> None:
        rename(source, target)
        if Path(target).parent.name == into:
            act(Path(target))

    monkeypatch.setattr(os, "rename", renamed)


def test_who_watches_new_sees_every_message_under_its_name(root: Path) -> None:
    with penstock.open(f"spool:///{root}") as broker, watching(root / "new") as told, watching(root / "queues/orders") as moved:
        queue = broker["orders"]
        sent = [queue.send(b"one"), *queue.send_many([b"x"] * 20)]
        expected = [(event, f"orders:{each.id}") for each in sent for event in (IN_MOVED_TO, IN_MOVED_FROM)]
        assert told() == expected
        assert moved() == [(IN_MOVED_TO, each.id) for each in sent]


def test_what_is_in_new_is_whole(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    at_rename(monkeypatch, "new", lambda path: seen.append(path.read_bytes()))
    with penstock.open(f"spool:///{root}") as broker:
        broker["orders"].send(b"x" * 100_000)
        broker["orders"].send_many([b"y" * 1000] * 10)
    assert seen == [b"x" * 100_000] + [b"y" * 1000] * 10


def test_a_message_that_is_delayed_does_not_pass_through_new(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any mover would deliver it at once."""
    at_rename(monkeypatch, "new", lambda path: pytest.fail(f"{path} is there for a mover"))
    with penstock.open(f"spool:///{root}") as broker:
        broker["orders"].send(b"x", delay=60)


@pytest.mark.parametrize("count", [1, 20])
def test_a_mover_that_is_quicker_delivers_it_once(root: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    mover = mq_mover.Mover(root, 30)
    with penstock.open(f"spool:///{root}", clock=FakeClock()) as broker:
        queue = broker["orders"]
        with monkeypatch.context() as patch:
            moving: list[Path] = []

            def move(path: Path) -> None:
                if not moving:
                    moving.append(path)
                    mover.move(0)
                    moving.clear()

            at_rename(patch, "new", move)
            sent = queue.send_many([b"x"] * count)
        assert sorted(message.id for message in queue.receive(99)) == sorted(each.id for each in sent)
        assert all(queue.delete_many(queue.peek(99)))
        assert queue.stats().messages == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=["interrupt", "full"])
def test_a_send_that_fails_on_its_way_leaves_nothing_in_new(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    rename = os.rename

    def fail(source: Any, target: Any) -> None:
        if Path(source).parent.name == "new" and Path(target).parent.name == "orders":
            raise error
        rename(source, target)

    with penstock.open(f"spool:///{root}") as broker:
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", fail)
            with pytest.raises((KeyboardInterrupt, penstock.StoreError)):
                broker["orders"].send(b"x")
        assert broker["orders"].receive() == []
    assert [path for path in root.rglob("*") if path.is_file() and path.name.startswith("orders:")] == []


def test_the_sends_of_another_queue_let_nobody_list(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(f"spool:///{root}") as broker, penstock.open(f"spool:///{root}") as other:
        theirs, queue = other.create("others"), broker["orders"]
        queue.send(b"x")
        queue.stats()
        folder = broker.store.queue("orders").folder  # type: ignore[attr-defined]
        monkeypatch.setattr(folder, "_doubtful", False)  # whatever the resolution of the system's clock
        with monkeypatch.context() as patch:
            patch.setattr(folder.layout, "scan", lambda _foreign: pytest.fail("the folders were listed"))
            for _ in range(10):
                theirs.send(b"x")
                assert queue.stats().messages == 1


def test_what_comes_into_new_is_seen_while_others_pass_through(root: Path) -> None:
    with penstock.open(f"spool:///{root}") as broker:
        queue = broker["orders"]
        for number in range(20):
            queue.send(b"ours")
            mq_mover.publish(root, "orders", b"theirs")
            assert queue.stats().messages == 2 * (number + 1)
