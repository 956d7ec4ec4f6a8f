"""The clock of a store on this machine: it never steps, all processes agree on it, and it survives a reboot."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_serve import PENSTOCK, serving

import penstock
from penstock import clock as clocks
from penstock.broker import open_desk
from penstock.clock import LEAD, LOOK_EVERY, SHARE, Course, MachineClock, Unshared, steady
from penstock.file_times import ORPHANED, file_age, is_orphaned
from penstock.server_clock import ServerClock
from penstock.stores.clock_files import MONTH, ClockFiles, clock_folder
from penstock.testing.http import Http
from penstock.testing.stepping import WallClock

SECOND = 1_000_000
HOUR = 3600 * SECOND
NOON = 1_800_000_000 * SECOND


class Machine:
    """A machine whose clocks only move when told to."""

    def __init__(self, wall: int = NOON, boot: str = "boot-1", up: int = 1000 * SECOND) -> None:
        self.up, self.offset, self.name = up, wall - up, boot

    def steady(self) -> int:
        return self.up

    def wall(self) -> int:
        return self.up + self.offset

    def boot(self) -> str:
        return self.name

    def run(self, microseconds: int) -> None:
        self.up += microseconds

    def step(self, microseconds: int) -> None:
        self.offset += microseconds

    def reboot(self, name: str, wall: int) -> None:
        self.__init__(wall, name, up=30 * SECOND)  # type: ignore[misc]

    def clock(self, folder: Path | None) -> MachineClock:
        """The clock of one process."""
        records = Unshared() if folder is None else ClockFiles(folder, "the queue file q")
        return MachineClock(records, steady=self.steady, wall=self.wall, boot=self.boot)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "q-clock"


@pytest.mark.parametrize("step", [HOUR, -HOUR, 5 * 86400 * SECOND])
@pytest.mark.parametrize("shared", [True, False])
def test_a_step_of_the_wall_clock_is_none_of_the_stores(machine: Machine, folder: Path, step: int, shared: bool) -> None:
    clock = machine.clock(folder if shared else None)
    assert clock() == NOON
    machine.run(10 * SECOND)
    machine.step(step)
    assert clock() == NOON + 10 * SECOND
    machine.run(LEAD)
    assert clock() == NOON + 10 * SECOND + LEAD


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_difference_is_made_up_at_two_percent_and_no_faster(machine: Machine, folder: Path, step: int) -> None:
    clock = machine.clock(folder)
    machine.step(step)
    clock.look()
    machine.run(LEAD)
    before, sign = clock(), 1 if step > 0 else -1
    for _ in range(100):
        machine.run(60 * SECOND)
        now = clock()
        assert abs(now - before - 60 * SECOND) <= 60 * SECOND // SHARE + 1
        assert (now - before - 60 * SECOND) * sign > 0
        before = now
    machine.run(HOUR * SHARE)
    assert abs(clock() - machine.wall()) <= 1
    assert abs(clock.difference()) <= 1


def test_a_clock_that_was_put_right_is_followed_no_further(machine: Machine, folder: Path) -> None:
    clock = machine.clock(folder)
    machine.step(HOUR)
    clock.look()
    machine.run(60 * SECOND)
    clock()
    machine.step(-HOUR)
    clock.look()
    machine.run(LEAD + 120 * SECOND)
    assert abs(clock() - machine.wall()) <= 2
    machine.run(HOUR)
    assert abs(clock() - machine.wall()) <= 2


def test_all_processes_agree_at_every_moment_whatever_happens_to_the_wall_clock(folder: Path) -> None:
    seed = random.randrange(10**9)
    chance = random.Random(seed)
    machine = Machine()
    processes = [machine.clock(folder)]
    last = processes[0]()
    for _ in range(3000):
        machine.run(chance.choice([1, 1000, LOOK_EVERY // 3, LOOK_EVERY, LEAD, 100 * SECOND]))
        if chance.random() < 0.05:
            machine.step(chance.choice([-1, 1]) * chance.choice([2000, SECOND, HOUR]))
        if chance.random() < 0.02 and len(processes) < 5:
            processes.append(machine.clock(folder))
        if chance.random() < 0.02 and len(processes) > 1:
            processes.remove(chance.choice(processes))
        if chance.random() < 0.1:
            chance.choice(processes).look()
        shown = {process() for process in chance.sample(processes, len(processes))}
        assert len(shown) == 1, f"seed {seed}"
        now = shown.pop()
        assert now > last - 1, f"seed {seed}: time ran backwards"
        last = now


def test_the_first_process_of_a_boot_decides_and_the_others_follow(machine: Machine, folder: Path) -> None:
    first = machine.clock(folder)
    machine.step(HOUR)
    second = machine.clock(folder)
    assert second() == first() == NOON


def _open(path: str, results: multiprocessing.Queue[Course]) -> None:
    results.put(MachineClock(ClockFiles(Path(path), "q"))._course)


def test_processes_that_open_a_new_store_at_once_end_with_the_same_clock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_open, args=(str(tmp_path / "q-clock"), results)) for _ in range(6)]
    for process in processes:
        process.start()
    found = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(found) == 1


def test_of_two_processes_that_are_first_one_decides(machine: Machine, folder: Path) -> None:
    class Overtaken(ClockFiles):
        """Another process writes the record first, after this one has found none."""

        def seen(self) -> int:
            machine.step(HOUR)
            others.append(machine.clock(folder))
            return super().seen()

    others: list[MachineClock] = []
    clock = MachineClock(Overtaken(folder, "q"), steady=machine.steady, wall=machine.wall, boot=machine.boot)
    assert clock() == others[0]() == NOON + HOUR
    assert _names(folder) == ["boot-1"]


def test_a_fork_goes_on_by_the_same_time(folder: Path) -> None:
    clock = MachineClock(ClockFiles(folder, "q"))
    clock()
    pid = os.fork()
    if not pid:
        os._exit(0 if clock._course == MachineClock(ClockFiles(folder, "q"))._course else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_after_a_reboot_the_time_is_the_wall_clocks(machine: Machine, folder: Path) -> None:
    machine.clock(folder)()
    machine.reboot("boot-2", NOON + HOUR)
    assert machine.clock(folder)() == NOON + HOUR


def test_after_a_reboot_time_does_not_run_backwards(machine: Machine, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = machine.clock(folder)
    machine.run(HOUR)
    seen = clock()
    machine.reboot("boot-2", NOON - 40 * 365 * 24 * HOUR)  # a machine without a clock battery
    clock = machine.clock(folder)
    assert seen - 10 * SECOND <= clock() <= seen
    assert clock.steps == 1
    assert "the wall clock was set back" in caplog.text
    machine.step(NOON + 2 * HOUR - machine.wall())  # NTP sets the clock
    before = clock()
    clock.look()
    assert clock() == before
    machine.run(2 * LEAD + HOUR * SHARE)
    assert abs(clock() - machine.wall()) <= 2


def test_a_process_that_was_restored_on_another_boot_goes_by_that_ones_time(machine: Machine, folder: Path) -> None:
    restored = machine.clock(folder)
    restored()
    machine.reboot("boot-2", NOON + HOUR)
    machine.run(2000 * SECOND)
    assert restored() == NOON + HOUR + 2000 * SECOND
    assert machine.clock(folder)() == restored()


def test_a_step_is_counted_and_logged_once_by_every_process(
    machine: Machine, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clocks = [machine.clock(folder), machine.clock(folder)]
    machine.run(10 * SECOND)
    machine.step(HOUR)
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(20):
            machine.run(LOOK_EVERY)
            for clock in clocks:
                clock()
    assert [clock.steps for clock in clocks] == [1, 1]
    assert len(caplog.messages) == 2
    assert (
        "the wall clock was set forward by 3600.000 s; the clock of the queue file q does not step: it is 3600.000 s behind"
        in caplog.text
    )
    late = machine.clock(folder)
    assert late.steps == 0, "the others have written down that they follow"
    machine.step(-2 * HOUR)
    assert machine.clock(folder).steps == 1, "nobody has seen this one"


def test_what_ntp_does_without_a_step_is_no_step(machine: Machine, folder: Path) -> None:
    clock = machine.clock(folder)
    for _ in range(1000):
        machine.run(LOOK_EVERY)
        machine.step(30)
        clock()
    assert clock.steps == 0
    assert abs(clock.difference()) < 10_000


@pytest.mark.parametrize(
    "content", [b"", b"[1, 2", b"null", b'["1", 2, 3, 4, 5]', b"[1, 2, 3, 4, 5, 6]", b"[1e30, 1, 1, 1, 1]"]
)
def test_a_damaged_record_is_replaced(machine: Machine, folder: Path, content: bytes) -> None:
    clock = machine.clock(folder)
    (folder / "boot-1").write_bytes(content)
    machine.run(LOOK_EVERY)
    assert clock() == NOON + LOOK_EVERY
    assert machine.clock(folder)() == clock()
    (folder / "boot-1").write_bytes(content)
    assert machine.clock(folder)() == NOON + LOOK_EVERY


def test_a_record_that_was_removed_is_written_again_by_those_who_know_it(machine: Machine, folder: Path) -> None:
    clock = machine.clock(folder)
    machine.step(HOUR)
    shutil.rmtree(folder)
    machine.run(LOOK_EVERY)
    assert clock() == NOON + LOOK_EVERY
    assert machine.clock(folder)() == NOON + LOOK_EVERY


def test_a_folder_that_cannot_be_written_stops_no_clock(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    clock = machine.clock(tmp_path / "file" / "q-clock")
    assert clock() == NOON
    machine.step(HOUR)
    machine.run(10 * SECOND)
    assert clock() == NOON + 10 * SECOND


def test_a_full_disk_leaves_the_record_as_it_was(machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = machine.clock(folder)
    before = (folder / "boot-1").read_bytes()
    real = os.write
    monkeypatch.setattr("penstock.stores.clock_files.os.write", lambda handle, content: real(handle, content[:5]))
    machine.step(HOUR)
    clock.look()
    machine.run(100 * SECOND)
    assert clock() == NOON + 100 * SECOND
    assert (folder / "boot-1").read_bytes() == before
    assert _names(folder) == ["boot-1"]


def test_what_a_killed_process_left_behind_is_ignored_and_removed_in_time(machine: Machine, folder: Path) -> None:
    machine.clock(folder)
    (folder / "boot-1.77.88~").write_bytes(b"[1,")
    os.utime(folder / "boot-1.77.88~", ns=(NOON * 2000, NOON * 2000))
    machine.reboot("boot-2", NOON + MONTH)
    assert machine.clock(folder)() == NOON + MONTH
    os.utime(folder / "boot-1.77.88~", ns=(NOON * 1000, NOON * 1000))
    machine.reboot("boot-3", NOON + MONTH + HOUR)
    machine.clock(folder)
    assert _names(folder) == ["boot-2", "boot-3"]


KILLED = """
import sys
from pathlib import Path
from penstock.clock import MachineClock
from penstock.stores.clock_files import ClockFiles
up = 1000_000_000
wall = %d
clock = MachineClock(ClockFiles(Path(sys.argv[1]), "q"), steady=lambda: up, wall=lambda: wall, boot=lambda: "boot-1")
up, wall = up + 20_000_000, wall + 3620_000_000
clock.look()
"""


@pytest.mark.parametrize("syscall", ["mkdir", "chmod", "openat", "write", "utimensat", "renameat2", "rename"])
def test_killed_at_any_system_call_the_next_process_goes_on_by_the_same_time(tmp_path: Path, syscall: str) -> None:
    strace = shutil.which("strace")
    assert strace, "install strace (tools/provision does)"
    folder = tmp_path / "q-clock"
    program = [sys.executable, "-c", KILLED % NOON, str(folder)]
    killed, when = True, 0
    only = ["-P", str(folder), "-P", str(folder / "boot-1")] if syscall == "openat" else []  # Python opens many other files
    while killed:
        when += 1
        shutil.rmtree(folder, ignore_errors=True)
        inject = ["-e", f"trace={syscall}", "-e", f"inject={syscall}:signal=KILL:when={when}"]
        killed = subprocess.run([strace, "-f", "-qq", "-o", os.devnull, *only, *inject, *program], check=False).returncode != 0
        machine = Machine(up=1020 * SECOND, wall=NOON + 20 * SECOND)
        first, second = machine.clock(folder), machine.clock(folder)
        assert first() == second() == NOON + 20 * SECOND
    assert when > 1, "nothing was killed: are these its system calls?"


def test_machines_that_share_a_folder_each_have_a_record(folder: Path) -> None:
    here, there = Machine(boot="here"), Machine(boot="there", up=77 * SECOND)
    clock, other = here.clock(folder), there.clock(folder)
    assert clock() == other() == NOON
    there.step(HOUR)
    for machine in (here, there):
        machine.run(10 * SECOND)
    assert clock() == other() == NOON + 10 * SECOND
    assert _names(folder) == ["here", "there"]


def test_a_copy_of_a_queue_file_works_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.open(f"sqlite:///{tmp_path}/q.db") as broker:
        broker.create("orders").send(b"copied")
    (tmp_path / "there").mkdir()
    shutil.copy(tmp_path / "q.db", tmp_path / "there")
    shutil.copytree(tmp_path / "q.db-clock", tmp_path / "there" / "q.db-clock")
    monkeypatch.setattr("penstock.clock.boot", lambda: "another-boot")
    for name in ("there/q.db", "q.db"):
        with penstock.open(f"sqlite:///{tmp_path}/{name}") as broker:
            assert [message.body for message in broker["orders"].receive()] == [b"copied"]


def test_links_to_a_queue_file_lead_to_one_clock(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "q.db")
    assert clock_folder(tmp_path / "link.db") == clock_folder(tmp_path / "q.db")


def test_without_a_boot_id_a_shared_clock_is_the_wall_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.clock.boot", lambda: None)
    assert clocks.machine_clock(ClockFiles(folder, "q")) is clocks.system_clock


def test_this_machine_says_when_it_was_started() -> None:
    assert re.fullmatch(r"[0-9a-f-]{36}([+-]\d+)*", clocks.boot() or "")


def test_a_signal_handler_may_read_the_clock_at_any_moment(machine: Machine, folder: Path) -> None:
    found: list[int] = []
    clock = machine.clock(folder)
    wall = machine.wall

    def interrupted() -> int:
        signal.raise_signal(signal.SIGUSR1)
        return wall()

    clock._wall = interrupted
    before = signal.signal(signal.SIGUSR1, lambda *_: found.append(clock()))
    try:
        machine.run(LOOK_EVERY)
        assert clock() == NOON + LOOK_EVERY
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert set(found) == {NOON + LOOK_EVERY}


@pytest.mark.parametrize("kind", ["sqlite", "spool"])
def test_operators_see_the_steps_and_the_difference(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    wall_clock = WallClock(tmp_path_factory.mktemp("clock"))
    with serving(f"{kind}:///{tmp_path}/q", "--access-log", "off", **wall_clock.environment) as (_, url):
        http = Http(url)
        assert (_gauge(http, "clock_steps_total"), round(_gauge(http, "clock_difference_seconds"))) == (0, 0)
        wall_clock.set(7200)
        assert (_gauge(http, "clock_steps_total"), round(_gauge(http, "clock_difference_seconds") / 60)) == (1, 120)
        wall_clock.set(0)
        assert (_gauge(http, "clock_steps_total"), round(_gauge(http, "clock_difference_seconds") / 60)) == (2, 0)


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _gauge(http: Callable[..., object], name: str) -> float:
    text = http("GET", "/metrics").body.decode()  # type: ignore[attr-defined]
    found = re.search(rf"^penstock_{name} (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_a_client_goes_by_the_servers_clock(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It does not matter which of the two machines has the wrong time."""
    wall_clock = WallClock(tmp_path_factory.mktemp("clock"))
    wall_clock.set(7200)
    with (
        serving(f"sqlite:///{tmp_path}/q.db", "--access-log", "off", **wall_clock.environment) as (_, url),
        penstock.open(url) as broker,
    ):
        queue = broker.create("orders")
        with broker.producer("orders") as producer:
            producer.push(b"soon", deadline=600)
        (message,) = queue.receive()
        assert message.deadline_at is not None
        assert message.sent_at - 60 * SECOND < message.deadline_at - 600 * SECOND < message.sent_at + 60 * SECOND
        assert round((broker.clock() - clocks.system_clock()) / HOUR) == 2


