"""Encodes messages for PostgreSQL's COPY (FORMAT BINARY). This is many times as fast as one statement per row, or as a driver
that inspects the type of every value. Also decodes one big value from COPY: a query result would copy it twice, into freshly
allocated memory, which takes longer than everything else.

    header, then a row: number of fields (int16), each with its length (int32; -1: null) and bytes; then -1 (int16)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import TypeVar

from penstock.stores.encoding import add_body
from penstock.stores.sql.rows import Row

Item = TypeVar("Item")
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
NUMBER = Struct(">hiq")
FIRST = Struct(">hiqiqiqiqiq")  # number, queue, visible_at, sent_at, expires_at
WHOLE = Struct(">iq")
LENGTH = Struct(">i")
VALUE = Struct(">hi")  # number of fields, and the length of the first
CHECK = Struct(">iqi")  # checksum, and the length of the body
NULL = LENGTH.pack(-1)
NULLS = NULL * 3
ZEROS = WHOLE.pack(8, 0) * 3  # state, receives, delivery
FIELDS = 14
ROWS, CHUNK = 256, 1024 * 1024
"""How many rows, and about how many bytes of bodies, are joined into one chunk."""


def copy_rows(rows: Sequence[Row]) -> Iterator[bytes]:
    """Encode the parameters of the insert statement, row by row, with 0 for state, receives and delivery."""
    first, check_and_length = FIRST.pack, CHECK.pack
    for chunk in _chunks(rows, lambda row: len(row[-1])):
        parts: list[bytes] = []
        for number, queue, visible_at, sent_at, expires_at, deadline_at, line, mark, head, check, body in chunk:
            parts.append(first(FIELDS, 8, number, 8, queue, 8, visible_at, 8, sent_at, 8, expires_at))
            if deadline_at is None and line is None and mark is None:
                parts.append(NULLS)
            else:
                parts.append(NULL if deadline_at is None else WHOLE.pack(8, deadline_at))
                parts += (_field(line), _field(mark))
            parts.append(NULL if head is None else _field(head))
            parts += (check_and_length(8, check, len(body)), body, ZEROS)
        yield b"".join(parts)


def copy_alike(row: Row, bodies: Sequence[bytes]) -> Iterator[bytes]:
    """Like `copy_rows`, for rows that differ from this one only in their bodies, the checksums that follow from them, and their
    numbers, which count up from its own. Only what differs is built for each row."""
    number, begun = row[0], row[-2]
    (alone,) = copy_rows([row])
    common = alone[NUMBER.size : -CHECK.size - len(ZEROS)]
    start = Struct(f"{NUMBER.format}{len(common)}s{CHECK.format[1:]}").pack
    for chunk in _chunks(bodies, len):
        parts: list[bytes] = []
        for body in chunk:
            parts += (start(FIELDS, 8, number, common, 8, add_body(body, begun), len(body)), body, ZEROS)
            number += 1
        yield b"".join(parts)


def _chunks(rows: Sequence[Item], size_of: Callable[[Item], int]) -> Iterator[Sequence[Item]]:
    """The rows, so many at a time that a chunk is neither long nor, but for one large row, larger than `CHUNK`."""
    start = size = 0
    for place, row in enumerate(rows):
        more = size_of(row)
        if place > start and (place - start == ROWS or size + more > CHUNK):
            yield rows[start:place]
            start, size = place, 0
        size += more
    if start < len(rows):
        yield rows[start:]


def read_value(parts: Iterable[bytes | memoryview]) -> memoryview | None:
    """The only value of the only row in a stream from the server, if there is one."""
    first, *others = parts
    stream = memoryview(b"".join((first, *others)) if len(others) > 1 else first)
    if stream[len(HEADER) :][: len(TRAILER)] == TRAILER:
        return None
    start = len(HEADER) + VALUE.size
    _, length = VALUE.unpack_from(stream, len(HEADER))
    return stream[start : start + length]


def _field(value: bytes | None) -> bytes:
    return NULL if value is None else LENGTH.pack(len(value)) + value
