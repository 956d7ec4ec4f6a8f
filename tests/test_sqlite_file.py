"""What the SQLite store promises beyond the contract: its file, its faults, its space."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import (
    BadInput,
    Broker,
    Draft,
    QueueNotFound,
    Receipt,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreVersion,
)
from penstock.broker import LocalBroker, open_local
from penstock.clock import system_clock
from penstock.message import FOREVER, Mode, State
from penstock.patience import Patience
from penstock.policy import Verdict, admit_all, certain, judge
from penstock.stores.encoding import checksum
from penstock.stores.ports import ClaimingReaders
from penstock.stores.requests import Claiming
from penstock.stores.sql import queue as sql_queue
from penstock.stores.sql.database import read_meta
from penstock.stores.sql.queue import SqlQueue
from penstock.stores.sql.statements import parameters_of, read_sql
from penstock.stores.sql.store import SqlStore
from penstock.stores.sqlite.database import SqliteDatabase
from penstock.stores.sqlite.file import SAFE_SQLITE
from penstock.stores.sqlite.runs import SqliteRuns
from penstock.stores.sqlite.store import open_store
from penstock.stores.sqlite.words import TEXTS, WORDS
from penstock.testing import FakeClock
from penstock.testing.power import need_mounts
from penstock.testing.verbs import wrap_verb

MIB = 2**20
NEWEST = max(read_sql(WORDS, TEXTS)[0])
"""The version of this Penstock's schema."""
READ_SQL = "penstock.stores.sqlite.database.read_sql"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


def database(broker: Broker) -> SqliteDatabase:
    assert isinstance(broker.store, SqlStore)
    assert isinstance(broker.store.database, SqliteDatabase)
    return broker.store.database


def tidy(broker: Broker) -> bool:
    """Remove some of what is settled in runs; whether there is more."""
    known = database(broker)
    return SqliteRuns("orders", known).tidy(known.find("orders"))


def pragma(broker: Broker, name: str) -> object:
    return database(broker).connect().pragma(name)


def test_a_commit_is_synced_and_a_claim_need_not_be(url: str) -> None:
    with penstock.open(url) as broker:
        assert pragma(broker, "journal_mode") == "wal"
        queue = broker.create("orders")
        queue.send(b"x")
        assert pragma(broker, "synchronous") == 2
        (message,) = queue.receive()
        assert pragma(broker, "synchronous") == 1
        queue.delete(message)
        assert pragma(broker, "synchronous") == 2
        queue.send(b"y")
        queue.receive(mode="at_most_once")
        assert pragma(broker, "synchronous") == 2


def test_the_bundled_sqlite_has_no_wal_reset_bug(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    assert tuple(map(int, apsw.sqlite_lib_version().split("."))) >= SAFE_SQLITE
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.40.1")
    with pytest.raises(StoreError, match=r"3\.40\.1 can corrupt"):
        open_store(path, Patience())


def test_messages_are_there_after_a_restart(url: str) -> None:
    with penstock.open(url) as broker:
        broker.create("orders", visibility=60).send_many([b"1", b"2"])
        held = broker["orders"].receive()[0].receipt
    with penstock.open(url) as broker:
        queue = broker["orders"]
        assert queue.settings.visibility == 60
        assert queue.delete(held) is True
        assert [message.body for message in queue.receive(9)] == [b"2"]


def test_a_queue_without_labels_is_stored_as_by_versions_without_labels(url: str, path: Path) -> None:
    old = (
        '{"visibility": 30, "retention": 345600, "delay": 0, "deduplicate": false, "redrive": null, "groups": false, '
        '"mode": "at_least_once", "history": 0}'
    )
    with penstock.open(url) as broker:
        broker.create("plain")
        broker.create("labelled", labels={"b": "2", "a": "1"})
    with closing(sqlite3.connect(path)) as file:
        stored = dict(file.execute("SELECT name, settings FROM penstock_queue").fetchall())
    assert stored == {"plain": old, "labelled": old[:-1] + ', "labels": {"a": "1", "b": "2"}}'}


def test_a_closed_broker_says_so(url: str) -> None:
    broker = penstock.open(url)
    queue = broker.create("orders")
    broker.close()
    broker.close()
    with pytest.raises(StoreClosed, match=r"queue\.db was closed"):
        queue.send(b"x")


def damage(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def test_a_damaged_body_costs_only_its_message(url: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with penstock.open(url) as broker:
        broker.create("orders", retention=100).send_many([b"first", b"SECOND" * 9, b"third"])
    damage(path, b"SECOND" * 9, b"SECOND" * 8 + b"SECONF")
    clock = FakeClock(system_clock())
    with penstock.open(url, clock=clock) as broker, caplog.at_level(logging.ERROR, "penstock"):
        queue = broker["orders"]
        assert [message.body for message in queue.receive(3)] == [b"first", b"third"]
        assert "is damaged" in caplog.text
        stats = queue.stats()
        assert (stats.messages, stats.in_flight, stats.damaged) == (3, 2, 1)
        clock.advance(1000)
        assert queue.receive(3) == []
        (kept,) = queue.peek(9, state="damaged")
        assert (kept.intact, kept.body[:6]) == (False, b"SECOND")
        assert queue.delete(kept.id) is True


def test_a_damaged_message_is_set_aside_at_most_once_too(url: str, path: Path) -> None:
    with penstock.open(url) as broker:
        broker.create("orders", mode="at_most_once").send_many([b"SECOND" * 9, b"third"])
    damage(path, b"SECOND" * 9, b"SECOND" * 8 + b"SECONF")
    with penstock.open(url) as broker:
        assert [message.body for message in broker["orders"].receive()] == [b"third"]
        stats = broker["orders"].stats()
        assert (stats.messages, stats.damaged) == (1, 1)


@pytest.mark.parametrize("before", [0, 1], ids=["run", "list"])
def test_a_damaged_message_of_a_claim_is_left_out_and_stays(url: str, path: Path, before: int) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders", visibility=0)
        queue.send_many([b"first", b"SECOND" * 9, b"third"])
        for _ in range(before):  # received messages turn the claim into a list
            queue.receive(3)
    damage(path, b"SECOND" * 9, b"SECOND" * 8 + b"SECONF")
    with penstock.open(url) as broker:
        queue = broker["orders"]
        assert queue.claim("spark", 1, 9).size == 3
        queue.confirm("spark", 1)
        for _ in range(2):
            assert [message.body for message in queue.read("spark", 1)] == [b"first", b"third"]
            assert queue.stats().damaged == 1
            told = queue.read("spark", 1, 1, 3, damaged=True)
            assert [(message.state.name, message.body) for message in told] == [("DAMAGED", b""), ("CONSUMED", b"third")]
        assert queue.settle("spark", 1) == 2
        assert (queue.stats().messages, queue.stats().damaged) == (1, 1)


def changes(broker: Broker, act: Callable[[], object]) -> int:
    """How many rows it writes."""
    before = database(broker).connect().total_changes()
    act()
    return database(broker).connect().total_changes() - before


def test_a_claim_of_fresh_messages_writes_none_of_them(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(200)])
        for reader in ("spark", "other"):
            assert changes(broker, lambda: queue.claim(reader, 1, 100)) < 10  # noqa: B023
            assert changes(broker, lambda: queue.confirm(reader, 1)) < 10  # noqa: B023
            assert changes(broker, lambda: queue.settle(reader, 1)) < 10  # noqa: B023
        assert changes(broker, lambda: tidy(broker)) >= 100


def test_what_ends_a_run_writes_each_of_its_messages_once_and_no_other_run_s(url: str) -> None:
    with penstock.open(url, clock=(clock := FakeClock())) as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(400)])
        clock.advance(1)
        for reader, ttl in (("lasting", 60), ("short", 1), ("other", 60)):
            queue.claim(reader, 1, 100, ttl=ttl)
        assert changes(broker, lambda: queue.update(visibility=7)) < 10
        assert changes(broker, lambda: queue.purge()) < 110
        clock.advance(1)
        assert 200 <= changes(broker, lambda: queue.stats()) < 210  # the messages, and the list of them
        assert queue.stats().visible == 100
        assert 100 <= changes(broker, lambda: queue.give_up("other")) < 110
        assert changes(broker, lambda: queue.confirm("lasting", 1)) < 10
        assert changes(broker, lambda: queue.settle("lasting", 1)) < 10
        assert len(queue.receive(1000)) == queue.stats().messages == 200


