"""`penstock bench brokers` measures real brokers that sync, says what is missing, and leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from penstock import bench
from penstock.bench.brokers import targets
from penstock.bench.brokers.comparison import QUICK, ROWS, Comparison, Results, Row, Turn
from penstock.bench.brokers.generator import Clients
from penstock.bench.brokers.generators import Failed, Generator
from penstock.bench.brokers.processes import Daemon, family, undisturbed
from penstock.bench.brokers.report import acceptance, document, markdown, ratio
from penstock.bench.brokers.servers import Running
from penstock.bench.brokers.syncs import count
from penstock.bench.brokers.targets import CLIENT, EMBEDDED, SERVE, TARGETS, Target
from penstock.testing.servers import Missing, find
from penstock.testing.serving import until

SMALL = [SERVE, CLIENT, EMBEDDED, "redis", "nats", "beanstalkd"]
OTHERS = ["wake-up", "syncs", "idle", "memory"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL's user may enter, unlike pytest's."""
    with TemporaryDirectory(prefix="penstock-brokers-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(autouse=True)
def installed() -> None:
    """All servers are there; without them a laptop skips these tests, and CI fails."""
    for program in ("redis-server", "nats-server", "beanstalkd", "rabbitmq-server", "postgres", "strace"):
        try:
            find(program)
        except Missing as error:
            if os.environ.get("CI"):
                pytest.fail(str(error))
            pytest.skip(str(error))


def left_behind(folder: Path) -> list[str]:
    """The command lines of processes that work in the folder, or write their errors there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            places = [os.readlink(process / "cwd"), os.readlink(process / "fd" / "2")]  # noqa: PTH115
            command = (process / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if command and any(place.startswith(f"{folder}/") for place in places):
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    out = folder / "out"
    assert bench.main(["brokers", "--quick", "--out", str(out), "--folder", str(folder), *arguments]) == 0
    found: dict[str, Any] = json.loads((out / "brokers.json").read_text())
    return found


def test_a_quick_run_leaves_a_page_numbers_and_a_picture_and_no_process(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["send-8c", "send-10x-1c", "cycle-8c"]
    results = run(folder, "--peers", *SMALL, "--only", *names, *OTHERS)
    page = (folder / "out" / "brokers.md").read_text()
    assert page in capsys.readouterr().out
    assert (folder / "out" / "brokers.png").read_bytes().startswith(b"\x89PNG")
    assert results["notes"] == []
    assert [row["name"] for row in results["rows"]] == names
    assert all(f"| {name} |" in page for name in names)
    for row in results["rows"]:
        assert list(row["targets"]) == SMALL
        assert all(turn["rate"] > 0 and turn["p99"] >= turn["p50"] > 0 for t in row["targets"].values() for turn in t["turns"])
        assert row["targets"][SERVE]["ratios"].keys() == set(SMALL) - {SERVE}
    for name in SMALL:
        assert results["targets"][name]["synced"] or name == "nats"  # which needs a file system that knows the attribute S
        assert len(results["wake-up"][name]) == QUICK.wakes
        assert min(results["wake-up"][name]) > 0
        assert results["memory"][name]["full"] > 0
        assert 0 < results["memory"][name]["messages"] <= QUICK.backlog  # fewer if the disk is slow
        assert results["idle"].keys() == set(SMALL)
    assert left_behind(folder) == []
    assert list(folder.iterdir()) == [folder / "out"], "the data is cleared away"


def test_every_answer_waits_for_a_sync(folder: Path) -> None:
    """One connection, one message after the other: as many syncs as messages at least, by whatever call."""
    results = run(folder, "--no-plot", "--only", "syncs")
    assert results["syncs"].keys() == set(TARGETS)
    for name, found in results["syncs"].items():
        if results["targets"][name]["synced"]:
            assert sum(found["1"]["calls"].values()) >= found["1"]["messages"], name


def test_one_that_syncs_too_seldom_is_told() -> None:
    results = results_of({(ROWS[0], "redis"): [1.0], (ROWS[0], "nats"): [1.0]})
    results.syncs = {"redis": {1: (50, {"fdatasync": 50}), 32: (160, {})}, "nats": {1: (50, {"fsync": 1}), 32: (160, {})}}
    page = markdown(results, {"file system": "ext4"})
    assert "**nats is not as durable as the others" in page
    assert "**redis is not as durable" not in page


def test_rabbitmq_and_postgresql_are_measured(folder: Path) -> None:
    peers = ["serve-postgresql", "rabbitmq-quorum", "rabbitmq-classic", "postgresql"]
    results = run(folder, "--no-plot", "--peers", *peers, "--only", "send-10x-8c", "cycle-8c", "wake-up")
    assert results["notes"] == []
    assert [list(row["targets"]) for row in results["rows"]] == [peers, peers]
    assert results["wake-up"].keys() == set(peers)
    assert left_behind(folder) == []
    assert not (folder / "out" / "brokers.png").exists()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["redis-server", "epmd", "beam.smp", "brokers.generator"])
def test_told_to_end_it_stops_all_that_it_has_started(how: signal.Signals, moment: str, folder: Path) -> None:
    slow = [] if moment == "brokers.generator" else ["rabbitmq-classic"]
    command = [sys.executable, "-m", "penstock.cli", "bench", "brokers", "--no-plot", "--peers", "redis", *slow, "beanstalkd"]
    with subprocess.Popen([*command, "--folder", str(folder), "--out", str(folder / "out")]) as running:
        until(lambda: any(moment in line for line in left_behind(folder)))
        running.send_signal(how)
    assert running.returncode == 128 + how
    assert left_behind(folder) == []
    assert list(folder.glob(".penstock-bench-*")) == []


def test_a_process_is_stopped_with_all_that_it_has_started(folder: Path) -> None:
    script = "sleep 100 & (setsid sleep 100 & wait) & echo ready; wait"
    with Daemon(folder / "shell", "sh", "-c", script) as daemon:
        daemon.wait_until(lambda: "ready" in daemon.output and len(family([daemon.pid])) >= 4)
    assert left_behind(folder) == []


def test_a_signal_while_a_process_starts_comes_afterwards() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), undisturbed():
        signal.raise_signal(signal.SIGINT)
        done.append("started, and known")
    assert done


def test_what_is_missing_is_named_with_its_cure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(targets, "find_spec", lambda name: None if name == "nats" else name)
    peers = [EMBEDDED, "redis", "nats", "beanstalkd"]
    results = run(folder, "--no-plot", "--peers", *peers, "--only", "send-1c", "syncs")
    assert "redis is left out: apt-get install redis-server" in results["notes"]
    assert "beanstalkd is left out: apt-get install beanstalkd" in results["notes"]
    assert "nats is left out: pip install nats-py, or penstock[bench]" in results["notes"]
    assert any(note.startswith("syncs were not counted: strace is not installed") for note in results["notes"])
    assert list(results["rows"][0]["targets"]) == [EMBEDDED]
    assert all(note in (folder / "out" / "brokers.md").read_text() for note in results["notes"])


def test_one_that_fails_takes_no_further_part_and_the_others_go_on(folder: Path) -> None:
    wrong = Target("beanstalkd", "redis", "beanstalkd.BeanstalkdSession.open")  # its clients speak another protocol
    results = Comparison(QUICK, ["send-1c", "cycle-8c"], [wrong, TARGETS[EMBEDDED]], folder).run()
    assert {name for _, name in results.turns} == {EMBEDDED}
    (note,) = results.notes
    assert note.startswith("beanstalkd takes no part from send-1c on: ")
    assert left_behind(folder) == []


def test_a_consumer_waits_for_longer_than_its_library_would(folder: Path) -> None:
    plan = replace(QUICK, idle_seconds=6)
    results = Comparison(plan, ["idle"], [TARGETS["redis"]], folder).run()
    assert results.notes == []
    assert results.idle.keys() == {"redis"}


def test_a_dead_server_is_told(folder: Path) -> None:
    with Generator("beanstalkd", "127.0.0.1:1", folder) as generator, pytest.raises(Failed, match="Connect"):
        generator.ask("open", sessions=1)


def test_a_turn_has_a_call_however_late_it_begins(folder: Path) -> None:
    async def turn() -> dict[str, Any]:
        clients = Clients(TARGETS[EMBEDDED], f"sqlite:///{folder}/queue.db")
        await clients.open(2)
        return await clients.turn("cycle", 1, 10, seconds=0)

    assert asyncio.run(turn())["count"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "push-*"], "no row is named push-*; there are: send-1c "),
        (["--rounds", "0"], "--rounds is 0; it must be more than 0"),
        (["--seconds", "-1"], "--seconds is -1.0; it must be more than 0"),
    ],
)
def test_what_cannot_be_measured_is_an_error(
    arguments: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["brokers", *arguments, "--out", str(folder / "out"), "--folder", str(folder)]) == 2
    assert said in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def results_of(rates: dict[tuple[Row, str], list[float]], generator: float = 0.5) -> Results:
    results = Results(QUICK, [TARGETS[name] for name in dict.fromkeys(name for _, name in rates)])
    results.servers = {target.name: Running("", (1,), "1.0", "it syncs") for target in results.targets}
    results.turns = {key: [Turn(rate, 0.001, 0.002, generator, 0.25) for rate in found] for key, found in rates.items()}
    return results


def test_a_ratio_is_of_neighbours_in_time() -> None:
    row = Row("send", 8)
    results = results_of({(row, SERVE): [50.0, 500.0, 5.0], (row, "redis"): [100.0, 1000.0, 10.0]})
    assert ratio(results, row, SERVE, "redis") == 0.5
    assert ratio(results, row, SERVE, "nats") is None


def test_the_acceptance_lines_say_met_not_met_or_not_measured() -> None:
    eight, cycle = Row("send", 8), Row("cycle", 8)
    results = results_of(
        {(eight, SERVE): [100.0], (cycle, SERVE): [110.0], (eight, "redis"): [100.0], (cycle, "redis"): [100.0]}
    )
    results.wakes = {SERVE: [0.004, 0.004, 0.1], EMBEDDED: [0.006]}
    met = {line.text: line.met for line in acceptance(results)}
    assert met["serve: send-8c: at least 1.00 of redis"] is True
    assert met["serve: cycle-8c: at least 1.20 of redis"] is False
    assert met["serve: send-8c: at least 1.50 of rabbitmq-quorum"] is None
    assert met["serve: a waiting consumer is woken within 5 ms (p50)"] is True
    assert met["embedded: a waiting consumer is woken within 5 ms (p50)"] is False


def test_a_generator_that_has_no_time_left_is_told() -> None:
    row = ROWS[0]
    facts = {"file system": "ext4"}
    idle, busy = (results_of({(row, SERVE): [2000.0]}, generator) for generator in (0.5, 0.95))
    assert "| send-1c | 2 k |" in markdown(idle, facts)
    assert "| send-1c | 2 k g |" in markdown(busy, facts)
    assert "| send-1c | 0.95 / 0.25 |" in markdown(busy, facts)
    assert "| send-1c | 475 / 125 |" in markdown(busy, facts), "microseconds of a message"
    assert document(busy, facts)["rows"][0]["targets"][SERVE]["turns"][0]["generator"] == 0.95


def test_syncs_are_counted_once_and_writes_only_where_they_sync() -> None:
    log = """\
12 fsync(5</data/a>) = 0
12 fdatasync(5</data/a> <unfinished ...>
13 <... fdatasync resumed>) = 0
13 pwrite64(7</data/b>, ""..., 10, 0) = 10
13 write(3<socket:[77]>, ""..., 10) = 10
13 write(4</elsewhere/c>, ""..., 10) = 10
"""
    assert count(log, None) == {"fsync": 1, "fdatasync": 1}
    assert count(log, "/data") == {"fsync": 1, "fdatasync": 1, "pwrite64": 1}
