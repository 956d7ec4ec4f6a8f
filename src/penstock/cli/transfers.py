"""The pipelines archive, load, move and dedupe."""

from __future__ import annotations

import hashlib
from argparse import ArgumentTypeError, Namespace
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from penstock.cli.frame import Frame, Pipelines, absolute
from penstock.cli.output import complain
from penstock.errors import BadInput
from penstock.spark.options import check_queues
from penstock.urls import without_password

if TYPE_CHECKING:
    from penstock.spark.pipelines.progress import Totals

STAYS = {
    "delayed": "delayed",
    "in_flight": "held by consumers",
    "blocked": "behind others of their group",
    "damaged": "damaged",
    "visible": "visible (another run moves them)",
}
"""Why messages may still be in a queue that was moved."""


def add(pipeline: Pipelines) -> None:
    parser = pipeline("archive", run_archive, "drain queues to Parquet or a table, by queue and day, exactly once")
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="names, or patterns with * and ?")
    parser.add_argument("folder", metavar="DIR|TABLE", help="a folder, delta:FOLDER or iceberg:CATALOG/NAMESPACE.TABLE")
    parser.add_argument("--once", action="store_true", help="end when what is there now is archived")
    parser.add_argument(
        "--compression",
        default="zstd",
        choices=["zstd", "snappy", "gzip", "lz4", "none"],
        help="compression of the files (zstd)",
    )
    parser.add_argument(
        "--json-columns",
        metavar="infer|DDL",
        help="parse JSON bodies into a column data, with this schema or an inferred one",
    )
    parser.add_argument("--batch", metavar="N", type=int, help="at most N messages at a time (100000)")
    parser.add_argument(
        "--from-history",
        action="store_true",
        help="copy the history that the queues keep, which stays, instead of draining them; ends when that is done",
    )

    parser = pipeline("load", run_load, "send the rows of files to a queue, each once")
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        help="files, folders or patterns: Parquet, JSON lines, CSV or text; or an archive's table",
    )
    parser.add_argument(
        "queue", metavar="QUEUE", nargs="?", help="where they go; without it, each message of an archive goes back"
    )
    parser.add_argument(
        "--format", choices=["parquet", "json", "csv", "text"], help="the format of the files; else taken from their names"
    )
    parser.add_argument("--schema", metavar="DDL", help="the types of a CSV's columns")
    parser.add_argument("--body", metavar="COLUMN|json", help="the column that is the body, or the whole row as JSON")
    parser.add_argument(
        "--map", metavar="FIELD=COLUMN,…", type=mapping, default={}, help="such as key=order_id,attribute.region=region"
    )
    parser.add_argument("--rate", metavar="N", type=int, help="at most N rows a second")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--bad-file", metavar="FILE", help="rows that cannot be messages go here as JSON lines, with the reason"
    )
    either.add_argument("--bad-queue", metavar="QUEUE", help="or to this queue")
    again = parser.add_argument_group("replaying an archive")
    again.add_argument("--since", metavar="TIME", type=instant, help="only what was sent at this time or later (UTC)")
    again.add_argument("--until", metavar="TIME", type=instant, help="only what was sent before this time")
    again.add_argument("--where", metavar="SQL", help="only these: over the archive's columns, and text and json, the body")
    again.add_argument("--name", metavar="NAME", help="the name of the replay: under each, a message is sent once")

    parser = pipeline("move", run_move, "move a queue to another store, and prove it by counts and checksums")
    parser.add_argument("from_url", metavar="FROM_URL")
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("to_url", metavar="TO_URL")
    parser.add_argument("to_queue", metavar="TO_QUEUE", nargs="?", help="the target queue; else one of the same name")

    parser = pipeline("dedupe", run_dedupe, "remove duplicates from a queue, or move the rest to another; the first stays")
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("to", metavar="TO", nargs="?", help="a queue of the same store")
    parser.add_argument(
        "--by",
        metavar="content|body|key|FIELD",
        default="content",
        help="what makes two messages equal; FIELD is a field of JSON bodies (content)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only count them")


