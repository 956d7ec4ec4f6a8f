"""Plant known faults, one at a time, and show that the tests catch each: `make mutants`, or with names, only those.

A mutant is a piece of the source, its replacement, and the tests that should notice. Each runs on a copy of the tree, one per
core at a time. A fault that survives is an error, and so is one whose place is gone.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults import MUTANTS
from planted import Mutant

ROOT = Path(__file__).parent.parent.parent


def plant(mutant: Mutant, folder: Path) -> bool:
    """Whether every place of the fault was found."""
    for name, old, new in mutant.changes:
        path = folder / "src/penstock" / name
        text = path.read_text()
        if old not in text:
            print(f"mutant {mutant.name!r}: its place is gone from {name}: {old!r}")
            return False
        path.write_text(text.replace(old, new))
    return True


def try_out(mutant: Mutant) -> str:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for part in ("src", "tests", "docs"):
            shutil.copytree(ROOT / part, folder / part)  # with its bytecode, which keeps the time of its source
        shutil.copy(ROOT / "pyproject.toml", folder)
        if not plant(mutant, folder):
            return "NO PLACE"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-k",
                mutant.tests,
                *mutant.files,
            ],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        print(f"mutant {mutant.name!r}: pytest could not run\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return "NO RUN"
    return "caught" if done.returncode == 1 else "SURVIVED"


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    unknown = set(names) - {mutant.name for mutant in chosen}
    if unknown:
        raise SystemExit(f"there is no mutant {', '.join(sorted(map(repr, unknown)))}")
    compileall.compile_dir(ROOT / "src", quiet=1)  # once, instead of by every mutant's tests
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = list(pool.map(judge, chosen))
    missed = [mutant.name for mutant, verdict in zip(chosen, verdicts, strict=True) if verdict != "caught"]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught", *missed, sep="\n  not caught: ")
    return 1 if missed else 0


def judge(mutant: Mutant) -> str:
    started = time.monotonic()
    verdict = try_out(mutant)
    print(f"{verdict:9}{mutant.name} ({time.monotonic() - started:.0f} s)", flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
