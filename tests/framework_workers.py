"""Workers of frameworks as processes that tests start, kill and start again, and the account of what their tasks did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Self

from penstock.bench.brokers.processes import family, processor_seconds

APPS = Path(__file__).parent / "apps"
SEARCH = os.pathsep.join(filter(None, [str(APPS), os.environ.get("PYTHONPATH")]))
"""Where a worker finds the applications, and what this process was told to use."""
PATIENCE = 150
"""Seconds after which something that was to happen will not, on a busy machine."""
LONG = bool(os.environ.get("PENSTOCK_LONG"))


def until(what: str, true: Callable[[], object], seconds: float = PATIENCE) -> None:
    give_up_at = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up_at, f"{what}: not in {seconds} seconds"
        time.sleep(0.05)


class WorkerProgram:
    """A worker, with all that it starts. Owns them: they are a process group of their own."""

    def __init__(self, folder: Path, name: str, *command: str, **environment: str) -> None:
        self.log = folder / f"{name}.log"
        others = {name: value for name, value in os.environ.items() if not name.startswith(("APP_", "CELERY_", "DJANGO_"))}
        ours = {"APP_FOLDER": str(folder), "PYTHONPATH": SEARCH, "PYTHONDONTWRITEBYTECODE": "1"}
        self._command = [sys.executable, "-m", *command]
        self._environment = others | ours | environment
        self._folder = folder
        self._heard = 0
        self.start()

    def start(self) -> None:
        self._heard = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            print(f"--- {self.log.name}\n{self.log.read_text(errors='replace')[-6000:]}", file=sys.stderr)
        self.kill()

    def says(self, words: str) -> bool:
        """Since it was last started."""
        with self.log.open(errors="replace") as log:
            log.seek(self._heard)
            return words in log.read()

    def kill(self) -> None:
        """kill -9, of everything at once."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and wait until it has; returns its exit code."""
        self._process.send_signal(how)
        return self.wait()

    def ask_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def processor_seconds(self) -> float:
        return processor_seconds(family([self._process.pid]))


def notes(folder: Path) -> list[list[str]]:
    path = folder / "notes"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def counted(folder: Path) -> Counter[int]:
    """How often each task of a load has run; none of them before its time."""
    found = [note for note in notes(folder) if note[0] == "count"]
    assert not [note for note in found if note[-1] == "early"]
    return Counter(int(note[1]) for note in found)