def mapping(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(","):
        target, equals, column = part.partition("=")
        if not equals or not target.strip() or not column.strip():
            raise ArgumentTypeError(f"{part!r} is not FIELD=COLUMN")
        found[target.strip()] = column.strip()
    return found


def instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time such as 2030-01-31 or 2030-01-31T12:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def run_archive(args: Namespace, frame: Frame) -> int:
    check_queues(frame.url, ",".join(args.queues), patterns=True)
    if args.from_history:
        return _run_archive_history(args, frame)
    from penstock.spark.pipelines.archive import archive

    limits = {} if args.batch is None else {"maxMessagesPerTrigger": str(args.batch)}
    done = archive(
        frame.spark,
        frame.url,
        args.queues,
        args.folder,
        once=args.once,
        checkpoint=args.checkpoint,
        compression=args.compression,
        columns=args.json_columns,
        watch=frame.watch,
        **limits,
    )
    return _answer(frame, f"archived {_count(done.rows)} to {args.folder}", done, {"folder": args.folder})


def _run_archive_history(args: Namespace, frame: Frame) -> int:
    if args.batch is not None:
        raise BadInput("--batch is for draining; --from-history takes the whole history")
    from penstock.spark.lakes.tables import is_address

    if is_address(args.folder):
        raise BadInput("--from-history copies to a folder of Parquet, not to a table")
    from penstock.spark.pipelines.settled import archive_history

    done = archive_history(
        frame.spark,
        frame.url,
        args.queues,
        args.folder,
        checkpoint=args.checkpoint,
        compression=args.compression,
        columns=args.json_columns,
    )
    return _answer(frame, f"archived {_count(done.rows)} of the history to {args.folder}", done, {"folder": args.folder})


def run_load(args: Namespace, frame: Frame) -> int:
    if args.queue is None and len(args.files) > 1:  # argparse gives all names to the files
        args.queue = args.files.pop()
    from penstock.spark.lakes.tables import is_address

    table = is_address(args.files[0])
    if args.queue is None or table or any(getattr(args, name) is not None for name in ("since", "until", "where", "name")):
        return _run_replay(args, frame)
    check_queues(frame.url, args.queue, *([args.bad_queue] if args.bad_queue else []))
    from penstock.spark.pipelines.load import load

    checkpoint = args.checkpoint or _checkpoint("load", frame.url, *args.files, args.queue)
    done = load(
        frame.spark,
        args.files,
        frame.url,
        args.queue,
        checkpoint=checkpoint,
        format=args.format,
        body=args.body,
        columns=args.map,
        schema=args.schema,
        rate=args.rate,
        bad_queue=args.bad_queue,
        bad_file=args.bad_file,
        watch=frame.watch,
    )
    if not done.rows and not done.bad and not done.stopped:
        complain(f"there was nothing new: {checkpoint} knows what was loaded before (another --checkpoint loads it again)")
    figures = {"queue": args.queue, "checkpoint": checkpoint, "bad": done.bad}
    return _answer(frame, _loaded(args, done), done, figures)


def _run_replay(args: Namespace, frame: Frame) -> int:
    for name in ("format", "body", "schema", "map", "bad_file"):
        if getattr(args, name):
            raise BadInput(f"a replay of an archive sends its messages as they were: it takes no --{name.replace('_', '-')}")
    if len(args.files) > 1:
        raise BadInput(f"a replay has one archive, not {len(args.files)}")
    check_queues(frame.url, *(name for name in (args.queue, args.bad_queue) if name))
    from penstock.spark.pipelines.replay import replay

    done = replay(
        frame.spark,
        args.files[0],
        frame.url,
        args.queue,
        name=args.name,
        since=args.since,
        until=args.until,
        where=args.where,
        rate=args.rate,
        bad_queue=args.bad_queue,
        checkpoint=args.checkpoint,
        watch=frame.watch,
    )
    if not done.rows and not done.stopped:
        complain("nothing was sent: nothing was chosen, or this replay was done before (another --name sends it again)")
    text = f"sent {_count(done.rows)} again, to {args.queue or 'the queues they came from'}"
    return _answer(frame, text, done, {"queue": args.queue, "archive": args.files[0]})


def _loaded(args: Namespace, done: Totals) -> str:
    if done.bad is None:
        return f"read {_count(done.rows, 'rows')} for {args.queue}; those that cannot be messages are in {args.bad_queue}"
    text = f"loaded {_count(done.rows, 'rows')} to {args.queue}"
    if done.bad:
        when = "will be" if done.stopped else "are"
        text += f"; {_count(done.bad, 'rows')} cannot be messages, and {when} in {args.bad_file}"
    return text


def run_move(args: Namespace, frame: Frame) -> int:
    source, target = absolute(args.from_url), absolute(args.to_url)
    to_queue = args.to_queue or args.queue
    check_queues(source, args.queue, what="the source")
    check_queues(target, to_queue, what="the target")
    from penstock.spark.pipelines.move import move

    checkpoint = args.checkpoint or _checkpoint("move", source, args.queue, target, to_queue)
    moved = move(frame.spark, source, args.queue, target, to_queue, checkpoint=checkpoint, watch=frame.watch)
    proof = {"left": asdict(moved.left), "came": asdict(moved.came), "proven": moved.proven}
    text = f"moved {_count(moved.totals.rows)}\nleft {args.queue}: {moved.left}\ncame to {to_queue}: {moved.came}\n"
    text += "proven: the same messages" if moved.proven else "NOT proven: they differ"
    figures = {
        "queue": args.queue,
        "to_queue": to_queue,
        **proof,
        "stays": {name: getattr(moved.stays, name) for name in STAYS},
    }
    _answer(frame, text, moved.totals, figures)
    if not moved.proven:
        complain(
            "someone else has used one of the queues meanwhile, or messages expired, or some were lost, which must not happen"
        )
    if stays := ", ".join(f"{count:,} {why}" for name, why in STAYS.items() if (count := getattr(moved.stays, name))):
        complain(f"not all messages have left {args.queue!r}: {stays}")
    return 0 if moved.proven and not stays else 1


def run_dedupe(args: Namespace, frame: Frame) -> int:
    check_queues(frame.url, args.queue, *([args.to] if args.to else []))
    from penstock.spark.pipelines.move import dedupe

    checkpoint = args.checkpoint or _checkpoint("dedupe", frame.url, args.queue, args.to or "", args.by)
    done = dedupe(
        frame.spark, frame.url, args.queue, args.to, by=args.by, dry_run=args.dry_run, checkpoint=checkpoint, watch=frame.watch
    )
    verb = "would remove" if args.dry_run else "removed"
    count = done.duplicates if args.dry_run else done.removed
    text = f"{verb} {_count(count, 'duplicates')} among {_count(done.messages)}"
    if done.duplicates > done.removed and not args.dry_run:
        text += f"; {done.duplicates - done.removed:,} are held by consumers, and were left alone"
    frame.answer(text, asdict(done))
    return 0


def _answer(frame: Frame, text: str, done: Totals, more: dict[str, Any]) -> int:
    if done.stopped:
        text += "; stopped: the next start continues from here"
    frame.answer(text, {"rows": done.rows, "batches": done.batches, "seconds": done.seconds, "stopped": done.stopped, **more})
    return 0


def _count(number: int, what: str = "messages") -> str:
    return f"{number:,} {what}" if number != 1 else f"1 {what.removesuffix('s')}"


def _checkpoint(*parts: str) -> str:
    """Where the same command, run in the same folder, finds what it did before."""
    known = "\0".join(without_password(part) for part in parts)
    return f".penstock/{parts[0]}-{hashlib.sha256(known.encode()).hexdigest()[:12]}"
