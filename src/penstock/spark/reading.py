"""How executors read: Arrow batches from any store, in a Python worker's process.

Directly from the database where possible (`penstock.spark.arrow_reader`), otherwise message by message.
"""

from __future__ import annotations

import socket
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow import schema_of, to_batch
from penstock.broker import Broker, location
from penstock.client.queue import RemoteQueue
from penstock.errors import QueueNotFound, StoreError
from penstock.message import Message, weigh
from penstock.queue.protocol import Queue
from penstock.spark import arrow_reader
from penstock.spark.filters import Wanted
from penstock.spark.insisting import insist, insistent
from penstock.spark.options import FILES, FileNotShared, ReadOptions

ROWS = 5000
"""Rows of one Arrow batch: fewer cost calls, more cost memory."""
PAGE = 16 * 1024 * 1024
"""Target size of one page, in bytes of bodies."""
WORTH_A_TASK, MOST_A_TASK = 20_000, 500_000
"""Messages that justify another partition if there is a core for it, and messages after which there is one in any case."""
USUAL_TASK = 50_000
"""Messages of a partition if nobody knows how many tasks Spark runs at a time."""

kept: dict[ReadOptions, Broker] = {}
"""The servers that this process is connected to."""


@dataclass(frozen=True, slots=True)
class QueuePart:
    """A part of one queue: of a claim by places, or of the whole queue by numbers."""

    queue: str
    start: int
    stop: int
    dense: bool = False
    """Many of these numbers belong to this queue, so a table scan finds them sooner than an index."""


def parts(size: int, at_least: int | None, parallelism: int | None = None) -> list[tuple[int, int]]:
    """Split the messages among a few tasks, since each costs a Python worker."""
    usual = -(-size // USUAL_TASK) if parallelism is None else min(-(-size // WORTH_A_TASK), parallelism)
    count = min(size, max(at_least or 1, usual, -(-size // MOST_A_TASK)))
    return list(pairwise(size * part // count for part in range(count + 1))) if count else []


def cut(sizes: Sequence[tuple[str, int]], among: Sequence[tuple[int, int]], *, whole: bool = False) -> list[list[QueuePart]]:
    """The messages of several queues, one queue after the other, split into `parts`. Each part may be of several queues.

    ``whole``: no queue is split."""
    found: list[list[QueuePart]] = [[] for _ in among]
    ends, before = [stop for _, stop in among], 0
    for name, size in sizes:
        place = 0
        while place < size:
            part = bisect_right(ends, before + (size // 2 if whole else place))
            stop = size if whole else min(size, ends[part] - before)
            found[part].append(QueuePart(name, place, stop))
            place = stop
        before += size
    return [pieces for pieces in found if pieces]


def claim(
    options: ReadOptions, pieces: Sequence[QueuePart], reader: str, epoch: int, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, list[int]]:
    """The messages of confirmed claims. Returns how many each piece had, including damaged ones, which are set aside."""
    found = [0] * len(pieces)
    place = 0
    while place < len(pieces):
        with _named_as_by_the_driver(options), arrow_reader.opened(options.url) as direct:
            try:
                while direct is not None and place < len(pieces):
                    piece = pieces[place]
                    for batch in direct.claim(piece.queue, reader, epoch, piece.start, piece.stop, schema):
                        yield batch
                        found[place] += batch.num_rows
                    place += 1
            except (arrow_reader.Damaged, StoreError):  # damage can change any value, and even break a row
                pass
        if place < len(pieces):
            found[place] += yield from _claim_by_message(options, pieces[place], found[place], reader, epoch, schema)
            place += 1
    return found


def _claim_by_message(
    options: ReadOptions, piece: QueuePart, done: int, reader: str, epoch: int, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, int]:
    start, stop, found = piece.start + done, piece.stop, 0
    with _named_as_by_the_driver(options), _opened(options) as broker:
        home, rows = insist(lambda: broker.queue(piece.queue)), ROWS // 10
        told = pa.unify_schemas([schema, schema_of(["state"])])
        while start < stop:
            end = min(start + rows, stop)
            part = {"reader": reader, "epoch": epoch, "start": start, "stop": end, "damaged": True}
            batch, rows = _fetch(home, "read", told, part, rows)
            found += batch.num_rows
            whole = batch.filter(pc.not_equal(batch.column("state"), "damaged"))
            yield pa.RecordBatch.from_arrays(whole.columns[: len(schema)], schema=schema)
            start = end
    return found


def scan(options: ReadOptions, pieces: Sequence[QueuePart], wanted: Wanted, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of queues, or of their history, by number, that pass the filters."""
    settled = options.view == "settled"
    with _named_as_by_the_driver(options), arrow_reader.opened(options.url) as direct:
        if direct is not None:
            conditions = wanted.conditions(direct.ids)
            for piece in pieces:
                yield from direct.scan(
                    piece.queue, piece.start, piece.stop, schema, settled=settled, dense=piece.dense, conditions=conditions
                )
            return
    with _named_as_by_the_driver(options), _opened(options) as broker:
        for piece in pieces:
            yield from _scan_by_message(broker.queue(piece.queue), piece, settled, wanted, schema)


def _scan_by_message(
    home: Queue, piece: QueuePart, settled: bool, wanted: Wanted, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    start, rows = piece.start, ROWS // 10
    needed = pa.unify_schemas([schema, schema_of(sorted({"number", *wanted.columns()}))])
    while True:
        arguments = {"start": start, "stop": piece.stop, "limit": rows, "settled": settled}
        batch, rows = _fetch(home, "scan", needed, arguments, rows)
        if not batch.num_rows:
            return
        start = batch.column("number")[-1].as_py() + 1
        yield pa.RecordBatch.from_arrays(wanted.filter(batch).columns[: len(schema)], schema=schema)


@insistent
def _fetch(home: Queue, verb: str, schema: pa.Schema, arguments: dict[str, Any], rows: int) -> tuple[pa.RecordBatch, int]:
    """The answer of a verb, and how many rows to ask for next."""
    if isinstance(home, RemoteQueue):
        batch = home.arrow(verb, schema, **arguments)
        return batch, _rows(batch.nbytes, batch.num_rows) if batch.num_rows else rows
    messages: list[Message] = getattr(home, verb)(**arguments)
    return to_batch(messages, schema), _rows(sum(map(weigh, messages)), len(messages))


def _rows(weight: int, count: int) -> int:
    """How many rows make a page, judging by the size of the last ones."""
    return max(1, min(ROWS, PAGE * count // max(1, weight)))


@contextmanager
def _named_as_by_the_driver(options: ReadOptions) -> Iterator[None]:
    """If a file lacks a queue that the driver has just seen, it is probably not the driver's file."""
    try:
        yield
    except QueueNotFound as error:
        kind, path = location(options.url)
        if kind not in FILES:
            raise
        raise FileNotShared(
            f"{path} on {socket.gethostname()} has no queue {error.name!r}, but the driver's has: either the queue was deleted "
            "meanwhile, or this is another file, and the store must be on a file system that all of Spark's processes share"
        ) from error


@contextmanager
def _opened(options: ReadOptions) -> Iterator[Broker]:
    """A broker of this process. Spark reuses its workers, so connections to servers are kept. A file is closed again, because
    another copy of SQLite may read it next."""
    if options.url.startswith("sqlite:"):
        with options.open() as broker:
            yield broker
    else:
        if options not in kept:
            kept[options] = insist(options.open)
        yield kept[options]
