"""A store whose disk is completely full, or out of inodes, can be drained with the space that it keeps in reserve."""

import io
import os
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import StoreFull
from penstock.queue import retention
from penstock.server import BackgroundServer, ServerSettings
from penstock.stores.reserve import Reserve
from penstock.stores.sql.store import SqlStore
from penstock.testing import FakeClock
from penstock.testing.http import Http
from penstock.testing.power import need_mounts
from penstock.testing.serving import until

Mount = Callable[[str, int], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount a small file system of this type and size in MiB."""
    need_mounts()
    folders: list[Path] = []

    def mounted(kind: str, size: int) -> Path:
        folder, image = tmp_path / f"disk{len(folders)}", tmp_path / f"image{len(folders)}"
        folder.mkdir()
        if kind == "tmpfs":
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", folder], check=True)
        else:
            with image.open("wb") as file:
                file.truncate(size << 20)
            subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
            subprocess.run(["mount", "-o", "loop", image, folder], check=True)
        folders.append(folder)
        return folder

    yield mounted
    for folder in folders:
        subprocess.run(["umount", "--lazy", folder], check=True)


def url_of(scheme: str, disk: Path) -> str:
    return f"{scheme}:///{disk}/queue"


def fill(disk: Path) -> Path:
    """Fill the disk to the last byte."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with pytest.raises(OSError, match="No space left"):
                while True:
                    file.write(bytes(size))
    return ballast


def fill_until_refused(queue: penstock.Queue, repeats: int = 500) -> int:
    sent = 0
    with pytest.raises(StoreFull, match="no space left"):
        while True:
            queue.send_many([b"%08d" % number * repeats for number in range(sent, sent + 10)])
            sent += 10
    return sent


def drain(queue: penstock.Queue, batch: int = 10) -> list[bytes]:
    bodies: list[bytes] = []
    while messages := queue.receive(batch):
        bodies += [message.body for message in messages]
        assert all(queue.delete_many(messages))
    return bodies


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
@pytest.mark.parametrize("scheme", ["vsqs", "spool", "sqlite"])
def test_a_disk_full_to_the_last_byte_can_be_drained_and_filled_again(scheme: str, kind: str, mount: Mount) -> None:
    disk = mount(kind, 48)
    with penstock.open(url_of(scheme, disk)) as broker:
        queue = broker.create("orders")
        queue.send(b"%08d" % 0 * 500)
        (disk / "others").write_bytes(bytes(36 << 20))  # another program takes most of it
        sent = fill_until_refused(queue)
        fill(disk)
        with pytest.raises(StoreFull):
            queue.send(b"x")
    fill(disk)  # SQLite removes its log when it is closed
    with penstock.open(url_of(scheme, disk)) as broker:
        queue = broker["orders"]
        with pytest.raises(StoreFull):
            queue.send(b"x")
        (message,) = queue.receive()
        assert message.extend(60)
        with pytest.raises(StoreFull):
            queue.send(b"while the reserve is given up, a send must not use it")
        assert message.delete()
        assert len(drain(queue)) == sent
        assert queue.stats().messages == 0
        (disk / "others").unlink()
        (disk / "ballast").unlink()
        queue.send(b"again")
        assert drain(queue) == [b"again"]


@pytest.mark.parametrize("scheme", ["vsqs", "spool", "sqlite"])
def test_another_program_that_fills_the_disk_in_an_instant_stops_no_receiver(scheme: str, mount: Mount) -> None:
    """On SQLite, before the write-ahead log is checkpointed."""
    disk = mount("ext4", 96)
    with penstock.open(url_of(scheme, disk)) as broker:
        queue = broker.create("orders")
        for _ in range(40):
            queue.send_many([b"x" * 4000] * 20)
        fill(disk)
        assert len(drain(queue, 20)) == 800


@pytest.mark.parametrize("scheme", ["vsqs", "spool"])
def test_a_disk_without_a_file_left_can_be_drained(scheme: str, mount: Mount) -> None:
    disk = mount("ext4", 32)
    with penstock.open(url_of(scheme, disk)) as broker:
        queue = broker.create("orders")
        queue.send_many([b"x"] * 300)
        (disk / "many").mkdir()
        with pytest.raises(OSError, match="No space left"):
            for number in range(10**6):
                (disk / "many" / str(number)).touch()
        assert os.statvfs(disk).f_ffree == 0
        assert len(drain(queue, 20)) == 300
        assert queue.stats().messages == 0


@pytest.mark.parametrize("scheme", ["vsqs", "spool"])
def test_a_receiver_gets_as_many_as_the_disk_lets_it_have(scheme: str, mount: Mount) -> None:
    disk = mount("tmpfs", 16)
    with penstock.open(url_of(scheme, disk)) as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(500)])
        fill(disk)
        got: list[bytes] = []
        while messages := queue.receive(500):
            got += [message.body for message in messages]
            assert all(queue.delete_many(messages))
        assert sorted(map(int, got)) == list(range(500))


def reserve_of(store: Any) -> Reserve:
    found: Reserve = store.database.file.reserve if isinstance(store, SqlStore) else store._reserve
    return found


@pytest.mark.parametrize("scheme", ["vsqs", "spool", "sqlite"])
def test_the_reserve_is_made_again_once_there_is_room(scheme: str, mount: Mount) -> None:
    disk = mount("tmpfs", 48)
    with penstock.open(url_of(scheme, disk)) as broker:
        store: Any = broker.store
        queue = broker.create("orders")
        queue.send(b"x")
        size = reserve_of(store).size()
        assert size
        ballast = fill(disk)
        assert len(drain(queue)) == 1
        assert reserve_of(store).size() == 0
        ballast.unlink()
        queue.send(b"x")
        assert reserve_of(store).size() == size


