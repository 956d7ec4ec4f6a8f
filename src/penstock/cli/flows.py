"""The pipelines run, redrive and report."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.frame import Frame, Pipelines
from penstock.cli.output import complain, emit, print_table, shown, stays
from penstock.cli.parser import seconds
from penstock.errors import BadInput
from penstock.spark.options import check_queues

if TYPE_CHECKING:
    from penstock.spark.pipelines.redrive import RedriveTotals

AFTER = {"reject": "to the dead letters", "drop": "dropped", "count": "counted", "stop": "stop"}
"""What becomes of rows that fail a check."""


def add(pipeline: Pipelines) -> None:
    parser = pipeline("run", run_run, "run a declared pipeline: sources, SQL steps, checks and sinks in one TOML file")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument(
        "--once", action="store_true", default=None, help="end when what is there now is done, whatever the file says"
    )

    parser.add_argument(
        "--grace",
        metavar="S",
        type=seconds,
        default=30,
        help="seconds after SIGTERM to write and settle what was taken (30)",
    )

    parser = pipeline("redrive", run_redrive, "choose dead letters by SQL, and send them back to where they came from")
    parser.add_argument("name", metavar="DLQ")
    parser.add_argument(
        "--where", metavar="SQL", help="which letters: over a message's columns, reason, source, tries, age, json"
    )
    parser.add_argument("--summary", action="store_true", help="count them by reason, source, tries and age, and send nothing")
    parser.add_argument("--field", metavar="PATH", help="also count by this field of JSON bodies, such as customer.name")
    parser.add_argument("--to", metavar="QUEUE", help="to this queue, wherever they came from")
    parser.add_argument("--limit", metavar="N", type=int, help="at most N letters, the oldest first")
    parser.add_argument("--rate", metavar="N", type=float, help="at most N letters a second")
    parser.add_argument("--dry-run", action="store_true", help="report what would be sent where, and send nothing")

    parser = pipeline(
        "report", run_report, "count what happened: throughput, waiting and handling times, dead letters, producers"
    )
    parser.add_argument("what", metavar="DIR|TABLE|QUEUE", nargs="+", help="what archive has written, and queues of the store")
    parser.add_argument("--html", metavar="FILE", help="write a page with pictures, in one file")
    parser.add_argument("--title", metavar="TEXT", default="Penstock report", help="the title of the page")
    parser.add_argument(
        "--producer-attribute", metavar="NAME", default="producer", help="the attribute that names the sender (producer)"
    )


def run_run(args: Namespace, frame: Frame) -> int:
    from penstock.spark.pipelines import declaration

    declared = declaration.load(args.file)
    from penstock.spark.pipelines import declared as running

    running.check_queues(declared, frame.url)
    watch = frame.watch  # an address at which it cannot listen is told before Spark starts
    ran = running.run(
        frame.spark, args.file, store=frame.url, checkpoint=args.checkpoint, once=args.once, watch=watch, grace=args.grace
    )
    text = f"{ran.taken:,} messages taken, {ran.rows:,} rows in {ran.batches:,} batches, {ran.seconds:.1f} s"
    frame.answer(f"{declared.name}: {text}{', stopped' if ran.stopped else ''}", {"name": declared.name, **asdict(ran)})
    if ran.checks and not args.json:
        rows = [(name, f"{check.rows:,}", f"{check.failed:,}", AFTER[check.action]) for name, check in ran.checks.items()]
        print_table(("check", "rows", "failed", "then"), rows)
    if ran.late and not args.json:
        complain(f"{ran.late:,} rows came later than the watermark allows, and are not in any window or join")
    return 0


def run_redrive(args: Namespace, frame: Frame) -> int:
    if args.summary and (args.to or args.rate or args.limit or args.dry_run):
        raise BadInput("--summary only counts, so it takes no --to, --rate, --limit or --dry-run")
    if args.field and not args.summary:
        raise BadInput("--field is for --summary")
    if args.limit is not None and args.limit < 1:
        raise BadInput(f"--limit {args.limit} must be at least 1")
    check_queues(frame.url, args.name, *([args.to] if args.to else []))
    from penstock.spark.pipelines.redrive import letters, redrive, summarize

    if args.summary:
        return _summarize(args, summarize(letters(frame.spark, frame.url, args.name, where=args.where), field=args.field))
    done = redrive(
        frame.spark,
        frame.url,
        args.name,
        where=args.where,
        to=args.to,
        limit=args.limit,
        rate=args.rate,
        dry_run=args.dry_run,
        advance=_advance(args),
    )
    if _live(args):
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    moved = sum(done.moved.values())
    frame.answer(_told(args, done, moved), {"queue": args.name, "dry_run": args.dry_run, **asdict(done)})
    if not args.json:
        _tell_what_stays(done)
    return 0 if moved else 1


def _live(args: Namespace) -> bool:
    return args.progress == "line" and sys.stderr is not None and sys.stderr.isatty()


def _advance(args: Namespace) -> Callable[[int, int], None]:
    """The progress on stderr: a live line for people, one JSON line for each batch for programs."""

    def tell(done: int, whole: int) -> None:
        if args.progress == "json" and sys.stderr is not None:
            print(json.dumps({"pipeline": "redrive", "rows": done, "of": whole}), file=sys.stderr, flush=True)
        elif _live(args):
            print(f"\r\x1b[Kredrive  {done:,} of {whole:,} letters", end="", file=sys.stderr, flush=True)

    return tell


def _summarize(args: Namespace, found: dict[str, list[tuple[str, int]]]) -> int:
    if args.json:
        emit({"queue": args.name} | {by: dict(values) for by, values in found.items()})
    else:
        for place, (by, values) in enumerate(found.items()):
            if place:
                print()
            print_table((by, ""), [(shown(value), f"{count:,}") for value, count in values])
    return 0 if found["letters"][0][1] else 1


def _told(args: Namespace, done: RedriveTotals, moved: int) -> str:
    verb = "would send" if args.dry_run else "sent"
    where = ", ".join(f"{count:,} to {name}" for name, count in done.moved.items() if count)
    return f"{verb} {moved:,} of {done.chosen:,} chosen letters back" + (f": {where}" if where else "")


def _tell_what_stays(done: RedriveTotals) -> None:
    if done.homeless:
        complain(f"{done.homeless} letters do not say where they came from, and stay: use --to QUEUE")
    for name, count in done.gone.items():
        complain(f"{count} letters stay: the queue they came from, {name!r}, is gone or not for this token; use --to QUEUE")
    if done.duplicates:
        complain(stays(done.duplicates, "their queue takes equal messages once, and has an equal one"))
    if done.held:
        complain(f"{done.held} letters were meanwhile taken by other consumers")


def run_report(args: Namespace, frame: Frame) -> int:
    from penstock.spark.lakes.tables import is_address

    queues = [each for each in args.what if "/" not in each and not is_address(each) and not Path(each).is_dir()]
    check_queues(frame.url, *queues)
    from penstock.spark.pipelines.page import render
    from penstock.spark.pipelines.report import report

    figures = report(frame.spark, args.what, url=frame.url, producer=args.producer_attribute)
    if args.html:
        Path(args.html).write_text(render(figures, args.title), encoding="utf-8")
    if args.json:
        print(json.dumps(figures))
    else:
        whole = figures["all"]
        lines = [
            (row["queue"] or "", *(f"{row[name]:,}" for name in ("messages", "unsettled", "redelivered", "dead")))
            for row in figures["queues"]
        ]
        lines.append(("all", *(f"{whole[name]:,}" for name in ("messages", "unsettled", "redelivered", "dead"))))
        print_table(("queue", "messages", "unsettled", "redelivered", "dead"), lines)
        if args.html:
            print(f"written to {args.html}")
    return 0 if figures["all"]["messages"] else 1
