"""The benchmark's side of a generator: it starts the process, and asks it."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from penstock.bench.brokers.processes import stop, undisturbed

PATIENCE = 120
"""Seconds beyond the time that a command should take."""


class Failed(Exception):
    """The clients of a target, or its server, have failed."""


class Generator:
    """The clients of one target, in a process of their own, which this owns."""

    def __init__(self, name: str, address: str, folder: Path, program: str = "penstock.bench.brokers.generator") -> None:
        """``program``: the module that is run, with the target's name and the server's address."""
        self._name = name
        self._log = folder / f"clients-{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", program, name, address],
                bufsize=0,  # `select` sees what has not been read
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with undisturbed():
            stop(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.tell(do, **arguments)
        return self.answer(arguments.get("seconds", 0))

    def tell(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._why("it has ended")) from None

    def answer(self, seconds: float = 0) -> dict[str, Any]:
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], seconds + PATIENCE)[0]:
            raise Failed(self._why(f"no answer in {seconds + PATIENCE:g} seconds"))
        line = self._process.stdout.readline()
        if not line:
            raise Failed(self._why("it has ended"))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failed(self._why(answer["error"]))
        return answer

    def _why(self, what: str) -> str:
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"{self._name}: the clients: {what}" + "".join(f" ({line:.200})" for line in last)
