"""What a server writes down once in a minute: a message in the queue `HISTORY`, which every server of the store can read.

    zlib of JSON: {"node": {"name": …, "version": …, …}, "at": instant, "rows": {queue: [messages, in flight, came, left]}}

It has the queues in which something has changed, and once in an hour all of them. Came and left count what this server has put
in and taken out since it last wrote. The queue keeps messages for a day, so that it has about 1,440 of each server.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

from penstock.server.page.curves import CurveSample

HISTORY = "penstock.history"
RETENTION = 86400
CONTENT_TYPE = "application/vnd.penstock.history"
LARGEST = 4 * 1024 * 1024
"""Bytes of a record when it is unpacked."""
MOST = 2**62


class QueueRecord(NamedTuple):
    node: dict[str, Any]
    at: int
    rows: dict[str, tuple[int, int, int, int]]


def pack(record: QueueRecord) -> bytes:
    return zlib.compress(json.dumps(record._asdict(), separators=(",", ":")).encode())


def unpack(body: bytes) -> QueueRecord | None:
    """None if another program has written it."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(body, LARGEST)
        given = json.loads(text)
        node, at, rows = given["node"], given["at"], given["rows"]
        if not isinstance(node, dict) or not isinstance(node["name"], str) or not _is_number(at):
            return None
        if not all(len(row) == 4 and all(map(_is_number, row)) for row in rows.values()):
            return None
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return QueueRecord(node, at, {name: tuple(row) for name, row in rows.items()})


def samples_of(record: QueueRecord, queue: str) -> list[CurveSample]:
    row = record.rows.get(queue)
    return [] if row is None else [CurveSample(record.at, *row)]


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST
