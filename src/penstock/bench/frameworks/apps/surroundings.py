"""What the benchmark tells an application by its environment, and how an empty task says that it has run.

notes    a file to which each task appends the instant at which it ran: 8 bytes, seconds of the monotonic clock
"""

from __future__ import annotations

import os
import struct
import time
from array import array
from functools import cache
from pathlib import Path

ADDRESS, NOTES, KIND = "PENSTOCK_BENCH_ADDRESS", "PENSTOCK_BENCH_NOTES", "PENSTOCK_BENCH_KIND"
NOTE = struct.Struct("d")


def address() -> str:
    return os.environ[ADDRESS]


def kind() -> str:
    """For an application that runs on several brokers: on which."""
    return os.environ[KIND]


def note() -> None:
    """All that an empty task does. Processes append to one file, and a note is whole or not there."""
    os.write(_notes(os.environ[NOTES]), NOTE.pack(time.monotonic()))


@cache
def _notes(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def noted(path: Path) -> list[float]:
    """When tasks ran, the first first."""
    found = array("d")
    whole = path.read_bytes() if path.exists() else b""
    found.frombytes(whole[: len(whole) // NOTE.size * NOTE.size])
    return sorted(found)
