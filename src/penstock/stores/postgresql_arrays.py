"""Arrays for PostgreSQL in its binary format, all at once: psycopg asks each element for its type, which takes longer than what
the server does with it.

    int4 dimensions (1), int4 with nulls (0), int4 type of the elements, int4 their count, int4 first index (1);
    then of each element int4 its length, and the element
"""

from __future__ import annotations

from itertools import chain, repeat
from struct import Struct, pack

from psycopg import Connection
from psycopg.adapt import Dumper
from psycopg.pq import Format

INT8, INT8S, BYTEA, BYTEAS = 20, 1016, 17, 1001
"""The types of elements and arrays, whose numbers are the same in every database."""
HEAD = Struct(">5i")
LENGTH = Struct(">i")


class Numbers(tuple[int, ...]):
    """An int8[] as a parameter."""


class Blobs(tuple[bytes, ...]):
    """A bytea[] as a parameter."""


class NumbersDumper(Dumper):
    format, oid = Format.BINARY, INT8S

    def dump(self, numbers: Numbers) -> bytes:
        count = len(numbers)
        return HEAD.pack(1, 0, INT8, count, 1) + pack(f">{'iq' * count}", *chain.from_iterable(zip(repeat(8), numbers)))


class BlobsDumper(Dumper):
    format, oid = Format.BINARY, BYTEAS

    def dump(self, blobs: Blobs) -> bytes:
        lengths = map(LENGTH.pack, map(len, blobs))
        return HEAD.pack(1, 0, BYTEA, len(blobs), 1) + b"".join(chain.from_iterable(zip(lengths, blobs, strict=True)))


def register_arrays(connection: Connection) -> None:
    connection.adapters.register_dumper(Numbers, NumbersDumper)
    connection.adapters.register_dumper(Blobs, BlobsDumper)
