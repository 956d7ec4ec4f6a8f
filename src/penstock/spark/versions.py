"""What Spark must have: batches need 4.0, writing streams 4.1, reading streams 4.2, where a Python source first has limits."""

from __future__ import annotations

import re

import pyspark

from penstock.errors import Unsupported


def check_stream_reading() -> None:
    _check((4, 2), "a stream from queues", "; a batch read with the options reader and epoch is done once, too")


def check_stream_writing() -> None:
    _check((4, 1), "a stream to queues", "; in foreachBatch, a batch write with txnAppId and txnVersion is done once, too")


def _check(needed: tuple[int, int], what: str, instead: str) -> None:
    if tuple(map(int, re.findall(r"\d+", pyspark.__version__)[:2])) < needed:
        raise Unsupported(f"{what} needs Spark {needed[0]}.{needed[1]} or newer, and this is {pyspark.__version__}{instead}")