def test_what_is_settled_of_one_run_by_its_id_ends_no_other(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(200)])
        for reader in ("spark", "other"):
            queue.claim(reader, 1, 100)
        assert 200 <= changes(broker, lambda: queue.delete(queue.read("other", 1)[0].id)) < 210
        assert (len(queue.read("spark", 1)), len(queue.read("other", 1))) == (100, 99)


def test_a_claim_of_what_was_received_writes_each_message_once(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(100)])
        queue.receive()[0].release()
        assert 200 < changes(broker, lambda: queue.claim("spark", 1, 100)) < 210  # the messages, and the list of them
        assert changes(broker, lambda: queue.confirm("spark", 1)) == 1
        assert changes(broker, lambda: queue.settle("spark", 1)) < 210


def test_what_is_settled_is_gone_for_all_before_it_is_removed(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        ids = [sent.id for sent in queue.send_many([b"%d" % number for number in range(4)])]
        queue.claim("spark", 1, 2)
        queue.claim("other", 1, 1)
        queue.confirm("other", 1)
        queue.confirm("spark", 1)
        assert queue.settle("spark", 1) == 2
    with penstock.open(url) as broker:
        queue = broker["orders"]
        stats = queue.stats()
        assert (stats.messages, stats.visible, stats.in_flight) == (2, 1, 1)
        assert [message.body for message in queue.peek(9, state="queued")] == [b"3"]
        assert [message.body for message in queue.read("other", 1)] == [b"2"]
        assert queue.readers()["spark"] == []
        assert queue.delete(ids[0]) is False
        assert queue.delete(ids[2]) is True
        assert queue.settle("other", 1) == 0
        assert [message.body for message in queue.receive(9)] == [b"3"]


def test_what_is_settled_is_removed_some_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.stores.sqlite.runs.TIDY_AT_ONCE", 2)
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(5)])
        queue.claim("spark", 1, 5)
        queue.confirm("spark", 1)
        queue.send(b"last")
        assert queue.settle("spark", 1) == 5
        for left in (4, 2, 1):
            assert queue.stats().messages == 1
            assert tidy(broker) is True
            assert database(broker).rows("span", {"queue": 1})[0][0] == left
        assert tidy(broker) is False
        assert database(broker).find("orders").floor == (-1, 0)
        assert [message.body for message in queue.receive(9)] == [b"last"]


def test_a_sender_that_is_late_ends_no_run(url: str) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 9)
        queue.confirm("spark", 1)
        clock.advance(-0.5)
        for batch in ([b"3"], [b"4"] * 2, [b"5"] * 200):
            queue.send_many(batch)
        assert database(broker).find("orders").floor != (-1, 0)
        clock.advance(1)
        assert len(queue.receive(1000)) == 203
        assert queue.settle("spark", 1) == 2


def test_looking_ends_no_run_and_shows_it_as_it_is(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"0", b"1", b"2", b"3"])
        for epoch, size in ((1, 1), (2, 2)):
            queue.claim("spark", epoch, size)
            queue.confirm("spark", epoch)
        queue.settle("spark", 1)
        looks = [queue.peek(9), queue.scan()]
        for messages in looks:
            assert sorted((message.body, message.state.name, message.receives) for message in messages) == [
                (b"1", "CONSUMED", 1),
                (b"2", "CONSUMED", 1),
                (b"3", "QUEUED", 0),
            ]
        assert [message.body for message in queue.peek(9, state="consumed")] == [b"1", b"2"]
        assert queue.span()[0] == 3
        assert len(SqliteRuns("orders", database(broker)).all(1)) == 2


