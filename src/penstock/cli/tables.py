"""The pipeline compact."""

from __future__ import annotations

from argparse import Namespace

from penstock.cli.frame import Frame, Pipelines
from penstock.errors import BadInput


def add(pipeline: Pipelines) -> None:
    parser = pipeline("compact", run_compact, "make the many small files of a table few")
    parser.add_argument("table", metavar="TABLE", help="delta:FOLDER")
    parser.add_argument(
        "--vacuum",
        metavar="HOURS",
        type=int,
        help="remove files that no version of the last HOURS has; readers of older ones fail",
    )


def run_compact(args: Namespace, frame: Frame) -> int:
    from penstock.spark.lakes.tables import table_address

    if args.vacuum is not None and args.vacuum < 0:
        raise BadInput(f"--vacuum {args.vacuum} must be 0 or more")
    address = table_address(args.table)
    done = address.open().compact(args.vacuum)
    text = f"{address}: {done['merged']:,} files are now {done['made']:,}"
    frame.answer(text if args.vacuum is None else f"{text}; removed {done['removed']:,}", {"table": str(address), **done})
    return 0
