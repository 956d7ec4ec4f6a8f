"""Endless pipelines as a service: they answer over HTTP, start again after errors that pass, and end with nothing undone."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.cli import main
from penstock.errors import BadInput, QueueNotFound, StoreBusy, StoreUnreachable, WriterSetBack
from penstock.spark.pipelines import declaration, declared, lag, restarts
from penstock.spark.pipelines.draining import Draining
from penstock.spark.pipelines.failures import PipelineFailed
from penstock.spark.pipelines.lag import LagWatch, QueueLag
from penstock.spark.pipelines.listening import MOST_CONNECTIONS, read_address
from penstock.spark.pipelines.progress import Watch
from penstock.spark.pipelines.reporting import ReportPlace
from penstock.spark.pipelines.restarts import Restarts, is_final
from penstock.spark.pipelines.running import PipelineRun
from penstock.spark.pipelines.taking import Take
from penstock.testing.serving import until

ENDLESS = """
store = "sqlite:///shop.db"
trigger = "100 milliseconds"
[source.orders]
queue = "orders"
options = { maxMessagesPerTrigger = 10 }
[sink.onward]
from = "orders"
queue = "onward"
"""


UNIT = Path(__file__).parents[3] / "deploy/penstock-pipeline@.service"
BY_ROOT = {"fchown", "chown"} if os.geteuid() == 0 else set()
"""Calls that are made only where these tests run as root: SQLite gives its log to the owner of the file."""


def happens(true: Callable[[], bool]) -> None:
    """Wait for something that Spark brings about, which may take long on a busy machine."""
    give_up_at = time.monotonic() + 250
    while not true():
        assert time.monotonic() < give_up_at, "it never happened"
        time.sleep(0.05)


def calls_of(group: str) -> set[str]:
    """The system calls of one of systemd's groups."""
    tool = shutil.which("systemd-analyze")
    assert tool, "install systemd (tools/provision does)"
    told = subprocess.run([tool, "--no-pager", "syscall-filter", group], capture_output=True, text=True, check=True).stdout
    words = [line.strip() for line in told.splitlines()[1:]]
    return {call for word in words if word and word[0] != "#" for call in (calls_of(word) if word[0] == "@" else [word])}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[penstock.Broker]:
    with penstock.open(f"sqlite:///{tmp_path}/shop.db") as broker:
        for name in ("orders", "onward"):
            broker.create(name)
        yield broker


def declare(folder: Path, text: str = ENDLESS) -> Path:
    (folder / "shop.toml").write_text(text)
    return folder / "shop.toml"