def test_a_run_that_lacks_a_message_is_tidied_all_the_same(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2", b"3"])
        queue.claim("spark", 1, 2)
        queue.confirm("spark", 1)
        database(broker).connect().execute("DELETE FROM penstock_message WHERE body = x'31'")
        assert [message.body for message in queue.read("spark", 1)] == [b"2"]
        queue.settle("spark", 1)
        assert [tidy(broker) for _ in range(2)] == [True, False]
        assert [message.body for message in queue.receive(9)] == [b"3"]


def test_a_claim_is_as_long_as_its_messages_are_fresh(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.stores.sqlite.runs.LIST_AT_ONCE", 2)
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(6)])
        (first,) = queue.receive()
        clock.advance(1)
        first.release()
        queue.send(b"6")
        assert queue.claim("spark", 1, 9).size == 4
        assert queue.claim("spark", 2, 9).size == 2  # its list is limited to that
        assert queue.claim("spark", 3, 9).size == 1
        read = [[message.body for message in queue.read("spark", epoch)] for epoch in (1, 2, 3)]
        assert read == [[b"1", b"2", b"3", b"4"], [b"5", b"0"], [b"6"]]


@pytest.mark.parametrize(
    "other", ["none", "another queue", "a queue before", "delayed", "same instant", "claimed", "in flight"]
)
def test_what_is_settled_is_removed_at_once_if_nothing_else_is_there(url: str, other: str) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        before, queue, after = broker.create("before"), broker.create("orders"), broker.create("after")
        if other == "in flight":
            queue.send(b"other")
            queue.receive(visibility=100)
        queue.send_many([b"%d" % number for number in range(6)])
        queue.claim("spark", 1, 6)
        queue.confirm("spark", 1)
        match other:
            case "another queue":
                after.send(b"other")
            case "a queue before":
                before.send(b"other")
            case "delayed":
                queue.send(b"other", delay=10)
            case "same instant":
                queue.send(b"other")
            case "claimed":
                queue.send(b"other")
                queue.claim("other", 1, 1)
        assert queue.settle("spark", 1) == 6
        while tidy(broker):
            pass
        assert sum(each.stats().messages for each in (before, queue, after)) == (other != "none")


def test_what_is_settled_is_removed_by_whoever_uses_the_queue(url: str) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2"])
        queue.claim("spark", 1, 2)
        queue.confirm("spark", 1)
        assert queue.settle("spark", 1) == 2
        clock.advance(60)
        queue.send(b"3")
        assert database(broker).rows("span", {"queue": 1})[0][0] == 1


