# ruff: noqa: PTH208
"""The file stores share their folders with other programs: those of `tests/foreign`, written from the formats alone."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.clock import system_clock
from penstock.testing import FakeClock
from penstock.testing.races import start_worker

HERE = Path(__file__).parent
FORMATS = HERE.parent / "docs/formats"
VSQS_NAME = re.compile(r"[1-9][0-9]*(\.new|\.[1-9][0-9]*)?")
ID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"

sys.path.insert(0, str(HERE))

from foreign import mq_mover, vsqs  # noqa: E402


def standing_clock() -> FakeClock:
    """A clock that stands still at about the date of the other program's files."""
    return FakeClock(system_clock() // 1_000_000 * 1_000_000)


class Vsqs:
    """One queue, seen by both programs, at one instant."""

    def __init__(self, root: Path) -> None:
        self.clock = standing_clock()
        self.root = root
        self.broker = penstock.open(f"vsqs:///{root}", clock=self.clock)
        self.queue = self.broker.create("orders", visibility=30)
        self.folder = root / "orders"

    def now(self) -> int:
        return self.clock.now // 1000

    def publish(self, body: bytes) -> str:
        self.clock.advance(1)
        return vsqs.publish(self.folder, body, self.now)

    def consume(self, visibility: int = 30_000) -> tuple[str, bytes] | None:
        return vsqs.consume(self.folder, visibility, self.now)

    def ls(self) -> list[str]:
        """The files in the folder, all of which VSQS must know."""
        names = sorted(os.listdir(self.folder))
        assert [name for name in names if not VSQS_NAME.fullmatch(name)] == []
        return names


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Vsqs]:
    both = Vsqs(tmp_path / "vsqs")
    with both.broker:
        yield both


