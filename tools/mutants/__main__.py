"""Plant known faults, one at a time, and show that the tests catch each: `make mutants`, or with names, only those.

A mutant is a piece of the source, its replacement, and the tests that should notice. Each runs on a copy of the tree, one per
core at a time. A fault that survives is an error, and so is one whose place is gone.

A test that always fails, or fails on a machine that is too busy, catches nothing: at the end the tests that have caught a fault
run without one, and must pass. Verdicts are kept in `.mutants`: what was caught on this very tree is not tried again, so that a
run that was stopped goes on.
"""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import trying
from faults import MUTANTS
from planted import Mutant

ROOT = Path(__file__).parent.parent.parent
PARTS = ("src", "tests", "docs", "pyproject.toml", "README.md", "LICENSE")
KEPT = ROOT / ".mutants"


class Trees:
    """A copy of the tree as it was at the start, and copies of that one that cost little: of links, not of bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.original = folder / "original"
        for part in ("src", "tests"):
            compileall.compile_dir(ROOT / part, quiet=1)  # once, instead of by every mutant's tests
        self.original.mkdir()
        for part in PARTS:
            (shutil.copytree if (ROOT / part).is_dir() else shutil.copy2)(ROOT / part, self.original / part)

    def digest(self) -> str:
        files = [path for part in PARTS for path in (self.original / part).rglob("*")] + [self.original / "pyproject.toml"]
        contents = (path.read_bytes() for path in sorted(files) if path.is_file() and path.suffix != ".pyc")
        return hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).hexdigest()

    def copy(self) -> Path:
        made = Path(tempfile.mkdtemp(dir=self.folder))
        shutil.copytree(self.original, made, copy_function=os.link, dirs_exist_ok=True)
        return made

    def concerned(self, mutant: Mutant) -> Iterator[str]:
        """Those of the mutant's files that hold a test that it chooses. A contract is in another file."""
        for name in mutant.files:
            text = (self.original / name).read_text()
            if re.search(words(mutant), name + text, re.IGNORECASE) or "Contract" in text:
                yield name


def words(mutant: Mutant) -> str:
    """Of its tests' names: any of these."""
    return "|".join(sorted(set(re.findall(r"\w+", mutant.tests)) - {"and", "or", "not"}))


def plant(mutant: Mutant, folder: Path) -> bool:
    """Whether every place of the fault was found."""
    for name, old, new in mutant.changes:
        path = folder / "src/penstock" / name
        text = path.read_text()
        if old not in text:
            print(f"mutant {mutant.name!r}: its place is gone from {name}: {old!r}")
            return False
        path.unlink()  # it is a link to the original
        path.write_text(text.replace(old, new))
    return True


def try_out(trees: Trees, mutants: Iterable[Mutant]) -> Iterator[tuple[Mutant, str, str]]:
    """Each with its verdict, and the test that caught it."""
    running: dict[int, tuple[Mutant, Path, float]] = {}
    waiting = iter(mutants)
    try:
        while True:
            for mutant in waiting:
                folder = trees.copy()
                if not plant(mutant, folder):
                    yield mutant, "NO PLACE", ""
                    continue
                child = trying.start(folder, ["-x", "-k", mutant.tests, *trees.concerned(mutant)], words(mutant))
                running[child] = mutant, folder, time.monotonic()
                if len(running) >= (os.cpu_count() or 1):
                    break
            if not running:
                return
            child, status = os.wait()
            mutant, folder, started = running.pop(child)
            trying.end(child)
            verdict, test, why = judge(folder, os.waitstatus_to_exitcode(status))
            print(f"{verdict:9}{mutant.name} ({time.monotonic() - started:.0f} s)  {test}  {why[:100]!r}", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            yield mutant, verdict, test
    finally:
        for child in running:
            trying.end(child)


def judge(folder: Path, code: int) -> tuple[str, str, str]:
    failed = trying.failures(folder)
    if code == 0:
        return "SURVIVED", "", ""
    if code != 1 or not failed:
        print(trying.printed(folder)[-2000:])
        return "NO RUN", "", ""
    return "caught", *failed[0]


def doubtful(trees: Trees, tests: Iterable[str]) -> set[str]:
    """Those of the tests that fail without a fault too."""
    folder = trees.copy()
    (folder / "chosen").write_text("\n".join(sorted(tests)))
    child = trying.start(folder, ["@chosen"])
    os.waitpid(child, 0)
    trying.end(child)
    return {test for test, _ in trying.failures(folder)}


class Caught:
    """The test that caught each mutant, of every tree that was tried."""

    def __init__(self, tree: str) -> None:
        self.tree = tree
        self.tests: dict[str, str] = {}
        if KEPT.exists():
            self.tests = dict(json.loads(line) for line in KEPT.read_text().splitlines())

    def key(self, mutant: Mutant) -> str:
        return hashlib.sha256(f"{self.tree} {mutant}".encode()).hexdigest()

    def __contains__(self, mutant: Mutant) -> bool:
        return self.key(mutant) in self.tests

    def __getitem__(self, mutant: Mutant) -> str:
        return self.tests[self.key(mutant)]

    def __setitem__(self, mutant: Mutant, test: str) -> None:
        self.tests[self.key(mutant)] = test
        with KEPT.open("a") as kept:
            print(json.dumps([self.key(mutant), test]), file=kept)


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    unknown = set(names) - {mutant.name for mutant in chosen}
    if unknown:
        raise SystemExit(f"there is no mutant {', '.join(sorted(map(repr, unknown)))}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        trees = Trees(Path(temporary))
        trying.warm()
        caught = Caught(trees.digest())
        missed = []
        for mutant, verdict, test in try_out(trees, [mutant for mutant in chosen if names or mutant not in caught]):
            if verdict == "caught":
                caught[mutant] = test
            else:
                missed.append(f"{verdict} {mutant.name}")
        tests = {caught[mutant] for mutant in chosen if mutant in caught}
        doubted = doubtful(trees, tests) if tests else set()
    missed += [
        f"{mutant.name}: {caught[mutant]} fails without it too"
        for mutant in chosen
        if mutant in caught and caught[mutant] in doubted
    ]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught", *missed, sep="\n  not caught: ")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