def test_a_settled_claim_leaves_no_marks(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders", deduplicate=True)
        queue.send_many([b"first", b"second"])
        assert queue.claim("spark", 1, 9).size == 2
        queue.confirm("spark", 1)
        assert broker.store.queue("orders").marked().lasting == 2
        queue.settle("spark", 1)
        assert broker.store.queue("orders").marked().lasting == 0


@pytest.mark.parametrize("part", ["content-type/of-mine", "attribute-name", "attribute-value", "my-group-name"])
def test_damage_to_anything_but_the_body_is_seen_too(url: str, path: Path, part: str) -> None:
    with penstock.open(url) as broker:
        broker.create("orders").send(
            b"x", content_type="content-type/of-mine", attributes={"attribute-name": "attribute-value"}, group="my-group-name"
        )
    for new in (part[:-1].encode() + b"\xff", part[:-1].encode() + b"X", b'"' * len(part)):
        copy = path.with_suffix(".copy")
        shutil.copy(path, copy)
        content = copy.read_bytes()
        copy.write_bytes(content.replace(part.encode(), new))  # its index contains the group too
        with penstock.open(f"sqlite:///{copy}") as broker:
            assert broker["orders"].receive() == []
            assert broker["orders"].stats().damaged == 1


def test_single_flipped_bits_never_give_a_wrong_body(url: str, path: Path) -> None:
    body = bytes(range(256)) * 12  # most of the file
    with penstock.open(url) as broker:
        broker.create("orders").send_many([body] * 20)
    content = path.read_bytes()
    wrong = told = 0
    for place in range(4096 * 3, len(content), max(1, len(content) // 150)):
        copy = path.with_suffix(".copy")
        for leftover in (f"{copy}-wal", f"{copy}-shm"):
            Path(leftover).unlink(missing_ok=True)
        copy.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        try:
            with penstock.open(f"sqlite:///{copy}") as broker:
                messages = broker["orders"].receive(100)
                wrong += sum(message.body != body for message in messages)
                told += len(messages) < 20
        except penstock.PenstockError:
            told += 1
    assert wrong == 0
    assert told > 30


@pytest.mark.parametrize("content", [b"this is not a database, just text" * 200, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_queue_is_refused_and_left_alone(path: Path, url: str, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=r"queue\.db is damaged or no SQLite file"):
        penstock.open(url)
    assert path.read_bytes() == content


def test_a_torn_file_is_reported(path: Path, url: str) -> None:
    with penstock.open(url) as broker:
        broker.create("orders").send_many([b"x" * 1000] * 500)
    with path.open("r+b") as handle:
        handle.truncate(path.stat().st_size // 2)
    with pytest.raises(StoreCorrupt, match=r"queue\.db is damaged"), penstock.open(url) as broker:
        broker["orders"].receive(1000)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"there is no folder {tmp_path}/nowhere"):
        penstock.open(f"sqlite:///{tmp_path}/nowhere/queue.db")
    with pytest.raises(StoreError, match="cannot be opened"):
        penstock.open(f"sqlite:///{tmp_path}")
    with pytest.raises(StoreError, match="cannot be reached: File name too long"):
        penstock.open(f"sqlite:///{tmp_path}/{'x' * 300}")


def test_a_read_only_file_is_reported(url: str, path: Path) -> None:
    with penstock.open(url) as broker:
        broker.create("orders")
    path.chmod(0o444)
    if os.geteuid() == 0:  # permissions do not stop root
        for folder in path.parents[:-1]:
            folder.chmod(folder.stat().st_mode | 0o055)
        assert f"StoreReadOnly: the queue file {path} is read-only" in in_child_as_nobody(url)
    else:
        with pytest.raises(StoreReadOnly, match="is read-only"):
            penstock.open(url)


def in_child_as_nobody(url: str) -> str:
    """Fork, because another user may not be able to read this Python's files."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            penstock.open(url)
            os.write(writer, b"it was opened")
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def test_locked_too_long_is_reported_with_the_time(url: str, path: Path) -> None:
    with penstock.open(url, timeout=0.2) as broker:
        queue = broker.create("orders")
        other = apsw.Connection(str(path))  # not sqlite3: two copies of SQLite in one process ignore each other's locks
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match=r"queue\.db was locked by others for more than 0\.2 s"):
            queue.send(b"x")
        assert queue.receive() == [], "an idle poll must not need the write lock"
        assert queue.stats().messages == 0
        other.execute("ROLLBACK")
        other.close()
        queue.send(b"x")
        assert queue.stats().messages == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    need_mounts()
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_is_reported_and_nothing_acknowledged_is_lost(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(3 * MIB))
    url = f"sqlite:///{small_disk}/queue.db"
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        sent = 0
        with pytest.raises(StoreFull, match="no space left"):
            while True:
                queue.send(b"%08d" % sent * 2000)
                sent += 1
        assert sent > 20
        with pytest.raises(StoreFull):
            queue.send_many([b"x" * 100_000] * 20)
        assert queue.stats().messages == sent
        ballast.unlink()
        queue.send(b"%08d" % sent * 2000)
        sent += 1
    with penstock.open(url) as broker:
        bodies = [message.body for message in broker["orders"].peek(1000)]
        assert bodies == [b"%08d" % number * 2000 for number in range(sent)]


@pytest.mark.parametrize(
    ("syscall", "error", "start"),
    [("fdatasync", "EIO", "6+4"), ("fdatasync", "EIO", "6..7"), ("pwrite64", "EIO", "60+9"), ("pwrite64", "ENOSPC", "60+9")],
)
def test_a_failing_disk_fails_the_send_and_the_next_one_starts_anew(url: str, syscall: str, error: str, start: str) -> None:
    """A failed sync must not be retried as if it had worked: a refused message stays refused.

    Plain messages are sent by one statement; those with a mark need a transaction of several."""
    with penstock.open(url) as broker:
        broker.create("orders")
        broker.create("marked", deduplicate=True)
    program = """
import sys, penstock
with penstock.open(sys.argv[1]) as broker:
    for number in range(30):
        try:
            bodies = [b"%d" % number] if number % 2 else [b"%d" % number, b"and %d" % number]
            broker["marked" if number % 3 == 0 else "orders"].send_many(bodies)
            print("sent", number)
        except penstock.StoreError as error:
            print("failed", number, type(error).__name__)
"""
    strace = shutil.which("strace")
    assert strace, "install strace (tools/provision does)"
    inject = f"inject={syscall}:error={error}:when={start}"
    trace = [strace, "-f", "-qq", "-o", os.devnull, "-e", f"trace={syscall}", "-e", inject]
    done = subprocess.run([*trace, sys.executable, "-c", program, url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    sent = {line[1].encode() for line in lines if line[0] == "sent"}
    failed = {line[1].encode() for line in lines if line[0] == "failed"}
    assert len(sent) + len(failed) == 30
    assert failed
    assert sent
    if start == "6..7":  # the second failure keeps SQLite from rolling back the first: the refused message is there after all
        assert len(failed) == 1
    with penstock.open(url) as broker:
        left = [message.body for queue in broker for message in queue.peek(100) if b"and" not in message.body]
    assert sent <= set(left) <= sent | failed
    assert len(left) == len(set(left))


@pytest.mark.parametrize("error", [apsw.IOError, KeyboardInterrupt])
def test_numbers_of_a_commit_whose_answer_was_lost_are_not_given_again(
    url: str, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders", deduplicate=True)
        queue.send_many([b"1", b"2"])
        queue.send_many([b"3", b"4"])  # reserves a block of numbers
        execute = SqliteDatabase._execute

        def lose(self: SqliteDatabase, connection: apsw.Connection, statement: str, *rest: Any) -> Any:
            found = execute(self, connection, statement, *rest)
            if statement == "COMMIT":
                raise error
            return found

        with monkeypatch.context() as patch:
            patch.setattr(SqliteDatabase, "_execute", lose)
            with pytest.raises(error):
                queue.send(b"lost")
        queue.send(b"next")
        assert [message.body for message in queue.peek(10)] == [b"1", b"2", b"3", b"4", b"lost", b"next"]


def test_numbers_that_were_reserved_in_a_batch_that_was_undone_are_others(url: str) -> None:
    with penstock.open(url) as broker, penstock.open(url) as other:
        queue = broker.create("orders")
        queue.send(b"1")
        with pytest.raises(RuntimeError), broker.store.batch():
            queue.send(b"undone")  # reserves a thousand more
            raise RuntimeError
        other["orders"].send_many([b"2"] * 1001)  # takes exactly these
        queue.send(b"3")
        assert queue.stats().messages == 1003


def test_a_forked_child_has_its_own_connection(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send(b"parent")
        inherited = database(broker).connect()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                queue.send(b"child")
                code = int(database(broker).connect() is inherited)
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        queue.send(b"parent again")
        assert sorted(message.body for message in queue.receive(9)) == [b"child", b"parent", b"parent again"]


FORKING = """
import os, sys, threading, penstock
broker = penstock.open(sys.argv[1])
queue = broker.create("orders")
threads = [threading.Thread(target=lambda: [queue.send(b"thread") for _ in range(200)]) for _ in range(2)]
for thread in threads:
    thread.start()
children = []
gate, gate_writer = os.pipe()
for _ in range(8):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        queue.send(b"child before")
        os.write(writer, b"x")
        os.close(gate_writer)
        os.read(gate, 1)  # until the parent has closed its store
        for _ in range(5):
            queue.send(b"child after")
        os._exit(0)
    os.read(reader, 1)
    children.append(child)
for thread in threads:
    thread.join()
broker.close()
os.close(gate_writer)
print(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_forked_children_lose_nothing_when_the_parent_closes(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORKING, url], capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"0\n", b"")
    with penstock.open(url) as broker:
        bodies = [message.body for message in broker["orders"].peek(1000)]
    assert [bodies.count(body) for body in (b"thread", b"child before", b"child after")] == [400, 8, 40]


def test_a_fork_inside_a_batch_is_refused_in_the_child(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        with broker.store.batch():
            queue.send(b"parent")
            child = os.fork()
            if child == 0:
                try:
                    queue.send(b"child")
                except StoreError as error:
                    os._exit(0 if "forked inside a batch" in str(error) else 2)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [message.body for message in queue.peek(9)] == [b"parent"]


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_what_is_done_is_answered_though_the_queue_cannot_be_tended(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    def fail(*_: object) -> bool:
        raise StoreBusy("locked")

    monkeypatch.setattr(SqlQueue, "sweep", fail)
    with penstock.open(url) as broker:
        queue = broker.create("orders", mode=mode)
        queue.send(b"x")
        queue._opened.retention.due_at = 0
        assert [message.body for message in queue.receive()] == [b"x"]
        assert caplog.text.count("could not clear queue") == 2


def test_a_batch_that_sqlite_has_rolled_back_is_over(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        database(broker).connect().pragma("max_page_count", database(broker).pragma("page_count") + 5)
        with pytest.raises(StoreError, match="the batch is lost"), broker.store.batch():
            queue.send(b"first")
            with pytest.raises(StoreFull), broker.store.batch():
                queue.send_many([b"x" * 100_000] * 3)
            queue.send(b"second")
        assert queue.peek(9) == []


def test_an_interrupted_purge_leaves_no_marks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.queue.retention.PURGE_BATCH", 10)
    with penstock.open(url) as broker:
        queue = broker.create("orders", deduplicate=True)
        queue.send_many([b"%d" % number for number in range(15)])
        assert broker.store.queue("orders").purge(10) == 10
        assert sum(sent.duplicate for sent in queue.send_many([b"%d" % number for number in range(15)])) == 5
        assert queue.purge() == 15


def test_a_damaged_group_holds_up_nobody(url: str, path: Path) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("lines", groups=True)
        queue.send_many([penstock.Draft(b"%d" % number, group="a") for number in range(3)])
        apsw.Connection(str(path)).execute("UPDATE penstock_message SET grp = x'ff' WHERE number = 1")
        assert [message.body for message in queue.receive(9)] == [b"1"]
        assert queue.stats().damaged == 1


def test_messages_that_are_named_are_found_by_their_numbers_and_not_among_all_of_their_queue(url: str) -> None:
    with penstock.open(url) as broker:
        connection, seen = database(broker).connect(), set()
        for name, text in database(broker).statements.items():
            if " penstock_message" in text and ("json_each(:numbers)" in text or "number = :number" in text):
                fields = dict.fromkeys(parameters_of(text), "[1]")
                plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", fields)]
                steps = [step for step in plan if "penstock_message USING" in step]
                assert all("INTEGER PRIMARY KEY" in step or "number=?" in step for step in steps), (name, plan)
                seen.add(name)
    assert {"delete_alike", "delete_alone", "claim_all", "extend", "found", "in_run"} <= seen


@pytest.mark.parametrize("name", ["behind", "in_group", "next_in_group", "received_in_group"])
def test_messages_of_a_group_are_found_without_a_look_at_other_groups(url: str, name: str) -> None:
    with penstock.open(url) as broker:
        connection, text = database(broker).connect(), database(broker).statements[name]
        fields = {"queue": 1, "grp": b"a", "limit": 9}
        (step,) = connection.execute(f"EXPLAIN QUERY PLAN {text}", fields).fetchall()
        assert step[3] == "SEARCH penstock_message USING INDEX penstock_group (queue=? AND grp=?)", "and there is no sorting"


def test_a_damaged_group_with_two_firsts_gives_no_message_twice(url: str, path: Path) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("lines", groups=True)
        queue.send_many([penstock.Draft(b"%d" % number, group="a") for number in range(4)])
        apsw.Connection(str(path)).execute("UPDATE penstock_message SET visible_at = -visible_at WHERE number = 2")
        assert [message.body for message in queue.receive(9, together=True)] == [b"0", b"2", b"3", b"1"]


def test_a_folder_that_cannot_be_synced_is_an_error_of_ours(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched, pytest.raises(StoreError, match="Input/output error"):
        patched.setattr(os, "fsync", refuse)
        penstock.open(url)
    with penstock.open(url) as broker:
        broker.create("orders").send(b"x")


def test_disk_space_is_returned_after_a_backlog_drains(url: str, path: Path) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        for _ in range(20):
            queue.send_many([b"x" * 1000] * 1000)
        grown = path.stat().st_size
        assert grown > 20 * MIB
        while messages := queue.receive(1000):
            queue.delete_many(messages)
        clock.advance(60)
        queue.receive()
        assert path.stat().st_size < grown / 4
        assert path.with_name("queue.db-wal").stat().st_size < 20 * MIB


def test_a_steady_cycle_does_not_grow_the_file(url: str, path: Path) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        for _ in range(100):
            queue.send_many([b"x" * 1000] * 100)
            queue.delete_many(queue.receive(100))
        assert path.stat().st_size < 2 * MIB
        assert path.with_name("queue.db-wal").stat().st_size < 20 * MIB


def test_a_file_of_a_newer_penstock_is_refused(url: str, path: Path) -> None:
    penstock.open(url).close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE penstock_meta SET value = 99 WHERE name = 'version'")
    other.close()
    with pytest.raises(StoreVersion, match=r"version 99, this Penstock knows \d+:"):
        penstock.open(url)


def test_an_older_file_is_brought_up_to_date_with_its_messages(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(url) as broker:
        broker.create("orders").send(b"old")

    def with_one_more_step(*dialect: Any) -> tuple[dict[int, list[str]], dict[str, str]]:
        steps, statements = read_sql(*dialect)
        return steps | {NEWEST + 1: ["ALTER TABLE penstock_message ADD COLUMN colour TEXT"]}, statements

    monkeypatch.setattr(READ_SQL, with_one_more_step)
    with penstock.open(url) as broker:
        assert broker["orders"].receive()[0].body == b"old"
        assert read_meta(database(broker), "version") == NEWEST + 1
    penstock.open(url).close()


def test_a_file_from_before_there_were_holders_opens_with_its_messages(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, statements = read_sql(WORDS, TEXTS)
    old = {name: text.replace(" holder,", "").replace(", holder = :holder", "") for name, text in statements.items()}
    with monkeypatch.context() as before:
        before.setattr(READ_SQL, lambda *_: ({step: steps[step] for step in range(1, 7)}, old))
        with penstock.open(url) as broker:
            known = broker.create("orders", history=60).settings
            drafts = admit_all([b"held", b"waiting", b"settled"], known, system_clock())
            broker.store.queue("orders").insert(drafts, system_clock(), known)
            database(broker).script(
                "UPDATE penstock_message SET state = 1, receives = 1, delivery = 1, visible_at = 1 << 52 WHERE number = 1"
            )
            columns = "number, queue, visible_at, receives, delivery, sent_at, expires_at, checksum, body"
            database(broker).script(
                f"INSERT INTO penstock_settled ({columns}, state, settled_at, keep_until) "
                f"SELECT {columns}, 2, 1, 9000000000000000 FROM penstock_message WHERE number = 3"
            )
            database(broker).script("DELETE FROM penstock_message WHERE number = 3")
            held = database(broker).ids.make(1)
    with penstock.open(url) as broker:
        queue = broker["orders"]
        assert sorted((message.body, message.holder) for message in queue.peek(9)) == [(b"held", None), (b"waiting", None)]
        assert [(message.body, message.holder) for message in queue.settled()] == [(b"settled", None)]
        (taken,) = queue.receive(holder="worker")
        assert (taken.body, taken.holder) == (b"waiting", "worker")
        assert queue.delete(Receipt("orders", held, 1)), "a receipt from before counts until the next one is given"


def test_the_queue_lives_beside_other_tables(url: str, path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE message (mine TEXT)")
        other.execute("INSERT INTO message VALUES ('kept')")
    other.close()
    with penstock.open(url) as broker:
        broker.create("orders").send(b"x")
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT mine FROM message").fetchall() == [("kept",)]
    other.close()


def test_what_fails_in_a_batch_leaves_the_rest_of_it(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        with broker.store.batch():
            queue.send(b"1")
            with pytest.raises(penstock.QueueNotFound):
                broker["nobody"].send(b"2")
            queue.send(b"3")
        assert [message.body for message in queue.peek(9)] == [b"1", b"3"]
        with pytest.raises(ZeroDivisionError), broker.store.batch():
            queue.send(b"4")
            raise ZeroDivisionError
        assert [message.body for message in queue.peek(9)] == [b"1", b"3"]


def test_a_batch_within_a_batch_can_fail_alone(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        with broker.store.batch():
            queue.send(b"1")
            with pytest.raises(ZeroDivisionError), broker.store.batch():
                queue.send_many([b"2", b"3"])
                raise ZeroDivisionError
            queue.send(b"4")
        assert [message.body for message in queue.peek(9)] == [b"1", b"4"]
        assert len({message.id for message in queue.peek(9)}) == 2


def test_settings_changed_by_another_process_count_at_once(url: str) -> None:
    with penstock.open(url) as broker, penstock.open(url) as other:
        queue = broker.create("orders")
        queue.send(b"x")
        (message,) = queue.receive()
        other["orders"].update(delay=60, history=60, mode="at_most_once")
        queue.delete(message)
        assert queue.stats().settled == 1
        queue.send(b"y")
        assert queue.stats().delayed == 1
        queue.send(b"z", delay=0)
        queue.receive()
        assert queue.stats().settled == 2


def test_a_claim_that_was_undone_counts_in_no_later_batch(url: str) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", history=60)
        queue.send(b"x")
        with pytest.raises(RuntimeError), broker.store.batch():
            broker.store.queue("orders").claim(Claiming(1, clock(), None))
            raise RuntimeError
        (message,) = queue.receive()
        assert queue.delete(message)


def test_a_queue_made_again_by_another_process_is_found_at_once(url: str) -> None:
    with penstock.open(url) as broker, penstock.open(url) as other:
        queue = broker.create("orders")
        assert queue.stats().messages == 0
        assert queue.peek() == []
        other.delete("orders")
        with pytest.raises(penstock.QueueNotFound):
            queue.peek()
        with pytest.raises(penstock.QueueNotFound):
            queue.stats()
        other.create("orders").send(b"x")
        assert [message.body for message in queue.peek()] == [b"x"]
        assert queue.stats().messages == 1
        assert [message.body for message in queue.receive()] == [b"x"]


def test_numbers_stay_in_the_order_of_sending_between_processes(url: str) -> None:
    with penstock.open(url) as broker, penstock.open(url) as other:
        broker.create("orders")
        sent = [(broker, other)[turn % 2]["orders"].send(b"%d" % turn).id for turn in range(20)]
        assert sent == sorted(sent)
        assert len(set(sent)) == 20


@pytest.mark.parametrize("size", [1, 2, 17, 128])
def test_each_verb_takes_few_statements(url: str, size: int) -> None:
    """Each costs more than the row that it writes."""
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        for _ in range(3):
            queue.delete(queue.send(b"first").id)  # now the process has reserved numbers
        ran: list[str] = []
        database(broker).connect().exec_trace = lambda _cursor, text, _values: ran.append(text) is None
        queue.send_many([b"%d" % number for number in range(size)])
        sending, ran = [text.split()[0] for text in ran], []
        database(broker).connect().exec_trace = lambda _cursor, text, _values: ran.append(text) is None
        messages = queue.receive(size)
        receiving, ran = [text.split()[0] for text in ran], []
        database(broker).connect().exec_trace = lambda _cursor, text, _values: ran.append(text) is None
        assert queue.delete_many(messages) == [True] * size
        database(broker).connect().exec_trace = None
        deleting = [text.split()[0] for text in ran]
        assert sending == ["INSERT"]
        assert receiving == ["SELECT", "PRAGMA", "BEGIN", "SELECT", "SELECT", "UPDATE", "COMMIT"]
        assert deleting == ["PRAGMA", "DELETE"]


def test_many_stale_receipts_delete_nothing(url: str) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", visibility=5)
        queue.send_many([b"1", b"2", b"3"])
        stale = queue.receive(3)
        clock.advance(6)
        (one, *others) = queue.receive(3)
        assert queue.delete_many(stale) == [False] * 3
        assert queue.delete_many([one, *stale[1:]]) == [True, False, False]
        assert queue.delete_many([*others, stale[0], *others]) == [True, True, False, False, False]


def test_a_file_with_deleted_messages_that_were_to_be_removed_later_opens_without_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until schema version 8, a delete only noted the number; the next batch removed the row."""
    steps, statements = read_sql(WORDS, TEXTS)
    with monkeypatch.context() as before:
        before.setattr(READ_SQL, lambda *_: ({step: steps[step] for step in range(1, 8)}, statements))
        with penstock.open(url) as broker:
            queue = broker.create("orders")
            queue.send_many([b"deleted", b"kept", b"deleted too"])
            queue.receive(3, visibility=0)
            for number in (1, 3):
                database(broker).script(f"INSERT INTO penstock_gone VALUES ({number})")
    with penstock.open(url) as broker:
        queue = broker["orders"]
        assert (queue.stats().messages, queue.span()[0]) == (1, 1)
        assert [message.body for message in queue.peek(9)] == [message.body for message in queue.receive(9)] == [b"kept"]
        names = database(broker).connect().execute("SELECT name FROM sqlite_schema WHERE name LIKE 'penstock_%'").fetchall()
        assert not {("penstock_gone",), ("penstock_present",)} & set(names)


def test_what_is_sent_together_obeys_settings_that_another_process_changed(url: str) -> None:
    with penstock.open(url) as broker, penstock.open(url) as other:
        queue = broker.create("orders")
        queue.send_many([b"a", b"b"])
        queue.send_many([b"a", b"b"])
        other["orders"].update(deduplicate=True)
        assert [one.duplicate for one in queue.send_many([b"c", b"c"])] == [False, True]
        other["orders"].update(deduplicate=False)
        other["orders"].send_many([b"d", b"e"])  # with numbers above those that the first has reserved
        queue.send_many([b"f", b"g"])
        assert [one.body for one in queue.receive(100)][4:] == [b"c", b"d", b"e", b"f", b"g"]


def test_what_is_sent_to_a_queue_that_another_made_again_is_in_the_new_one(url: str) -> None:
    with penstock.open(url) as ours, penstock.open(url) as theirs:
        queue = ours.create("orders")
        for _ in range(3):  # by now sends rely on the cached queue
            queue.send(b"old")
        held = queue.receive()[0]
        theirs.delete("orders")
        theirs.create("orders")
        for _ in range(3):
            queue.send(b"new")
        assert not queue.delete(held)
        assert [message.body for message in theirs["orders"].receive(10)] == [b"new"] * 3
        assert queue.receive(mode="at_most_once") == []


def test_a_number_that_was_undone_leads_into_no_other_queue(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        for _ in range(3):
            queue.send(b"before")
        with pytest.raises(RuntimeError), broker.store.batch():
            broker.delete("orders")
            broker.create("orders").send(b"undone")
            raise RuntimeError
        other = broker.create("other")  # it gets the number that "orders" had before the rollback
        for _ in range(3):
            queue.send(b"after")
        assert (queue.stats().messages, other.stats().messages) == (6, 0)


@pytest.mark.parametrize("name", ["visible_above", "due_of", "place_above", "count_visible", "weigh"])
def test_what_lies_above_the_floor_is_sought_and_not_come_to(url: str, name: str) -> None:
    """Messages below the floor cost nothing, even if a million became visible at one instant."""
    with penstock.open(url) as broker:
        names = ["queue", "now", "came_after", "max_receives", "limit", "place", "of", "forever", "visible_by"]
        names += ["floor_at", "floor_number", "name"]
        explained = f"EXPLAIN QUERY PLAN {database(broker).statements[name]}"
        plan = [row[3] for row in database(broker).connect().execute(explained, dict.fromkeys(names, 0))]
        assert any("visible_at=? AND number>?" in step for step in plan), plan


def test_a_message_is_looked_up_by_its_number_and_not_among_all(url: str) -> None:
    with penstock.open(url) as broker:
        asked: list[str] = []
        connection = database(broker).connect()
        connection.exec_trace = lambda _cursor, text, _values: asked.append(text) or True
        broker.create("orders").scan(5, 6, 1)
        connection.exec_trace = None
        (text,) = (text for text in asked if "number >=" in text)
        names = ["queue", "start", "stop", "limit"]
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", dict.fromkeys(names, 0))]
        assert any("penstock_message USING INTEGER PRIMARY KEY" in step for step in plan), plan


def test_a_scan_in_parts_finds_each_message_whatever_lies_between(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_queue, "NEAR", 3)
    with penstock.open(url) as broker:
        queue, other = broker.create("orders"), broker.create("others")
        sent = []
        for count in (1, 0, 2, 9, 0, 5):
            sent += [each.id for each in queue.send_many([b"x"] * count)]
            other.send_many([b"y"] * 7)
        found: list[penstock.Message] = []
        while part := queue.scan(found[-1].number + 1 if found else 0, limit=2):
            found += part
        assert [message.id for message in found] == sent


def test_a_scan_in_parts_does_not_sort_the_queue_for_each(url: str) -> None:
    with penstock.open(url) as broker:
        queue, connection = broker.create("orders"), database(broker).connect()
        queue.send_many([b"x"] * 300)
        _, first, _ = queue.span()
        asked: list[str] = []
        connection.exec_trace = lambda _cursor, text, _values: asked.append(text) or True
        assert len(queue.scan(first, limit=50)) == 50
        connection.exec_trace = None
        (text,) = (text for text in asked if "number >=" in text)
        plan = connection.execute(
            f"EXPLAIN QUERY PLAN {text}", dict.fromkeys(("queue", "start", "stop", "limit"), 0)
        ).fetchall()
        assert not any("ORDER BY" in step[3] for step in plan)


@pytest.mark.parametrize("error", [StoreBusy, QueueNotFound])
@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_what_a_receive_has_taken_is_given_although_its_next_round_fails(
    url: str, monkeypatch: pytest.MonkeyPatch, mode: str, error: type[Exception]
) -> None:
    """At most once, it is already settled, and would be lost."""
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        queue.send(b"late", deadline=0.5)
        queue.send_many([b"1", b"2"])
        clock.advance(1)
        calls = []

        def fail(claim: Callable[..., Any], _: str, *arguments: Any) -> Any:
            calls.append(1)
            if len(calls) > 1:
                raise error("orders")
            return claim(*arguments)

        wrap_verb(monkeypatch, broker, "claim", fail)
        assert [message.body for message in queue.receive(3, mode=mode)] == [b"1", b"2"]
        with pytest.raises(error):
            queue.receive(3, mode=mode) if mode == "at_most_once" else queue._opened.stored.claim(Claiming(1, 0, None))
        assert len(calls) > 1


def test_a_connection_that_was_closed_is_not_joined(url: str, path: Path) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        connection = apsw.Connection(str(path))
        connection.close()
        with pytest.raises(BadInput, match="was closed cannot join"):
            queue.send(b"x", connection=connection)
        assert queue.stats().messages == 0


def test_a_joined_connection_that_does_not_wait_is_told_so(url: str, path: Path) -> None:
    with penstock.open(url) as broker, penstock.open(url) as other:
        queue = broker.create("orders")
        connection = apsw.Connection(str(path))
        connection.execute("BEGIN")
        with other.store.batch():
            other["orders"].send(b"y")
            with pytest.raises(StoreBusy, match="does not wait: BEGIN IMMEDIATE"):
                queue.send(b"x", connection=connection)
        connection.close()
        assert queue.stats().messages == 1


def test_an_interrupt_right_after_its_commit_gives_no_number_twice(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        for _ in range(2):
            queue.send(b"before")  # the second reserves a block of numbers
        execute = SqliteDatabase._execute

        def interrupt(store: SqliteDatabase, connection: apsw.Connection, text: str, params: Any = ()) -> Any:
            rows = execute(store, connection, text, params)
            if text == "COMMIT":
                raise KeyboardInterrupt
            return rows

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(SqliteDatabase, "_execute", interrupt)
            queue.send_many([Draft(b"once", key="a"), Draft(b"more", key="b")], token="t")
        queue.send(b"after")
        queue.send_many([b"after"] * 3)
        assert queue.stats().messages == 8


def test_an_interrupt_of_a_batch_while_it_is_undone_leaves_nothing_of_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(SqliteDatabase, "_undo", interrupt)
            with broker.store.batch():
                queue.send(b"undone")
                raise RuntimeError
        for _ in range(3):
            queue.send(b"after")
        assert queue.stats().messages == 3


NOW = 1_000_000_000_000
AROUND = st.integers(NOW - 2, NOW + 2)
FIELDS = st.fixed_dictionaries(
    {
        "visible_at": st.integers(NOW - 3, NOW + 1),
        "state": st.sampled_from([int(State.QUEUED), int(State.CONSUMED)]),
        "receives": st.integers(0, 4),
        "delivery": st.integers(0, 1),
        "expires_at": st.one_of(AROUND, st.just(FOREVER)),
        "moved_at": st.one_of(st.none(), st.integers(NOW - 1_000_002, NOW - 999_998)),
        "sent_at": st.integers(NOW - 1_000_002, NOW - 999_998),
        "deadline_at": st.one_of(st.none(), AROUND),
    }
)


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[LocalBroker]:
    """One store for all examples of a test."""
    with open_local(f"sqlite:///{tmp_path}/judged.db", clock=FakeClock(NOW)) as broker:
        broker.create("dead")
        yield broker


NUMBERS = count(1_000_000)


@settings(max_examples=300, deadline=None)
@given(messages=st.lists(FIELDS, min_size=1, max_size=5), limit=st.integers(1, 5), redrive=st.booleans(), history=st.booleans())
def test_what_is_claimed_without_asking_the_rules_is_what_they_would_deliver(
    judged: LocalBroker, messages: list[dict[str, Any]], limit: int, redrive: bool, history: bool
) -> None:
    """Statements of runs compare with bounds that follow from the settings; `policy.judge` is where the rules are."""
    name, dead = str(uuid4()), ("dead", 2) if redrive else None
    queue = judged.create(name, retention=1, redrive=dead, history=60 if history else 0)
    stored, known = judged.store.queue(name), queue.settings
    order = []
    for fields, number in zip(messages, NUMBERS, strict=False):
        check = checksum(b"x", None, None, None, fields["sent_at"], fields["deadline_at"])
        row = {**fields, "number": number, "queue": database(judged).find(name).number, "checksum": check, "body": b"x"}
        insert = f"INSERT INTO penstock_message ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
        database(judged).connect().execute(insert, tuple(row.values()))
        order += [(fields["visible_at"], number)] if fields["visible_at"] <= NOW else []
    assert isinstance(stored.readers, ClaimingReaders)
    held = stored.readers.hold_visible("spark", 1, limit, NOW, NOW, NOW + 60, certain(known, NOW)).size
    taken = stored.readers.read("spark", 1, 0, held) if held else []
    assert [message.number for message in taken] == [number for _, number in sorted(order)[: len(taken)]]
    for message in taken:
        for mode in Mode:
            assert judge(message, known, mode, NOW) == (Verdict.DELIVER, ""), message
    judged.store.drop(name)


def test_several_large_messages_are_no_single_statement(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite would keep a copy of all of them until the statement is used again."""
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        ran: list[tuple[str, int]] = []
        run_alone = database(broker).run_alone

        def noting(name: str, params: Any, **options: Any) -> Any:
            ran.append((name, sum(len(value) for value in params if isinstance(value, bytes))))
            return run_alone(name, params, **options)

        queue.send(b"the second send")
        queue.send(b"reserves numbers")
        monkeypatch.setattr(database(broker), "run_alone", noting)
        queue.send_many([b"x" * 1000] * 3)
        assert [name for name, _ in ran] == ["insert_4"]
        queue.send_many([b"x" * 1_000_000] * 3)
        assert max(size for _, size in ran) <= 1024 * 1024
        assert queue.stats().messages == 8
