"""The times of files. They come from the machine's wall clock, so they are compared with that clock, and only here.

No rule depends on them: they tell whether a process is still writing a file, and whether a folder has to be listed again.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import signal
import time
from pathlib import Path

from penstock.clock import MachineClock

EXACT = platform.system() == "Linux" and tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 13)
"""Whether every observable change gives a folder a new mtime; older kernels gave all changes within a tick the same one."""
TICK = 20_000_000
"""Changes within some milliseconds may give a file the same mtime; this (ns) is longer than that."""
ORPHANED = 3600
"""Seconds after which an unfinished file is certainly left by a dead process."""

_unstepped = MachineClock()


def is_recent(changed_at: int) -> bool:
    """Whether a file changed so recently (ns) that it may change again and keep its mtime."""
    return time.time_ns() - changed_at <= TICK


def wall_millisecond() -> int:
    """The current millisecond of the machine's clock, by which other VSQS programs number their messages."""
    return time.time_ns() // 1_000_000


def file_age(changed_at: float) -> float:
    """How many seconds ago a file was changed, by its mtime.

    If the wall clock was set after the change, a clock without steps gives the right answer; if before, the wall clock does.
    The right one does not put the change into the future; if neither does, it is the one by which the file is younger."""
    ages = [now - changed_at for now in (time.time(), _unstepped() / 1_000_000)]
    return min((age for age in ages if age >= 0), default=0)


def is_open_for_writing(path: str) -> bool | None:
    """Whether any process still has the file open for writing; None if that cannot be known."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # another process moved it
        return False
    try:
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)  # a process that opens it now must not kill us: SIGIO would
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    except BlockingIOError:
        return True
    except (OSError, AttributeError):  # no leases on this system or file system, or not our file
        return None
    finally:
        os.close(handle)


def is_orphaned(path: str) -> bool:
    """Whether an unfinished file is so old that no process can be about to finish it."""
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return False
    age = file_age(max(status.st_ctime, status.st_mtime))
    return age > ORPHANED and not is_open_for_writing(path)
