"""The pipelines as commands, in one Spark session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.cli import main, pipeline
from penstock.cli.frame import Frame, absolute
from penstock.errors import BadInput


class Shell:
    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.out = self.err = ""

    def __call__(self, *words: str) -> int:
        code = main(["pipeline", *words])
        self.out, self.err = self._capture.readouterr()
        return code

    def json(self, *words: str) -> Any:
        assert self(*words, "--json") == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def shell(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_STORE", "sqlite:///queues.db")
    monkeypatch.setattr(Frame, "spark", property(lambda _self: spark))
    return Shell(capsys)


def test_what_goes_to_the_lake_comes_back_moves_and_is_freed_of_duplicates(shell: Shell) -> None:
    with penstock.open("sqlite:///queues.db") as broker, penstock.open("vsqs:///other") as other:
        broker.create("jobs").send_many([b"a", b"b", b"a"])
        other.create("jobs")
        assert shell.json("archive", "j*", "lake", "--once", "--compression", "snappy")["rows"] == 3
        assert broker["jobs"].stats().messages == 0

        assert shell("load", "lake", "jobs") == 0
        assert (shell.out, shell.err) == ("loaded 3 rows to jobs\n", "")
        assert shell("load", "lake", "jobs") == 0
        assert shell.out == "loaded 0 rows to jobs\n"
        assert shell.err.startswith("penstock: there was nothing new: .penstock/load-")
        assert broker["jobs"].stats().messages == 3

        assert shell("dedupe", "jobs", "--dry-run") == 0
        assert shell.out == "would remove 1 duplicate among 3 messages\n"
        assert shell("dedupe", "jobs", "--by", "body") == 0
        assert shell.out == "removed 1 duplicate among 3 messages\n"

        assert shell("move", "sqlite:///queues.db", "jobs", "vsqs:///other") == 0
        moved, left, came, proof = shell.out.splitlines()
        assert moved == "moved 2 messages"
        assert left.removeprefix("left ") == came.removeprefix("came to ")
        assert proof == "proven: the same messages"
        assert sorted(message.text for message in other["jobs"].peek(10)) == ["a", "b"]


def test_a_move_tells_what_stays_and_a_load_what_could_not_be_loaded(shell: Shell) -> None:
    with penstock.open("sqlite:///queues.db") as broker, penstock.open("vsqs:///other") as other:
        jobs = broker.create("jobs")
        other.create("jobs")
        jobs.send_many([b"held", b"free"])
        jobs.receive(1)
        jobs.send(b"later", delay=3600)
        assert shell("move", "sqlite:///queues.db", "jobs", "vsqs:///other") == 1
        assert shell.out.splitlines()[0] == "moved 1 message"
        assert shell.out.splitlines()[-1] == "proven: the same messages"
        assert shell.err == "penstock: not all messages have left 'jobs': 1 delayed, 1 held by consumers\n"
        assert shell("move", "sqlite:///queues.db", "jobs", "vsqs:///other", "--json", "--checkpoint", "second") == 1
        assert json.loads(shell.out)["stays"] == {"delayed": 1, "in_flight": 1, "blocked": 0, "damaged": 0, "visible": 0}
        assert [message.body for message in other["jobs"].peek(10)] == [b"free"]

    Path("rows.jsonl").write_text('{"a": 1}\nno JSON\nno JSON either\n')
    assert shell("load", "rows.jsonl", "jobs", "--bad-file", "bad.jsonl") == 0
    assert shell.out == "loaded 1 row to jobs; 2 rows cannot be messages, and are in bad.jsonl\n"
    assert len(Path("bad.jsonl").read_text().splitlines()) == 2
    with penstock.open("sqlite:///queues.db") as broker:
        broker.create("bad")
    assert shell("load", "rows.jsonl", "jobs", "--bad-queue", "bad", "--checkpoint", "other-check") == 0
    assert shell.out == "read 3 rows for jobs; those that cannot be messages are in bad\n"


def test_an_archive_is_replayed_by_its_name_and_the_history_is_archived(shell: Shell) -> None:
    with penstock.open("sqlite:///queues.db") as broker:
        jobs = broker.create("jobs", history=600)
        broker.create("other")
        jobs.send_many([b"1", b"2"])
        for message in jobs.receive(2):
            jobs.delete(message)
        assert shell("archive", "jobs", "lake", "--from-history") == 0
        assert shell.out == "archived 2 messages of the history to lake\n"
        assert shell("load", "lake", "--since", "2026-01-01", "--name", "first") == 0
        assert (shell.out, shell.err) == ("sent 2 messages again, to the queues they came from\n", "")
        assert shell.json("load", "lake", "other", "--where", "text = '2'")["rows"] == 1
        assert shell("load", "lake", "--since", "2026-01-01", "--name", "first") == 0
        assert shell.err.startswith("penstock: nothing was sent: nothing was chosen, or this replay was done before")
        assert [message.body for message in jobs.peek(9)] == [b"1", b"2"]
        assert [message.body for message in broker["other"].peek(9)] == [b"2"]

    for words, told in [
        (["lake", "--since", "yesterday"], "argument --since: 'yesterday' is not a time such as 2030-01-31"),
        (["lake", "--map", "key=id"], "penstock: a replay of an archive sends its messages as they were: it takes no --map\n"),
        (["lake", "lake", "jobs", "--name", "x"], "penstock: a replay has one archive, not 2\n"),
        (["queues.db"], "is not an archive: it is not a folder with files of Parquet; to load other files, name the QUEUE\n"),
    ]:
        assert shell("load", *words) == 2
        assert told in shell.err
    assert shell("archive", "jobs", "lake", "--from-history", "--batch", "3") == 2
    assert shell.err == "penstock: --batch is for draining; --from-history takes the whole history\n"


def test_a_missing_queue_is_told_before_spark_starts(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(_: Frame) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(Frame, "spark", property(start))
    there, here = f"vsqs:///{tmp_path}/other", f"sqlite:///{tmp_path}/queues.db"
    with penstock.open(here) as broker:
        broker.create("jobs")
    penstock.open(there).close()
    cases = [
        (["archive", "jobs", "none", "lake"], f"the store is {here}"),
        (["load", "rows.jsonl", "none"], f"the store is {here}"),
        (["load", "rows.jsonl", "jobs", "--bad-queue", "none"], f"the store is {here}"),
        (["move", here, "none", there], f"the source is {here}"),
        (["move", here, "jobs", there, "none"], f"the target is {there}"),
        (["dedupe", "none"], f"the store is {here}"),
        (["dedupe", "jobs", "none"], f"the store is {here}"),
        (["redrive", "none"], f"the store is {here}"),
        (["redrive", "jobs", "--to", "none"], f"the store is {here}"),
        (["report", "none"], f"the store is {here}"),
    ]
    for words, where in cases:
        assert shell(*words) == 3, words
        assert shell.err == f"penstock: there is no queue 'none'; {where}\n", words


def test_errors_are_one_line_and_an_exit_code_and_debug_shows_all(shell: Shell) -> None:
    penstock.open("sqlite:///queues.db").close()
    assert shell("archive", "jobs", "lake", "--once") == 3
    assert shell.err.startswith("penstock: there is no queue 'jobs'; the store is ")
    assert shell("archive", "jobs", "lake", "--once", "--debug") == 3
    assert "Traceback" in shell.err
    with penstock.open("sqlite:///queues.db") as broker:
        broker.create("jobs")
    assert shell("load", "nowhere.csv", "jobs") == 2
    assert shell.err.startswith("penstock: there is no file ")
    assert shell("load", "nowhere.csv", "jobs", "--map", "key") == 2
    assert "'key' is not FIELD=COLUMN" in shell.err
    assert shell("archive", "jobs") == 2
    assert shell() == 2
    assert "archive" in shell.out


def test_without_the_extra_it_is_asked_for(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "find_spec", lambda _name: None)
    assert shell("archive", "jobs", "lake") == 2
    assert shell.err == 'penstock: a pipeline needs an optional library: pip install "penstock[spark]"\n'


def test_a_store_of_files_is_named_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("sqlite:///a.db?timeout=3") == f"sqlite:///{tmp_path}/a.db?timeout=3"
    assert absolute("spool:///jobs") == f"spool:///{tmp_path}/jobs"
    for url in ("sqlite:////var/a.db", "postgresql://db/shop", "http://localhost:7843"):
        assert absolute(url) == url
    with pytest.raises(BadInput, match="has no path"):
        absolute("sqlite:///")
