"""This machine and this Python: versions, libraries, the wall clock, Java."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import NamedTuple

import apsw

import penstock
from penstock.clock import Clock
from penstock.operations.doctor.findings import Finding, note, ok, wrong

NEWEST = (3, 13)
"""The newest Python that Penstock was tested on."""
BUILT = 1_735_689_600
"""2025 began: no machine that runs this Penstock is older."""
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w, -]+\])?\s*(?P<bounds>[<>=!~\d., ]*)(?:;\s*(?P<marker>.*))?")
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")
_EXTRA = re.compile(r"""extra == ['"]([\w-]+)['"]""")
_PYTHON = re.compile(r"""python_version (<|>=) ['"](\d+)\.(\d+)['"]""")
UNSYNCHRONISED, STATUS, TIMEX = 0x40, 40, 512
"""A flag of the kernel's clock, where its status is in ``struct timex`` on 64 bits, and more bytes than that has."""


def examine_python() -> Iterator[Finding]:
    bits = 64 if sys.maxsize > 2**32 else 32
    what = f"{platform.python_implementation()} {platform.python_version()}, {bits} bits, {platform.platform()}"
    what += f"; Penstock {penstock.__version__}; SQLite {apsw.sqlite_lib_version()}"
    if sys.version_info[:2] <= NEWEST:
        yield ok("python", what)
    else:
        yield note("python", what, f"nobody has tested Penstock on a Python newer than {NEWEST[0]}.{NEWEST[1]}")
    if "eatmydata" in os.environ.get("LD_PRELOAD", ""):
        yield wrong("sync", "LD_PRELOAD has libeatmydata, which makes fsync do nothing", "start programs without it")


class Requirement(NamedTuple):
    extra: str | None
    package: str
    bounds: list[tuple[str, str]]


def examine_libraries() -> Iterator[Finding]:
    """The libraries of each extra: which are there, and are they new enough."""
    try:
        lines = requires("penstock") or []
    except PackageNotFoundError:
        yield note(
            "libraries",
            "Penstock is not installed, only found by its path",
            "pip install penstock: then versions are looked at",
        )
        return
    extras: dict[str | None, list[Requirement]] = defaultdict(list)
    for line in lines:
        if (found := read_requirement(line)) is not None and found.package != "penstock":
            extras[found.extra].append(found)
    extras.pop("all", None)
    there: list[str] = []
    missing: list[str] = []
    told: set[str] = set()
    for extra, wanted in extras.items():
        installed = {each.package: _version(each.package) for each in wanted}
        if extra is not None:
            (there if all(installed.values()) else missing).append(extra)
        for each in wanted:
            has = installed[each.package]
            if has and not fits(has, each.bounds) and each.package not in told:
                told.add(each.package)
                bounds = ", ".join(f"{sign} {bound}" for sign, bound in each.bounds)
                remedy = f'pip install --upgrade "penstock{f"[{extra}]" if extra else ""}"'
                yield wrong("libraries", f"{each.package} {has}: Penstock needs {bounds}", remedy)
    yield ok("libraries", f"extras: {_names(there)}; not installed: {_names(missing)}")


def _names(found: list[str]) -> str:
    return ", ".join(sorted(found)) or "none"


def read_requirement(line: str) -> Requirement | None:
    """A line of our own metadata; None if it is for another Python."""
    found = _REQUIREMENT.match(line)
    marker = (found and found["marker"]) or ""
    for sign, *numbers in _PYTHON.findall(marker):
        asked = tuple(map(int, numbers))
        if (sys.version_info[:2] < asked) != (sign == "<"):
            return None
    if found is None or "sys_platform" in marker:
        return None
    extra = _EXTRA.search(marker)
    return Requirement(extra[1] if extra else None, found["name"].lower(), _BOUND.findall(found["bounds"]))


def fits(has: str, bounds: list[tuple[str, str]]) -> bool:
    return all((_numbers(has) < _numbers(bound)) == (sign == "<") for sign, bound in bounds)


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in re.match(r"[\d.]*", text)[0].split(".") if part]  # type: ignore[index]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def examine_clock(wall: Clock) -> Iterator[Finding]:
    if wall() < BUILT * 1_000_000:
        yield wrong("clock", "the wall clock of this machine is years behind", "set it, by NTP")
    elif _unsynchronised():
        yield note(
            "clock", "nobody keeps the wall clock of this machine right, says its kernel", "chrony or systemd-timesyncd do"
        )
    else:
        yield ok("clock", "the wall clock of this machine is right, as far as it can tell")


def _unsynchronised() -> bool:
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is None or ctypes.sizeof(ctypes.c_long) != 8:
        return False
    state = ctypes.create_string_buffer(TIMEX)  # zeros: it only reads
    if adjtimex(state) < 0:
        return False
    return bool(int.from_bytes(state.raw[STATUS : STATUS + 4], sys.byteorder) & UNSYNCHRONISED)


def examine_java() -> Iterator[Finding]:
    """Only where Spark is installed."""
    if find_spec("pyspark") is None:
        return
    java = import_module("penstock.spark.java")
    try:
        home = java.find_java()
    except java.JavaNotFound as error:
        yield wrong("java", str(error), 'pip install "penstock[spark]", which has one')
    else:
        yield ok("java", f"version {java.java_version(home)} at {home}, for Spark {_version('pyspark')}")
