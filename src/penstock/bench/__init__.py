"""The benchmark: `penstock bench`, or ``python -m penstock.bench``."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.bench import postgresql
from penstock.bench.machine import facts
from penstock.bench.report import document, markdown
from penstock.bench.runs import QUICK, Bench, Plan
from penstock.bench.targets import TARGETS
from penstock.bench.workloads import Target
from penstock.errors import MissingExtra


def main(argv: list[str]) -> int:
    """Measure, print the page, and leave bench.md, bench.json and bench.png in the folder for results.

    ``http``, ``brokers``, ``sqs``, ``frameworks``, ``asyncio``, ``consumers``, ``spark`` and ``pipeline`` are separate
    benchmarks. On SIGTERM, each stops its servers and removes its queues, which may be gigabytes."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return _measure(argv)
    finally:
        signal.signal(signal.SIGTERM, before)


def _measure(argv: list[str]) -> int:
    if argv[:1] == ["http"]:
        from penstock.bench.http import main as http

        return http(argv[1:])
    if argv[:1] == ["brokers"]:
        from penstock.bench.brokers import main as brokers

        return brokers(argv[1:])
    if argv[:1] == ["sqs"]:
        from penstock.bench.sqs import main as sqs

        return sqs(argv[1:])
    if argv[:1] == ["frameworks"]:
        from penstock.bench.frameworks import main as frameworks

        return frameworks(argv[1:])
    if argv[:1] == ["spark"]:
        if not find_spec("pyspark"):
            raise MissingExtra("the benchmark of Spark", "spark")
        from penstock.bench.spark import main as spark

        return spark(argv[1:])
    if argv[:1] == ["pipeline"]:
        if not find_spec("pyspark"):
            raise MissingExtra("the benchmark of pipelines", "spark")
        from penstock.bench.pipeline import main as pipeline

        return pipeline(argv[1:])
    if argv[:1] == ["asyncio"]:
        from penstock.bench.tasks import main as tasks

        return tasks(argv[1:])
    if argv[:1] == ["consumers"]:
        from penstock.bench.consumers import main as consumers

        return consumers(argv[1:])
    arguments = _parser().parse_args(argv)
    known_targets = TARGETS if arguments.on == "files" else postgresql.targets(arguments.pgmq)
    for name in arguments.targets or []:
        if name not in known_targets:
            print(f"no target is named {name!r}; there are: {', '.join(known_targets)}", file=sys.stderr)
            return 2
    targets = [known_targets[name] for name in arguments.targets or known_targets]
    _require(targets, plot=arguments.plot)
    plan = QUICK if arguments.quick else Plan()
    if arguments.backlog is not None:
        plan = replace(plan, backlogs=tuple(sorted(set(arguments.backlog))))
    rows = [row for row in plan.rows() if any(fnmatchcase(row.name, pattern) for pattern in arguments.only)]
    if not rows:
        names = " ".join(row.name for row in plan.rows())
        print(f"no row is named {' or '.join(arguments.only)}; there are: {names}", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".penstock-bench-", dir=arguments.folder) as folder:
        known = facts(Path(folder))  # before the run adds its own load
        with nullcontext() if arguments.on == "files" else postgresql.server(Path(folder), arguments.pgmq):
            results = Bench(plan, rows, targets, Path(folder).resolve()).run()
    page = markdown(results, known)
    print(page)
    (arguments.out / "bench.md").write_text(page)
    (arguments.out / "bench.json").write_text(json.dumps(document(results, known), indent=1))
    if arguments.plot:
        from penstock.bench.plot import draw

        draw(results, arguments.out / "bench.png")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock bench",
        description="Measure the stores beside the machine's limit and the peers, all in one run and with the same sync.",
    )
    parser.add_argument("--quick", action="store_true", help="small counts, for a look (about 20 s); the full run takes 10 min")
    parser.add_argument("--only", metavar="PATTERN", nargs="+", default=["*"], help="rows by name, such as 'cycle-*' '*-4p'")
    parser.add_argument(
        "--on", choices=["files", "postgresql"], default="files", help="what to measure on; a server is started for it"
    )
    postgresql.add_pgmq(parser)
    parser.add_argument("--targets", metavar="NAME", nargs="+", help="whom to measure, if not all")
    parser.add_argument("--backlog", metavar="N", nargs="+", type=int, help="messages in the queue beforehand")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("bench-results"), help="where the results go")
    parser.add_argument(
        "--folder",
        metavar="DIR",
        type=Path,
        default=Path(),
        help="where the queues are kept meanwhile (not a tmpfs, where a sync does nothing)",
    )
    parser.add_argument("--no-plot", dest="plot", action="store_false", help="draw no picture")
    return parser


def _require(targets: Iterable[Target], *, plot: bool) -> None:
    """Report a missing library now rather than after ten minutes."""
    wanted = [target.module for target in targets if target.module] + ["matplotlib"] * plot
    if not all(find_spec(module) for module in wanted):
        raise MissingExtra("the benchmark", "bench")
