"""The command send: messages from the command line, from standard input or from files, as a stream of batches."""

from __future__ import annotations

import base64
import os
import stat
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from penstock.broker import Broker
from penstock.cli.output import complain, emit
from penstock.cli.parser import Commands, deadline, retry, seconds
from penstock.errors import BadInput, BadMessage, PenstockError
from penstock.message import OCTETS, Attribute, Draft, Sent
from penstock.policy import MAX_BODY, check_retry
from penstock.queue.protocol import Queue

BATCH = 1000
BATCH_BYTES = 8 * 1024 * 1024
CHUNK = 1024 * 1024

Advance = Callable[[int, int], None]
"""Called after each batch with its part of the total, and with how many messages are safe by now."""


def add(command: Commands) -> None:
    parser = command("send", run_send, "send messages: each BODY is one; without BODY, standard input is one message")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("bodies", metavar="BODY", nargs="*", default=[])
    parser.add_argument("--lines", action="store_true", help="each line of standard input is a message")
    parser.add_argument("--files", metavar="PATH", nargs="+", help="each file is a message")
    parser.add_argument("--content-type", metavar="TYPE", default=OCTETS, help=f"({OCTETS})")
    parser.add_argument(
        "--attribute",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="text; a number as NAME:number=5, bytes as NAME:base64=AAEC; may be repeated",
    )
    parser.add_argument("--delay", metavar="S", type=seconds, help="visible after S seconds, instead of the queue's delay")
    parser.add_argument("--visibility", metavar="S", type=seconds, help="once received, hidden for S seconds")
    parser.add_argument(
        "--deadline",
        metavar="S",
        type=deadline,
        help="not delivered after S seconds, or after a time such as 2030-01-31T12:00Z",
    )
    parser.add_argument("--key", metavar="KEY", help="identifies duplicates instead of the content")
    parser.add_argument("--unique", action="store_true", help="not while a unique message with this key is in the queue")
    parser.add_argument("--group", metavar="NAME", help="keep the message's order within this group")
    parser.add_argument("--retry", metavar="POLICY", type=retry, help="its own retry policy, as for `create`")


def run_send(args: Namespace, broker: Broker) -> int:
    if (len(args.bodies) > 0) + args.lines + (args.files is not None) > 1:
        raise BadInput("BODY, --lines and --files exclude each other")
    if args.key is not None and (args.lines or len(args.files or args.bodies) > 1):
        raise BadInput("with one --key all messages but the first would be duplicates: send them one by one")
    draft = partial(
        Draft,
        content_type=args.content_type,
        attributes=attributes(args.attribute),
        delay=args.delay,
        visibility=args.visibility,
        deadline=args.deadline,
        key=None if args.key is None else os.fsencode(args.key),
        group=args.group,
        retry=check_retry(args.retry),
        unique=args.unique,
    )
    queue = broker.queue(args.name)
    if args.lines:
        stream = open_stdin("lines")
        return _transfer(args, queue, draft, _lines(stream), "line", size_of(stream))
    if args.files:
        return _transfer(args, queue, draft, _files(args.files), "file", len(args.files))
    bodies = [os.fsencode(body) for body in args.bodies] or [read_body()]
    for sent in queue.send_many([draft(body) for body in bodies]):
        if args.json:
            emit(sent._asdict())
        else:
            print(f"{sent.id} (a duplicate)" if sent.duplicate else sent.id)
    return 0


def attributes(texts: Sequence[str]) -> dict[str, Attribute]:
    """NAME=VALUE, with a type after the name's last colon if it has one."""
    found: dict[str, Attribute] = {}
    for text in texts:
        label, equals, value = text.partition("=")
        name, _, kind = label.rpartition(":") if ":" in label else (label, "", "text")
        if not equals:
            raise BadInput(f"attribute {text!r:.200} is not NAME=VALUE")
        if name in found:
            raise BadInput(f"attribute {name!r:.200} is given twice")
        found[name] = _typed(text, kind, value)
    return found


def _typed(text: str, kind: str, value: str) -> Attribute:
    try:
        match kind:
            case "text":
                return value
            case "number":
                return seconds(value)
            case "base64":
                return base64.b64decode(value, validate=True)
    except ValueError:
        raise BadInput(f"attribute {text!r:.200}: the value is not {'a number' if kind == 'number' else kind}") from None
    raise BadInput(f"attribute {text!r:.200}: the type after ':' is text, number or base64, not {kind!r:.80}")


