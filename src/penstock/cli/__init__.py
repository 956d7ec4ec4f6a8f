"""The command line: ``penstock COMMAND``, over the same verbs as the library. docs/cli.md is its manual."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from io import TextIOWrapper

import penstock
from penstock.cli import (
    completion,
    daemons,
    lines,
    messages,
    pipeline,
    queues,
    schedules,
    sending,
    serving,
    upkeep,
    watch,
    work,
)
from penstock.cli.output import complain
from penstock.cli.parser import Parser, PlainCommand, StoreCommand
from penstock.errors import BadInput, PenstockError, QueueNotFound, ScheduleNotFound, StoreError
from penstock.urls import without_password

__all__ = ["main"]

DEFAULT_STORE = "sqlite:///penstock.db"
EXIT_CODES = """\
exit codes:
  0    done
  1    nothing to do, or not all could be done (no message, a stale receipt, …)
  2    bad input: the command line, a name, a setting or a message was refused
  3    there is no such queue, or no such schedule
  4    the store (busy, full, read-only, damaged, …) or the output failed
  130  stopped with Ctrl-C
"""

NOTHING, BAD, NOT_FOUND, STORE, INTERRUPTED = 1, 2, 3, 4, 130


def main(argv: list[str] | None = None) -> int:
    if sys.stdout is None:  # started with >&-: what is received must not be lost in silence
        complain("standard output is closed")
        return STORE
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    logging.basicConfig(format="penstock: %(message)s")
    try:
        code = _guarded(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # the reader has gone, as `head` does: that is no news
            complain(f"input or output failed: {error}{_notes(error)}")
        # What could not be written is still in the buffer, and Python would try, and complain, again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOTHING if isinstance(error, BrokenPipeError) else STORE
    return code


def _guarded(argv: list[str]) -> int:
    """Run the command; every failure becomes one line and an exit code."""
    try:
        return _run(argv)
    except SystemExit as stop:  # argparse after --help
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt as error:
        if notes := _notes(error):
            complain(f"interrupted{notes}")
        elif sys.stderr and sys.stderr.isatty():
            print(file=sys.stderr)  # after the ^C, so that the prompt begins a line
        return INTERRUPTED
    except PenstockError as error:
        complain(f"{error}{_notes(error)}")
        return _exit_code(error)
    except OSError:  # most likely of the output, which `main` looks after
        raise
    except Exception as error:  # a defect: people get one line all the same
        if sys.flags.dev_mode:
            raise
        complain(f"a defect in Penstock: {type(error).__name__}: {error} (PYTHONDEVMODE=1 shows where){_notes(error)}")
        return STORE


def _run(argv: list[str]) -> int:
    parser = build()
    args, unknown = parser.parse_known_args(argv)
    if args.command == "bench":
        from penstock.bench import main as bench

        return bench(unknown)
    if unknown:
        raise BadInput(
            f"{args.command or 'penstock'} does not know {' '.join(unknown)} (see: penstock {args.command or ''} --help)"
        )
    if args.command is None:
        parser.print_help()
        return BAD
    if args.command == "serve":
        return serving.run_serve(args)
    args.store_given = args.store is not None
    args.store = args.store or os.environ.get("PENSTOCK_STORE") or DEFAULT_STORE
    if args.command == "pipeline":
        return pipeline.run(args)
    code: int = args.run(args)
    return code


def _with_store(args: argparse.Namespace, run: StoreCommand) -> int:
    with penstock.open(args.store) as broker:
        try:
            return run(args, broker)
        except (QueueNotFound, ScheduleNotFound) as error:
            error.add_note(f"the store is {without_password(args.store)}")
            raise


def _exit_code(error: PenstockError) -> int:
    match error:
        case QueueNotFound() | ScheduleNotFound():
            return NOT_FOUND
        case StoreError():
            return STORE
    return BAD


def _notes(error: BaseException) -> str:
    return "".join(f"; {note}" for note in getattr(error, "__notes__", []))


def build() -> Parser:
    parser = Parser(
        prog="penstock",
        description="A durable message queue.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"penstock {penstock.__version__}")
    _add_common(parser, store=None, json=False)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=Parser)

    def command(name: str, run: StoreCommand, help: str) -> Parser:
        return plain_command(name, lambda args: _with_store(args, run), help)

    def plain_command(name: str, run: PlainCommand, help: str) -> Parser:
        sub = subparsers.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.", allow_abbrev=False)
        _add_common(sub, store=argparse.SUPPRESS, json=argparse.SUPPRESS)  # so that it does not undo what stood before
        sub.set_defaults(run=run)
        return sub

    for module in (queues, sending, messages, lines, watch, schedules):
        module.add(command)
    work.add(plain_command, _with_store)
    upkeep.add(plain_command)
    daemons.add(plain_command)
    completion.add(plain_command, build)
    group = subparsers.add_parser("schedule", help="make, list, change, pause and remove schedules", allow_abbrev=False)
    schedules.add_group(group, _with_store, lambda sub: _add_common(sub, store=argparse.SUPPRESS, json=argparse.SUPPRESS))
    serve = subparsers.add_parser("serve", help="serve the store over HTTP, until SIGTERM or Ctrl-C", allow_abbrev=False)
    _add_common(serve, store=argparse.SUPPRESS, json=argparse.SUPPRESS)
    serving.add(serve)
    group = subparsers.add_parser("pipeline", help="run a ready-made pipeline on Spark: archive, load, …", allow_abbrev=False)
    pipeline.add(group, lambda sub: _add_common(sub, store=argparse.SUPPRESS, json=argparse.SUPPRESS))
    subparsers.add_parser(
        "bench", help="measure against the machine's limit and other queues", add_help=False, allow_abbrev=False
    )
    return parser


def _add_common(parser: argparse.ArgumentParser, *, store: str | None, json: bool | str) -> None:
    parser.add_argument("--store", metavar="URL", default=store, help=f"the store; else $PENSTOCK_STORE, else {DEFAULT_STORE}")
    parser.add_argument("--json", action="store_true", default=json, help="print JSON, for programs")
