"""The commands export and import: a queue as JSON lines."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from penstock.broker import Broker
from penstock.cli.output import complain, emit
from penstock.cli.parser import Commands, seconds
from penstock.cli.sending import Advance, open_stdin, progress, size_of
from penstock.errors import BadInput
from penstock.stores.disk import refusal

REMEMBER = 86400


def add(command: Commands) -> None:
    parser = command("export", run_export, "write the messages of a queue as JSON lines")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--output", metavar="FILE", help="write to this file instead of standard output, whole or not at all")

    parser = command("import", run_import, "send a message for each JSON line, such as export writes them")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("file", metavar="FILE", nargs="?", help="the file; else standard input")
    parser.add_argument("--skip", metavar="N", type=int, default=0, help="the first N lines were imported before")
    parser.add_argument(
        "--remember",
        metavar="S",
        type=seconds,
        default=REMEMBER,
        help=f"for S seconds, at most a week, the same lines are imported only once ({REMEMBER})",
    )
    parser.add_argument("--token", metavar="TEXT", default="", help="another text imports the same lines once more")


def run_export(args: Namespace, broker: Broker) -> int:
    from penstock.operations import export_lines

    written = 0
    damaged = []
    with _writing(args.output) as file:
        for exported in export_lines(broker.queue(args.name)):
            if exported.line is None:
                damaged.append(exported.id)
            else:
                print(exported.line, file=file)
                written += 1
    if damaged:
        complain(f"{len(damaged)} damaged messages are left out: {', '.join(damaged[:5])}{', …' if damaged[5:] else ''}")
    if args.output and args.json:
        emit({"name": args.name, "messages": written, "damaged": len(damaged)})
    elif args.output:
        print(f"exported {_messages(written)} to {args.output}")
    return 1 if damaged else 0


@contextmanager
def _writing(path: str | None) -> Iterator[TextIO]:
    """Standard output; or a file that has its name once it is complete."""
    if path is None:
        yield sys.stdout
        return
    draft = f"{path}~"
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except OSError as error:
        raise refusal(f"the file {path}", error) from error
    finally:
        with suppress(OSError):
            Path(draft).unlink()


def run_import(args: Namespace, broker: Broker) -> int:
    from penstock.operations import import_lines
    from penstock.operations.lines import read_lines

    queue = broker.queue(args.name)
    with nullcontext(open_stdin("lines")) if args.file is None else _open(args.file) as stream, _progress(stream) as advance:
        how = {"token": args.token, "remember": args.remember, "skip": args.skip, "advance": advance}
        imported = import_lines(queue, read_lines(stream), **how)
    if args.json:
        emit({"name": args.name, **imported._asdict()})
    else:
        print(f"imported {_messages(imported.messages)}")
    return 0 if imported.messages else 1


def _progress(stream: BinaryIO) -> AbstractContextManager[Advance]:
    return progress(size_of(stream), "lines done", quiet=stream.isatty())


def _open(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise BadInput(f"file {path!r}: {error.strerror}") from None


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"
