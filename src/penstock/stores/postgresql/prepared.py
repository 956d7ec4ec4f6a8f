"""Runs the statements that a busy queue uses thousands of times a second directly through libpq. For each call the driver's
cursor inspects the type of every parameter, looks the statement up and builds a result object, which takes longer than the
server does.

Here a parameter's name determines its type, and each connection prepares a statement once, at its first use. Arrays are in
PostgreSQL's binary format:

    int4 dimensions (1), int4 with nulls (0), int4 type of the elements, int4 their count, int4 first index (1);
    then of each element int4 its length, and the element
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from struct import Struct, pack
from typing import Any

from psycopg import Connection, OperationalError
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import execute, fetch_many
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

INT8, INT8S, BYTEA, BYTEAS, TEXT = 20, 1016, 17, 1001, 25
"""The OIDs of parameter types, which are the same in every database."""
TYPES = {
    "name": TEXT, "settings": TEXT, "grp": BYTEA, "head": BYTEA, "body": BYTEA, "holder": BYTEA,
    "numbers": INT8S, "checksums": INT8S, "bodies": BYTEAS,
}  # fmt: skip
"""For parameters that are not int8."""
DONE = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
HEAD = Struct(">5i")
LENGTH = Struct(">i")


def pack_numbers(numbers: Sequence[int]) -> bytes:
    count = len(numbers)
    return HEAD.pack(1, 0, INT8, count, 1) + pack(f">{'iq' * count}", *chain.from_iterable(zip(repeat(8), numbers)))


def pack_blobs(blobs: Sequence[bytes]) -> bytes:
    lengths = map(LENGTH.pack, map(len, blobs))
    return HEAD.pack(1, 0, BYTEA, len(blobs), 1) + b"".join(chain.from_iterable(zip(lengths, blobs, strict=True)))


PACKERS: dict[int, Callable[[Any], bytes]] = {
    INT8: Struct(">q").pack,
    TEXT: str.encode,
    BYTEA: bytes,
    INT8S: pack_numbers,
    BYTEAS: pack_blobs,
}


class Prepared:
    def __init__(self, name: str, text: bytes) -> None:
        """A statement with the driver's placeholders."""
        self._name = f"penstock_{name}".encode()
        names = list(dict.fromkeys(re.findall(r"%\((\w+)\)b", text.decode())))
        numbered = re.sub(r"%\((\w+)\)b", lambda found: f"${names.index(found[1]) + 1}", text.decode())
        self._text = numbered.replace("%%", "%").encode()
        self._types = [TYPES.get(known, INT8) for known in names]
        self._packers = [(known, PACKERS[type_]) for known, type_ in zip(names, self._types, strict=True)]
        self._formats = [Format.BINARY] * len(names)

    def ask(
        self, connection: Connection, known: dict[bytes, Any], params: Mapping[str, Any]
    ) -> tuple[list[tuple[Any, ...]], int]:
        """Run it. Returns its rows, and how many there were or were changed. ``known`` has the statements that this connection
        has prepared, each with the loader of its rows."""
        if self._name not in known:
            self.prepare(connection, known)
        self._send(connection, params)
        return self._read(connection, known, _answer(connection))

    def prepare(self, connection: Connection, known: dict[bytes, Any]) -> None:
        connection.pgconn.send_prepare(self._name, self._text, self._types)
        _answer(connection)
        known[self._name] = None

    def _send(self, connection: Connection, params: Mapping[str, Any]) -> None:
        packed = [None if (value := params[name]) is None else packer(value) for name, packer in self._packers]
        connection.pgconn.send_query_prepared(self._name, packed, self._formats, Format.BINARY)

    def _read(self, connection: Connection, known: dict[bytes, Any], result: PGresult) -> tuple[list[tuple[Any, ...]], int]:
        if not result.ntuples:
            return [], result.command_tuples or 0
        reader = known[self._name]
        if reader is None:
            reader = known[self._name] = Transformer.from_context(connection)
            reader.set_pgresult(result, format=Format.BINARY)
        else:
            reader.set_pgresult(result, set_loaders=False)
        rows = reader.load_rows(0, result.ntuples, tuple)
        reader.set_pgresult(None, set_loaders=False)  # the result may be megabytes
        return rows, len(rows)


def ask_together(
    connection: Connection, known: dict[bytes, Any], asked: Sequence[tuple[Prepared, Mapping[str, Any]]]
) -> list[tuple[list[tuple[Any, ...]], int]]:
    """Run statements in a transaction of their own, in one round trip. Returns each answer, once it is committed."""
    for statement, _ in asked:
        if statement._name not in known:
            statement.prepare(connection, known)
    pgconn = connection.pgconn
    try:
        pgconn.enter_pipeline_mode()
        for statement, params in asked:
            statement._send(connection, params)
        pgconn.pipeline_sync()
        results: list[PGresult] = connection.wait(_answers(pgconn, len(asked)))
        pgconn.exit_pipeline_mode()
    except BaseException:
        connection.close()  # in the middle of a pipeline, the next query would wait for ever
        raise
    for result in results:
        if result.status not in DONE:
            raise error_from_result(result)  # from the first that failed: those after it were not run
    return [statement._read(connection, known, result) for (statement, _), result in zip(asked, results, strict=True)]


def _answers(pgconn: PGconn, count: int) -> PQGen[list[PGresult]]:
    """The answers to ``count`` statements and to their commit; a failed commit's error replaces an answer."""
    answered = yield from execute(pgconn)
    for _ in range(count):
        answered += yield from fetch_many(pgconn)
    return [result for result in answered if result.status != ExecStatus.PIPELINE_SYNC]


def command(connection: Connection, text: str) -> None:
    """Run a statement that has neither parameters nor rows."""
    connection.pgconn.send_query(text.encode())
    _answer(connection)


def _answer(connection: Connection) -> PGresult:
    """The answer to one statement. A server that panics may send several: an error and the panic that followed from it."""
    results: list[PGresult] = connection.wait(execute(connection.pgconn))
    for result in results:
        if result.status not in DONE:
            raise error_from_result(result)
    if len(results) != 1:
        connection.close()  # the next query would get the wrong answer
        raise OperationalError(f"the server gave {len(results)} answers to one statement")
    return results[0]