def test_a_databases_clock_that_is_set_is_followed_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    offset = 0
    clock = ServerClock(lambda: steady() + offset)
    before = clock()
    offset = HOUR
    clock._ask_at = 0
    assert round((clock() - before) / HOUR) == 1
    assert clock.steps == 1
    assert "the clock of the server was set forward by 3600.0" in caplog.text


def test_a_server_whose_clock_makes_up_a_difference_was_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    monkeypatch.setattr("penstock.server_clock.steady", machine.steady)
    clock = ServerClock(lambda: machine.steady() * (SHARE + 1) // SHARE)
    for _ in range(100):
        machine.run(10 * SECOND)
        clock()
    assert clock.steps == 0


def test_segments_are_staged_by_the_stores_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a desk, which opens no database."""
    with penstock.open(f"sqlite:///{tmp_path}/q.db") as broker:
        now = broker.clock()
        real = time.time_ns
        monkeypatch.setattr("penstock.clock.time.time_ns", lambda: real() + 1000 * HOUR)
        with open_desk(f"sqlite:///{tmp_path}/q.db") as desk:
            desk.stage("writer", 1, "one", b"segment")
        (staged,) = broker.store.outbox.staging.staged()
        assert now <= staged.staged_at < now + HOUR // 2


def test_a_mover_goes_by_the_stores_clock(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    wall_clock, url = WallClock(tmp_path_factory.mktemp("clock")), f"spool:///{tmp_path}/spool"
    with penstock.open(url) as broker:
        broker.create("orders").send(b"later", delay=600)
    wall_clock.set(3600)
    subprocess.run([*PENSTOCK, "mover", url, "--once"], env={**os.environ, **wall_clock.environment}, check=True)
    assert len(_names(tmp_path / "spool" / "delay")) == 1


def test_a_wall_clock_that_is_set_forward_makes_no_file_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a sender's unfinished file would be removed as abandoned."""
    (tmp_path / "draft").touch()
    real = time.time
    monkeypatch.setattr("penstock.file_times.time.time", lambda: real() + 2 * ORPHANED)
    assert not is_orphaned(str(tmp_path / "draft"))


@pytest.mark.parametrize("step", [7200, -7200, 0])
def test_a_file_is_as_old_as_it_is_whether_the_wall_clock_was_set_before_or_after(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr("penstock.file_times._unstepped", lambda: int(now * SECOND))
    monkeypatch.setattr("penstock.file_times.time.time", lambda: now + step)
    assert file_age(now - 10) == file_age(now + step - 10) == 10
