"""The benchmark measures what it claims, against the peers it names, with the sync it claims."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock import bench
from penstock.bench import pipeline, postgresql
from penstock.bench.limits import equalise, read_settings
from penstock.bench.report import acceptance, cell, markdown
from penstock.bench.runs import QUICK, Bench, Plan, Results
from penstock.bench.targets import BARE, BARE_MEMCACHED, OURS, PEERS, STORES, TARGETS
from penstock.bench.workloads import MeasuredQueue, Timing, Trial, Unverified, Verb, Workload, plan, repeat
from penstock.operations.doctor.file_systems import find_mount
from penstock.testing.serving import until

CONNECTIONS = {
    "litequeue": lambda session: session._queue.conn,
    "persist-queue": lambda session: session._queue._putter,
    "huey": lambda session: session._storage.conn,
}


@pytest.mark.usefixtures("memcached")
def test_a_quick_run_leaves_a_page_numbers_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["send-1x100B", "cycle-100x100B", "receive-once-1x100B", "cycle-1x100B-4p", "delete-1x100B-at-100"]
    out = tmp_path / "out"
    assert bench.main(["--quick", "--only", *names, "--backlog", "100", "--out", str(out), "--folder", str(tmp_path)]) == 0
    page = (out / "bench.md").read_text()
    assert page in capsys.readouterr().out
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "bench.json").read_text())
    assert results["machine"].keys() >= {"cpu", "cores", "python", "apsw", "sqlite in apsw", "file system", "date"}
    rows = {row["name"]: row["targets"] for row in results["rows"]}
    assert rows.keys() == set(names)
    assert all(f"| {name} |" in page for name in names)
    assert rows["send-1x100B"].keys() == set(TARGETS)
    assert rows["receive-once-1x100B"].keys() == {*STORES, BARE, "huey", "persist-queue files"}
    shared = {OURS, "penstock vsqs", "penstock spool", "penstock memcached"}
    assert rows["cycle-1x100B-4p"].keys() == {*shared, BARE, BARE_MEMCACHED, "litequeue"}
    assert rows["delete-1x100B-at-100"].keys() == {*STORES, BARE, BARE_MEMCACHED, "litequeue", "persist-queue"}
    assert all(found["rate"] > 0 for targets in rows.values() for found in targets.values())
    assert not list(tmp_path.glob(".penstock-bench-*")), "the queues are cleared away"


def test_the_peer_of_files_has_on_the_disk_all_that_it_needs_to_find_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = TARGETS["persist-queue files"].open(tmp_path / "queue")
    fsync, synced = os.fsync, []

    def count(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115
        fsync(handle)

    monkeypatch.setattr(os, "fsync", count)
    session.send([b"x"])
    assert [Path(path).name for path in synced] == ["q00000", "info", "queue"]
    session.receive_once(1)
    assert [Path(path).name for path in synced[3:]] == ["info", "queue"]
    session.close()


@pytest.mark.parametrize("target", [peer for peer in PEERS if peer.limit == BARE], ids=lambda target: target.name)
def test_a_peer_syncs_every_commit(target: bench.Target, tmp_path: Path) -> None:
    session = target.open(tmp_path / "queue")
    session.fill([b"a backlog may be filled without sync"] * 3)
    connection = CONNECTIONS[target.name](session)
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert "synchronous=2" in session.settings()
    session.close()


def test_a_peer_that_does_not_sync_is_not_reported(tmp_path: Path) -> None:
    peer = next(target for target in PEERS if target.name == "litequeue")

    def open_unsynced(path: Path) -> MeasuredQueue:
        session = peer.open(path)
        session._queue.conn.execute("PRAGMA synchronous = NORMAL")  # type: ignore[attr-defined]
        return session

    row = Workload(Verb.SEND, 1, 100)
    results = Bench(QUICK, [row], [TARGETS[BARE], replace(peer, open=open_unsynced)], tmp_path).run()
    assert results.rates.keys() == {(row, BARE)}
    assert "litequeue is not reported" in markdown(results, {"file system": "ext4"})


@pytest.mark.parametrize("setting", ["PRAGMA synchronous = NORMAL", "PRAGMA synchronous = OFF", "PRAGMA journal_mode = DELETE"])
def test_less_than_full_sync_is_refused(setting: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "file")
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    equalise(connection)
    assert "synchronous=2" in read_settings(connection)
    connection.execute(setting).fetchall()
    with pytest.raises(Unverified):
        read_settings(connection)
    connection.close()


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
@pytest.mark.parametrize("batch", [1, 10])
def test_a_round_runs_every_verb_and_leaves_the_queue_as_it_was(
    target: bench.Target, batch: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "memcached" in target.name:
        request.getfixturevalue("memcached")  # skips the test if it is missing
    session = target.open(tmp_path / "queue")
    course = Trial(target, session, [Workload(verb, batch, 100) for verb in sorted(target.verbs)], seconds=60)
    assert course.round(), "there is time left"
    sent = course.tallies.pop(Verb.SEND).count
    assert sent > 0
    assert all(tally.count in (sent, sent // 2) for tally in course.tallies.values()), (
        "what can settle both ways sends for each"
    )
    if Verb.RECEIVE in target.verbs:
        assert session.receive(1) == []
    elif Verb.RECEIVE_ONCE in target.verbs:
        assert session.receive_once(1) == 0
    session.close()


def test_what_cannot_receive_only_sends() -> None:
    assert plan(TARGETS["append+fdatasync"], {Verb.SEND}, drain=True) == [(Verb.SEND,)]
    assert plan(TARGETS["huey"], {Verb.SEND}, drain=True) == [(Verb.SEND, Verb.RECEIVE_ONCE)]
    assert plan(TARGETS[OURS], {Verb.SEND}, drain=False) == [(Verb.SEND,)]


def test_repeating_ends_when_nothing_is_left() -> None:
    left = [3, 2, 0, 5]
    assert repeat(lambda: left.pop(0), seconds=60).count == 5
    assert left == [5]


def test_every_row_has_its_own_name() -> None:
    names = [row.name for row in Plan().rows()]
    assert len(names) == len(set(names))
    assert {"send-1000x1000B-4p", "receive-100x100B-at-1000000", "cycle-once-1x100B"} <= set(names)


def test_a_peer_without_batches_shows_its_single_rate_with_a_star() -> None:
    single, batch = Workload(Verb.SEND, 1, 100), Workload(Verb.SEND, 100, 100)
    results = Results([single, batch], [TARGETS[BARE], TARGETS["huey"]])
    results.rates = {(single, BARE): [200.0], (batch, BARE): [1000.0], (single, "huey"): [100.0]}
    assert str(cell(results, single, TARGETS["huey"])) == "100 (0.50)"
    assert str(cell(results, batch, TARGETS["huey"])) == "100 (0.10)*"


def test_a_ratio_is_of_neighbours_in_time() -> None:
    row = Workload(Verb.SEND, 1, 100)
    results = Results([row], [TARGETS[BARE], TARGETS[OURS]])
    results.rates = {(row, BARE): [100.0, 1000.0, 10.0], (row, OURS): [50.0, 500.0, 5.0]}
    found = cell(results, row, TARGETS[OURS])
    assert found is not None
    assert (found.rate, found.ratio) == (50, 0.5)


def test_what_stood_still_is_told_and_spoils_nothing() -> None:
    row = Workload(Verb.SEND, 1, 100)
    results = Results([row], [TARGETS[BARE], TARGETS[OURS], TARGETS["huey"]])
    results.rates = {(row, BARE): [0.0], (row, OURS): [5.0], (row, "huey"): [0.0]}
    assert "| send-1x100B | 0 | 5 (inf) | 0 (inf) |" in markdown(results, {"file system": "ext4"})


def test_the_acceptance_lines_say_met_not_met_or_not_measured() -> None:
    send, cycle = Workload(Verb.SEND, 100, 100), Workload(Verb.CYCLE, 100, 100)
    near, far = (Workload(Verb.DELETE, 1, 100, backlog=backlog) for backlog in (100, 1_000_000))
    results = Results([send, cycle, near, far], [TARGETS[BARE], TARGETS[OURS], TARGETS["litequeue"]])
    results.rates = {
        (send, BARE): [100.0],
        (send, OURS): [60.0],
        (send, "litequeue"): [61.0],
        (cycle, BARE): [100.0],
        (cycle, OURS): [39.0],
        (near, OURS): [130.0],
        (far, OURS): [99.0],
    }
    met = {line.text: line.met for line in acceptance(results)}
    assert met["penstock sqlite: send by 100, 100 B: at least 60% of bare sqlite3"] is True
    assert met["penstock sqlite: cycle by 100, 100 B: at least 40% of bare sqlite3"] is False
    assert met["penstock sqlite: send by 1, 100 B: at least 70% of bare sqlite3"] is None
    assert met["penstock sqlite: delete by 1 at a backlog of 1000000 costs at most 1.3 × that at 100"] is False
    assert met["penstock sqlite: receive by 1 at a backlog of 1000000 costs at most 1.3 × that at 100"] is None
    assert met["penstock sqlite: ahead of litequeue on every row"] is False


def test_a_rate_needs_time() -> None:
    assert Timing().rate == 0
    assert Timing(10, 2).rate == 5


def test_a_library_is_missed_only_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    base = ["--quick", "--only", "send-1x100B", "--out", str(tmp_path), "--folder", str(tmp_path)]
    with pytest.raises(penstock.MissingExtra, match=r"penstock\[bench\]"):
        bench.main([*base, "--no-plot"])
    with pytest.raises(penstock.MissingExtra, match=r"penstock\[bench\]"):
        bench.main([*base, "--targets", "penstock memory"])
    assert bench.main([*base, "--targets", "penstock memory", "--no-plot"]) == 0
    assert not (tmp_path / "bench.png").exists()


def test_told_to_end_it_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.bench", "--targets", "penstock sqlite", "--folder", str(tmp_path)]
    with subprocess.Popen([*command, "--out", str(tmp_path / "out")], cwd=tmp_path) as running:
        until(lambda: list(tmp_path.glob(".penstock-bench-*/*")))
        running.terminate()
    assert running.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.glob(".penstock-bench-*")) == []


def test_a_pattern_that_names_no_row_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--only", "push-*", "--no-plot", "--out", str(tmp_path)]) == 2
    assert "no row is named push-*" in capsys.readouterr().err


def test_a_file_system_without_sync_is_told() -> None:
    assert find_mount(Path("/proc")).kind in ("proc", "unknown")
    assert "a sync does nothing" in markdown(Results([], []), {"file system": "tmpfs"})


def test_ext4_without_a_journal_is_told(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("/dev/sda1 / ext4 rw 0 0\nnone /proc proc rw 0 0\n")
    for part in ("fs/ext4/sda1", "fs/jbd2/sdb1-8"):
        (tmp_path / part).mkdir(parents=True)
    found = find_mount(Path("/"), tmp_path).kind
    assert "far slower" in markdown(Results([], []), {"file system": found})
    (tmp_path / "fs/jbd2/sda1-8").mkdir()
    assert find_mount(Path("/"), tmp_path).kind == "ext4"


def test_the_service_is_measured_beside_its_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["http", "--seconds", "0.2", "--repeats", "1", "--connections", "4", "--folder", str(tmp_path)]) == 0
    page = capsys.readouterr().out
    for line in ("the service, 4 connections", "the service, 1 connection", "(a) the same", "(b) bare SQLite", "* of (a): "):
        assert line in page
    assert list(tmp_path.iterdir()) == []


def test_a_quick_run_on_postgresql_measures_the_limit_and_the_peers(tmp_path: Path) -> None:
    names = ["send-100x100B", "receive-100x100B", "delete-100x100B", "cycle-1x100B"]
    out = tmp_path / "out"
    arguments = ["--on", "postgresql", "--quick", "--no-plot", "--out", str(out), "--folder", str(tmp_path)]
    assert bench.main([*arguments, "--only", *names]) == 0
    results = json.loads((out / "bench.json").read_text())
    rows = {row["name"]: row["targets"] for row in results["rows"]}
    assert rows.keys() == set(names)
    assert rows["send-100x100B"].keys() == rows["cycle-1x100B"].keys() == set(postgresql.TARGETS)
    met = {line["text"]: line["met"] for line in results["acceptance"]}
    assert met[f"{postgresql.OURS}: receive and delete by 100, 100 B: at least 60% of bare psycopg"] is not None
    assert f"{postgresql.OURS}: ahead of pgqueuer on every row" in met


PGMQ = """
CREATE SCHEMA pgmq;
CREATE TABLE pgmq.all (id BIGINT GENERATED ALWAYS AS IDENTITY, queue TEXT, body JSONB, taken BOOLEAN DEFAULT false);
CREATE FUNCTION pgmq.create(TEXT) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION pgmq.send(TEXT, JSONB) RETURNS SETOF BIGINT LANGUAGE sql AS
    'INSERT INTO pgmq.all (queue, body) VALUES ($1, $2) RETURNING id';
