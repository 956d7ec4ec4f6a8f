"""Files that another program leaves in a queue's folder are delivered whatever their name, or counted and reported."""

import logging
import os
import time
import uuid
from pathlib import Path

import pytest

import penstock
from penstock.testing import FakeClock

SERVED = ["order-17", "message1", "4ad814ab-213e-11e3-a9a3-0025904f6e08", "0", "-", "x:y", "%41", "{}", "UPPER", "a" * 200]
UNSERVED = ["a b", ".hidden", "half~", "a" * 201, "Ü", "line\nbreak", os.fsdecode(b"\xff")]
BROTHERS = [f"the-same-long-beginning-{number}" for number in range(30)]


class Spool:
    def __init__(self, root: Path) -> None:
        self.root = root / "spool"
        self.clock = FakeClock(time.time_ns() // 1000)
        self.broker = penstock.open(f"spool:///{self.root}", clock=self.clock)
        self.queue = self.broker.create("orders", visibility=30, history=3600)

    def publish(self, id: str, body: bytes = b"theirs") -> Path:
        path = self.root / "new" / f"orders:{id}"
        path.write_bytes(body)
        return path


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


@pytest.mark.parametrize("id", SERVED)
def test_an_id_of_a_spool_can_be_any(spool: Spool, id: str) -> None:
    spool.publish(id)
    (message,) = spool.queue.receive()
    assert (message.id, message.body) == (id, b"theirs")
    assert message.extend(60)
    assert message.release()
    (message,) = spool.queue.receive()
    assert message.receives == 2
    spool.clock.advance(31)
    (message,) = spool.queue.receive()
    assert message.delete()
    assert [settled.id for settled in spool.queue.settled()] == [id]
    assert spool.queue.stats().messages == 0
    assert spool.queue.stats().foreign == []
    files = [path for path in spool.root.rglob("*") if path.is_file() and not {"settled", ".reserve"} & {*path.parts}]
    assert not [path for path in files if id in path.name]


@pytest.mark.parametrize("id", UNSERVED)
def test_what_a_spool_cannot_deliver_is_counted_and_named(spool: Spool, id: str, caplog: pytest.LogCaptureFixture) -> None:
    spool.publish(id)
    spool.publish("good")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert [message.id for message in spool.queue.receive(9)] == ["good"]
    assert f"not messages; they are left alone: {f'queues/orders/{id}'!r}" in caplog.messages[-1]
    caplog.clear()
    stats = spool.queue.stats()
    assert (stats.messages, stats.foreign) == (1, [f"queues/orders/{id}"])
    assert caplog.messages == []  # it was reported before
    assert (spool.root / "queues" / "orders" / id).read_bytes() == b"theirs"
    (spool.root / "queues" / "orders" / id).unlink()
    assert spool.queue.stats().foreign == []


def test_a_file_without_an_id_stays_in_new(spool: Spool) -> None:
    for id in ("", ".", ".."):
        spool.publish(id)
    assert spool.queue.receive() == []
    assert spool.queue.stats().foreign == ["new/orders:", "new/orders:.", "new/orders:.."]


def test_an_id_that_is_there_already_waits_in_new_for_its_turn(spool: Spool) -> None:
    spool.publish("one", b"first")
    (first,) = spool.queue.receive()
    spool.publish("one", b"second")
    assert spool.queue.receive() == []
    assert spool.queue.stats().foreign == ["new/orders:one"]
    assert first.release()
    (first,) = spool.queue.receive()
    assert first.body == b"first"
    assert first.delete()
    (second,) = spool.queue.receive()
    assert (second.body, second.receives) == (b"second", 1)
    assert spool.queue.stats().foreign == []


def test_ids_that_bear_no_time_are_all_seen_and_delivered_before_a_backlog(spool: Spool) -> None:
    spool.queue.send_many([b"ours"] * 10)
    for id in BROTHERS:
        spool.publish(id)
    found: list[penstock.Message] = []
    while page := spool.broker.store.queue("orders").browse(
        7, now=spool.clock.now, after=(0, found[-1].number if found else 0)
    ):
        found += page
    assert len({message.id for message in found}) == 40
    assert sorted(message.id for message in spool.queue.receive(30)) == sorted(BROTHERS)
    assert [message.body for message in spool.queue.receive(100)] == [b"ours"] * 10


def test_a_uuid_of_version_1_comes_in_the_order_of_its_time(spool: Spool) -> None:
    spool.clock.now = time.time_ns() // 1000 - 1_000_000
    spool.queue.send(b"before")
    spool.publish(str(uuid.uuid1()))
    spool.clock.now = time.time_ns() // 1000 + 1_000_000
    spool.queue.send(b"after")
    assert [message.body for message in spool.queue.receive(3)] == [b"before", b"theirs", b"after"]


def test_an_id_that_bears_no_time_has_the_retention_of_now(spool: Spool) -> None:
    spool.queue.send(b"ours")
    spool.queue.update(retention=7200)
    spool.publish("message1")
    message = next(message for message in spool.queue.peek(9) if message.id == "message1")
    assert message.expires_at - message.sent_at == 7200 * 1_000_000


def test_programs_that_want_a_uuid_get_one_for_any_id(spool: Spool) -> None:
    store = spool.broker.store
    for id in SERVED:
        spool.publish(id)
    for id in [message.id for message in spool.queue.receive(99)]:
        given = store.uuids.of("orders", id)
        assert str(uuid.UUID(given)) == given
        assert store.uuids.id_of("orders", given) == id
    assert store.uuids.id_of("orders", str(uuid.uuid5(uuid.NAMESPACE_OID, "unknown"))) not in SERVED


class Vsqs:
    def __init__(self, root: Path) -> None:
        self.clock = FakeClock(time.time_ns() // 1_000_000 * 1000)
        self.broker = penstock.open(f"vsqs:///{root}/vsqs", clock=self.clock)
        self.queue = self.broker.create("orders", visibility=30)
        self.folder = root / "vsqs" / "orders"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def vsqs(tmp_path: Path) -> Vsqs:
    return Vsqs(tmp_path)


@pytest.mark.parametrize("extension", ["0", "000", "0.5", "1.", "0001415776879654", "1415776879654.25"])
def test_an_expiry_that_has_passed_can_be_spelled_in_any_way(vsqs: Vsqs, extension: str) -> None:
    (vsqs.folder / f"1415776871123.{extension}").write_bytes(b"theirs")
    (message,) = vsqs.queue.receive()
    assert (message.id, message.body) == ("1415776871123", b"theirs")
    assert vsqs.queue.stats().in_flight == 1
    assert message.delete()
    assert vsqs.names() == []


def test_a_fractional_expiry_is_respected_and_rounded_up(vsqs: Vsqs) -> None:
    until = vsqs.clock.now // 1000 + 1000
    (vsqs.folder / f"1415776871123.{until}.5").write_bytes(b"theirs")
    assert vsqs.queue.receive() == []
    assert vsqs.names() == [f"1415776871123.{until + 1}"]
    vsqs.clock.advance(1.0009)
    assert vsqs.queue.receive() == []
    vsqs.clock.advance(0.0001)
    assert [message.body for message in vsqs.queue.receive()] == [b"theirs"]


def test_an_expiry_beyond_all_time_is_never(vsqs: Vsqs) -> None:
    (vsqs.folder / f"1415776871123.{'9' * 17}").write_bytes(b"theirs")
    vsqs.clock.advance(10**9)
    assert vsqs.queue.receive() == []
    assert vsqs.queue.stats().messages == 1


@pytest.mark.parametrize(
    "name",
    ["README", "0123", "1415776871123.", "1415776871123.lock", "1415776871123.1e9", "1" * 18, "٣", "1.٣", ".nfs01", "a\nb"],
)
def test_what_vsqs_cannot_deliver_is_counted_and_named(vsqs: Vsqs, name: str, caplog: pytest.LogCaptureFixture) -> None:
    (vsqs.folder / name).write_bytes(b"theirs")
    sent = vsqs.queue.send(b"ours")
    assert [message.id for message in vsqs.queue.receive(9)] == [sent.id]
    stats = vsqs.queue.stats()
    assert (stats.messages, stats.foreign) == (1, [f"orders/{name}"])
    assert repr(f"orders/{name}") in "\n".join(caplog.messages)
    assert (vsqs.folder / name).read_bytes() == b"theirs"


def test_two_files_of_one_number_are_not_made_one(vsqs: Vsqs) -> None:
    (vsqs.folder / "1415776871123").write_bytes(b"one")
    (vsqs.folder / "1415776871123.0").write_bytes(b"two")
    assert vsqs.queue.stats().foreign == ["orders/1415776871123.0"]
    assert [message.body for message in vsqs.queue.receive(9)] == [b"one"]
    assert (vsqs.folder / "1415776871123.0").read_bytes() == b"two"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_keeps_nobody_from_the_queue(vsqs: Vsqs, spool: Spool, make: object) -> None:
    for queue, path in ((vsqs.queue, vsqs.folder / "99"), (spool.queue, spool.root / "queues/orders/thing")):
        make(path)  # type: ignore[operator]
        queue.send(b"ours")
        assert [message.body for message in queue.receive(9)] == [b"ours"]
        assert queue.stats().foreign[0].endswith(path.name)


def test_a_folder_in_new_is_not_delivered(spool: Spool) -> None:
    (spool.root / "new" / "orders:folder").mkdir()
    assert spool.queue.receive() == []
    assert spool.queue.stats().foreign == ["new/orders:folder"]
