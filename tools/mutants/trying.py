"""One run of pytest on one tree, in a process forked from this one, which has imported the libraries that the tests need.

The parent never imports Penstock: each fork does, from its own tree.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

LIBRARIES = ("pytest.__main__", "hypothesis", "httptools", "psycopg", "pyarrow.compute", "pymemcache.client.base", "pymysql")
MINUTES = 20
"""Then a run ends, whatever it waits for. One test has the time of pyproject.toml."""


def warm() -> None:
    for library in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(library)
    gc.freeze()  # the collections of a fork need not look at what its parent has made


def start(folder: Path, arguments: Sequence[str], words: str = "") -> int:
    """The process that runs pytest in this folder. It leaves `printed`, and `failed`: a test and its error in each line.

    Only a test in whose name one of these words occurs is collected: each contract has hundreds of others."""
    child = os.fork()
    if not child:
        run(folder, arguments, words)
    return child


def end(child: int) -> None:
    """With the servers and processes that its tests have left running."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def failures(folder: Path) -> list[tuple[str, str]]:
    failed = folder / "failed"
    return [tuple(json.loads(line)) for line in failed.read_text().splitlines()] if failed.exists() else []


def printed(folder: Path) -> str:
    found = folder / "printed"
    return found.read_text(errors="replace") if found.exists() else "it did not start"


class Notes:
    def __init__(self, folder: Path, words: str) -> None:
        self.failed = folder / "failed"
        self.words = re.compile(words, re.IGNORECASE)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
        a_test = name.startswith("test") and not hasattr(
            obj, "pytestmark"
        )  # a mark may be a parameter, which the words may mean
        return [] if a_test and not self.words.search(f"{collector.nodeid} {name}") else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash: Any = getattr(report.longrepr, "reprcrash", None)
            why = str(crash.message if crash else report.longrepr)[:500]
            with self.failed.open("a") as notes:
                print(json.dumps([report.nodeid, why]), file=notes)


def run(folder: Path, arguments: Sequence[str], words: str) -> NoReturn:
    os.setsid()
    with (folder / "printed").open("wb") as printed, Path(os.devnull).open() as nothing:
        for source, target in ((nothing, 0), (printed, 1), (printed, 2)):
            os.dup2(source.fileno(), target)
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path[0] = os.environ["PYTHONPATH"]
    sys.modules["__main__"] = sys.modules["pytest.__main__"]  # what a process that a test spawns looks at
    faulthandler.dump_traceback_later(MINUTES * 60, exit=True)
    code = 3
    try:
        # Without rewritten assertions, which cost more than most tests: their messages are not read
        code = pytest.main(["-q", "--assert=plain", f"--basetemp={folder / 'tmp'}", *arguments], plugins=[Notes(folder, words)])
    finally:
        sys.stdout.flush()
        os._exit(code)
