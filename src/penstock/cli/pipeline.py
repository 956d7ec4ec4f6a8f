"""The group ``penstock pipeline``: what its pipelines share (Spark, progress, stopping, readable errors). docs/pipelines.md.

A module with pipelines has ``add(pipeline)``, and runs each by ``run(args, frame)``, which answers the exit code.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

from penstock.cli import flows, transfers
from penstock.cli.output import emit
from penstock.cli.parser import Parser
from penstock.errors import BadURL, MissingExtra, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.progress import Watch

MODULES = [transfers, flows]
"""Where the pipelines are."""
LOUD = ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers that print every error in full, before we can report it in one line."""


class Pipelines(Protocol):
    """Adds a pipeline to the group."""

    def __call__(self, name: str, run: Callable[[Namespace, Frame], int], help: str) -> Parser: ...


class Frame:
    """What a pipeline gets: the store, Spark (started on first use), and a way to watch a query."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.url = absolute(args.store)
        self._spark: SparkSession | None = None
        self._watch: Watch | None = None

    @property
    def spark(self) -> SparkSession:
        if self._spark is None:
            from penstock.spark.session import session

            with _hushed(not self.args.debug):
                self._spark = session(self.args.master, remote=self.args.remote, name=f"penstock {self.args.pipeline}")
            if self.args.remote is None:
                self._spark.sparkContext.setLogLevel("WARN" if self.args.debug else "OFF")
        return self._spark

    @property
    def watch(self) -> Watch:
        if self._watch is None:
            from penstock.spark.pipelines.progress import Watch

            self._watch = Watch(self.args.pipeline, self.args.progress, metrics_port=self.args.metrics_port)
        return self._watch

    def answer(self, text: str, figures: dict[str, Any]) -> None:
        """The result: a line for people, or with --json one document."""
        if self.args.json:
            emit({"pipeline": self.args.pipeline, **figures})
        else:
            print(text)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        if self._spark is not None:
            self._spark.stop()


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
        "--checkpoint", metavar="DIR", help="where the pipeline records its progress; the next start continues from there"
    )
    shared.add_argument(
        "--progress",
        choices=["line", "json", "off"],
        default="line",
        help="on stderr: a live line, or one JSON line for each batch (line)",
    )
    shared.add_argument("--metrics-port", metavar="N", type=int, help="serve the progress at http://127.0.0.1:N/metrics")
    shared.add_argument("--debug", action="store_true", help="show Spark's log, and the whole traceback of an error")


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


def absolute(url: str) -> str:
    """The store's URL with an absolute path, because Spark's processes have other working directories."""
    scheme, colon, rest = url.partition(":///")
    if not colon or scheme not in ("sqlite", "vsqs", "spool") or rest.startswith("/"):
        return url
    path, mark, query = rest.partition("?")
    if not path:
        raise BadURL(f"URL {url!r:.200} has no path")
    return f"{scheme}:///{quote(str(Path(unquote(path)).absolute()))}{mark}{query}"


@contextmanager
def _hushed(hush: bool) -> Iterator[None]:
    """Keep Java and Spark from writing to stderr, so that people see only our own lines.

    If they do not start, what they wrote is shown."""
    if not hush or sys.stderr is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        os.dup2(said.fileno(), 2)
        try:
            yield
        except PenstockError:
            raise
        except Exception:
            said.seek(0)
            for line in said.read().splitlines()[-5:]:
                os.write(kept, f"{line}\n".encode())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def totals(rows: int, what: str, seconds: float) -> str:
    """`1,234 messages in 5.6 s (220 a second)`."""
    named = what if rows != 1 else what.removesuffix("s")
    return f"{rows:,} {named} in {seconds:.1f} s ({rows / seconds:,.0f} a second)" if seconds > 0 else f"{rows:,} {named}"
