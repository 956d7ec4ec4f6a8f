"""Worker processes of a client, each with a log that is shown if the program fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from expecting import PATIENCE

FOLDER = Path(os.environ["SQS_FOLDER"])
HERE = Path(__file__).parent
signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # so that a program that is late stops its workers


class Worker:
    """One worker and the processes it starts. Owns them: they are a process group of their own."""

    def __init__(self, name: str, program: str, *arguments: str) -> None:
        self.log = FOLDER / f"{name}.log"
        command = [str(Path(sys.executable).with_name(program)), *arguments]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=HERE, stdout=log, stderr=log, start_new_session=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            print(f"--- {self.log.name}\n{self.log.read_text(errors='replace')[-6000:]}", file=sys.stderr)
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def says(self, words: str) -> bool:
        return words in self.log.read_text(errors="replace")

    def stop(self) -> int:
        """Ask it to end, and wait until it has; returns its exit code."""
        self.ask_to_stop()
        return self._process.wait(PATIENCE)

    def ask_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
