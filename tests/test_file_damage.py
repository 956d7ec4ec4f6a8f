"""Damage to a file beside the messages costs only its own message or record; the file is kept, counted and reported."""

import contextlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Broker, Draft, PenstockError, Queue
from penstock.publishing.segments import pack_drafts
from penstock.stores.files.records import RECEIVED
from penstock.stores.files.sending import FileSending
from penstock.testing import FakeClock

DAY = 86400
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[:-5],
    "emptied": lambda _: b"",
    "garbage": lambda content: bytes(byte ^ 0xA5 for byte in content),
    "zeros": lambda content: bytes(len(content)),
    "a list": lambda _: b"[]",
    "an object": lambda _: b"{}",
    "null": lambda _: b"null",
    "a text": lambda _: b'"text"',
    "deep": lambda _: b"[" * 100_000,
    "other types": lambda content: retyped(content),
}
BODIES = {b"%d" % number for number in range(1, 10)}


def retyped(content: bytes) -> bytes:
    """The same record, with every value replaced by a list."""
    try:
        head, line, body = content.partition(b"\n")
        return json.dumps({key: [[-1]] for key in json.loads(head)}).encode() + line + body
    except TypeError:  # a number
        return b"-1"
    except ValueError:  # a fixed record
        return RECEIVED.pack(*[-1] * 9) + content[RECEIVED.size :]


