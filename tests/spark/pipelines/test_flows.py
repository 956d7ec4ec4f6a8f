"""run, redrive and report as commands, in one Spark session."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.cli import main
from penstock.cli.frame import Frame

Shell = Callable[..., tuple[int, str, str]]
FLOW = """\
[source.jobs]
queue = "jobs"
json = "n int"
[check.jobs]
where = "n > 0"
reason = "too small"
[step.numbers]
sql = "SELECT n FROM jobs"
[sink.out]
from = "numbers"
queue = "out"
[dead_letters]
queue = "dead"
"""


@pytest.fixture
def shell(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_STORE", "sqlite:///queues.db")
    monkeypatch.setattr(Frame, "spark", property(lambda _self: spark))

    def run(*words: str) -> tuple[int, str, str]:
        return main(["pipeline", *words]), *capsys.readouterr()

    return run


def test_a_flow_is_run_its_letters_are_redriven_and_all_is_reported(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "flow.toml").write_text(FLOW)
    with penstock.open("sqlite:///queues.db") as broker:
        for name in ("jobs", "out", "dead"):
            broker.create(name, history=60)
        broker["jobs"].send_many([b'{"n": 1}', b'{"n": 0}', b'{"n": -1}'])
        code, out, err = shell("run", "flow.toml")
        assert (code, err) == (0, "")
        assert out.startswith("flow: 3 messages taken, ")

        assert shell("redrive", "dead", "--summary", "--where", "json:n::int = 0")[:2] == (
            0,
            "letters\nall      1\n\nreason\ntoo small  1\n\nsource\njobs    1\n\ntries\n0      1\n\nage\nunder a minute  1\n",
        )
        code, out, _ = shell("redrive", "dead", "--summary", "--json", "--field", "n")
        assert json.loads(out)["n"] == {"-1": 1, "0": 1}
        assert shell("redrive", "dead", "--where", "json:n::int = 0", "--dry-run") == (
            0,
            "would send 1 of 1 chosen letters back: 1 to jobs\n",
            "",
        )
        assert broker["jobs"].stats().messages == 0
        code, out, err = shell("redrive", "dead", "--where", "json:n::int = 0", "--json", "--progress", "json")
        assert (code, json.loads(out)["moved"]) == (0, {"jobs": 1})
        assert json.loads(err) == {"pipeline": "redrive", "rows": 1, "of": 1}
        assert broker["jobs"].stats().messages == 1
        assert shell("redrive", "dead", "--where", "false")[0] == 1
        broker["dead"].send(b"stray")
        assert shell("redrive", "dead", "--where", "source IS NULL") == (
            1,
            "sent 0 of 1 chosen letters back\n",
            "penstock: 1 letters do not say where they came from, and stay: use --to QUEUE\n",
        )

        code, out, _ = shell("report", "jobs", "dead", "out", "--html", "report.html")
        assert (code, out.splitlines()[0].split(), out.splitlines()[-1]) == (
            0,
            ["queue", "messages", "unsettled", "redelivered", "dead"],
            "written to report.html",
        )
        assert "too small" in (tmp_path / "report.html").read_text()
        assert json.loads(shell("report", "dead", "--json")[1])["all"]["messages"] == 2


def test_mistakes_are_one_line_and_an_exit_code(shell: Shell, tmp_path: Path) -> None:
    penstock.open("sqlite:///queues.db").close()
    (tmp_path / "flow.toml").write_text(FLOW)
    assert shell("run", "nothing.toml") == (2, "", "penstock: nothing.toml: No such file or directory\n")
    code, _, err = shell("run", "flow.toml")
    assert (code, err) == (3, "penstock: there is no queue 'jobs'; flow.toml, line 2, [source.jobs]\n")
    (tmp_path / "flow.toml").write_text(FLOW.replace("reason", "raison"))
    code, _, err = shell("run", "flow.toml")
    told = "there is no key 'raison'; there are where, reason, name, action, stop_above, stop_share"
    assert (code, err) == (2, f"penstock: flow.toml, line 6, [check.jobs]: {told}\n")
    assert shell("redrive", "dead")[0] == 3
    assert shell("report", "dead")[0] == 3
    for words in (("--summary", "--rate", "5"), ("--field", "a"), ("--limit", "0")):
        code, _, err = shell("redrive", "dead", *words)
        assert (code, err.count("\n")) == (2, 1)
