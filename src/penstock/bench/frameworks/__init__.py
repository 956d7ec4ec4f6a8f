"""``penstock bench frameworks``: an empty task in Celery on Penstock, beside its other brokers and beside other frameworks."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.bench.frameworks.comparison import QUICK, Comparison, Plan
from penstock.bench.frameworks.report import document, markdown
from penstock.bench.frameworks.targets import TARGETS
from penstock.bench.machine import facts
from penstock.errors import MissingExtra

PACKAGES = ("celery", "kombu", "dramatiq", "procrastinate", "huey", "redis", "psycopg")


def main(argv: list[str]) -> int:
    """Measure, print the page, and leave frameworks.md, frameworks.json and frameworks.png in the folder for results."""
    arguments = _parser().parse_args(argv)
    if not Path("/proc/self/stat").exists():
        print("penstock bench frameworks needs Linux: it reads what processes use from /proc", file=sys.stderr)
        return 2
    if arguments.plot and not find_spec("matplotlib"):
        raise MissingExtra("the benchmark's picture", "bench")
    given = {name: getattr(arguments, name) for name in ("rounds", "tasks") if getattr(arguments, name) is not None}
    for name, value in given.items():
        if value <= 0:
            print(f"--{name} is {value}; it must be more than 0", file=sys.stderr)
            return 2
    plan = replace(QUICK if arguments.quick else Plan(), **given)
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".penstock-bench-", dir=arguments.folder) as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)  # PostgreSQL runs as another user
        known = facts(folder, PACKAGES)  # before the run adds its own load
        results = Comparison(plan, [TARGETS[name] for name in arguments.targets], folder).run()
        known["load afterwards"] = facts(folder, ())["load"]
    page = markdown(results, known)
    print(page)
    (arguments.out / "frameworks.md").write_text(page)
    (arguments.out / "frameworks.json").write_text(json.dumps(document(results, known), indent=1))
    if arguments.plot:
        from penstock.bench.frameworks.plot import draw

        draw(results, arguments.out / "frameworks.png")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench frameworks",
        description="Measure an empty task in frameworks, on brokers that are installed, in turns, all with the same sync.",
    )
    parser.add_argument("--quick", action="store_true", help="few tasks, one round: a look of a minute, not a result")
    parser.add_argument(
        "--targets", metavar="NAME", nargs="+", choices=TARGETS, default=list(TARGETS), help=f"of these: {', '.join(TARGETS)}"
    )
    parser.add_argument("--rounds", metavar="N", type=int, help="in each of which every target has one turn (5)")
    parser.add_argument("--tasks", metavar="N", type=int, help="in a turn (2000)")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("bench-results"), help="where the results go")
    parser.add_argument(
        "--folder", metavar="DIR", type=Path, default=Path(), help="where brokers and files keep their data (not a tmpfs)"
    )
    parser.add_argument("--no-plot", dest="plot", action="store_false", help="draw no picture")
    return parser
