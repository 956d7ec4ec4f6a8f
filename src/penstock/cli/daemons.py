"""The commands mover and reaper: the daemons of an MQ-Core spool. None, one or several of each may run."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from penstock.broker import location, open_local
from penstock.cli.parser import Parser, PlainCommands
from penstock.clock import Clock
from penstock.errors import BadInput
from penstock.message import SECOND
from penstock.queue.inotify import ARRIVALS, FileWatch
from penstock.stores.files.spool import Spool
from penstock.urls import shown

OnDamage = Callable[[str], object]
Look = Callable[[Spool, Clock, OnDamage], float]
"""Does what there is to do; answers how many seconds to pause."""
POLL = 0.25
"""Seconds between two looks without inotify."""
LOOK_EVERY = 5.0
"""Seconds after which to look even without an event: inotify does not report what another machine does."""
SOON = 0.05
"""Seconds after which to look again at what is still being written."""


def add(command: PlainCommands) -> None:
    _add_arguments(command("mover", run_mover, "deliver what comes into a spool's new/ and what has waited in its delay/"))
    _add_arguments(command("reaper", run_reaper, "unlink what was removed from a spool's queues"))


def _add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "store", metavar="URL", nargs="?", default=argparse.SUPPRESS, help="the spool; else the store of --store"
    )
    parser.add_argument("--once", action="store_true", help="handle what is there, then end")


def run_mover(args: argparse.Namespace) -> int:
    return _run(args, ["new", "delay"], _move)


def _move(spool: Spool, clock: Clock, on_damage: OnDamage) -> float:
    waiting, due = spool.move_on(clock(), on_damage)
    pause = LOOK_EVERY if due is None else max(0.0, (due - clock()) / SECOND)
    return min(pause, SOON) if waiting else pause


def run_reaper(args: argparse.Namespace) -> int:
    return _run(args, ["remove"], _reap)


def _reap(spool: Spool, _clock: Clock, _on_damage: OnDamage) -> float:
    spool.reap()
    return LOOK_EVERY


def _run(args: argparse.Namespace, parts: list[str], look: Look) -> int:
    """Handle what is there, and then look whenever a file arrives or a timer expires."""
    if not args.store.startswith("spool:"):
        raise BadInput(f"{args.command} works on a spool, such as spool:///jobs, and not on {shown(args.store)}")
    with open_local(args.store) as broker:
        spool = Spool(Path(location(args.store)[1]))
        with closing(FileWatch(ARRIVALS)) as watch, _ended_by_sigterm():
            while True:
                watches = watch.follow(str(spool.root / part) for part in parts)
                with broker.store.batch(durable=False):
                    pause = look(spool, broker.clock, broker.store.on_damage)
                if args.once:
                    return 0
                if watches:
                    watch.wait(min(pause, LOOK_EVERY))
                else:
                    time.sleep(min(pause, POLL))


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Stop at any moment: every step is one rename or unlink, and the next daemon continues."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
