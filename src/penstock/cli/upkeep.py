"""The commands that look after a whole store: backup, restore, check, vacuum; and doctor, for all around it."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from penstock.cli.output import complain, emit, shown, time
from penstock.cli.parser import PlainCommands, seconds


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

    parser = command("check", run_check, "look for what is damaged, lost or stuck in the store")
    parser.add_argument("--repair", action="store_true", help="put right what can be put right without losing a message")

    command("vacuum", run_vacuum, "give disk space back that the store does not need")

    parser = command("doctor", run_doctor, "tell what is wrong with this machine, this Python, and the store and its server")
    parser.add_argument("--timeout", type=seconds, metavar="S", default=10, help="how long to look at most (10 seconds)")


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


def run_check(args: Namespace) -> int:
    from penstock.operations import check

    found = check(args.store, repair=args.repair)
    if args.json:
        emit([asdict(problem) for problem in found])
    for problem in () if args.json else found:
        where = "the store" if problem.queue is None else f"queue {problem.queue!r}"
        print(shown(f"{where}: {problem.what}; {problem.remedy}"))
    left = sum(not problem.repaired for problem in found)
    if not args.json:
        complain("nothing is wrong" if not found else f"{len(found) - left} of {len(found)} problems repaired")
    return 1 if left else 0


def run_vacuum(args: Namespace) -> int:
    from penstock.operations import vacuum

    done = vacuum(args.store)
    if args.json:
        emit(done._asdict())
    elif done.freed is None:
        print("gave back what the store does not need")
    else:
        print(f"gave back {done.freed:,} bytes" + (f"; {done.kept:,} free ones are left" if done.kept else ""))
    return 0


def run_doctor(args: Namespace) -> int:
    from penstock.operations.doctor import Severity, examine

    found = examine(args.store, patience=args.timeout)
    bad = sum(finding.severity is Severity.WRONG for finding in found)
    if args.json:
        emit([asdict(finding) for finding in found])
        return 1 if bad else 0
    width = max(len(finding.subject) for finding in found)
    for finding in found:
        print(shown(f"{finding.severity:5}  {finding.subject:{width}}  {finding.what}"))
        if finding.remedy is not None:
            print(shown(f"       {'':{width}}  → {finding.remedy}"))
    complain("nothing is wrong" if not bad else "1 thing is wrong" if bad == 1 else f"{bad} things are wrong")
    return 1 if bad else 0


def _queues(names: list[str]) -> str:
    return f"{len(names):,} queue{'' if len(names) == 1 else 's'}"
