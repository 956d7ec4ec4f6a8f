"""The facts of the machine and the software that a result depends on."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import apsw

import penstock
from penstock.operations.doctor.file_systems import find_mount

PEERS = ("litequeue", "persist-queue", "huey")


def facts(folder: Path, packages: Iterable[str] = PEERS) -> dict[str, str]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "penstock": penstock.__version__,
        "apsw": apsw.apsw_version(),
        "sqlite in apsw": apsw.sqlite_lib_version(),
        "sqlite in python": sqlite3.sqlite_version,
        "file system": find_mount(folder).kind,
        **{name: installed for name in packages if (installed := _version(name))},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # the run did not need it
        return None
