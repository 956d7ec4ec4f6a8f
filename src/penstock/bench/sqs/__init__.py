"""``penstock bench sqs``: the service as Amazon SQS, beside moto's server, and beside its own dialect mqs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.bench.machine import facts
from penstock.errors import MissingExtra


def main(argv: list[str]) -> int:
    """Measure, print the page, and leave sqs.md and sqs.json in the folder for results."""
    arguments = _parser().parse_args(argv)
    if not sys.platform.startswith("linux"):
        print("penstock bench sqs needs Linux: it reads the servers' processor clocks", file=sys.stderr)
        return 2
    if not all(map(find_spec, ("boto3", "moto", "flask"))):
        raise MissingExtra("the benchmark of SQS", "bench")
    from penstock.bench.sqs.comparison import QUICK, Comparison, Plan
    from penstock.bench.sqs.report import document, markdown

    names = ("rounds", "messages", "connections")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    for name, value in given.items():
        if min(value if isinstance(value, list) else [value]) <= 0:
            print(f"--{name} is {value}; it must be more than 0", file=sys.stderr)
            return 2
    plan = replace(QUICK if arguments.quick else Plan(), **given)
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".penstock-bench-", dir=arguments.folder) as name:
        folder = Path(name).resolve()
        known = facts(folder, ("boto3", "moto"))  # before the run adds its own load
        results = Comparison(plan, folder).run()
        known["load afterwards"] = facts(folder, ())["load"]
    page = markdown(results, known)
    print(page)
    (arguments.out / "sqs.md").write_text(page)
    (arguments.out / "sqs.json").write_text(json.dumps(document(results, known), indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench sqs", description="Measure the service as Amazon SQS, beside moto's server, in turns."
    )
    parser.add_argument("--quick", action="store_true", help="few messages, one round: a look, not a result")
    parser.add_argument("--rounds", metavar="N", type=int, help="in each of which every client has one turn (5)")
    parser.add_argument("--messages", metavar="N", type=int, help="sent one by one in a turn, and as many in batches (3200)")
    parser.add_argument("--connections", metavar="N", nargs="+", type=int, help="at once (1 8 32)")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("bench-results"), help="where the results go")
    parser.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help="where the queue lies (not a tmpfs)")
    return parser