SENDS: dict[str, Callable[[penstock.Queue], object]] = {
    "send": lambda queue: queue.send(b"again"),
    "send_many": lambda queue: queue.send_many([b"again", b"and again"]),
    "sadd": lambda queue: queue.sadd(b"again"),
}


@pytest.mark.parametrize("scheme", ["vsqs", "spool", "sqlite"])
@pytest.mark.parametrize(("verb", "kept"), [("send", 1000), ("send", 0), ("send_many", 0), ("sadd", 0)])
def test_a_queue_that_filled_its_disk_and_was_drained_takes_messages_again(
    scheme: str, verb: str, kept: int, mount: Mount
) -> None:
    """Although nobody receives any more. SQLite keeps the space of deleted messages in its file until it is cleared."""
    disk = mount("tmpfs", 24)
    with penstock.open(url_of(scheme, disk)) as broker:
        sent = fill_until_refused(broker.create("orders"))
    fill(disk)
    clock = FakeClock(int(time.time() * 10**6))
    with penstock.open(url_of(scheme, disk), clock=clock) as broker:
        queue = broker["orders"]
        while sent > kept:  # those that are kept are at the end of the file
            sent -= sum(queue.delete_many(queue.receive(min(20, sent - kept))))
        clock.advance(60)
        with suppress(StoreFull):
            SENDS[verb](queue)  # asks for clearing
        SENDS[verb](queue)
        store: Any = broker.store
        assert reserve_of(store).size()


@pytest.mark.parametrize("token", ["", "sixteen characters"])
def test_a_service_whose_disk_is_full_can_be_drained_and_takes_messages_again(
    token: str, mount: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "TEND_EVERY", 0)
    disk = mount("tmpfs", 24)
    log = io.StringIO()
    with ExitStack() as stack:
        broker = stack.enter_context(penstock.open(url_of("sqlite", disk)))
        broker.create("orders")
        server = stack.enter_context(BackgroundServer(broker, ServerSettings(port=0, token=token), log=log))
        remote = stack.enter_context(penstock.open(server.url, **({"token": token} if token else {})))
        queue = remote["orders"]
        sent = fill_until_refused(queue, 5000)
        fill(disk)
        with pytest.raises(StoreFull):
            queue.send(b"x")
        assert Http(server.url)("GET", "/health").status == 200
        assert len(drain(queue)) == sent

        def takes_messages() -> bool:
            with suppress(StoreFull):
                queue.send(b"again")
            return queue.stats().messages > 0

        until(takes_messages)
    assert "Traceback" not in log.getvalue()


def test_pages_are_returned_while_the_reserve_is_given_up_although_they_are_few(mount: Mount) -> None:
    """A quarter of a large file may be more than the whole reserve."""
    disk = mount("tmpfs", 24)
    with penstock.open(url_of("sqlite", disk), clock=FakeClock(int(time.time() * 10**6))) as broker:
        queue = broker.create("orders")
        fill_until_refused(queue)
        for _ in range(20):
            queue.delete_many(queue.receive(20))
        store: Any = broker.store
        assert reserve_of(store).size() == 0
        database = store.database
        free = database.pragma("freelist_count")
        assert 0 < free < 1024
        while database.maintain():
            pass
        assert database.pragma("freelist_count") == 0 or reserve_of(store).size()


def test_clearing_a_file_without_means_to_return_space_comes_to_an_end(tmp_path: Path) -> None:
    """Another program has made the file."""
    with closing(sqlite3.connect(tmp_path / "queue")) as own:
        own.execute("CREATE TABLE invoices (number INTEGER)")
    with penstock.open(url_of("sqlite", tmp_path)) as broker:
        queue = broker.create("orders")
        queue.send_many([b"x" * 100_000] * 100)
        assert len(drain(queue)) == 100
        store: Any = broker.store
        assert store.database.pragma("freelist_count") > 1024
        assert not store.database.maintain()


@pytest.mark.parametrize("scheme", ["vsqs", "spool", "sqlite"])
def test_what_was_given_up_is_not_taken_by_the_next_send(scheme: str, mount: Mount) -> None:
    disk = mount("tmpfs", 48)
    with penstock.open(url_of(scheme, disk)) as broker:
        store: Any = broker.store
        queue = broker.create("orders")
        queue.send(b"x")
        fill(disk)
        assert reserve_of(store).give_up()
        with pytest.raises(StoreFull):
            queue.send(b"x")
        assert reserve_of(store).size() == 0
        assert len(drain(queue)) == 1


def test_on_a_small_disk_the_log_of_sqlite_stays_smaller_than_the_reserve(mount: Mount) -> None:
    disk = mount("tmpfs", 16)
    with penstock.open(url_of("sqlite", disk)) as broker:
        broker.create("orders").send_many([b"x" * 100] * 800)
    fill(disk)
    with penstock.open(url_of("sqlite", disk)) as broker:
        assert len(drain(broker["orders"], 1)) == 800


@pytest.mark.parametrize("scheme", ["vsqs", "spool", "sqlite"])
def test_a_disk_that_never_had_room_for_a_reserve_is_used_all_the_same(scheme: str, mount: Mount) -> None:
    disk = mount("tmpfs", 16)
    (disk / "others").write_bytes(bytes((16 << 20) - (1_900_000 if scheme == "sqlite" else 400_000)))
    with penstock.open(url_of(scheme, disk)) as broker:
        store: Any = broker.store
        assert not reserve_of(store).size()
        queue = broker.create("orders")
        queue.send(b"x")
        assert drain(queue) == [b"x"]
