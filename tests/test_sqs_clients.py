"""Clients of Amazon SQS as their users have them, unmodified, against `penstock serve` on SQLite."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqs_clients import CLIENTS, NEW, NODE, OLD, environment, require_clients, run
from test_docs import ADDRESS, ROOT, blocks
from test_serve import serving

from penstock.testing.serving import until

MANUAL = ROOT / "docs/sqs.md"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all: each program has queues of its own."""
    require_clients()
    store = tmp_path_factory.mktemp("sqs") / "queue.db"
    with serving(f"sqlite:///{store}", "--access-log", "off") as (_, url):
        yield url


@pytest.mark.parametrize(
    ("interpreter", "program"),
    [
        pytest.param(NEW, "with_boto3.py", id="boto3, JSON"),
        pytest.param(OLD, "with_boto3.py", id="boto3 1.26, Query"),
        pytest.param(NEW, "with_aiobotocore.py", id="aiobotocore"),
        pytest.param(NEW, "with_aws_cli.py", id="aws CLI"),
        pytest.param(NEW, "with_aws_cli_moves.py", id="aws CLI, move tasks"),
        pytest.param(NEW, "with_kombu.py", id="kombu"),
        pytest.param(NEW, "with_dramatiq.py", id="dramatiq-sqs"),
        pytest.param(NEW, "with_pyqs.py", id="pyqs"),
        pytest.param(NODE, "with_javascript.mjs", id="client-sqs, sqs-consumer and sqs-producer"),
    ],
)
def test_a_client_of_sqs_finds_what_it_expects(interpreter: Path, program: str, url: str, tmp_path: Path) -> None:
    run(interpreter, program, url, tmp_path)


def test_the_commands_of_the_manual_run_in_the_aws_cli(url: str, tmp_path: Path) -> None:
    lines = "".join(blocks(MANUAL, "console")).replace(ADDRESS, url).splitlines()
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    assert len(commands) > 4
    path = {"PATH": f"{NEW.parent}:/usr/bin:/bin"}
    script = "\n".join(f"echo '$ '{number}; {command}" for number, command in enumerate(commands))
    ran = subprocess.run(
        ["sh", "-ec", script], capture_output=True, text=True, env=environment(url, tmp_path) | path, check=False
    )
    assert re.sub(r"(?m)^\$ .*", "$", ran.stdout).split() == re.sub(r"(?m)^\$ .*", "$", "\n".join(lines)).split(), ran.stderr


def test_the_celery_of_the_manual_runs(url: str, tmp_path: Path) -> None:
    (block,) = blocks(MANUAL, "python celery")
    (tmp_path / "shop.py").write_text(block.replace(ADDRESS.removeprefix("http://"), url.removeprefix("http://")))
    calling = "from shop import bake; bake.delay('margherita')"
    subprocess.run([NEW, "-c", calling], cwd=tmp_path, env=environment(url, tmp_path), check=True)
    worker = [NEW.with_name("celery"), "-A", "shop", "worker", "--pool", "solo", "-l", "info"]
    says(worker, "baking margherita", url, tmp_path)


def test_the_consumer_of_the_manual_runs_under_node(url: str, tmp_path: Path) -> None:
    (block,) = blocks(MANUAL, "js")
    (tmp_path / "example.mjs").write_text(block.replace(ADDRESS, url))
    (tmp_path / "node_modules").symlink_to(CLIENTS / "node_modules")
    says([NODE, "example.mjs"], "hello", url, tmp_path)


def says(command: list[Path | str], words: str, url: str, folder: Path) -> None:
    """Run a program that does not end by itself, until it has said these words."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(url, folder), stdout=output, stderr=output, start_new_session=True
        )
    try:
        until(lambda: words in (said := (folder / "output").read_text()) or over(process, said))
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # also Node itself, which the command starts
        process.wait()


def over(process: subprocess.Popen[bytes], said: str) -> bool:
    assert process.poll() is None, said
    return False
