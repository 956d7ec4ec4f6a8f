"""The commands that look after a whole store: backup, restore."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from penstock.cli.output import emit, time
from penstock.cli.parser import PlainCommands


def add(command: PlainCommands) -> None:
    parser = command("backup", run_backup, "back up the store into a new folder, while it is in use")
    parser.add_argument("target", metavar="DIR", help="a folder that does not exist, or is empty")

    parser = command("restore", run_restore, "restore a backup to a new store")
    parser.add_argument("source", metavar="DIR", help="what backup has made")
    parser.add_argument(
        "--over",
        action="store_true",
        help="replace the queues that the store has; stop everybody who uses it first",
    )


def run_backup(args: Namespace) -> int:
    from penstock.operations import backup

    made = backup(args.store, args.target)
    if args.json:
        emit(asdict(made))
    else:
        print(f"backed up {_queues(made.queues)}, {made.bytes:,} bytes, to {made.folder}")
    return 0


def run_restore(args: Namespace) -> int:
    from penstock.operations import restore

    found = restore(args.source, args.store, over=args.over)
    if args.json:
        emit(asdict(found))
    else:
        print(f"restored {_queues(found.queues)}, as of {time(found.taken_at)}")
    return 0


def _queues(names: list[str]) -> str:
    return f"{len(names):,} queue{'' if len(names) == 1 else 's'}"