class TestVsqs:
    def test_what_penstock_publishes_is_a_whole_number_of_milliseconds_and_then_ready(self, shared: Vsqs) -> None:
        before = shared.now()
        sent = shared.queue.send(b"one")
        assert before <= int(sent.id) < shared.now() + 10
        assert shared.ls() == [sent.id]
        assert (shared.folder / sent.id).read_bytes() == b"one"

    def test_a_message_with_all_that_vsqs_has_no_room_for_is_the_same_one_file(self, shared: Vsqs) -> None:
        sent = shared.queue.send(b"one", content_type="text/plain", attributes={"a": 1}, deadline=900)
        assert shared.ls() == [sent.id]
        assert (shared.folder / sent.id).read_bytes() == b"one"

    def test_penstock_publishes_and_the_other_consumes_and_deletes(self, shared: Vsqs) -> None:
        ids = [sent.id for sent in shared.queue.send_many([b"one", b"two"])]
        shared.clock.advance(1)
        assert shared.consume() == (ids[0], b"one")
        assert shared.ls() == [f"{ids[0]}.{shared.now() + 30_000}", ids[1]]
        assert [message.text for message in shared.queue.receive(10)] == ["two"]
        assert vsqs.delete(shared.folder, ids[0])
        assert shared.queue.stats().messages == 1

    def test_the_other_publishes_and_penstock_consumes_and_deletes(self, shared: Vsqs) -> None:
        ids = [shared.publish(b"one"), shared.publish(b"two")]
        (message,) = shared.queue.receive()
        assert (message.id, message.body, message.receives) == (ids[0], b"one", 1)
        assert shared.ls() == [f"{ids[0]}.{shared.now() + 30_000}", ids[1]]
        assert shared.consume() == (ids[1], b"two")
        assert message.delete()
        assert shared.ls() == [f"{ids[1]}.{shared.now() + 30_000}"]

    def test_they_take_turns_in_the_order_of_the_numbers(self, shared: Vsqs) -> None:
        for number in range(0, 6, 2):
            shared.publish(b"%d" % number)
            shared.queue.send(b"%d" % (number + 1))
        got = []
        while (message := shared.consume()) is not None:
            got += [message[1], *(other.body for other in shared.queue.receive())]
        assert got == [b"%d" % number for number in range(6)]

    def test_ninety_nine_comes_before_one_hundred(self, shared: Vsqs) -> None:
        for name in ("100", "99", "1000"):
            (shared.folder / name).write_bytes(name.encode())
        (shared.folder / "98.new").write_bytes(b"half")
        assert [message.id for message in shared.queue.receive(10)] == ["99", "100", "1000"]
        assert (shared.folder / "98.new").exists()

    def test_penstock_requeues_what_the_other_let_lapse(self, shared: Vsqs) -> None:
        id = shared.publish(b"one")
        shared.consume(5_000)
        assert shared.queue.receive() == []
        shared.clock.advance(4.999)
        assert shared.queue.receive() == []
        shared.clock.advance(0.002)
        (message,) = shared.queue.receive()
        assert message.id == id
        assert shared.ls() == [f"{id}.{shared.now() + 30_000}"]

    def test_the_other_requeues_what_penstock_let_lapse(self, shared: Vsqs) -> None:
        id = shared.queue.send(b"one").id
        shared.queue.receive(visibility=5)
        shared.clock.advance(4.999)
        assert shared.consume() is None
        shared.clock.advance(0.002)
        assert shared.consume() == (id, b"one")

    def test_the_other_holds_back_what_penstock_has_delayed(self, shared: Vsqs) -> None:
        id = shared.queue.send(b"one", delay=5).id
        assert shared.ls() == [f"{id}.{shared.now() + 5_000}"]
        assert shared.consume() is None
        shared.clock.advance(5.001)
        assert shared.consume() == (id, b"one")

    def test_the_other_gets_at_once_what_penstock_gives_back(self, shared: Vsqs) -> None:
        id = shared.queue.send(b"one").id
        (message,) = shared.queue.receive()
        assert message.release()
        assert shared.ls() in ([id], [f"{id}.{shared.now()}"])
        shared.clock.advance(0.001)
        assert shared.consume() == (id, b"one")

    def test_the_other_sees_penstock_extend_its_claim(self, shared: Vsqs) -> None:
        id = shared.queue.send(b"one").id
        (message,) = shared.queue.receive()
        assert message.extend(60)
        assert shared.ls() == [f"{id}.{shared.now() + 60_000}"]
        shared.clock.advance(59)
        assert shared.consume() is None

    def test_a_receipt_is_stale_once_the_other_has_claimed_the_message(self, shared: Vsqs) -> None:
        id = shared.queue.send(b"one").id
        (late,) = shared.queue.receive(visibility=5)
        shared.clock.advance(5.001)
        assert shared.consume() == (id, b"one")
        held = [f"{id}.{shared.now() + 30_000}"]
        assert (late.extend(60), late.release(), late.delete()) == (False, False, False)
        assert shared.ls() == held

    def test_a_receipt_is_stale_once_the_other_has_deleted_the_message(self, shared: Vsqs) -> None:
        id = shared.queue.send(b"one").id
        (late,) = shared.queue.receive()
        assert vsqs.delete(shared.folder, id)
        assert (late.extend(60), late.release(), late.delete()) == (False, False, False)
        assert shared.ls() == []

    def test_a_lapsed_claim_that_the_other_has_requeued_can_still_be_deleted(self, shared: Vsqs) -> None:
        shared.queue.send(b"one")
        (message,) = shared.queue.receive(visibility=5)
        shared.clock.advance(5.001)
        vsqs.requeue(shared.folder, shared.now)
        assert message.delete()
        assert shared.ls() == []

    def test_penstock_deletes_by_id_whatever_the_extension(self, shared: Vsqs) -> None:
        ready, held = shared.queue.send(b"one").id, shared.queue.send(b"two").id
        (shared.folder / held).rename(shared.folder / f"{held}.{shared.now() + 9_000}")
        assert shared.queue.delete(held)
        assert shared.queue.delete(ready)
        assert not shared.queue.delete(ready)
        assert shared.ls() == []

    def test_the_other_deletes_what_penstock_holds_and_is_not_missed(self, shared: Vsqs) -> None:
        ids = [sent.id for sent in shared.queue.send_many([b"one", b"two"])]
        shared.queue.receive()
        assert all(vsqs.delete(shared.folder, id) for id in ids)
        shared.clock.advance(31)
        assert shared.queue.receive(10) == []
        assert shared.queue.stats().messages == 0

    @pytest.mark.parametrize("extension", ["", ".new", ".4000000000000"])
    @pytest.mark.parametrize("ahead", range(4))
    @pytest.mark.parametrize("count", [1, 3])
    def test_a_number_that_the_other_has_taken_is_taken(self, shared: Vsqs, extension: str, ahead: int, count: int) -> None:
        first = int(shared.queue.send(b"mine").id)
        taken = shared.folder / f"{first + ahead + (not ahead and not extension)}{extension}"
        if ahead == 0 and extension:
            shared.queue.purge()
        taken.write_bytes(b"theirs")
        sent = [answer.id for answer in shared.queue.send_many([b"%d" % number for number in range(count)])]
        assert taken.read_bytes() == b"theirs"
        assert taken.name.split(".")[0] not in sent
        assert [(shared.folder / id).read_bytes() for id in sent] == [b"%d" % number for number in range(count)]
        numbers = Counter(name.split(".")[0] for name in shared.ls())
        assert set(numbers.values()) == {1}

    @pytest.mark.parametrize("state", ["ready", "held", "delayed"])
    def test_the_other_never_takes_a_number_that_penstock_has_taken(self, shared: Vsqs, state: str) -> None:
        mine = shared.queue.send(b"mine", delay=9 if state == "delayed" else 0).id
        if state == "held":
            shared.queue.receive()
        instants = iter([int(mine), int(mine), int(mine) + 1])
        assert vsqs.publish(shared.folder, b"theirs", lambda: next(instants)) == str(int(mine) + 1)
        assert shared.queue.stats().messages == 2

    def test_at_one_millisecond_each_message_has_a_number_of_its_own(self, shared: Vsqs) -> None:
        ids = []
        for _ in range(50):
            ticks = iter(range(shared.now(), shared.now() + 1_000))
            ids += [shared.queue.send(b"mine").id, vsqs.publish(shared.folder, b"theirs", lambda ticks=ticks: next(ticks))]
        assert len(set(ids)) == 100 == len(shared.ls())
        assert Counter(message.body for message in shared.queue.receive(1000)) == {b"mine": 50, b"theirs": 50}

    def test_what_the_other_publishes_while_penstock_sends_is_not_overlooked(
        self, shared: Vsqs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The other program's file appears between two of our calls: at each of our renames, once."""
        shared.queue.send(b"mine")
        rename, theirs = os.rename, []

        def interrupted(source: object, target: object) -> None:
            if len(theirs) < 3:
                theirs.append(b"theirs-%d" % len(theirs))
                (shared.folder / str(shared.now() + 500 + len(theirs))).write_bytes(theirs[-1])
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", interrupted)
            shared.queue.send(b"mine")
            shared.queue.receive()
            shared.queue.send(b"mine")
        got: list[bytes] = []
        while messages := shared.queue.receive(100):
            got += [message.body for message in messages]
        assert sorted(got) == [b"mine", b"mine", *theirs]

    @pytest.mark.parametrize("extension", ["", ".4000000000000"], ids=["ready", "held"])
    def test_a_number_that_the_other_takes_while_penstock_waits_for_its_turn_is_taken(
        self, shared: Vsqs, monkeypatch: pytest.MonkeyPatch, extension: str
    ) -> None:
        """After we read our clock, the other program uses the number that we were about to take."""
        shared.queue.send(b"first")
        next_number = max(map(int, shared.ls())) + 1
        create, done = os.open, []

        def interrupted(path: object, *arguments: object) -> int:
            if str(path).endswith(".new") and not done:
                done.append((shared.folder / f"{next_number}{extension}").write_bytes(b"theirs"))
            return create(path, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", interrupted)
            shared.queue.send(b"mine")
        assert done
        assert len({name.split(".")[0] for name in shared.ls()}) == 3
        assert sorted((shared.folder / name).read_bytes() for name in shared.ls()) == [b"first", b"mine", b"theirs"]

    @pytest.mark.parametrize("verb", ["delete", "extend", "release"])
    def test_to_lose_any_race_is_no_error(self, shared: Vsqs, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        """The other program deletes the message right before our rename or unlink."""
        shared.queue.send(b"one")
        (message,) = shared.queue.receive()
        rename, unlink = os.rename, os.unlink

        def gone(path: Path) -> None:
            if path.parent == shared.folder:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)  # noqa: PTH107

        def late_rename(source: Path, target: Path) -> None:
            gone(Path(source))
            rename(source, target)

        def late_unlink(path: str) -> None:
            gone(Path(path))
            unlink(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", late_rename)
            patch.setattr(os, "unlink", late_unlink)
            answer = message.extend(60) if verb == "extend" else getattr(message, verb)()
        assert answer is False
        assert shared.ls() == []
        assert shared.queue.receive(10) == []

    def test_a_folder_that_the_other_made_is_a_queue(self, shared: Vsqs) -> None:
        (shared.root / "theirs").mkdir()
        id = vsqs.publish(shared.root / "theirs", b"one", shared.now)
        (message,) = shared.broker["theirs"].receive()
        assert (message.id, message.body) == (id, b"one")
        assert message.delete()
        assert os.listdir(shared.root / "theirs") == []

    def test_a_queue_that_the_other_made_can_be_given_settings_while_it_holds_messages(self, shared: Vsqs) -> None:
        (shared.root / "theirs").mkdir()
        vsqs.publish(shared.root / "theirs", b"one", shared.now)
        theirs = shared.broker["theirs"]
        theirs.update(retention=3600, visibility=5)
        (message,) = theirs.receive()
        assert os.listdir(shared.root / "theirs") == [f"{message.id}.{shared.now() + 5_000}"]


class Spool:
    """One spool, seen by both programs, at one instant."""

    def __init__(self, root: Path) -> None:
        self.clock = standing_clock()
        self.root = root
        self.broker = penstock.open(f"spool:///{root}", clock=self.clock)
        self.queue = self.broker.create("orders", visibility=30)
        self.mover = mq_mover.Mover(root, 30)

    def move(self) -> None:
        self.mover.move(self.clock.now / 1e6)
        self.ls()

    def publish(self, body: bytes) -> str:
        return mq_mover.publish(self.root, "orders", body)

    def fetch(self) -> tuple[str, bytes] | None:
        return mq_mover.fetch(self.root, "orders")

    def remove(self, id: str) -> bool:
        return mq_mover.remove(self.root, "orders", id)

    def ls(self) -> list[str]:
        """All files, all of which MQ-Core must know."""
        assert sorted(name for name in os.listdir(self.root) if name != ".penstock") == ["delay", "new", "queues", "remove"]
        assert os.listdir(self.root / "queues") == ["orders"]
        found = [f"queues/orders/{id}" for id in os.listdir(self.root / "queues/orders")]
        found += [f"{part}/{name}" for part in ("new", "delay", "remove") for name in os.listdir(self.root / part)]
        pattern = re.compile(rf"queues/orders/{ID}|(new|delay|remove)/orders:{ID}")
        assert [name for name in found if not pattern.fullmatch(name)] == []
        return sorted(found)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    both = Spool(tmp_path / "spool")
    with both.broker:
        yield both


class TestSpool:
    def test_penstock_publishes_and_the_other_fetches_and_removes(self, spool: Spool) -> None:
        sent = spool.queue.send(b"one")
        spool.move()
        assert spool.ls() == [f"queues/orders/{sent.id}"]
        assert spool.fetch() == (sent.id, b"one")
        assert spool.ls() == [f"delay/orders:{sent.id}"]
        assert spool.remove(sent.id)
        assert spool.ls() == [f"remove/orders:{sent.id}"]
        spool.move()
        assert spool.ls() == []
        assert spool.queue.stats().messages == 0

    @pytest.mark.parametrize("moved", [False, True], ids=["penstock-moves", "the-other-moves"])
    def test_the_other_publishes_and_penstock_receives_and_deletes(self, spool: Spool, moved: bool) -> None:
        id = spool.publish(b"one")
        assert spool.ls() == [f"new/orders:{id}"]
        if moved:
            spool.move()
            assert spool.ls() == [f"queues/orders/{id}"]
        (message,) = spool.queue.receive()
        assert (message.id, message.body) == (id, b"one")
        assert spool.ls() == [f"delay/orders:{id}"]
        assert message.delete()
        spool.move()
        assert spool.ls() == []

    def test_a_message_that_is_being_written_is_not_delivered_before_it_is_closed(self, spool: Spool) -> None:
        id = "4ad814ab-213e-11e3-a9a3-0025904f6e08"
        with (spool.root / f"new/orders:{id}").open("wb") as file:
            file.write(b"ha")
            file.flush()
            assert spool.queue.receive() == []
            spool.move()
            assert spool.ls() == [f"new/orders:{id}"]
            file.write(b"lf")
        assert [message.body for message in spool.queue.receive()] == [b"half"]

    def test_the_other_holds_what_it_has_fetched_for_the_visibility_of_the_queue(self, spool: Spool) -> None:
        spool.publish(b"one")
        spool.move()
        id, _ = spool.fetch() or ("", b"")
        assert spool.queue.receive() == []
        assert spool.ls() == [f"delay/orders:{id}"]
        spool.clock.advance(29)
        assert spool.queue.receive() == []

    def test_penstock_redelivers_what_the_other_let_lapse(self, spool: Spool) -> None:
        id = spool.queue.send(b"one").id
        assert spool.fetch() == (id, b"one")
        assert spool.queue.receive() == []
        spool.clock.advance(32)
        assert [message.id for message in spool.queue.receive()] == [id]

    def test_the_other_redelivers_what_penstock_let_lapse(self, spool: Spool) -> None:
        id = spool.queue.send(b"one").id
        (late,) = spool.queue.receive(visibility=30)
        spool.move()
        spool.clock.advance(29)
        spool.move()
        assert spool.ls() == [f"delay/orders:{id}"]
        spool.clock.advance(2)
        spool.move()
        assert spool.ls() == [f"queues/orders/{id}"]
        (again,) = spool.queue.receive()
        assert (again.id, again.receives) == (id, 2)
        assert not late.delete()
        assert again.delete()

    def test_penstock_deletes_by_id_what_the_other_published_wherever_it_lies(self, spool: Spool) -> None:
        for steps in range(3):
            id = spool.publish(b"one")
            if steps > 0:
                spool.move()
            if steps > 1:
                assert spool.fetch() == (id, b"one")
            assert spool.queue.delete(id), spool.ls()
            spool.move()
            assert spool.ls() == []

    def test_the_other_removes_what_penstock_published_wherever_it_lies(self, spool: Spool) -> None:
        ready, delayed, held = (
            spool.queue.send(b"one").id,
            spool.queue.send(b"two", delay=60).id,
            spool.queue.send(b"three").id,
        )
        spool.queue.delete(ready)
        (message,) = spool.queue.receive()
        assert message.id == held
        assert spool.remove(delayed)
        assert spool.remove(held)
        assert not message.delete()
        spool.move()
        assert spool.ls() == []
        assert spool.queue.stats().messages == 0

    @pytest.mark.parametrize("delay", [0, 60])
    def test_a_mover_that_is_quicker_than_the_sender_is_no_error(
        self, spool: Spool, monkeypatch: pytest.MonkeyPatch, delay: int
    ) -> None:
        """The other program moves everything in new/ right before each of our renames; a delay is still kept."""
        rename = os.rename

        def after_the_mover(source: object, target: object) -> None:
            for name in os.listdir(spool.root / "new"):
                rename(spool.root / "new" / name, spool.root / "queues/orders" / name.split(":")[1])
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", after_the_mover)
            sent = spool.queue.send(b"one", delay=delay)
        assert spool.ls() == [f"delay/orders:{sent.id}" if delay else f"queues/orders/{sent.id}"]

    @pytest.mark.parametrize("verb", ["delete", "extend", "release"])
    def test_to_lose_any_race_is_no_error(self, spool: Spool, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
        """The other program removes the message right before our rename."""
        id = spool.queue.send(b"one").id
        (message,) = spool.queue.receive()
        rename, utime = os.rename, os.utime

        def gone() -> None:
            with contextlib.suppress(FileNotFoundError):
                rename(spool.root / f"delay/orders:{id}", spool.root / f"remove/orders:{id}")

        def late_rename(source: object, target: object) -> None:
            gone()
            rename(source, target)

        def late_utime(*arguments: object, **options: object) -> None:
            gone()
            utime(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", late_rename)
            patch.setattr(os, "utime", late_utime)
            answer = message.extend(60) if verb == "extend" else getattr(message, verb)()
        assert answer is False
        assert spool.queue.receive(10) == []

    def test_the_timer_of_a_delayed_message_survives_a_restart(self, spool: Spool) -> None:
        id = spool.queue.send(b"one", delay=60).id
        assert spool.ls() == [f"delay/orders:{id}"]
        with penstock.open(f"spool:///{spool.root}", clock=spool.clock) as again:
            spool.clock.advance(59)
            assert again["orders"].receive() == []
            spool.clock.advance(1)
            assert [message.id for message in again["orders"].receive()] == [id]

    def test_a_folder_that_the_other_made_is_a_queue(self, spool: Spool) -> None:
        (spool.root / "queues/theirs").mkdir()
        id = mq_mover.publish(spool.root, "theirs", b"one")
        (message,) = spool.broker["theirs"].receive()
        assert (message.id, message.body) == (id, b"one")
        assert message.delete()


def start_foreign(program: str, folder: Path, role: str, log: Path, *rest: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(HERE / "foreign" / program), str(folder), role, str(log), *map(str, rest)])


def run_race(
    log: Path, count: int, senders: list[subprocess.Popen[bytes]], others: list[subprocess.Popen[bytes]]
) -> list[list[str]]:
    """Let them work until everything that was sent has been deleted; returns the lines of the log."""
    try:
        assert [sender.wait(60) for sender in senders] == [0] * len(senders)
        end = time.monotonic() + 120
        while log.read_text().count("deleted ") < count and time.monotonic() < end:
            assert [other.poll() for other in others] == [None] * len(others), "a consumer has ended by itself"
            time.sleep(0.05)
    finally:
        for process in senders + others:
            process.kill()
            process.wait()
    return [line.split() for line in log.read_text().splitlines()]


def check_race(lines: list[list[str]], count: int, lapsed: set[str]) -> None:
    sent = {line[1] for line in lines if line[0] == "sent"}
    deleted = Counter(line[2] for line in lines if line[0] == "deleted")
    got = Counter(line[2] for line in lines if line[0] == "got")
    assert len(sent) == count
    assert sent - deleted.keys() == set(), "messages were lost, or are stuck"
    assert deleted.keys() <= sent, "messages were invented"
    assert set(deleted.values()) == {1}, "messages were deleted twice"
    assert {body for body, times in got.items() if times > 1} <= lapsed, "messages were claimed twice"


def check_held(lines: list[list[str]]) -> set[str]:
    """Check that no process got a message while the other program held it; returns the messages whose claim it let lapse."""
    lapsed = {line[1] for line in lines if line[0] in ("holding", "dropped")}
    claims = Counter[str]()
    for line in lines:
        if line[0] == "got":
            claims[line[2]] += 1
        elif line[0] in ("holding", "dropped"):
            assert line[0] == "dropped" or claims[line[1]] == 1, f"{line[1]} was claimed while a claim was live"
            claims[line[1]] = 0
    return lapsed


class TestRaces:
    """Penstock's processes and another program share a folder, by the real clock."""

    def test_vsqs_processes_and_a_stranger_deliver_each_message_once(self, tmp_path: Path) -> None:
        url, folder, log = f"vsqs:///{tmp_path}/vsqs", tmp_path / "vsqs/orders", tmp_path / "log"
        with penstock.open(url) as broker:
            queue = broker.create("orders", visibility=600)
            log.touch()
            receivers = [start_worker(url, "orders", "receive", log, "r", batch, 1) for batch in (1, 5)]
            receivers += [start_foreign("vsqs.py", folder, "consume", log, 800, 20)]
            senders = [start_worker(url, "orders", "send", log, f"s{batch}", batch, 600) for batch in (1, 12)]
            senders += [start_foreign("vsqs.py", folder, "publish", log, "f", 600)]
            lines = run_race(log, 1800, senders, receivers)
            lapsed = check_held(lines)
            assert lapsed, "the stranger let nothing lapse"
            check_race(lines, 1800, lapsed)
            assert [name for name in os.listdir(folder) if not VSQS_NAME.fullmatch(name)] == []
            assert queue.stats().messages == 0 == len(os.listdir(folder))

    def test_spool_processes_and_a_strangers_mover_deliver_each_message_once(self, tmp_path: Path) -> None:
        url, root, log = f"spool:///{tmp_path}/spool", tmp_path / "spool", tmp_path / "log"
        with penstock.open(url) as broker:
            queue = broker.create("orders", visibility=600)
            log.touch()
            receivers = [start_worker(url, "orders", "receive", log, "r", batch, 1) for batch in (1, 5)]
            receivers += [start_foreign("mq_mover.py", root, "consume", log, "orders")]
            receivers += [start_foreign("mq_mover.py", root, "move", log, 600_000)]
            senders = [start_worker(url, "orders", "send", log, f"s{batch}", batch, 400) for batch in (1, 12)]
            senders += [start_foreign("mq_mover.py", root, "publish", log, "orders", "f", 400)]
            lines = run_race(log, 1200, senders, receivers)
            check_race(lines, 1200, set())
            assert queue.stats().messages == 0
            mq_mover.Mover(root, 600).move(0)
            assert [list((root / part).iterdir()) for part in ("new", "queues/orders", "delay", "remove")] == [[]] * 4


def steps(page: Path) -> list[tuple[str, str | None]]:
    """The Python blocks of a page, each with the text block that shows what it prints."""
    found: list[tuple[str, str | None]] = []
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.M | re.S):
        if language == "python":
            found.append((block, None))
        elif language == "text" and found and found[-1][1] is None:
            found[-1] = (found[-1][0], block)
    return found


@pytest.mark.parametrize("slow", [False, True], ids=["", "slow"])
@pytest.mark.parametrize("page", sorted(FORMATS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_shows_the_listing_that_each_step_leaves(
    page: Path, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids contain the time of sending, including the wait for the lock; with ``slow``, that wait is long."""
    monkeypatch.chdir(tmp_path)
    if slow:
        late, now = itertools.count(1), time.monotonic_ns
        monkeypatch.setattr(time, "monotonic_ns", lambda: now() + next(late) * 50_000_000)
    names: dict[str, object] = {}
    for number, (code, shown) in enumerate(steps(page)):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{page.name}[{number}]", "exec"), names)
        expected = (shown or "").splitlines()
        lines = printed.getvalue().splitlines()
        assert len(lines) == len(expected), f"step {number} of {page.name} printed:\n{printed.getvalue()}"
        for line, pattern in zip(lines, expected, strict=True):
            assert re.fullmatch(".*".join(map(re.escape, pattern.split("…"))), line), f"step {number} of {page.name}: {line!r}"
