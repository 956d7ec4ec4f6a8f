"""What both file stores do beyond the contract: orphans, half-done claims, names, full disks, foreign numbers."""

import contextlib
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import penstock
from penstock.errors import BadName, QueueExists, QueueNotFound, StoreFull, StoreReadOnly
from penstock.file_times import ORPHANED, file_age
from penstock.message import FOREVER
from penstock.patience import Patience
from penstock.publishing.segments import pack_drafts
from penstock.stores.disk import remove_folder
from penstock.stores.files import sweeping, transactions, vsqs
from penstock.stores.files.folder import Folder
from penstock.stores.files.history import FileHistory
from penstock.stores.files.records import RECEIVED
from penstock.stores.files.sending import FileSending
from penstock.testing import FakeClock
from penstock.testing.power import need_mounts

ID = {"vsqs": "1415776871123", "spool": "0191b9d5-7d3c-7000-8000-000000000001"}
OLD = ORPHANED + 60


@pytest.fixture(params=["vsqs", "spool"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(scheme: str, tmp_path: Path) -> str:
    return f"{scheme}:///{tmp_path}/root"


def folder_of(root: Path, scheme: str, queue: str = "orders") -> Path:
    return root / queue if scheme == "vsqs" else root / "queues" / queue


def draft(root: Path, scheme: str) -> Path:
    if scheme == "vsqs":
        return root / "orders" / f"{ID[scheme]}.new"
    return root / ".penstock" / ".drafts" / f"orders:{ID[scheme]}"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file's ctime cannot be set back, so add to its age instead."""
    monkeypatch.setattr("penstock.file_times.file_age", lambda changed_at: file_age(changed_at) + OLD)


def test_a_draft_of_a_dead_sender_is_cleared_away(url: str, scheme: str, tmp_path: Path, later: None) -> None:
    with penstock.open(url) as broker:
        broker.create("orders")
        path = draft(tmp_path / "root", scheme)
        path.write_bytes(b"half")
        broker.store.queue("orders").sweep(0)
        assert not path.exists()
        assert broker["orders"].receive() == []


def test_a_draft_that_is_young_or_still_open_stays(
    url: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    with penstock.open(url) as broker:
        broker.create("orders")
        path = draft(tmp_path / "root", scheme)
        path.write_bytes(b"half")
        broker.store.queue("orders").sweep(0)
        assert path.exists()
        request.getfixturevalue("later")
        with path.open("ab"):
            broker.store.queue("orders").sweep(0)
            assert path.exists()


@pytest.mark.parametrize("part", ["head", "held"])
def test_what_lay_beside_a_message_that_is_gone_is_cleared_away(
    url: str, scheme: str, tmp_path: Path, later: None, part: str
) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send(penstock.Draft(b"x", attributes={"a": 1}))
        [held] = queue.receive()
        beside = tmp_path / "root" / ".penstock" / "orders" / part
        (beside / ID[scheme]).write_bytes(b"{}")
        broker.store.queue("orders").sweep(0)
        assert [path.name for path in beside.iterdir()] == [held.id]


def test_the_mark_of_a_message_that_never_came_is_cleared_away(url: str, scheme: str, tmp_path: Path, later: None) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders", deduplicate=True)
        queue.send(b"x")
        beside = tmp_path / "root" / ".penstock" / "orders" / "mark"
        mark = beside / ("0" * 64)
        mark.write_text(f'{{"id": "{ID[scheme]}", "until": {FOREVER}, "published": false}}')
        broker.store.queue("orders").sweep(0)
        assert len(list(beside.iterdir())) == 1
        assert not mark.exists()
        assert queue.send(b"x").duplicate


def sweep_all(broker: penstock.Broker, now: int) -> int:
    """How many slices it takes to sweep the whole queue."""
    slices = 1
    while broker.store.queue("orders").sweep(now).more:
        slices += 1
    return slices


def fill_history(queue: penstock.Queue, count: int) -> None:
    queue.send_many([b"%d" % number for number in range(count)])
    for message in queue.receive(count):
        queue.delete(message)


def history_of(root: Path) -> int:
    return len(list((root / ".penstock" / "orders" / "settled").iterdir()))


def test_old_history_goes_a_part_at_a_time(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SLICE", 2)
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        fill_history(broker.create("orders", history=1), 5)
        left = []
        for _ in range(3):
            swept = broker.store.queue("orders").sweep(clock() + 2_000_000)
            left.append((history_of(tmp_path / "root"), swept.more))
        assert left == [(3, True), (1, True), (0, False)]


def test_a_store_that_is_closed_while_a_sweep_goes_on_leaves_no_folder_open(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "SLICE", 2)
    with penstock.open(url) as broker:
        fill_history(broker.create("orders", history=3600), 5)
        assert broker.store.queue("orders").sweep(broker.clock()).more
        assert str(tmp_path / "root" / ".penstock" / "orders" / "settled") in open_files()
    assert not [path for path in open_files() if path.startswith(str(tmp_path))]


def open_files() -> list[str]:
    found = []
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(handle.readlink()))
    return found


def test_a_sweep_looks_at_a_part_of_a_long_history(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SLICE", 3)
    clock, looked, look = FakeClock(), [], FileHistory.sweep
    with penstock.open(url, clock=clock) as broker:
        fill_history(broker.create("orders", history=3600), 10)
        monkeypatch.setattr(FileHistory, "sweep", lambda self, name, now: looked.append(name) or look(self, name, now))
        assert broker.store.queue("orders").sweep(clock()).more
        assert len(looked) == 3
        assert sweep_all(broker, clock()) == 3
        assert len(set(looked)) == len(looked) == 10


def test_a_sweep_that_failed_begins_anew(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SLICE", 2)
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        fill_history(broker.create("orders", history=1), 5)
        stored = broker.store.queue("orders")
        assert stored.sweep(clock()).more
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(FileHistory, "sweep", interrupt)
            stored.sweep(clock() + 2_000_000)
        sweep_all(broker, clock() + 2_000_000)
        assert history_of(tmp_path / "root") == 0


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_message_that_another_process_sends_while_a_sweep_goes_on_keeps_its_head(
    url: str, monkeypatch: pytest.MonkeyPatch, later: None
) -> None:
    monkeypatch.setattr(sweeping, "SLICE", 1)
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker, penstock.open(url, clock=clock) as other:
        fill_history(broker.create("orders", history=3600), 2)
        assert broker.store.queue("orders").sweep(clock()).more
        other["orders"].send(penstock.Draft(b"theirs", attributes={"a": 1}))
        sweep_all(broker, clock())
        assert [message.attributes for message in other["orders"].peek()] == [{"a": 1}]


def test_what_another_process_settles_while_a_sweep_goes_on_stays_in_the_history(
    url: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: None
) -> None:
    """The message is still in our picture of the folder, as if its settler had been killed before it removed the file."""
    monkeypatch.setattr(sweeping, "SLICE", 1)
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker, penstock.open(url, clock=clock) as other:
        broker.create("orders", history=3600).send(b"x")
        draft(tmp_path / "root", scheme).touch()  # the first slice looks at it, and has not listed the history yet
        assert broker.store.queue("orders").sweep(clock()).more
        other["orders"].delete(other["orders"].receive()[0])
        sweep_all(broker, clock())
        assert [message.body for message in other["orders"].settled()] == [b"x"]


def test_a_confirmation_killed_after_its_rename_leaves_nothing_stuck(url: str) -> None:
    """A message that is hidden for ever can be settled only by its record, which is therefore written first."""
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        queue.send(b"x")
        queue.claim("reader", 1, 1)
        if (child := os.fork()) == 0:
            layout = broker.store.queue("orders").folder.layout
            rename = layout.rename
            layout.rename = lambda *args: (rename(*args), die())
            queue.confirm("reader", 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with penstock.open(url, clock=clock) as broker:
        broker["orders"].settle("reader", 1)
        assert broker["orders"].stats().messages == 0


def test_a_settlement_cut_short_is_finished_when_the_queue_is_opened(url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", history=100)
        queue.send_many([b"1", b"2", b"3"])
        queue.claim("reader", 1, 2)
        queue.confirm("reader", 1)
        holding = broker.store.queue("orders").holding
        delete, calls = holding.delete, []

        def die(*args: object) -> bool:
            calls.append(args)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return bool(delete(*args))

        holding.delete = die
        with pytest.raises(KeyboardInterrupt):
            queue.settle("reader", 1)
    with penstock.open(url, clock=clock) as broker:
        queue = broker["orders"]
        assert [message.body for message in queue.peek(9)] == [b"3"]
        assert [message.body for message in queue.settled(9)] == [b"1", b"2"]
        assert queue.settled_epoch("reader") == 1
        assert queue.readers() == {"reader": []}


def test_a_confirmation_cut_short_is_finished_when_the_queue_is_opened(url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2"])
        queue.claim("reader", 1, 2)
        holding = broker.store.queue("orders").holding
        extend, calls = holding.extend, []

        def die(*args: object, **options: object) -> bool:
            calls.append(args)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return bool(extend(*args, **options))

        holding.extend = die
        with pytest.raises(KeyboardInterrupt):
            queue.confirm("reader", 1)
    with penstock.open(url, clock=clock) as broker:
        queue = broker["orders"]
        assert [claim.confirmed for claim in queue.readers()["reader"]] == [True]
        clock.advance(3600)
        assert queue.receive() == []
        assert [message.body for message in queue.read("reader", 1)] == [b"1", b"2"]


def test_a_lapsed_claim_leaves_no_file(url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        queue.send(b"1")
        queue.claim("reader", 1, 1, ttl=60)
        clock.advance(61)
        broker.store.queue("orders").sweep(clock())
        assert queue.readers() == {"reader": []}
        assert queue.receive()[0].body == b"1"


def test_where_a_and_A_are_one_folder_only_one_can_be_a_queue(  # noqa: N802
    url: str, scheme: str, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    with penstock.open(url) as broker:
        broker.create("A").send(b"x")
        # Simulate a case-folding file system.
        folder_of(root, scheme, "a").symlink_to(folder_of(root, scheme, "A"))
        (root / ".penstock" / "a").symlink_to(root / ".penstock" / "A")
        with pytest.raises(BadName, match="does not distinguish it from queue 'A'"):
            broker.create("a")
        assert "a" not in broker
        with pytest.raises(QueueNotFound):
            broker.store.queue("a").count(0)
        assert not broker.store.save("a", penstock.Settings(), create=False)
        assert broker["A"].receive()[0].body == b"x"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    need_mounts()
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_on_a_full_tmpfs_nothing_acknowledged_is_lost_and_nothing_half_written_seen(scheme: str, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2**20))
    url = f"{scheme}:///{small_disk}/root"
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        sent = 0
        with pytest.raises(StoreFull, match="no space left"):
            while True:
                queue.send(b"%08d" % sent * 2000)
                sent += 1
        assert sent > 20
        with pytest.raises(StoreFull):
            queue.send_many([b"x" * 30_000] * 20)
        assert queue.stats().messages == sent
        assert not [path for path in small_disk.rglob("*") if path.name.endswith((".new", "~"))]
        ballast.unlink()
        queue.send(b"%08d" % sent * 2000)
        sent += 1
    with penstock.open(url) as broker:
        bodies = [message.body for message in broker["orders"].peek(1000)]
        assert bodies == [b"%08d" % number * 2000 for number in range(sent)]
        assert broker["orders"].receive()[0].body == bodies[0]


def test_a_folder_that_only_we_work_on_is_not_listed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The folder is listed once a second anyway, so stop the clock.
    monkeypatch.setattr(Patience, "now", lambda *_: 1000.0)
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"%d" % number for number in range(100)])
        queue.receive()
        layout = broker.store.queue("orders").folder.layout
        listed = []
        scan = layout.scan
        monkeypatch.setattr(layout, "scan", lambda foreign: listed.append(1) or scan(foreign))
        for _ in range(30):
            queue.send(b"more")
            queue.delete(queue.receive()[0])
        assert listed == []


@pytest.mark.parametrize("mode", ["at_least_once", "at_most_once"])
def test_a_message_whose_receive_was_interrupted_is_seen_at_once(url: str, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2", b"3"])
        assert len(queue.peek(9)) == 3
        broker.store.queue("orders").folder._doubtful = False  # as a few milliseconds after the last change

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Folder, "read_with_head", interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.receive(3, mode=mode)
        assert {message.body for message in queue.peek(9)} == {b"1", b"2", b"3"}


@pytest.mark.parametrize("visibility", [0.01, 3600])
def test_by_the_real_clock_what_is_received_can_be_settled(url: str, tmp_path: Path, visibility: float) -> None:
    """The file system's clock is our own here, and must not look like a change by another program."""
    with penstock.open(url) as broker:
        queue = broker.create("orders", visibility=visibility)
        queue.send_many([b"%d" % number for number in range(4)])
        assert [message.body for message in queue.receive(mode="at_most_once")] == [b"0"]
        assert queue.stats().messages == 3
        first, second, third = queue.receive(3)
        assert first.extend(60)
        assert first.extend(30)
        assert second.release()
        assert [message.delete() for message in (first, second, third)] == [True, True, True]
        assert queue.stats().messages == 0


def test_a_send_lists_nothing_while_only_penstock_writes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(url, clock=FakeClock()) as broker, penstock.open(url, clock=FakeClock()) as other:
        queue, theirs = broker.create("orders"), other["orders"]
        theirs.send(b"x")
        queue.send(b"x")
        with monkeypatch.context() as patch:
            for call in ("listdir", "scandir"):
                patch.setattr(os, call, lambda *_: pytest.fail("the folder was listed"))
            for _ in range(10):
                queue.send(b"x")
                theirs.send_many([b"x"] * 20)
        assert queue.stats().messages == 212


def test_of_many_creators_one_creates(url: str) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(8) as pool:
        brokers = [stack.enter_context(penstock.open(url)) for _ in range(8)]

        def create(broker: penstock.Broker) -> bool:
            try:
                broker.create("orders").send(b"first")
            except QueueExists:
                return False
            return True

        def delete(broker: penstock.Broker) -> bool:
            try:
                broker.delete("orders")
            except QueueNotFound:
                return False
            return True

        for _ in range(5):
            assert sum(pool.map(create, brokers)) == 1
            assert brokers[0]["orders"].stats().messages == 1
            assert sum(pool.map(delete, brokers)) >= 1


def test_whoever_uses_a_queue_while_it_is_dropped_is_told_so(url: str) -> None:
    with penstock.open(url) as broker, penstock.open(url) as other, ThreadPoolExecutor(1) as pool:
        done = Event()

        def use() -> set[type[Exception]]:
            """Returns the errors that occurred."""
            seen: set[type[Exception]] = set()
            queue = other.create("orders", exist_ok=True)
            while not done.is_set():
                try:
                    queue.send(b"x", attributes={"a": 1})
                    for message in queue.receive(2):
                        message.delete()
                except penstock.PenstockError as error:
                    seen.add(type(error))
            return seen

        used = pool.submit(use)
        try:
            for _ in range(40):
                broker.create("orders", exist_ok=True)
                broker.delete("orders")
        finally:
            done.set()
        assert used.result() <= {QueueNotFound}


def test_a_read_only_disk_is_an_error_of_its_own_and_changes_nothing(scheme: str, small_disk: Path) -> None:
    url = f"{scheme}:///{small_disk}/root"
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send(b"x")
        (message,) = queue.receive()
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        for verb in (lambda: queue.send(b"y"), message.delete, lambda: queue.receive(), lambda: broker.create("more")):
            with pytest.raises(StoreReadOnly, match="cannot be written"):
                verb()
        subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
        assert queue.stats().messages == 1
        assert message.delete()


def test_a_change_of_another_program_is_seen_at_once(url: str, scheme: str, tmp_path: Path) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        for number in range(20):
            assert queue.receive() == []
            queue.send(b"ours")
            name = ID[scheme][:-2] + f"{number + 10}"
            (folder_of(tmp_path / "root", scheme) / name).write_bytes(b"theirs")
            assert {message.body for message in queue.receive(2)} == {b"ours", b"theirs"}
            queue.purge()


def test_a_foreign_message_of_the_same_number_is_never_overwritten(tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open(f"vsqs:///{tmp_path}/root", clock=clock) as broker:
        queue = broker.create("orders")
        queue.send(b"first")
        layout = broker.store.queue("orders").folder.layout
        take, foreign = layout.take_ids, []

        def race(count: int, now: int) -> list[str]:
            ids = take(count, now)
            if not foreign:
                foreign.extend(ids)
                (layout.folder / ids[0]).write_bytes(b"foreign")
                os.utime(layout.folder / ids[0], (now // 10**6, now // 10**6))
            return ids

        layout.take_ids = race
        assert queue.send(b"second").id != foreign[0]
        clock.advance(1)
        assert [message.body for message in queue.receive(9)] == [b"first", b"foreign", b"second"]


def take_between(broker: penstock.Broker, act: Callable[[], object]) -> None:
    """Do something once between the look at a message and its removal."""
    stored, acts = broker["orders"]._opened.stored, [act]
    delete = stored.delete

    def late(*args: object) -> object:
        if acts:
            acts.pop()()
        return delete(*args)

    stored.delete = late


def test_at_most_once_what_another_takes_first_is_not_delivered(url: str) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker, penstock.open(url, clock=clock) as other:
        queue, taken = broker.create("orders"), []
        queue.send(b"x")
        take_between(broker, lambda: taken.extend(other["orders"].receive()))
        assert queue.receive(mode="at_most_once") == []
        assert [message.receives for message in taken] == [1]
        assert queue.delete(taken[0].receipt)


def test_at_most_once_what_another_removes_first_is_not_delivered(url: str, scheme: str, tmp_path: Path) -> None:
    with penstock.open(url, clock=FakeClock()) as broker:
        queue = broker.create("orders")
        first, _ = queue.send_many([b"theirs", b"ours"])
        take_between(broker, (folder_of(tmp_path / "root", scheme) / first.id).unlink)
        assert [message.body for message in queue.receive(mode="at_most_once")] == [b"ours"]


def test_at_most_once_a_receive_that_another_gave_back_is_counted(url: str, scheme: str, tmp_path: Path) -> None:
    clock, root = FakeClock(), tmp_path / "root"
    with penstock.open(url, clock=clock) as broker, penstock.open(url, clock=clock) as other:
        queue = broker.create("orders")
        id = queue.send(b"x").id

        def receive_and_give_back() -> None:
            other["orders"].receive()[0].release()
            (path,) = (path for path in root.rglob(f"*{id}*") if ".penstock" not in path.parts)
            path.rename(folder_of(root, scheme) / id)

        take_between(broker, receive_and_give_back)
        assert [message.receives for message in queue.receive(mode="at_most_once")] == [2]
        assert queue.stats().messages == 0


def test_at_most_once_nothing_is_written_before_the_removal(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(url, clock=FakeClock()) as broker:
        queue = broker.create("orders")
        queue.send(b"x")
        before = sorted(tmp_path.rglob("*"))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("penstock.policy.judge", lambda *_: raise_interrupt())
            queue.receive(mode="at_most_once")
        assert sorted(tmp_path.rglob("*")) == before
        assert [message.receives for message in queue.receive()] == [1]


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def test_at_most_once_the_folder_that_a_message_left_is_synced_and_no_other(
    url: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(url, clock=FakeClock()) as broker:
        queue = broker.create("orders")
        queue.send(b"x")
        synced, fsync = [], os.fsync
        monkeypatch.setattr(
            os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink()) or fsync(handle)
        )
        assert len(queue.receive(mode="at_most_once")) == 1
        assert synced == [folder_of(tmp_path / "root", scheme)]


def test_a_change_of_the_settings_is_seen_even_if_their_file_looks_the_same(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a tick of the file system's clock, a file can be replaced twice and get the same inode and dates again."""
    monkeypatch.setattr("penstock.file_times.TICK", 10**18)
    with penstock.open(url) as broker, penstock.open(url) as other:
        queue = broker.create("orders", visibility=1)
        queue.send(b"x")
        path = str(tmp_path / "root" / ".penstock" / "orders" / "settings")
        stat, status = os.stat, Path(path).stat()
        monkeypatch.setattr(os, "stat", lambda at, **options: status if at == path else stat(at, **options))
        assert queue.settings.visibility == 1
        other["orders"].update(visibility=2)
        assert queue.settings.visibility == 2


def test_settings_that_did_not_change_are_not_read_again(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        monkeypatch.setattr("penstock.file_times.TICK", -(10**18))
        queue.send(b"x")
        opened, open = [], os.open
        monkeypatch.setattr(os, "open", lambda path, *rest: opened.append(str(path)) or open(path, *rest))
        queue.send(b"x")
        assert opened
        assert not [path for path in opened if path.endswith("settings")]


def test_what_was_being_published_to_a_queue_that_another_made_again_is_finished(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is identified by its current state, not by its state when this process opened it."""
    with penstock.open(url) as broker, penstock.open(url) as other:
        broker.create("orders").send(b"old")
        other.delete("orders")
        other.create("orders")
        broker.stage("w", 1, "a", pack_drafts("orders", [penstock.Draft(b"%d" % number) for number in range(5)]))
        publish, calls = FileSending._publish, [0]

        def die(*arguments: Any) -> int:
            calls[0] += 1
            if calls[0] == 3:
                raise MemoryError
            return publish(*arguments)

        with monkeypatch.context() as patched, pytest.raises(MemoryError):
            patched.setattr(FileSending, "_publish", die)
            broker.publish("w", 1, {"a": 5})
    with penstock.open(url) as broker:
        broker.publish("w", 1, {"a": 5})
        assert sorted(message.body for message in broker["orders"].peek(9)) == [b"%d" % number for number in range(5)]


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def die() -> None:
    os._exit(9)


def act_once(monkeypatch: pytest.MonkeyPatch, call: str, part: str, act: Callable[[], object]) -> None:
    """Do something at the next such call that creates a file with this in its path."""
    real, left = getattr(os, call), [1]

    def instead(path: Any, *rest: Any, **options: Any) -> Any:
        if left and part in str(path) and rest[0] & os.O_CREAT:
            left.clear()
            act()
        return real(path, *rest, **options)

    monkeypatch.setattr(os, call, instead)


DRAFT = {"vsqs": ".new", "spool": "/.drafts/"}


@pytest.mark.parametrize("deduplicate", [300, True])
@pytest.mark.parametrize("how", ["fails", "dies"])
@pytest.mark.parametrize("where", ["draft", "head", "mark", "publish"])
def test_a_send_that_fails_or_dies_is_no_duplicate_of_another_message(
    url: str, scheme: str, monkeypatch: pytest.MonkeyPatch, how: str, where: str, deduplicate: float
) -> None:
    """While the clock stands still, the next send takes the number that the first could not use."""
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        broker.create("orders", deduplicate=deduplicate).send(b"before")
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(StoreFull), penstock.open(url, clock=clock) as broker:
            act = die if how == "dies" else full
            if where == "publish":
                monkeypatch.setattr(FileSending, "_publish", lambda *_: act())
            else:
                act_once(monkeypatch, "open", DRAFT[scheme] if where == "draft" else f"/{where}/", act)
            broker["orders"].send(b"one", key="k1")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (0 if how == "fails" else 9)
    with penstock.open(url, clock=clock) as broker:
        queue = broker["orders"]
        assert not queue.send(b"two", key="k2").duplicate
        assert not queue.send(b"one", key="k1").duplicate
        assert sorted(message.body for message in queue.receive(9)) == [b"before", b"one", b"two"]


def test_a_message_is_a_duplicate_within_the_window_though_its_sender_died_and_it_was_deleted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        broker.create("orders", deduplicate=300)
    if (child := os.fork()) == 0:
        monkeypatch.setattr(FileSending, "_end_insert", lambda *_: die())
        penstock.open(url, clock=clock)["orders"].send(b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    with penstock.open(url, clock=clock) as broker:
        queue = broker["orders"]
        assert queue.delete(queue.receive()[0])
        assert queue.send(b"x").duplicate
        clock.advance(300)
        assert not queue.send(b"x").duplicate


def test_an_equal_message_that_another_process_sends_while_ours_is_written_makes_ours_the_duplicate(url: str) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker, penstock.open(url, clock=clock) as other:
        queue, theirs = broker.create("orders", deduplicate=300), []
        sending = broker.store.queue("orders").sending
        write = sending._write

        def late(*args: Any) -> None:
            write(*args)
            theirs.append(other["orders"].send(b"x"))

        sending._write = late
        answers = queue.send_many([b"x", b"y", b"x"])
        assert [sent.duplicate for sent in answers] == [True, False, True]
        assert answers[0].id == answers[2].id == theirs[0].id
        assert sorted(message.body for message in queue.receive(9)) == [b"x", b"y"]


def test_the_mark_of_a_dead_sender_does_not_outlive_its_draft(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark without a draft counts, so the draft is removed last, though it is older."""
    monkeypatch.setattr("penstock.stores.files.sweeping.is_orphaned", lambda path: "/mark/" not in path)
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        broker.create("orders", deduplicate=300)
        if (child := os.fork()) == 0:
            broker.store.queue("orders").sending._publish = lambda *_: die()
            broker["orders"].send(b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        marks = tmp_path / "root" / ".penstock" / "orders" / "mark"
        assert len(list(marks.iterdir())) == 1
        broker.store.queue("orders").sweep(clock())
        assert list(marks.iterdir()) == []
        assert not broker["orders"].send(b"x").duplicate


def test_a_mark_of_an_earlier_version_counts_while_its_message_is_there(url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", deduplicate=300)
        id = queue.send(b"x").id
        (mark,) = (tmp_path / "root" / ".penstock" / "orders" / "mark").iterdir()
        mark.write_text(f'{{"id": "{id}", "until": {clock() + 10**8}, "published": false}}')
        assert queue.send(b"x") == (id, True)
        queue.delete(queue.receive()[0])
        assert not queue.send(b"x").duplicate


def lose_the_last_number(tmp_path: Path) -> None:
    """A power cut may do this, since the number is not synced. While the clock stands still, VSQS reuses deleted numbers."""
    (tmp_path / "root" / ".penstock" / "orders" / "lock").write_bytes(b"")


def test_a_mark_that_was_left_behind_does_not_count_for_another_message_of_the_same_number(url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", deduplicate=True)
        queue.send(b"x")
        if (child := os.fork()) == 0:
            broker.store.queue("orders").marks.remove = lambda *_: die()
            queue.delete(queue.receive()[0])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        lose_the_last_number(tmp_path)
        assert not queue.send(b"y").duplicate
        assert not queue.sadd("y")
        assert not queue.sismember("x")
        assert queue.scard() == 1
        assert not queue.send(b"x").duplicate
        assert [message.body for message in queue.receive(9)] == [b"y", b"x"]


def test_a_window_is_not_ended_by_a_draft_of_the_same_number(url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", deduplicate=300)
        queue.send(b"x")
        queue.delete(queue.receive()[0])
        lose_the_last_number(tmp_path)
        if (child := os.fork()) == 0:
            broker.store.queue("orders").sending._publish = lambda *_: die()
            queue.send(b"y")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert queue.send(b"x").duplicate
        assert not queue.send(b"y").duplicate


def fail_from(monkeypatch: pytest.MonkeyPatch, first: int, *calls: str) -> None:
    """Make each of these calls fail from the given one on: the disk is full, and a folder cannot grow."""
    count = [0]
    for module, call in [(os, call) for call in calls if call != "rename_new"] + [(vsqs, "rename_new")]:
        if call in calls:
            real = getattr(module, call)

            def fail(*args: Any, real: Any = real, **options: Any) -> Any:
                if not any("/.penstock/orders/" in str(arg) for arg in args):  # these are not tested here
                    count[0] += 1
                    if count[0] >= first:
                        full()
                return real(*args, **options)

            monkeypatch.setattr(module, call, fail)


@pytest.mark.parametrize("delay", [0, 30])
@pytest.mark.parametrize("calls", [["rename", "rename_new"], ["rename", "rename_new", "unlink"]], ids=["moves", "and removals"])
def test_a_send_that_fails_leaves_no_message_or_a_whole_one(
    url: str, monkeypatch: pytest.MonkeyPatch, delay: float, calls: list[str]
) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", deduplicate=True)
        drafts = [
            penstock.Draft(b"%d" % number, attributes={"customer": "ACME"}, deadline=3600, delay=delay) for number in range(3)
        ]
        with monkeypatch.context() as patched, pytest.raises(StoreFull):
            fail_from(patched, 2, *calls)
            queue.send_many(drafts)
        left = queue.peek(9)
        assert [(message.body, message.attributes, message.deadline_at) for message in left] == (
            [(b"0", {"customer": "ACME"}, clock() + 3600 * 10**6)] if "unlink" in calls else []
        )
        queue.send_many(drafts)
        clock.advance(31)
        assert {message.body for message in queue.receive(9)} == {b"0", b"1", b"2"}


def test_a_delayed_send_that_fails_at_its_last_step_leaves_no_message(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        with monkeypatch.context() as patched, contextlib.suppress(StoreFull):
            act_once(patched, "open", "/held/", full)
            queue.send(b"pay", attributes={"customer": "ACME"}, deadline=3600, delay=1)
        clock.advance(60)
        assert [(message.body, message.attributes) for message in queue.receive(9)] in (
            [],  # the spool, which keeps this record
            [(b"pay", {"customer": "ACME"})],
        )


@pytest.mark.parametrize("call", ["rename", "utime"])
@pytest.mark.parametrize("verb", ["extend", "release"])
def test_an_extension_that_fails_leaves_the_message_with_its_holder(
    url: str, monkeypatch: pytest.MonkeyPatch, call: str, verb: str
) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders", visibility=100)
        for first in range(1, 9):
            queue.send(b"x")
            (message,) = queue.receive()
            try:
                with monkeypatch.context() as patched:
                    fail_from(patched, first, call)
                    assert getattr(message, verb)(50)
            except StoreFull:
                assert message.extend(70)
                clock.advance(60)
                assert queue.receive() == []
            assert message.delete()


@pytest.mark.parametrize("call", ["fsync", "open", "mkdir", "rename", "listdir", "scandir", "stat"])
def test_whatever_the_disk_refuses_is_an_error_of_ours(url: str, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def use(broker: penstock.Broker) -> None:
        queue = broker.create("orders", exist_ok=True, deduplicate=300, history=60)
        queue.send(b"x", delay=1)
        for message in queue.receive(2):
            message.extend(1)
            message.delete()
        queue.claim("r", 1, 1)
        queue.confirm("r", 1)
        queue.settle("r", 1)
        broker.stage("w", 1, "a", pack_drafts("orders", [penstock.Draft(b"y")]))
        broker.publish("w", 1, {"a": 1})
        broker.delete("orders")

    with monkeypatch.context() as patched, contextlib.suppress(penstock.PenstockError):
        patched.setattr(os, call, refuse)
        with penstock.open(url) as broker:
            use(broker)
    with penstock.open(url) as broker:
        with monkeypatch.context() as patched, contextlib.suppress(penstock.PenstockError):
            patched.setattr(os, call, refuse)
            use(broker)
        broker.create("more").send(b"x")


def test_a_record_from_before_there_were_holders_counts(url: str, tmp_path: Path) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        queue.send(b"x")
        (held,) = queue.receive(visibility=30, holder="worker")
        (record,) = (tmp_path / "root" / ".penstock" / "orders" / "held").iterdir()
        record.write_bytes(record.read_bytes()[: RECEIVED.size])
    with penstock.open(url, clock=clock) as broker:
        queue = broker["orders"]
        assert [(message.receives, message.delivery, message.holder) for message in queue.peek()] == [(1, clock.now, None)]
        assert queue.delete(held.receipt)


def test_a_shorter_name_takes_the_place_of_a_longer_one(url: str) -> None:
    clock = FakeClock()
    with penstock.open(url, clock=clock) as broker:
        queue = broker.create("orders")
        queue.send(b"x")
        for holder in ("a very long name", "b", None):
            queue.receive(visibility=1, holder=holder)
            assert queue.peek()[0].holder == holder
            clock.advance(2)


def test_a_commit_carries_along_what_this_process_has_received_but_not_each_time(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(transactions, "sync", lambda path: synced.append(str(path)))

    def held() -> set[str]:
        found = {Path(path).name for path in synced if "/held/" in path}
        synced.clear()
        return found

    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2", b"3", b"4"])
        (first,) = queue.receive()
        assert held() == set(), "a receive by itself does not wait for the disk"
        queue.send(b"x")
        assert held() == {first.id}
        monkeypatch.setattr(transactions, "CLAIMS_EVERY", 3600)
        (second,), (third,) = queue.receive(), queue.receive()
        queue.send(b"x")
        assert held() == set(), "it was done within the last second"
        monkeypatch.setattr(transactions, "CLAIMS_EVERY", 0)
        assert second.delete()
        assert held() == {third.id}, "what is gone need not be counted"
        queue.send(b"x")
        assert held() == set(), "once is enough"


def test_a_disk_that_refuses_the_record_of_a_receive_does_not_fail_a_send(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = transactions.sync

    def refuse(path: Path | str) -> None:
        if "/held" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path)

    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2"])
        queue.receive()
        monkeypatch.setattr(transactions, "sync", refuse)
        queue.send(b"x")
        assert queue.stats().messages == 3


def test_a_message_that_was_moved_shares_its_number_with_none_that_is_sent_later(tmp_path: Path) -> None:
    """In a burst VSQS numbers run ahead of the clock, and so ahead of the numbers in the target queue."""
    clock = FakeClock()
    with penstock.open(f"vsqs:///{tmp_path}/queues", clock=clock) as broker:
        dead = broker.create("dead")
        dead.send(b"first")  # from now on a sender knows the last number and does not list the folder
        dead.receive()[0].delete()
        jobs = broker.create("jobs", redrive=("dead", 1), visibility=0)
        jobs.send_many([b"%d" % number for number in range(50)])
        assert len(jobs.receive(50)) == 50
        assert jobs.receive(50) == []
        buried = dead.receive(50)
        assert len(buried) == 50
        sent = {answer.id for answer in dead.send_many([b"later"] * 100)}
        assert len(sent) == 100
        assert not sent & {message.id for message in buried}
        assert dead.delete_many(buried) == [True] * 50
        assert [message.body for message in dead.receive(200)] == [b"later"] * 100


def test_an_interrupted_removal_closes_no_descriptor_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone" / "inner").mkdir(parents=True)
    (tmp_path / "gone" / "inner" / "file").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / "gone" / "link").symlink_to(tmp_path / "kept")
    close, closed = os.close, []

    def interrupted_close(handle: int) -> None:
        closed.append(handle)
        close(handle)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(os, "close", interrupted_close)
        remove_folder(tmp_path / "gone")
    assert len(closed) == len(set(closed))
    remove_folder(tmp_path / "gone")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_message_that_a_full_disk_kept_from_being_claimed_is_seen_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2"])
        assert len(queue.peek(9)) == 2
        folder = broker.store.queue("orders").folder
        rename, asked = folder.layout.rename, []

        def fail_second(source: str, id: str, hidden: int) -> None:
            asked.append(id)
            if len(asked) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
            rename(source, id, hidden)

        monkeypatch.setattr(folder.layout, "rename", fail_second)
        assert len(queue.receive(2)) == 1
        folder._doubtful = False  # as some milliseconds after the last change
        assert {message.body for message in queue.peek(9)} == {b"1", b"2"}
