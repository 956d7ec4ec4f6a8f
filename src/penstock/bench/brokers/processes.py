"""Processes that the benchmark starts: one with what it has started itself, what they use, and how all of them are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from penstock.testing.servers import START_SECONDS, find

TICKS = os.sysconf("SC_CLK_TCK")
PARENT, SESSION, USED = 1, 3, slice(11, 15)
"""Where they are in /proc/PID/stat, counted from the state: the parent, the session, and the processor time, also of children
that have ended."""
OTHERS = ("PENSTOCK_", "RABBITMQ_", "ERL_")
"""Variables of the user's own servers, which would change ours."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put SIGTERM and Ctrl-C off until the block ends: in it a process starts or stops, and none may be forgotten."""
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number)) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


class Daemon:
    """A program that runs in a folder of its own, away from the terminal. Owns its process, and all that it starts."""

    def __init__(self, folder: Path, *command: str, executable: str | None = None, **variables: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OTHERS)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,  # as it is: Debian's redis-server is a link to a program that looks at the name it is called by
                executable=executable or find(command[0]),
                cwd=folder,
                env=environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with undisturbed():
            stop(self._process)

    def ask_to_end(self, seconds: float, how: signal.Signals = signal.SIGTERM) -> bool:
        """Give it this long; returns whether it has ended."""
        self._process.send_signal(how)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until(self, ready: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + START_SECONDS
        while not ready():
            if self._process.poll() is not None or time.monotonic() > give_up_at:
                raise RuntimeError(f"{self._process.args!r:.200} did not start: {self.output[-2000:]}")
            time.sleep(0.02)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill it and whatever it has started, and wait until they are gone. Their data is the benchmark's, and goes too."""
    doomed = {pid: _birth(pid) for pid in family([process.pid])}
    for pid in doomed:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    while any(birth is not None and _birth(pid) == birth for pid, birth in doomed.items()):
        time.sleep(0.005)


def family(roots: Iterable[int]) -> list[int]:
    """These processes, their descendants, and whoever is left of their sessions."""
    known = {pid: stat for path in Path("/proc").glob("[0-9]*") if (stat := _stat(pid := int(path.name)))}
    found = {root for root in roots if root in known}
    leaders = set(found)
    while more := {pid for pid, stat in known.items() if int(stat[PARENT]) in found or int(stat[SESSION]) in leaders} - found:
        found |= more
    return sorted(found)


def processor_seconds(pids: Iterable[int]) -> float:
    """The processor time that they, and the children that they have outlived, have used."""
    return sum(sum(map(int, stat[USED])) for pid in pids if (stat := _stat(pid))) / TICKS


def memory(pids: Iterable[int]) -> int:
    """Bytes that they occupy. A page that several share counts once (PSS): some servers are many processes."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def _birth(pid: int) -> str | None:
    """When it was started, by which a pid that was given again is told apart; None if it is gone or only waits to be reaped."""
    stat = _stat(pid)
    return stat[19] if stat and stat[0] not in "ZX" else None


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
