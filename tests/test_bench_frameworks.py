"""`penstock bench frameworks` measures real frameworks on brokers that sync, names what is missing, and leaves no process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from test_bench_brokers import left_behind

from penstock import bench
from penstock.bench.brokers.processes import Daemon
from penstock.bench.brokers.servers import Running
from penstock.bench.frameworks import targets
from penstock.bench.frameworks.apps.surroundings import NOTE, noted
from penstock.bench.frameworks.comparison import QUICK, Comparison, Results, Turn
from penstock.bench.frameworks.report import acceptance, document, loses, markdown
from penstock.bench.frameworks.targets import CELERY_POSTGRESQL, CELERY_SQLITE, TARGETS, Target
from penstock.testing.servers import Missing, find

FACTS = {"file system": "ext4"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL's user may enter, unlike pytest's."""
    with TemporaryDirectory(prefix="penstock-frameworks-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def installed() -> None:
    """All servers are there; without them a laptop skips these tests, and CI fails."""
    for program in ("redis-server", "rabbitmq-server", "postgres", "strace"):
        try:
            find(program)
        except Missing as error:
            if os.environ.get("CI"):
                pytest.fail(str(error))
            pytest.skip(str(error))


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    out = folder / "out"
    small = ["--quick", "--tasks", "20", "--out", str(out), "--folder", str(folder)]
    assert bench.main(["frameworks", *small, *arguments]) == 0
    found: dict[str, Any] = json.loads((out / "frameworks.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_framework_is_measured_and_answers_after_a_sync(
    folder: Path, installed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    results = run(folder)
    page = (folder / "out" / "frameworks.md").read_text()
    assert page in capsys.readouterr().out
    assert (folder / "out" / "frameworks.png").read_bytes().startswith(b"\x89PNG")
    assert results["missing"] == {}
    assert results["targets"].keys() == TARGETS.keys()
    for name, found in results["targets"].items():
        assert f"| {name} |" in page
        (turn,) = found["turns"]
        assert min(turn[of] for of in ("sends", "works", "cycles", "sender")) > 0
        assert sum(found["syncs"]["calls"].values()) >= found["syncs"]["tasks"] == QUICK.synced, name
    assert "**not measured**" not in page
    assert left_behind(folder) == []
    assert list(folder.iterdir()) == [folder / "out"], "the data is cleared away"


def test_what_is_missing_is_in_the_table_with_its_cure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(targets, "find_spec", lambda name: None if name == "huey" else name)
    results = run(folder, "--no-plot", "--targets", "huey sqlite", "dramatiq redis", "celery redis", "dramatiq penstock-sqlite")
    assert results["missing"] == {
        "huey sqlite": 'pip install "penstock[bench]"',
        "dramatiq redis": "apt-get install redis-server",
        "celery redis": "apt-get install redis-server",
    }
    page = (folder / "out" / "frameworks.md").read_text()
    assert all(f"| {name} | not measured: {cure} |" in page for name, cure in results["missing"].items())
    assert results["targets"].keys() == {"dramatiq penstock-sqlite"}
    assert any("syncs were not counted: strace is not installed" in note for note in results["notes"])
    assert not (folder / "out" / "frameworks.png").exists()


def test_a_framework_that_fails_takes_no_further_part_and_the_others_go_on(folder: Path) -> None:
    unknown = Target("huey elsewhere", ("huey", ""), "on_huey", "file", "{}", ("huey.bin.huey_consumer",), "")
    known = TARGETS["dramatiq penstock-sqlite"]
    stops = Target(known.name, known.library, known.module, known.server, known.scheme, ("dramatiq", "nowhere"), "")
    good = TARGETS["huey sqlite"]
    results = Comparison(QUICK, [unknown, stops, good], folder).run()
    assert results.missing[unknown.name].startswith("it failed in round 1: huey elsewhere: the clients: it has ended (KeyError")
    assert results.missing[known.name].startswith("it failed in round 1: 0 of 21 tasks ran; the worker: ")
    assert results.turns.keys() == {good.name}
    assert "not measured: it failed in round 1" in markdown(results, FACTS)
    assert left_behind(folder) == []


def test_a_task_says_once_when_it_ran(tmp_path: Path) -> None:
    program = "from penstock.bench.frameworks.apps.surroundings import note\nfor _ in range(50): note()"
    environment = os.environ | {"PENSTOCK_BENCH_NOTES": str(tmp_path / "notes")}
    began = time.monotonic()
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    ran = noted(tmp_path / "notes")
    assert len(ran) == 100
    assert began <= ran[0] <= ran[-1] <= time.monotonic()
    with (tmp_path / "notes").open("ab") as file:
        file.write(b"half"[: NOTE.size - 1])
    assert noted(tmp_path / "notes") == ran


def test_a_daemon_is_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    polite = "import signal, sys\nsignal.signal(15, lambda *_: sys.exit('end'))\nprint('ready', flush=True)\nsignal.pause()"
    with Daemon(tmp_path / "polite", sys.executable, "-c", polite, executable=sys.executable) as daemon:
        daemon.wait_until(lambda: "ready" in daemon.output)
        assert daemon.ask_to_end(60)
        assert daemon.output == "ready\nend\n"
        assert daemon.has_ended()
    deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(1000)"
    with Daemon(tmp_path / "deaf", sys.executable, "-c", deaf, executable=sys.executable) as daemon:
        daemon.wait_until(lambda: "ready" in daemon.output)
        assert not daemon.ask_to_end(0.1)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tasks", "0"], "--tasks is 0; it must be more than 0"),
        (["--rounds", "-1"], "--rounds is -1; it must be more than 0"),
    ],
)
def test_what_cannot_be_measured_is_an_error(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "out"), "--folder", str(tmp_path)]
    assert bench.main(["frameworks", *arguments, *out]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def results_of(rates: dict[str, list[tuple[float, float]]]) -> Results:
    results = Results(QUICK, [TARGETS[name] for name in rates])
    results.servers = {name: Running("", (), "1.0", "it syncs") for name in rates}
    results.turns = {name: [Turn(sends, works, 1e-4, 2e-4, 3e-4) for sends, works in found] for name, found in rates.items()}
    return results


def test_a_task_is_sent_and_then_worked_off_and_ratios_are_of_neighbours_in_time() -> None:
    results = results_of({CELERY_SQLITE: [(300, 600), (30, 60)], "huey sqlite": [(600, 1200), (60, 120)]})
    page = markdown(results, FACTS)
    assert f"| {CELERY_SQLITE} | 165 | 330 | 110 | 0.50 | 100 + 200 + 300 | – | nothing |" in page
    assert "| huey sqlite | 330 | 660 | 220 | 1.00 |" in page
    assert document(results, FACTS)["targets"]["huey sqlite"]["turns"][0]["cycles"] == pytest.approx(400)


def test_the_acceptance_lines_say_met_not_met_or_not_measured() -> None:
    results = results_of(
        {CELERY_SQLITE: [(100, 100)], "celery rabbitmq": [(90, 90)], "celery redis": [(140, 140)], "huey sqlite": [(200, 200)]}
    )
    found = {line.text: (line.found, line.met) for line in acceptance(results)}
    assert found[f"{CELERY_SQLITE}: within 1.5 × of the fastest"] == ("2.00 × (huey sqlite)", False)
    assert found[f"{CELERY_SQLITE}: within 1.5 × of the fastest of Celery's brokers"] == ("1.40 × (celery redis)", True)
    assert found[f"{CELERY_POSTGRESQL}: within 1.5 × of the fastest"] == ("", None)
    assert found["the first of those that lose nothing is on Penstock"] == (CELERY_SQLITE, True)
    assert acceptance(results_of({"huey sqlite": [(1, 1)]}))[-1].met is None


def test_one_that_syncs_too_seldom_can_lose_what_was_sent_last() -> None:
    results = results_of({CELERY_SQLITE: [(100, 100)], "celery rabbitmq": [(900, 900)]})
    results.syncs = {CELERY_SQLITE: (50, {"fdatasync": 51}), "celery rabbitmq": (50, {"fsync": 1})}
    assert loses(results, TARGETS["celery rabbitmq"]) == "what was sent last, when the power fails"
    page = markdown(results, FACTS)
    assert "**celery rabbitmq is not as durable as the others" in page
    assert f"**{CELERY_SQLITE} is not as durable" not in page
    assert f"the first of those that lose nothing is on Penstock: {CELERY_SQLITE}: **met**" in page
