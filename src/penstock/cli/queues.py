"""The commands on whole queues: create, queues, settings, delete-queue, stats, purge, redrive, readers."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from penstock.broker import Broker
from penstock.cli.output import (
    age,
    complain,
    emit,
    print_pairs,
    print_settings,
    print_table,
    settings_json,
    stats_json,
    stays,
    time,
)
from penstock.cli.parser import Commands, Parser, deduplication, label, redrive, retry, seconds
from penstock.errors import BadInput, QueueExists, QueueNotFound
from penstock.message import Claim, Mode, Settings, Stats

READER_HEADS = ("reader", "settled epoch", "confirmed", "tentative", "lapses")
RETRY = (
    "when a message comes again whose handler has failed: "
    "attempts=N|none,delay=S,curve=fixed|linear|exponential,max_delay=S,jitter=PART"
)
HEADS = ("name", "messages", "visible", "in flight", "delayed", "oldest")


def add(command: Commands) -> None:
    parser = command("create", run_create, "create a queue")
    parser.add_argument("name", metavar="NAME")
    _add_settings(parser)
    parser.add_argument("--exist-ok", action="store_true", help="if the queue exists, leave it as it is")

    parser = command("queues", run_queues, "list the queues")
    parser.add_argument("--offset", metavar="N", type=int, default=0, help="skip the first N")
    parser.add_argument("--limit", metavar="N", type=int, help="at most N")

    parser = command("settings", run_settings, "show a queue's settings, or change those that are given")
    parser.add_argument("name", metavar="NAME")
    _add_settings(parser).add_argument(
        "--no-redrive", action="store_true", help="remove the dead letter queue from the settings"
    )
    parser.add_argument("--no-retry", action="store_true", help="remove the retry policy from the settings")
    parser.add_argument("--no-max-in-flight", action="store_true", help="as many as they want")
    parser.add_argument("--no-label", metavar="NAME", action="append", default=[], help="remove a label; may be repeated")

    parser = command("pause", run_pause, "let nobody receive from a queue; messages can still be sent, and held ones settled")
    parser.add_argument("name", metavar="NAME")

    parser = command("resume", run_resume, "let receivers have a paused queue's messages again")
    parser.add_argument("name", metavar="NAME")

    parser = command("delete-queue", run_delete_queue, "delete a queue with all its messages")
    parser.add_argument("name", metavar="NAME")

    parser = command("stats", run_stats, "count a queue's messages")
    parser.add_argument("name", metavar="NAME")

    parser = command("purge", run_purge, "delete all messages of a queue")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--yes", action="store_true", help="do not ask")

    parser = command("redrive", run_redrive, "send dead letters back to the queues they died in")
    parser.add_argument("name", metavar="DLQ")
    parser.add_argument("--limit", metavar="N", type=int, help="at most N messages")
    parser.add_argument("--to", metavar="NAME", help="send all messages to this queue, wherever they died")

    parser = command("readers", run_readers, "show the readers of a queue that use named claims, such as Spark streams")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--give-up", metavar="READER", help="forget this reader and make what it has claimed visible again")


def _add_settings(parser: Parser) -> Any:
    """Add the options of `Settings`, and return the group of options that exclude --redrive."""
    parser.add_argument("--visibility", metavar="S", type=seconds, help="seconds a received message stays hidden")
    parser.add_argument("--retention", metavar="S", type=seconds, help="seconds a message is kept")
    parser.add_argument("--delay", metavar="S", type=seconds, help="seconds before a sent message becomes visible")
    parser.add_argument(
        "--deduplicate",
        metavar="off|on|S",
        type=deduplication,
        help="refuse an equal message: while one is in the queue, or within S seconds of the first",
    )
    parser.add_argument("--groups", action="store_true", default=None, help="keep order within groups (only when created)")
    parser.add_argument(
        "--mode",
        choices=[mode.value for mode in Mode],
        help="whether a received message must be deleted, or is settled at once",
    )
    parser.add_argument("--retry", metavar="POLICY", type=retry, help=RETRY)
    parser.add_argument("--history", metavar="S", type=seconds, help="seconds for which settled messages stay readable")
    parser.add_argument(
        "--label", metavar="NAME=TEXT", type=label, action="append", default=[], help="set a label; may be repeated"
    )
    parser.add_argument(
        "--max-in-flight", metavar="N", type=int, help="receivers hold at most N messages of the queue together"
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--redrive", metavar="DLQ:N", type=redrive, help="a message received N times and not deleted goes to the queue DLQ"
    )
    return either


def _changes(args: Namespace) -> dict[str, Any]:
    names = (
        "visibility",
        "retention",
        "delay",
        "deduplicate",
        "redrive",
        "groups",
        "mode",
        "history",
        "retry",
        "max_in_flight",
    )
    changes = {name: value for name in names if (value := getattr(args, name)) is not None}
    return changes | ({"labels": dict(args.label)} if args.label else {})


def overview(broker: Broker, names: Iterable[str], *, missing_ok: bool) -> list[tuple[str, Stats]]:
    """The counts of each queue; ``missing_ok`` for names that were listed, and may have been deleted since."""
    counts = []
    for name in names:
        try:
            counts.append((name, broker.queue(name).stats()))
        except QueueNotFound:
            if not missing_ok:
                raise
    return counts


def cells(name: str, stats: Stats) -> tuple[str, ...]:
    """A row under HEADS."""
    return (name, *map(str, (stats.messages, stats.visible, stats.in_flight, stats.delayed)), age(stats.oldest_age))


def run_create(args: Namespace, broker: Broker) -> int:
    created = True
    try:
        queue = broker.create(args.name, **_changes(args))
    except QueueExists:
        if not args.exist_ok:
            raise
        queue, created = broker.queue(args.name), False
    if args.json:
        emit({"name": args.name, "created": created, **settings_json(queue.settings)})
    else:
        print(f"created {args.name}" if created else f"{args.name} exists, and was left as it is")
    return 0


def run_queues(args: Namespace, broker: Broker) -> int:
    total, names = broker.queues(args.offset, args.limit)
    counts = overview(broker, names, missing_ok=True)
    if args.json:
        emit([stats_json(name, stats) for name, stats in counts])
    elif counts:
        print_table(HEADS, [cells(name, stats) for name, stats in counts])
    if not args.json and len(names) < total:
        complain(f"{len(names)} of {total} queues shown")
    elif not args.json and not total:
        complain("there are no queues yet; create one: penstock create NAME")
    return 0


def run_settings(args: Namespace, broker: Broker) -> int:
    queue = broker.queue(args.name)
    if args.no_retry and args.retry:
        raise BadInput("--retry and --no-retry exclude each other")
    removed = {"redrive": args.no_redrive, "retry": args.no_retry, "max_in_flight": args.no_max_in_flight}
    changes = _changes(args) | {name: None for name, gone in removed.items() if gone}
    if args.no_label:
        changes["labels"] = {**changes.get("labels", {}), **dict.fromkeys(args.no_label)}
    settings = queue.update(**changes) if changes else queue.settings
    if args.json:
        emit({"name": args.name, **settings_json(settings)})
    else:
        print_settings(settings)
    return 0


def run_pause(args: Namespace, broker: Broker) -> int:
    return _paused(args, broker.queue(args.name).pause())


def run_resume(args: Namespace, broker: Broker) -> int:
    return _paused(args, broker.queue(args.name).resume())


def _paused(args: Namespace, settings: Settings) -> int:
    if args.json:
        emit({"name": args.name, "paused": settings.paused})
    else:
        print(f"{args.name} is paused" if settings.paused else f"{args.name} is not paused")
    return 0


def run_delete_queue(args: Namespace, broker: Broker) -> int:
    broker.delete(args.name)
    if args.json:
        emit({"name": args.name, "deleted": True})
    else:
        print(f"deleted {args.name}")
    return 0


def run_stats(args: Namespace, broker: Broker) -> int:
    stats = broker.queue(args.name).stats()
    if args.json:
        emit(stats_json(args.name, stats))
        return 0
    print_pairs(
        [
            ("messages", str(stats.messages)),
            ("visible", str(stats.visible)),
            ("in flight", str(stats.in_flight)),
            ("delayed", str(stats.delayed)),
            ("blocked", str(stats.blocked)),
            ("damaged", str(stats.damaged)),
            ("settled", str(stats.settled)),
            *([("lost", str(stats.lost))] if stats.lost else []),
            *([("foreign", ", ".join(map(repr, stats.foreign)))] if stats.foreign else []),
            ("oldest", age(stats.oldest_age)),
        ]
    )
    return 0


def run_purge(args: Namespace, broker: Broker) -> int:
    queue = broker.queue(args.name)
    if not args.yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise BadInput(f"purge deletes all messages of queue {args.name!r}: add --yes if you mean it")
        question = f"Delete all messages ({queue.stats().messages}) of queue {args.name!r}? [y/N] "
        print(question, end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            complain("nothing was deleted")
            return 1
    purged = queue.purge()
    if args.json:
        emit({"name": args.name, "purged": purged})
    else:
        print(f"deleted {purged} messages" if purged != 1 else "deleted 1 message")
    return 0


def run_redrive(args: Namespace, broker: Broker) -> int:
    moved = broker.queue(args.name).redrive(args.limit, to=args.to)
    if args.json:
        emit({"name": args.name, "redriven": moved, "duplicates": moved.duplicates, "homeless": moved.homeless})
    else:
        print(f"sent {moved} messages back" if moved != 1 else "sent 1 message back")
        if moved.duplicates:
            complain(stays(moved.duplicates, "their queue takes equal messages once, and has an equal one"))
        if moved.homeless:
            complain(
                stays(
                    moved.homeless,
                    "the queue where they died is gone or not for this token, or they did not die in one: use --to NAME",
                )
            )
    return 0 if moved else 1


def run_readers(args: Namespace, broker: Broker) -> int:
    queue = broker.queue(args.name)
    readers = queue.readers()
    if args.give_up is not None:
        if args.give_up not in readers:
            raise BadInput(f"queue {args.name!r} has no reader {args.give_up!r}; penstock readers {args.name} shows them")
        given = queue.give_up(args.give_up)
        if args.json:
            emit({"name": args.name, "given_up": args.give_up, "messages": given})
        else:
            print(f"gave up {args.give_up}: {given} message{' is' if given == 1 else 's are'} visible again")
        return 0
    settled = {reader: queue.settled_epoch(reader) for reader in readers}
    if args.json:
        emit(
            [{"reader": reader, "settled": settled[reader], "claims": list(map(asdict, readers[reader]))} for reader in readers]
        )
    elif readers:
        print_table(READER_HEADS, [_reader_cells(reader, settled[reader], readers[reader]) for reader in readers])
    return 0 if readers else 1


def _reader_cells(reader: str, settled: int | None, claims: list[Claim]) -> tuple[str, ...]:
    confirmed = sum(claim.size for claim in claims if claim.confirmed)
    tentative = [claim for claim in claims if not claim.confirmed]
    until = time(max(claim.lapses_at for claim in tentative)) if tentative else "-"
    read = "-" if settled is None else str(settled)
    return reader, read, str(confirmed), str(sum(claim.size for claim in tentative)), until
