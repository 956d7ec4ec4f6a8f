"""How executors read: Arrow batches from any store, in a Python worker's process.

Directly from the database where possible (`penstock.spark.arrow_reader`), otherwise message by message.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow import schema_of, to_batch
from penstock.broker import Broker
from penstock.client.queue import RemoteQueue
from penstock.errors import StoreError
from penstock.message import Message, weigh
from penstock.queue.protocol import Queue
from penstock.spark import arrow_reader
from penstock.spark.filters import Wanted
from penstock.spark.options import ReadOptions

ROWS = 5000
"""Rows of one Arrow batch: fewer cost calls, more cost memory."""
PAGE = 16 * 1024 * 1024
"""Target size of one page, in bytes of bodies."""
WORTH_A_TASK, MOST_A_TASK = 20_000, 500_000
"""Messages that justify another partition if there is a core for it, and messages after which there is one in any case."""

kept: dict[ReadOptions, Broker] = {}
"""The servers that this process is connected to."""


def parts(size: int, at_least: int | None) -> list[tuple[int, int]]:
    """Split the messages among a few tasks, since each costs a Python worker."""
    most = -(-size // WORTH_A_TASK)
    count = min(size, max(at_least or 1, min(most, os.cpu_count() or 1), -(-size // MOST_A_TASK)))
    return list(pairwise(size * part // count for part in range(count + 1))) if count else []


def claim(
    options: ReadOptions, queue: str, reader: str, epoch: int, start: int, stop: int, schema: pa.Schema
) -> Generator[pa.RecordBatch, None, int]:
    """The messages of a confirmed claim from place ``start`` up to ``stop``. Returns how many there were, including damaged
    ones, which are set aside."""
    found = 0
    with arrow_reader.opened(options.url) as direct:
        if direct is not None:
            try:
                for batch in direct.claim(queue, reader, epoch, start, stop, schema):
                    yield batch
                    found += batch.num_rows
                return found
            except (arrow_reader.Damaged, StoreError):  # damage can change any value, and even break a row
                start += found
    with _opened(options) as broker:
        home, rows = broker.queue(queue), ROWS // 10
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


def scan(
    options: ReadOptions, queue: str, start: int, stop: int, dense: bool, wanted: Wanted, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The messages of a queue, or of its history, by number, that pass the filters."""
    settled = options.view == "settled"
    with arrow_reader.opened(options.url) as direct:
        if direct is not None:
            conditions = wanted.conditions(direct.ids)
            yield from direct.scan(queue, start, stop, schema, settled=settled, dense=dense, conditions=conditions)
            return
    with _opened(options) as broker:
        home, rows = broker.queue(queue), ROWS // 10
        needed = pa.unify_schemas([schema, schema_of(sorted({"number", *wanted.columns()}))])
        while True:
            arguments = {"start": start, "stop": stop, "limit": rows, "settled": settled}
            batch, rows = _fetch(home, "scan", needed, arguments, rows)
            if not batch.num_rows:
                return
            start = batch.column("number")[-1].as_py() + 1
            yield pa.RecordBatch.from_arrays(wanted.filter(batch).columns[: len(schema)], schema=schema)


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
def _opened(options: ReadOptions) -> Iterator[Broker]:
    """A broker of this process. Spark reuses its workers, so connections to servers are kept. A file is closed again, because
    another copy of SQLite may read it next."""
    if options.url.startswith("sqlite:"):
        with options.open() as broker:
            yield broker
    else:
        if options not in kept:
            kept[options] = options.open()
        yield kept[options]