def get(port: int | None, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def state(port: int | None, path: str = "/health") -> tuple[int, Any]:
    status, text = get(port, path)
    return status, json.loads(text)["state"]


# What it answers


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_an_address_is_a_port_or_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize("text", ["", "x", ":9464", "1.2.3.4", "::1:9464", "host:70000", "host:-1", "host:1:2"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="such as 127"):
        read_address(text)


def test_an_address_that_is_taken_is_told_in_one_line_before_spark_starts(
    tmp_path: Path, shop: penstock.Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["pipeline", "run", str(declare(tmp_path)), "--listen", address]) == 2
    assert capsys.readouterr().err == f"penstock: cannot listen at {address}: Address already in use\n"


def test_health_lives_and_ready_says_whether_the_queries_run() -> None:
    with Watch("shop", listen="0") as watch:
        assert state(watch.port) == (200, "starting")
        assert state(watch.port, "/ready") == (503, "starting")
        watch.figures.state = "running"
        assert state(watch.port, "/ready") == (200, "running")
        assert 'penstock_pipeline_running{pipeline="shop"} 1\n' in get(watch.port, "/metrics")[1]
        assert get(watch.port, "/else")[0] == 404


def test_clients_that_say_nothing_do_not_keep_others_out_for_ever() -> None:
    with Watch("shop", listen="0") as watch:
        silent = [socket.create_connection(("127.0.0.1", watch.port or 0)) for _ in range(MOST_CONNECTIONS)]
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            for _ in range(50):  # until all of the silent ones are accepted
                get(watch.port, "/health")
        for one in silent:
            one.close()
        until(lambda: _answers(watch.port))


def _answers(port: int | None) -> bool:
    try:
        return get(port, "/health")[0] == 200
    except OSError:
        return False


def test_the_lag_of_each_queue_is_fresh_though_no_batch_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(lag, "REST", 0)
    url = f"sqlite:///{tmp_path}/shop.db"
    with penstock.open(url) as broker, Watch("shop", listen="0") as watch:
        jobs, _ = broker.create("jobs-1"), broker.create("jobs-2")
        jobs.send_many([b"x"] * 3)
        with watch.report_to(ReportPlace(url, reads=["jobs-*"], writes=["other"])).at_work():
            until(lambda: 'queue_lag{pipeline="shop",queue="jobs-1"} 3\n' in get(watch.port, "/metrics")[1])
            assert 'penstock_pipeline_lag{pipeline="shop"} 3\n' in get(watch.port, "/metrics")[1]
            jobs.receive(2)
            until(lambda: 'queue_lag{pipeline="shop",queue="jobs-1"} 1\n' in get(watch.port, "/metrics")[1])
            told = get(watch.port, "/metrics")[1]
            assert 'penstock_pipeline_queue_lag{pipeline="shop",queue="jobs-2"} 0\n' in told
            assert 'penstock_pipeline_queue_oldest_seconds{pipeline="shop",queue="jobs-1"}' in told
            assert "other" not in told


def test_a_store_that_is_away_is_asked_again_and_its_old_figures_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "LOOK_EVERY", 0.01)
    asked: list[int] = []

    def look(*_: object) -> dict[str, QueueLag]:
        asked.append(1)
        if len(asked) == 2:
            raise StoreUnreachable("away")
        return {"jobs": QueueLag(len(asked), 1.0)}

    monkeypatch.setattr(lag, "_look", look)
    watching = LagWatch([ReportPlace(f"sqlite:///{tmp_path}/shop.db", reads=["jobs"])])
    until(lambda: len(asked) > 3 and watching.by_queue()["jobs"].messages > 2)
    monkeypatch.setattr(lag, "STALE_AFTER", -1.0)
    assert watching.by_queue() == {}
    watching.close()


# When it starts again


def test_the_wait_doubles_up_to_a_bound_and_ends_after_so_many_failures_in_a_row() -> None:
    policy = Restarts(times=5, first=2, longest=10)
    assert [policy.wait(failures) for failures in range(1, 7)] == [2, 4, 8, 10, 10, None]
    assert Restarts(times=0).wait(1) is None


def test_what_another_try_would_meet_again_is_final() -> None:
    final = [BadInput("x"), QueueNotFound("x"), WriterSetBack("x"), TypeError("x")]
    passing = [StoreBusy("x"), StoreUnreachable("x"), PipelineFailed("x"), OSError(28, "no space")]
    assert [is_final(error) for error in final + passing] == [True] * 4 + [False] * 4


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Watch], None]]:
    """What the attempts of a run do, one after the other, instead of running queries."""
    found: list[Callable[[Watch], None]] = []

    def attempt(spark: object, pipeline: object, home: object, store: object, once: object, watch: Watch, *_: object) -> None:
        found.pop(0)(watch)

    monkeypatch.setattr(declared, "_run_once", attempt)
    monkeypatch.setattr(declared, "is_alive", lambda spark: spark is not None)
    return found


def failing(error: Exception, batches: int = 0) -> Callable[[Watch], None]:
    def attempt(watch: Watch) -> None:
        watch.figures.batches += batches
        raise error

    return attempt


RESTARTED = f"{ENDLESS}[restart]\ntimes = 2\nwait = '0 seconds'\n"


def test_a_pipeline_is_started_again_after_an_error_that_passes(
    tmp_path: Path, shop: penstock.Broker, attempts: list[Callable[[Watch], None]]
) -> None:
    away = StoreUnreachable("away")
    # Two in a row are allowed; a batch in between shows that it works.
    attempts += [failing(away), failing(away), failing(away, batches=1), failing(away), lambda _: None]
    with Watch("shop", listen="0") as watch:
        assert not declared.run("a session", declare(tmp_path, RESTARTED), watch=watch).stopped  # type: ignore[arg-type]
        assert 'penstock_pipeline_restarts_total{pipeline="shop"} 4\n' in watch.metrics()
    assert not attempts

    attempts += [failing(away)] * 3
    with pytest.raises(StoreUnreachable):
        declared.run("a session", declare(tmp_path, RESTARTED))  # type: ignore[arg-type]
    assert not attempts


@pytest.mark.parametrize(
    ("text", "spark", "error"),
    [
        (RESTARTED, "a session", BadInput("a mistake")),
        (ENDLESS, "a session", StoreUnreachable("there is no table restart")),
        (RESTARTED, None, PipelineFailed("Spark itself is gone")),
    ],
)
def test_an_error_that_does_not_pass_ends_it(
    tmp_path: Path,
    shop: penstock.Broker,
    attempts: list[Callable[[Watch], None]],
    text: str,
    spark: Any,
    error: Exception,
) -> None:
    attempts += [failing(error), lambda _: None]
    with pytest.raises(type(error)):
        declared.run(spark, declare(tmp_path, text))
    assert len(attempts) == 1