CREATE FUNCTION pgmq.send_batch(TEXT, JSONB[]) RETURNS SETOF BIGINT LANGUAGE sql AS
    'INSERT INTO pgmq.all (queue, body) SELECT $1, unnest($2) RETURNING id';
CREATE FUNCTION pgmq.read(TEXT, INTEGER, INTEGER) RETURNS SETOF BIGINT LANGUAGE sql AS 'UPDATE pgmq.all SET taken = true
    WHERE id IN (SELECT id FROM pgmq.all WHERE queue = $1 AND NOT taken LIMIT $3 FOR UPDATE SKIP LOCKED) RETURNING id';
CREATE FUNCTION pgmq.delete(TEXT, BIGINT) RETURNS SETOF BIGINT LANGUAGE sql AS
    'DELETE FROM pgmq.all WHERE id = $2 RETURNING id';
CREATE FUNCTION pgmq.delete(TEXT, BIGINT[]) RETURNS SETOF BIGINT LANGUAGE sql AS
    'DELETE FROM pgmq.all WHERE id = ANY($2) RETURNING id';
"""
"""Functions with the names and parameters of pgmq's, which we do not ship."""


def test_pgmqs_functions_are_measured_if_its_file_is_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "their.sql", tmp_path / "out"
    file.write_text(PGMQ)
    common = ["--targets", postgresql.OURS, "pgmq", "--out", str(out), "--folder", str(tmp_path)]
    names = ["cycle-1x100B", "cycle-100x100B"]
    given = ["--pgmq", str(file)]
    assert bench.main(["--on", "postgresql", "--quick", "--no-plot", *common, *given, "--only", *names]) == 0
    rows = {row["name"]: row["targets"] for row in json.loads((out / "bench.json").read_text())["rows"]}
    assert all(row.keys() == {postgresql.OURS, "pgmq"} for row in rows.values())
    short = ["--tasks", "30", "--workers", "2", "--repeats", "1"]
    assert bench.main(["consumers", *short, *common, *given]) == 0
    assert "ahead of pgmq with 2: " in (out / "consumers.md").read_text()
    with pytest.raises(SystemExit):
        bench.main(["consumers", *short, *common])
    assert "--pgmq" in capsys.readouterr().err


