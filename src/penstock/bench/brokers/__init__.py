"""``penstock bench brokers``: the service, its client and the embedded queue beside brokers and a plain table in PostgreSQL.

The benchmark starts those that are installed, and all sync before they answer."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.bench.brokers.comparison import NAMES, QUICK, Comparison, Plan
from penstock.bench.brokers.report import document, markdown
from penstock.bench.brokers.targets import TARGETS
from penstock.bench.machine import facts
from penstock.errors import MissingExtra


def main(argv: list[str]) -> int:
    """Measure, print the page, and leave brokers.md, brokers.json and brokers.png in the folder for results."""
    arguments = _parser().parse_args(argv)
    if not Path("/proc/self/stat").exists():
        print("penstock bench brokers needs Linux: it reads what servers use from /proc", file=sys.stderr)
        return 2
    names = [name for name in NAMES if any(fnmatchcase(name, pattern) for pattern in arguments.only)]
    if not names:
        print(f"no row is named {' or '.join(arguments.only)}; there are: {' '.join(NAMES)}", file=sys.stderr)
        return 2
    if arguments.plot and not find_spec("matplotlib"):
        raise MissingExtra("the benchmark's picture", "bench")
    plan = QUICK if arguments.quick else Plan()
    given = {
        name: getattr(arguments, name) for name in ("rounds", "seconds", "backlog") if getattr(arguments, name) is not None
    }
    for name, value in given.items():
        if value <= 0:
            print(f"--{name} is {value}; it must be more than 0", file=sys.stderr)
            return 2
    plan = replace(plan, **given)
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".penstock-bench-", dir=arguments.folder) as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)  # PostgreSQL runs as another user
        known = facts(folder, ())  # before the run adds its own load
        results = Comparison(plan, names, [TARGETS[peer] for peer in arguments.peers], folder).run()
        known["load afterwards"] = facts(folder, ())["load"]
    page = markdown(results, known)
    print(page)
    (arguments.out / "brokers.md").write_text(page)
    (arguments.out / "brokers.json").write_text(json.dumps(document(results, known), indent=1))
    if arguments.plot:
        from penstock.bench.brokers.plot import draw

        draw(results, arguments.out / "brokers.png")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench brokers",
        description="Measure the service beside brokers that are installed, in turns, all with the same sync.",
    )
    parser.add_argument("--quick", action="store_true", help="short turns, one round: a look of a minute, not a result")
    parser.add_argument("--only", metavar="PATTERN", nargs="+", default=["*"], help=f"of these, by name: {' '.join(NAMES)}")
    parser.add_argument(
        "--peers", metavar="NAME", nargs="+", choices=TARGETS, default=list(TARGETS), help=f"of these: {' '.join(TARGETS)}"
    )
    parser.add_argument("--rounds", metavar="N", type=int, help="in each of which every peer has one turn of a row (5)")
    parser.add_argument("--seconds", metavar="S", type=float, help="for each turn (1)")
    parser.add_argument("--backlog", metavar="N", type=int, help="messages at which memory is measured (200000)")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("bench-results"), help="where the results go")
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, default=Path(), help="where all servers keep their data (not a tmpfs)"
    )
    parser.add_argument("--no-plot", dest="plot", action="store_false", help="draw no picture")
    return parser
