"""The command watch: the counts of queues, live."""

from __future__ import annotations

import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from threading import Event
from typing import TYPE_CHECKING

from penstock.broker import Broker
from penstock.cli.output import print_table
from penstock.cli.parser import Commands, seconds
from penstock.cli.queues import HEADS, cells, overview
from penstock.errors import BadInput, MissingExtra
from penstock.message import MAX_NUMBER
from penstock.policy import check_count, check_seconds

if TYPE_CHECKING:
    from rich.table import Table


def add(command: Commands) -> None:
    parser = command("watch", run_watch, "show the queues live, until Ctrl-C (needs the extra penstock[cli])")
    parser.add_argument("names", metavar="NAME", nargs="*", help="the queues; without a name, all")
    parser.add_argument("--interval", metavar="S", type=seconds, default=1, help="seconds between two updates (1)")
    parser.add_argument("--count", metavar="N", type=int, help="end after N updates; 1 if stdout is not a terminal")


def run_watch(args: Namespace, broker: Broker) -> int:
    try:
        from rich.live import Live
    except ImportError as error:
        raise MissingExtra("watch", "cli") from error
    if args.json:
        raise BadInput("watch is for people; for programs there is: penstock queues --json")
    check_seconds(args.interval, "interval", 0.1, BadInput)
    live = sys.stdout.isatty()
    rounds = args.count if args.count is not None or live else 1
    if rounds is not None:
        check_count(rounds, "count", 1, MAX_NUMBER, BadInput)
    with _ctrl_c() as ended, Live(auto_refresh=False) if live else nullcontext() as screen:
        for looks in count(1):
            rows = [cells(*queue) for queue in overview(broker, args.names or broker.queues().names, missing_ok=not args.names)]
            if screen is None:
                print_table(HEADS, rows)
            else:
                screen.update(_table(rows, None if rounds else "Ctrl-C ends"), refresh=True)
            if ended.is_set():
                raise KeyboardInterrupt
            if looks == rounds:
                break
            ended.wait(args.interval)
    return 0


@contextmanager
def _ctrl_c() -> Iterator[Event]:
    """Remember the signal: at some moments (while an object is finalized) Python only prints that it ignores an exception."""
    ended = Event()

    def heard(*_: object) -> None:
        ended.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield ended
    finally:
        signal.signal(signal.SIGINT, before)


def _table(rows: Sequence[Sequence[str]], caption: str | None) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
    for head in HEADS:
        table.add_column(head, justify="left" if head == "name" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))  # as text: a queue's name may look like rich's markup
    return table
