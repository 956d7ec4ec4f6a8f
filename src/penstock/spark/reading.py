"""How executors read: batches of Arrow out of any store, in the process of a Python worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa

from penstock.arrow import to_batch
from penstock.broker import Broker
from penstock.spark.options import ReadOptions

ROWS = 5000
"""Rows of one batch of Arrow: less costs calls, more costs memory."""
ROWS_PER_PARTITION = 20_000
"""A partition is a task with a Python worker: many small ones cost more than they bring."""


def claim(
    options: ReadOptions, queue: str, reader: str, epoch: int, start: int, stop: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The messages of a confirmed claim from place ``start`` up to ``stop``."""
    with opened(options) as broker:
        home = broker.queue(queue)
        for place in range(start, stop, ROWS):
            messages = home.read(reader, epoch, place, min(place + ROWS, stop))
            if messages:
                yield to_batch(messages, schema)


@contextmanager
def opened(options: ReadOptions) -> Iterator[Broker]:
    """A broker of this process. Spark's workers live on from task to task, and so do connections to servers; a file is closed
    again, because another copy of SQLite may read it next (see `penstock.columnar`)."""
    if options.url.startswith("sqlite:"):
        with options.open() as broker:
            yield broker
    else:
        yield _kept(options)


@lru_cache(maxsize=16)
def _kept(options: ReadOptions) -> Broker:
    return options.open()
