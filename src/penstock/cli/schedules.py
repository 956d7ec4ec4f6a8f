"""The group ``penstock schedule``, and the command scheduler, which runs the schedules of a store."""

from __future__ import annotations

import os
import signal
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from penstock.broker import Broker
from penstock.cli.output import complain, emit, print_table, shown, time
from penstock.cli.parser import Commands, Parser, StoreCommand, seconds
from penstock.cli.sending import attributes, read_body
from penstock.documents import to_document
from penstock.errors import BadInput
from penstock.message import OCTETS, Draft
from penstock.schedules.schedule import CHANGEABLE, MISSED, Schedule

HEADS = ("name", "queue", "when", "next", "last", "runs")


def add(command: Commands) -> None:
    parser = command("scheduler", run_scheduler, "run the schedules of the store, until Ctrl-C or SIGTERM")
    parser.add_argument("--once", action="store_true", help="send what is due, then end")


def add_group(
    group: Parser, with_store: Callable[[Namespace, StoreCommand], int], add_common: Callable[[Parser], None]
) -> None:
    def show_help(_: Namespace) -> int:
        group.print_help()
        return 2

    group.set_defaults(run=show_help)
    subparsers = group.add_subparsers(dest="deed", metavar="DEED", title="deeds", parser_class=Parser)

    def deed(name: str, run: StoreCommand, help: str) -> Parser:
        sub = subparsers.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.", allow_abbrev=False)
        add_common(sub)
        sub.set_defaults(run=lambda args: with_store(args, run))
        return sub

    parser = deed("add", run_add, "make a schedule, or change it to this")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("body", metavar="BODY", nargs="?", help="without BODY, standard input is the message")
    _add_rule(parser)
    parser.add_argument("--content-type", metavar="TYPE", default=OCTETS, help=f"({OCTETS})")
    parser.add_argument("--attribute", metavar="NAME=VALUE", action="append", default=[], help="as for send; may be repeated")
    for option, help in (
        ("--delay", "visible S seconds after it was sent"),
        ("--visibility", "once received, hidden for S seconds"),
        ("--deadline", "not delivered S seconds after it was sent"),
    ):
        parser.add_argument(option, metavar="S", type=seconds, help=help)
    parser.add_argument("--key", metavar="KEY", help="identifies duplicates instead of the content")
    parser.add_argument("--unique", action="store_true", help="not while a unique message with this key is in the queue")
    parser.add_argument("--group", metavar="NAME", help="keep the messages' order within this group")

    parser = deed("change", run_change, "change what is given of a schedule")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--queue", metavar="QUEUE", help="where the messages go")
    parser.add_argument("--body", metavar="BODY", help="what they say; without the other options that `add` gave")
    _add_rule(parser)

    deed("list", run_list, "list the schedules")
    for name, help in (
        ("pause", "send nothing until it is resumed"),
        ("resume", "send again; what was not sent meanwhile is left out"),
        ("remove", "remove a schedule"),
    ):
        deed(name, run_deed, help).add_argument("name", metavar="NAME")


def _add_rule(parser: Parser) -> None:
    parser.add_argument("--cron", metavar="EXPR", help='when: five fields such as "0 3 * * *", or @daily')
    parser.add_argument("--every", metavar="S", type=seconds, help="or: every S seconds")
    parser.add_argument("--zone", metavar="ZONE", help="the time zone of --cron (UTC), such as Europe/Berlin")
    parser.add_argument(
        "--missed", choices=MISSED, help="if nobody could send it at its time: once for all (once), all, or skip"
    )


def _rule(args: Namespace) -> dict[str, Any]:
    return {name: value for name in ("cron", "every", "zone", "missed") if (value := getattr(args, name)) is not None}


def run_add(args: Namespace, broker: Broker) -> int:
    body = read_body() if args.body is None else os.fsencode(args.body)
    draft = Draft(
        body,
        args.content_type,
        attributes(args.attribute),
        delay=args.delay,
        visibility=args.visibility,
        deadline=args.deadline,
        key=args.key,
        group=args.group,
        unique=args.unique,
    )
    return _tell(args, broker.schedule(args.name, queue=args.queue, body=draft, **_rule(args)))


def run_change(args: Namespace, broker: Broker) -> int:
    changes = _rule(args)
    if args.queue is not None:
        changes["queue"] = args.queue
    if args.body is not None:
        changes["body"] = os.fsencode(args.body)
    if not changes:
        raise BadInput("give what is to be changed: --queue, --body, --cron, --every, --zone or --missed")
    return _tell(args, broker.change_schedule(args.name, **changes))


def run_deed(args: Namespace, broker: Broker) -> int:
    if args.deed == "remove":
        return _tell(args, broker.remove_schedule(args.name), removed=True)
    return _tell(args, broker.change_schedule(args.name, paused=args.deed == "pause"))


def run_list(args: Namespace, broker: Broker) -> int:
    found = broker.schedules()
    if args.json:
        emit([_json(schedule) for schedule in found])
    elif found:
        print_table(HEADS, [_cells(schedule) for schedule in found])
    else:
        complain("there are no schedules yet; make one: penstock schedule add NAME QUEUE BODY --cron '0 3 * * *'")
    return 0


def run_scheduler(args: Namespace, broker: Broker) -> int:
    scheduler = broker.scheduler()
    if args.once:
        scheduler.run_due()
        return 0
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # also in the thread, which is made now
    with scheduler:
        signal.sigwait(ends)
    return 0


def _tell(args: Namespace, schedule: Schedule, *, removed: bool = False) -> int:
    if args.json:
        emit(_json(schedule) | ({"removed": True} if removed else {}))
    elif removed:
        print(f"removed {schedule.name}")
    else:
        print(f"{schedule.name}: {'paused' if schedule.paused else f'next {_next(schedule)}'}")
    return 0


def _json(schedule: Schedule) -> dict[str, Any]:
    told = {name: getattr(schedule, name) for name in ("name", *CHANGEABLE, "next_at", "last_at", "runs")}
    return told | {
        name: value for name, value in to_document(schedule.draft).items() if value is not None and value is not False
    }


def _cells(schedule: Schedule) -> tuple[str, ...]:
    when = f"every {schedule.every:g} s" if schedule.cron is None else f"{schedule.cron} {schedule.zone}"
    last = "-" if schedule.last_at is None else time(schedule.last_at)
    return schedule.name, schedule.queue, shown(when), _next(schedule), last, str(schedule.runs)


def _next(schedule: Schedule) -> str:
    return "paused" if schedule.paused else "never" if schedule.next_at is None else time(schedule.next_at)
