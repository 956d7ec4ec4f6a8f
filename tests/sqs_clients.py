"""How tests run the real clients of SQS: programs of tests/clients, in the environments that tools/provide-clients has made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "clients"
CLIENTS = Path(sys.prefix) / "clients"
NEW, OLD, NODE = CLIENTS / "python/bin/python", CLIENTS / "python-old/bin/python", CLIENTS / "python/bin/node"
DEADLINE = 280
"""Seconds, for the slowest program on a busy machine."""


def require_clients() -> None:
    """Without them a laptop skips the test, and CI fails."""
    if not (CLIENTS / ".ready").exists():
        text = "the clients of SQS are not installed (make clients does that)"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)


def environment(url: str, folder: Path) -> dict[str, str]:
    """No settings but ours."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHON", "CELERY_"))}
    return others | {
        "HOME": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "AWS_PAGER": "",
    }


def start(interpreter: Path, program: str, url: str, folder: Path, **more: str) -> subprocess.Popen[str]:
    """A program on its own queues. It ends with an exit code and a message."""
    require_clients()
    path = PROGRAMS / program
    if path.suffix == ".mjs":  # Node looks for modules beside the program
        (folder / "node_modules").symlink_to(CLIENTS / "node_modules")
        path = Path(shutil.copy(path, folder))
    (folder / "results").mkdir()
    ours = {
        "SQS_URL": url,
        "SQS_PREFIX": f"{interpreter.parent.parent.name}-{path.stem.removeprefix('with_')}-",
        "SQS_FOLDER": str(folder),
    }
    return subprocess.Popen(
        [interpreter, path],
        env=environment(url, folder) | ours | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for its end; a program that has failed, or is late, says why."""
    late = threading.Timer(DEADLINE, process.terminate)
    late.start()
    with process:
        assert process.stdout
        output = process.stdout.read()
    late.cancel()
    assert process.returncode == 0, f"exit code {process.returncode}\n{output[-8000:]}"


def run(interpreter: Path, program: str, url: str, folder: Path) -> None:
    finish(start(interpreter, program, url, folder))