def test_consumers_are_measured_beside_those_of_the_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["--tasks", "30", "--workers", "1", "2", "--repeats", "1", "--out", str(out), "--folder", str(tmp_path)]
    assert bench.main(["consumers", *arguments]) == 0
    page = (out / "consumers.md").read_text()
    assert page in capsys.readouterr().out
    rates = json.loads((out / "consumers.json").read_text())["rates"]
    peers = {name for name, target in postgresql.TARGETS.items() if target.peer}
    assert rates.keys() == {"1", "2"}
    assert all(found.keys() == {postgresql.OURS, *peers} for found in rates.values())
    assert all(rate > 0 for found in rates.values() for (rate,) in found.values())
    assert all(f"ahead of {peer} with {workers}: " in page for peer in peers for workers in (1, 2))
    assert not list(tmp_path.glob(".penstock-bench-*"))


def test_a_target_that_nobody_knows_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--targets", "oracle", "--no-plot", "--out", str(tmp_path)]) == 2
    assert "no target is named 'oracle'" in capsys.readouterr().err


def test_pipelines_are_measured_beside_spark_and_the_sink(tmp_path: Path, spark: SparkSession) -> None:
    rates = pipeline.measure(spark, tmp_path, 300, 50, 1)
    assert {name: len(turns) for name, turns in rates.items()} == {"archive": 1, "copy Parquet": 1, "sink": 1, "load": 1}
    page = pipeline.report({"archive": [6, 6], "copy Parquet": [10, 20], "sink": [10, 10], "load": [6, 7]})
    assert "| copy Parquet | 15 |" in page
    assert "* archive: 45% of copy Parquet, at least 50% wanted: **NOT met**" in page
    assert "* load: 65% of sink, at least 70% wanted: **NOT met**" in page


def test_tasks_that_send_and_that_wait_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["--messages", "20", "--repeats", "1", "--idle", "0.1", "--out", str(out), "--folder", str(tmp_path)]
    assert bench.main(["asyncio", *arguments]) == 0
    page = (out / "asyncio.md").read_text()
    assert page in capsys.readouterr().out
    found = json.loads((out / "asyncio.json").read_text())
    assert (len(found["one"]), len(found["many"])) == (1, 1)
    assert "tasks send at least 5 times as fast as one: " in page
    assert not list(tmp_path.glob(".penstock-bench-*"))
