"""Which calls a server makes to have its data on the disk, counted by strace."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from penstock.testing.servers import START_SECONDS, Missing, find

SYNCS = ("fsync", "fdatasync", "syncfs", "sync", "msync")
WRITES = ("write", "writev", "pwrite64", "pwritev", "pwritev2")
CALL = re.compile(r"^\d+ +(\w+)\((?:\d+<([^>]*)>)?")


class SyncCount:
    """Counts the syncs of processes while the block runs. Owns the strace that looks at them.

    In a folder whose files are written through to the disk, a write is a sync."""

    def __init__(self, pids: Iterable[int], file: Path, written: Path | None) -> None:
        self._pids = list(pids)
        self._file = file
        self._written = str(written.resolve()) if written else None
        self.calls: Counter[str] = Counter()

    def __enter__(self) -> Self:
        calls = [*SYNCS, *(WRITES if self._written else ())]
        attached = [part for pid in self._pids for part in ("-p", str(pid))]
        self._strace = subprocess.Popen(
            [find("strace"), "-f", "-y", "-s", "0", "-o", str(self._file), "-e", f"trace={','.join(calls)}", *attached],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        give_up_at = time.monotonic() + START_SECONDS
        while not all(map(_traced, self._pids)):
            if self._strace.poll() is not None or time.monotonic() > give_up_at:
                self._end()
                raise Missing("strace may not look at processes that are not its own")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self.calls = count(self._file.read_text(errors="replace"), self._written)

    def _end(self) -> None:
        self._strace.send_signal(signal.SIGINT)  # it lets go of the processes first
        self._strace.wait()


def count(log: str, written: str | None) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in log.splitlines():
        if call := CALL.match(line):
            name, path = call.groups()
            if name in SYNCS or (written and path and path.startswith(written)):
                found[name] += 1
    return found


def _traced(pid: int) -> bool:
    """Whether all threads of the process are looked at."""
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            if "\nTracerPid:\t0\n" in path.read_text():
                return False
        except OSError:  # a thread that has ended
            continue
    return True