@pytest.fixture(params=["vsqs", "spool"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(scheme: str, tmp_path: Path) -> str:
    return f"{scheme}:///{tmp_path}/root"


@pytest.fixture(params=DAMAGES)
def damage(request: pytest.FixtureRequest) -> Callable[[bytes], bytes]:
    return DAMAGES[request.param]


def furnish(broker: Broker) -> set[bytes]:
    """A queue with every kind of file beside it; returns its content."""
    broker.create("dead")
    queue = broker.create("orders", deduplicate=True, history=DAY, redrive=("dead", 9), retention=30 * DAY)
    queue.send(b"gone")
    queue.delete(queue.receive()[0])
    for number in range(1, 8):
        queue.send(Draft(b"%d" % number, "text/plain", {"a": 1}))
    queue.send(b"8", delay=5)
    queue.sadd("9")
    queue.receive()[0].release()
    queue.receive(1)
    queue.claim("settled", 1, 1)
    queue.settle("settled", 1)
    queue.claim("reader", 1, 2)
    queue.confirm("reader", 1)
    queue.claim("reader", 2, 1)
    return BODIES - {message.body for message in queue.settled(9)}


def use(broker: Broker, clock: FakeClock) -> None:
    """Call every verb. It may be refused, but only with an error of our own."""
    queue = broker["orders"]

    def settle(verb: str) -> None:
        for message in queue.receive(1):
            getattr(message, verb)(*{"extend": [5], "release": []}[verb])

    verbs: list[Callable[[], object]] = [
        lambda: queue.peek(99),
        lambda: queue.stats(),
        lambda: queue.settled(99),
        lambda: queue.pulse(),
        lambda: queue.scan(*queue.span()[1:], 99),
        lambda: queue.readers(),
        lambda: queue.settled_epoch("settled"),
        lambda: queue.read("reader", 1),
        lambda: queue.read("reader", 2),
        lambda: queue.confirm("reader", 2),
        lambda: queue.claim("reader", 3, 1),
        lambda: queue.settled_epoch("reader"),
        lambda: queue.sismember("9"),
        lambda: queue.scard(),
        lambda: queue.sadd("9"),
        lambda: queue.send(b"6"),
        lambda: settle("extend"),
        lambda: settle("release"),
        lambda: queue.redrive(),
        lambda: queue.update(visibility=20),
        lambda: broker.queues(),
        lambda: broker.store.queue("orders").sweep(clock()),
        lambda: queue.give_up("reader"),
        lambda: queue.give_up("settled"),
    ]
    for verb in verbs:
        with contextlib.suppress(PenstockError):
            verb()


def drain(queue: Queue, clock: FakeClock) -> set[bytes]:
    found = set()
    for _ in range(3):
        clock.advance(3600)  # long enough for maintenance, too
        while messages := queue.receive(9):
            found |= {message.body for message in messages}
            assert all(queue.delete_many(messages))
    return found


def files(root: Path, part: str) -> list[Path]:
    beside = root / ".penstock" / "orders"
    return sorted(path for path in (beside / part, *(beside / part).rglob("*")) if path.is_file())


@pytest.mark.parametrize("part", ["head", "held", "mark", "settled", "reader", "settings"])
def test_a_damaged_file_costs_only_its_own_message_or_record(
    url: str, tmp_path: Path, part: str, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    root, clock = tmp_path / "root", FakeClock()
    with penstock.open(url, clock=clock) as broker:
        there = furnish(broker)
    path = files(root, part)[0]
    id, was = path.name, path.read_bytes()
    content = damage(was)
    path.write_bytes(content)
    body = next((file.read_bytes() for file in root.rglob(f"*{id}*") if ".penstock" not in file.parts), b"")
    with penstock.open(url, clock=clock) as broker:
        use(broker, clock)
        queue = broker["orders"]
        drained = drain(queue, clock)
        damaged = queue.peek(99, state="damaged")
        if part == "head":
            assert [message.body for message in damaged] == [body]
            assert drained == there - {body}
            assert files(root, "head")[0].read_bytes() == content
            assert queue.delete(id)
        else:
            assert damaged == []
            assert drained == there
            if content or part != "held":  # an empty file was never written
                assert content in [kept.read_bytes() for kept in files(root, "damaged")]
        if content or part != "held":
            assert queue.stats().damaged == (0 if part == "head" else 1)
            assert [
                record for record in caplog.records if record.levelno == logging.ERROR and "is damaged" in record.getMessage()
            ]
        assert queue.settings.retention == 30 * DAY
        assert queue.stats().messages == 0


@pytest.mark.parametrize("part", ["reader", "settled", "mark"])
def test_each_damaged_file_of_many_is_set_aside(url: str, tmp_path: Path, part: str, damage: Callable[[bytes], bytes]) -> None:
    root, clock = tmp_path / "root", FakeClock()
    with penstock.open(url, clock=clock) as broker:
        there = furnish(broker)
    for path in files(root, part):
        path.write_bytes(damage(path.read_bytes()))
    with penstock.open(url, clock=clock) as broker:
        use(broker, clock)
        assert drain(broker["orders"], clock) == there
        assert broker["orders"].stats().messages == 0


def test_a_damaged_message_of_a_claim_is_left_out_and_stays(url: str, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    with penstock.open(url, clock=FakeClock()) as broker:
        queue = broker.create("orders")
        sent = queue.send_many([Draft(b"%d" % number, "text/plain") for number in range(3)])
        queue.claim("reader", 1, 3)
        queue.confirm("reader", 1)
        path = tmp_path / "root" / ".penstock" / "orders" / "head" / sent[1].id
        path.write_bytes(damage(path.read_bytes()))
        for _ in range(2):
            assert [message.body for message in queue.read("reader", 1)] == [b"0", b"2"]
            assert [message.body for message in queue.read("reader", 1, damaged=True)] == [b"0", b"", b"2"]
        assert queue.settle("reader", 1) == 2
        stats = queue.stats()
        assert (stats.messages, stats.damaged, stats.in_flight, stats.delayed) == (1, 1, 0, 0)
        assert [message.body for message in queue.peek(9, state="damaged")] == [b"1"]
        assert queue.purge() == 1


def test_settings_without_a_copy_are_the_default_ones_and_nothing_expires(
    url: str, tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    root, clock = tmp_path / "root", FakeClock()
    with penstock.open(url, clock=clock) as broker:
        broker.create("orders", retention=3000 * DAY, visibility=7).send(b"x")
    for name in ("settings", "settings.copy"):
        path = root / ".penstock" / "orders" / name
        path.write_bytes(damage(path.read_bytes()))
    clock.advance(1000 * DAY)
    with penstock.open(url, clock=clock) as broker:
        queue = broker["orders"]
        assert queue.settings.visibility == 30
        assert [message.body for message in queue.receive()] == [b"x"]
        assert queue.stats().damaged == 1
        assert queue.update(visibility=7).visibility == 7
    with penstock.open(url, clock=clock) as broker:
        assert broker["orders"].settings.visibility == 7
    assert "the queue has the default ones until it is updated" in caplog.text


def test_a_queue_of_an_earlier_version_gets_a_copy_of_its_settings(url: str, tmp_path: Path) -> None:
    with penstock.open(url) as broker:
        broker.create("orders", visibility=7)
    beside = tmp_path / "root" / ".penstock" / "orders"
    (beside / "settings.copy").unlink()
    with penstock.open(url) as broker:
        broker["orders"].send(b"x")
    (beside / "settings").write_bytes(b"")
    with penstock.open(url) as broker:
        assert broker["orders"].settings.visibility == 7


def test_a_damaged_lock_gives_no_number_that_is_none(url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        queue.send(b"0")
        for number, memo in enumerate([b"garbage" * 3, b"\xff" * 16, b"\x7f" * 16, b"", b"x"], start=1):
            (tmp_path / "root" / ".penstock" / "orders" / "lock").write_bytes(memo)
            clock.advance(1)
            queue.send(b"%d" % number)
        assert [message.body for message in queue.receive(9)] == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_what_another_process_writes_anew_is_not_set_aside(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", deduplicate=300)
        queue.send(b"x")
        (mark,) = files(tmp_path / "root", "mark")
        good, rename = mark.read_bytes(), os.rename
        mark.write_bytes(b"damaged")

        def late(*paths: Any) -> None:
            mark.write_bytes(good)
            rename(*paths)

        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", late)
            broker.store.queue("orders").marked(b"")
            assert broker.store.queue("orders").sidecar.read_json("mark", mark.name) is None
        assert queue.send(b"x").duplicate
        assert queue.stats().damaged == 0


def staged(root: Path, name: str) -> Path:
    return root / ".penstock" / ".writers" / "w" / name


@pytest.fixture
def begun(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A publication of two pieces that was interrupted in the second."""
    with penstock.open(url) as broker:
        for name in ("orders", "others"):
            broker.create(name)
        stage(broker)
        publish, calls = FileSending._publish, [0]

        def die(*arguments: Any) -> None:
            calls[0] += 1
            if calls[0] == 5:
                raise MemoryError
            publish(*arguments)

        with monkeypatch.context() as patched, pytest.raises(MemoryError):
            patched.setattr(FileSending, "_publish", die)
            broker.publish("w", 1, {"a": 3, "b": 3})
    return url


def stage(broker: Broker) -> None:
    broker.stage("w", 1, "a", pack_drafts("orders", [Draft(b"%d" % number) for number in range(3)]))
    broker.stage("w", 1, "b", pack_drafts("others", [Draft(b"%d" % number) for number in range(3)]))


@pytest.mark.parametrize("name", ["1..manifest", "1..progress", "1..journal"])
def test_a_damaged_record_of_a_publication_loses_no_message(
    begun: str, tmp_path: Path, name: str, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    path = staged(tmp_path / "root", name)
    path.write_bytes(damage(path.read_bytes()))
    with penstock.open(begun) as broker:
        broker.store.queue("orders").sweep(0)
        stage(broker)
        broker.publish("w", 1, {"a": 3, "b": 3})
        for queue in ("orders", "others"):
            assert {message.body for message in broker[queue].receive(99)} == {b"0", b"1", b"2"}
        assert broker.publish("w", 1, {"a": 3, "b": 3}) is None
    assert "damaged" in caplog.text


def test_a_damaged_note_of_a_writer_does_not_keep_it_from_publishing(
    url: str, tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with penstock.open(url) as broker:
        for name in ("orders", "others"):
            broker.create(name)
        broker.publish("w", 1, {})
        path = staged(tmp_path / "root", ".published")
        path.write_bytes(damage(path.read_bytes()))
        stage(broker)
        assert broker.publish("w", 1, {"a": 3, "b": 3}) == 6
        assert broker.publish("w", 1, {"a": 3, "b": 3}) is None
    assert "is damaged; it was set aside" in caplog.text
