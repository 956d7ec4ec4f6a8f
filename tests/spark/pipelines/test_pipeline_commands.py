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


def test_errors_are_one_line_and_an_exit_code_and_debug_shows_all(shell: Shell) -> None:
    penstock.open("sqlite:///queues.db").close()
    assert shell("archive", "jobs", "lake", "--once") == 3
    assert shell.err == "penstock: there is no queue 'jobs'\n"
    assert shell("archive", "jobs", "lake", "--once", "--debug") == 3
    assert "Traceback" in shell.err
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
