"""The group ``penstock pipeline``. docs/pipelines.md is its manual.

A module with pipelines has ``add(pipeline)``, and runs each by ``run(args, frame)``, which answers the exit code.
"""

from __future__ import annotations

import logging
import traceback
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from importlib.util import find_spec

from penstock.cli import flows, tables, transfers
from penstock.cli.frame import Frame
from penstock.cli.parser import Parser
from penstock.errors import MissingExtra

MODULES = [transfers, flows, tables]
"""Where the pipelines are."""
LOUD = ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers that print every error in full, before we can report it in one line."""


def add(group: Parser, add_common: Callable[[Parser], None]) -> None:
    group.set_defaults(show_help=group.print_help)
    subparsers = group.add_subparsers(dest="pipeline", metavar="PIPELINE", title="pipelines", parser_class=Parser)

    def pipeline(name: str, run: Callable[[Namespace, Frame], int], help: str) -> Parser:
        sub = subparsers.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.", allow_abbrev=False)
        add_common(sub)
        _add_shared(sub)
        sub.set_defaults(run=run)
        return sub

    for module in MODULES:
        module.add(pipeline)


def _add_shared(parser: Parser) -> None:
    shared = parser.add_argument_group("Spark")
    shared.add_argument("--master", metavar="URL", default="local[*]", help="where Spark runs (local[*])")
    shared.add_argument("--remote", metavar="sc://HOST:PORT", help="run through Spark Connect")
    shared.add_argument(
        "--conf", metavar="NAME=VALUE", type=setting, action="append", default=[], help="a setting of Spark's; may be repeated"
    )
    shared.add_argument(
        "--packages", metavar="GROUP:NAME:VERSION,…", help="packages that Spark fetches from Maven, as connectors"
    )
    shared.add_argument(
        "--checkpoint", metavar="DIR", help="where the pipeline records its progress; the next start continues from there"
    )
    shared.add_argument(
        "--progress",
        choices=["line", "json", "off"],
        default="line",
        help="on stderr: a live line, or one JSON line for each batch (line)",
    )
    shared.add_argument(
        "--listen", metavar="[HOST:]PORT", help="answer over HTTP there: /metrics, /health and /ready (on this machine only)"
    )
    shared.add_argument("--debug", action="store_true", help="show Spark's log, and the whole traceback of an error")


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ArgumentTypeError(f"{text!r:.80} is not NAME=VALUE")
    return name.strip(), value.strip()


def run(args: Namespace) -> int:
    if args.pipeline is None:
        args.show_help()
        return 2
    if not find_spec("pyspark"):
        raise MissingExtra("a pipeline", "spark")
    from penstock.spark.pipelines.failures import readable

    if not args.debug:
        for name in LOUD:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    frame = Frame(args)
    try:
        code: int = args.run(args, frame)
    except Exception as error:
        if args.debug:
            traceback.print_exc()
        raise readable(error) from None
    finally:
        frame.close()
    return code
