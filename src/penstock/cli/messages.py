"""The commands on messages that are in a queue: receive, delete, release, bury, extend, peek, settled."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from penstock.broker import Broker
from penstock.cli.output import complain, emit, message_json, print_message, receipt
from penstock.cli.parser import Commands, Parser, seconds
from penstock.errors import BadInput
from penstock.message import Message, Mode, Receipt
from penstock.queue.protocol import Queue

RECEIVE_BATCH = 1000


def add(command: Commands) -> None:
    parser = command("receive", run_receive, "receive messages, and hide them from others for a while")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--limit", metavar="N", type=int, default=1, help="at most N messages (1)")
    parser.add_argument("--wait", metavar="S", type=seconds, default=0, help="if there is none, wait up to S seconds for one")
    parser.add_argument(
        "--visibility", metavar="S", type=seconds, help="hide them for S seconds, instead of the queue's visibility"
    )
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], help="instead of the queue's own mode")
    parser.add_argument("--holder", metavar="TEXT", help="the receiver's name, which peek shows to others")
    parser.add_argument("--together", action="store_true", help="also those behind the first of their group, in order")
    parser.add_argument("--delete", action="store_true", help="delete them once they are printed")
    parser.add_argument("--body", action="store_true", help="write only the bodies, byte for byte")

    parser = command("delete", run_delete, "delete messages")
    _add_receipts(parser)

    parser = command("cancel", run_cancel, "remove messages that nobody holds")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("ids", metavar="ID", nargs="*", help="what send has printed")
    parser.add_argument("--key", metavar="KEY", help="the message with this key, instead of ids")

    parser = command("release", run_release, "return received messages to the queue")
    _add_receipts(parser)
    parser.add_argument("--delay", metavar="S", type=seconds, default=0, help="make them visible after S seconds (0)")
    parser.add_argument("--error", metavar="TEXT", help="they have failed with this error: note it, and count the failure")

    parser = command("bury", run_bury, "give received messages up: to the dead letter queue, or as failed")
    _add_receipts(parser)
    parser.add_argument("--reason", metavar="TEXT", required=True, help="why, for the dead letter or the history")

    parser = command("extend", run_extend, "keep received messages hidden for longer")
    _add_receipts(parser)
    parser.add_argument(
        "--visibility", metavar="S", type=seconds, help="for S seconds from now, instead of the queue's visibility"
    )

    parser = command("peek", run_peek, "look at messages without receiving them")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--limit", metavar="N", type=int, default=10, help="at most N messages (10)")
    parser.add_argument("--state", choices=("queued", "consumed", "damaged"), help="only those in this state")

    parser = command("settled", run_settled, "look at settled messages, if the queue keeps a history")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--limit", metavar="N", type=int, default=10, help="at most N messages (10)")


def _add_receipts(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "receipts", metavar="ID|RECEIPT", nargs="+", help="a receipt (ID#DELIVERY), or an id for the message whoever holds it"
    )


def run_receive(args: Namespace, broker: Broker) -> int:
    if args.body and args.json:
        raise BadInput("--body writes bytes and --json writes JSON: choose one")
    if args.limit < 1:
        raise BadInput(f"--limit {args.limit} is less than 1")
    queue = broker.queue(args.name)
    settle = args.delete and (args.mode or queue.settings.mode) != Mode.AT_MOST_ONCE  # else it is done already
    left, wait, stale, shown = args.limit, args.wait, 0, 0
    while True:
        asked = min(left, RECEIVE_BATCH)
        how = {"visibility": args.visibility, "mode": args.mode, "holder": args.holder, "together": args.together}
        messages = queue.receive(asked, wait=wait, **how)
        _write(args, messages, after=shown)
        if settle:
            stale += _delete(queue, messages)
        shown, left, wait = shown + len(messages), left - asked, 0
        if not left or len(messages) < asked:
            break
    if not shown and not args.body and not args.json:
        complain(f"queue {args.name!r} has no visible message")
    return 0 if shown and not stale else 1


def _write(args: Namespace, messages: Sequence[Message], after: int = 0) -> None:
    """Print and flush the messages, because the caller may delete them next."""
    for message in messages:
        if args.body:
            sys.stdout.buffer.write(message.body)
        elif args.json:
            emit(message_json(message, held=True))
        else:
            if after:
                print()
            print_message(message, held=True)
        after += 1
    sys.stdout.flush()


def _delete(queue: Queue, messages: Sequence[Message]) -> int:
    """Delete what was printed, and return how many messages were no longer held."""
    stale = [message for message, done in zip(messages, queue.delete_many(messages), strict=True) if not done]
    for message in stale:
        complain(f"{receipt(message)} was not deleted: its visibility ended before it was printed")
    return len(stale)


def run_delete(args: Namespace, broker: Broker) -> int:
    queue = broker.queue(args.name)
    return _report(args, "deleted", queue.delete_many(_receipts(args)))


def run_cancel(args: Namespace, broker: Broker) -> int:
    if bool(args.ids) == (args.key is not None):
        raise BadInput("cancel takes the ids of messages, or one --key")
    queue = broker.queue(args.name)
    if args.key is not None:
        done = {args.key: queue.cancel(key=os.fsencode(args.key))}
    else:
        done = {id: queue.cancel(id) for id in args.ids}
    if args.json:
        emit([{"message": name, "cancelled": right} for name, right in done.items()])
    for name, right in done.items():
        if not right:
            complain(f"{name} was not cancelled: somebody holds it, or there is no such message")
        elif not args.json:
            print(f"cancelled {name}")
    return 0 if all(done.values()) else 1


def run_release(args: Namespace, broker: Broker) -> int:
    queue = broker.queue(args.name)
    return _report(args, "released", [queue.release(receipt, args.delay, args.error) for receipt in _receipts(args)])


def run_bury(args: Namespace, broker: Broker) -> int:
    queue = broker.queue(args.name)
    return _report(args, "buried", [queue.bury(receipt, args.reason) for receipt in _receipts(args)])


def run_extend(args: Namespace, broker: Broker) -> int:
    queue = broker.queue(args.name)
    visibility = queue.settings.visibility if args.visibility is None else args.visibility
    return _report(args, "extended", [queue.extend(receipt, visibility) for receipt in _receipts(args)])


def _receipts(args: Namespace) -> list[Receipt]:
    return [_receipt(args.name, text) for text in args.receipts]


def _receipt(queue: str, text: str) -> Receipt:
    which, mark, delivery = text.partition("#")
    if not mark:
        return Receipt(queue, which, None)
    if not (delivery.isascii() and delivery.isdecimal() and len(delivery) < 40):
        raise BadInput(f"receipt {text!r:.200} is not ID#DELIVERY, as receive prints it")
    return Receipt(queue, which, int(delivery))


def _report(args: Namespace, deed: str, done: Sequence[bool]) -> int:
    if args.json:
        emit([{"receipt": text, deed: right} for text, right in zip(args.receipts, done, strict=True)])
    for text, right in zip(args.receipts, done, strict=True):
        if not right:
            complain(f"{text} was not {deed}: " + ("the receipt is stale" if "#" in text else "there is no such message"))
        elif not args.json:
            print(f"{deed} {text}")
    return 0 if all(done) else 1


def run_peek(args: Namespace, broker: Broker) -> int:
    messages = broker.queue(args.name).peek(args.limit, state=args.state)
    return _list(args, messages, f"queue {args.name!r} has no {args.state + ' ' if args.state else ''}message")


def run_settled(args: Namespace, broker: Broker) -> int:
    queue = broker.queue(args.name)
    messages = queue.settled(args.limit)
    if queue.settings.history:
        return _list(args, messages, f"queue {args.name!r} has no settled message in its history")
    return _list(args, messages, f"queue {args.name!r} keeps no history; to keep one: penstock settings NAME --history S")


def _list(args: Namespace, messages: Sequence[Message], nothing: str) -> int:
    for place, message in enumerate(messages):
        if args.json:
            emit(message_json(message))
        else:
            if place:
                print()
            print_message(message)
    if not messages and not args.json:
        complain(nothing)
    return 0 if messages else 1