def test_it_can_be_stopped_while_it_waits_and_says_so_meanwhile(
    tmp_path: Path, shop: penstock.Broker, attempts: list[Callable[[Watch], None]]
) -> None:
    attempts += [failing(StoreUnreachable("away"))]
    with Watch("shop", listen="0") as watch:
        text = RESTARTED.replace("'0 seconds'", "'1 hour'").replace("[restart]", "[restart]\nlongest = '2 hours'")
        run = threading.Thread(target=declared.run, args=("a session", declare(tmp_path, text)), kwargs={"watch": watch})
        run.start()
        until(lambda: state(watch.port, "/ready") == (503, "restarting"))
        watch.stop()
        run.join(60)
        assert state(watch.port) == (200, "ended")
    assert restarts.read_seconds("2 hours") == 7200


# How it ends


def test_a_pipeline_that_is_stopped_takes_no_more_and_leaves_nothing_claimed(
    spark: SparkSession, tmp_path: Path, shop: penstock.Broker
) -> None:
    orders, watch = shop["orders"], Watch("shop")
    orders.send_many([b"%d" % number for number in range(100)])
    done: list[declared.Ran] = []
    run = threading.Thread(target=lambda: done.append(declared.run(spark, declare(tmp_path), watch=watch)))
    run.start()
    happens(lambda: shop["onward"].stats().messages > 0 or not run.is_alive())
    watch.stop()
    run.join(200)
    (ran,) = done
    stats, arrived = orders.stats(), shop["onward"].stats().messages
    assert ran.stopped
    assert (stats.in_flight, stats.visible) == (0, 100 - arrived)  # what is not in the sink is free for everybody
    assert ran.taken == arrived
    assert not (tmp_path / "shop-checkpoint" / "pause").exists()


def test_a_drain_waits_for_what_is_landed_and_for_a_batch_that_runs(tmp_path: Path) -> None:
    class Idle:
        status = {"isTriggerActive": False}

    class Busy:
        status = {"isTriggerActive": True}

    (source,) = declaration.load(declare(tmp_path)).sources
    take = Take("shop", source, "", tmp_path)
    file = take.landed / "00000000" / "part.parquet"
    file.parent.mkdir(parents=True)
    run = PipelineRun([take], [], [], Watch("shop"), declared.Ran(), Draining(tmp_path, 1))
    assert run._is_drained([Idle(), Idle()])  # type: ignore[list-item]
    assert not run._is_drained([Idle(), Busy()])  # type: ignore[list-item]
    file.touch()
    assert not run._is_drained([Idle(), Idle()])  # type: ignore[list-item]


def test_what_cannot_be_written_in_time_is_left_to_the_next_run(
    spark: SparkSession, tmp_path: Path, shop: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared.PipelineRun, "_is_drained", lambda *_: False)
    orders, watch = shop["orders"], Watch("shop")
    orders.send(b"1")
    run = threading.Thread(target=declared.run, args=(spark, declare(tmp_path)), kwargs={"watch": watch, "grace": 0.5})
    run.start()
    happens(lambda: shop["onward"].stats().messages > 0 or not run.is_alive())
    stopped_at = time.monotonic()
    watch.stop()
    run.join(200)
    assert not run.is_alive()
    assert time.monotonic() > stopped_at + 0.5


def test_sigterm_ends_the_command_of_the_unit_with_all_written_and_no_call_that_the_unit_forbids(
    tmp_path: Path, shop: penstock.Broker
) -> None:
    shop["orders"].send_many([b"x"] * 20)
    (command,) = re.findall(r"^ExecStart=/opt/penstock/bin/penstock (.*)$", UNIT.read_text(), re.M)
    folder, file = "/var/lib/penstock-pipelines/%i", "/etc/penstock/pipelines/%i.toml"
    assert folder in command
    assert file in command
    words = (
        command.replace(folder, str(tmp_path / "check")).replace(file, str(declare(tmp_path))).replace(":9464", ":0").split()
    )
    strace, calls = shutil.which("strace"), tmp_path / "calls"
    assert strace, "install strace (tools/provision does)"
    traced = [strace, "-f", "-qq", "--seccomp-bpf", "-o", str(calls), "-e", f"trace={','.join(sorted(forbidden()))}"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    run = [*traced, "sh", "-c", f'echo $$ > {tmp_path}/pid; exec "$@"', "sh", sys.executable, "-m", "penstock.cli", *words]
    with subprocess.Popen(run, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            happens(lambda: shop["onward"].stats().messages == 20 or process.poll() is not None)
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
            out, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0
    assert out.startswith("shop: 20 messages taken, 40 rows in ")
    assert out.endswith(", stopped\n")
    assert shop["orders"].stats().messages == 0
    assert {line.split()[1].partition("(")[0] for line in calls.read_text().splitlines() if "(" in line} - BY_ROOT == set()


def forbidden() -> set[str]:
    """The system calls that the unit's filter does not allow, as far as strace knows them."""
    return {f"?{call}" for call in calls_of("@known") - (calls_of("@system-service") - calls_of("@privileged"))}