def open_stdin(what: str) -> BinaryIO:
    if sys.stdin is None:
        raise BadInput("standard input is closed; give the message as an argument, or --files")
    if sys.stdin.isatty():
        complain(f"reading {what} from the terminal; end with Ctrl-D")
    return sys.stdin.buffer


def read_body() -> bytes:
    """A message from standard input."""
    body = open_stdin("the message").read(MAX_BODY + 1)
    if len(body) > MAX_BODY:
        raise BadMessage(f"standard input has more than {MAX_BODY} bytes, the limit of a message; did you mean --lines?")
    return body


def size_of(stream: BinaryIO) -> int | None:
    """How many bytes there are to read, if that is known."""
    try:
        status = os.fstat(stream.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _lines(stream: BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """Batches of lines as they arrive, each with its size in bytes: a slow writer's lines do not wait for a full batch."""
    number = 0
    rest = bytearray()
    while chunk := stream.read1(CHUNK):  # type: ignore[attr-defined]
        end = chunk.rfind(b"\n")
        if end < 0:
            rest += chunk
            if len(rest) > MAX_BODY:
                raise _too_long(number)
            continue
        lines = iter((bytes(rest) + chunk[:end]).split(b"\n"))
        rest = bytearray(chunk[end + 1 :])
        while batch := list(islice(lines, BATCH)):
            long = next((place for place, line in enumerate(batch) if len(line) > MAX_BODY), None)
            batch = batch[:long]
            number += len(batch)
            yield batch, sum(map(len, batch)) + len(batch)
            if long is not None:
                raise _too_long(number)
    if len(rest) > MAX_BODY:
        raise _too_long(number)
    if rest:
        yield [bytes(rest)], len(rest)


def _too_long(before: int) -> BadMessage:
    return BadMessage(f"line {before + 1} has more than {MAX_BODY} bytes, the limit of a message")


def _files(paths: Sequence[str]) -> Iterator[tuple[list[bytes], int]]:
    batch: list[bytes] = []
    size = 0
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                body = file.read(MAX_BODY + 1)
            problem = f"it has more than {MAX_BODY} bytes, the limit of a message" if len(body) > MAX_BODY else None
        except OSError as error:
            problem = error.strerror
        if problem is not None:
            yield batch, len(batch)
            raise BadMessage(f"file {path!r}: {problem}")
        batch.append(body)
        size += len(body)
        if len(batch) == BATCH or size >= BATCH_BYTES:
            yield batch, len(batch)
            batch, size = [], 0
    yield batch, len(batch)


def _transfer(
    args: Namespace,
    queue: Queue,
    draft: Callable[[bytes], Draft],
    batches: Iterable[tuple[list[bytes], int]],
    unit: str,
    total: int | None,
) -> int:
    safe = duplicates = 0
    try:
        shared = (args.lines and sys.stdin.isatty()) or (args.json and sys.stdout.isatty())
        with progress(total, "sent", quiet=shared) as advance:
            for bodies, size in batches:
                sent = queue.send_many(map(draft, bodies))
                safe += len(sent)
                duplicates += sum(one.duplicate for one in sent)
                if args.json:
                    _emit_all(sent)
                advance(size, safe)
    except KeyboardInterrupt as error:
        error.add_note(f"at least {safe} {unit}s are safely sent")  # the last batch may have been, or not
        raise
    except (PenstockError, OSError) as error:
        first = unit if safe == 1 else f"{safe} {unit}s"
        error.add_note(f"safely sent: the first {first}" if safe else "nothing was sent")
        raise
    if not args.json:
        twice = f", {duplicates} of them duplicates" if duplicates else ""
        print(f"sent {safe} messages{twice}" if safe != 1 else f"sent 1 message{twice}")
    return 0 if safe else 1


def _emit_all(sent: Sequence[Sent]) -> None:
    """Print and flush one line for each message: a waiting producer may read them as answers."""
    for one in sent:
        emit(one._asdict())
    sys.stdout.flush()


@contextmanager
def progress(total: int | None, word: str, *, quiet: bool) -> Iterator[Advance]:
    """A progress bar on stderr, if that is a terminal; ``quiet`` if something else is written or typed on it."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda _size, _safe: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    except ImportError:  # it is an extra
        yield lambda _size, _safe: None
        return
    columns = BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[safe]:,} " + word), TimeElapsedColumn()
    # rich would take stdout along to its console on stderr, and JSON with it.
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task("", total=total, safe=0)
        yield lambda size, safe: bar.update(task, advance=size, safe=safe)
