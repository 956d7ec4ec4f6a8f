"""Messages as Arrow directly from the database: the same as the store returns."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain
from pathlib import Path

import apsw
import pyarrow as pa
import pytest

import penstock
from penstock import Draft, arrow
from penstock.spark import arrow_reader
from penstock.stores.ids import Ids
from penstock.testing.servers import PostgresqlServer

STORES = ["sqlite", "postgresql"]


def scan(url: str, name: str = "orders", schema: pa.Schema = arrow.MESSAGE, *, settled: bool = False) -> pa.Table:
    with arrow_reader.opened(url) as direct:
        assert direct is not None
        found = direct.scan(name, 0, 2**62, schema, settled=settled, dense=True, conditions=[])
        return pa.Table.from_batches(found, schema=schema).sort_by("id")


@pytest.mark.parametrize("prefix", ["00000000-0000-8000-", "0123abcd-ffff-8fff-"])
def test_ids_are_those_of_the_store(prefix: str) -> None:
    ids = Ids(int(prefix.replace("-", "")[:12] + prefix[-4:-1], 16))
    assert ids.prefix == prefix
    given = [1, 255, 4096, 2**31, 2**48 - 1, 2**48, 2**48 + 1, 2**61 + 12345, 2**62 - 1]
    numbers = pa.array([0, *given, 0])
    made = arrow_reader._ids(numbers, ids.prefix)
    made.validate(full=True)
    assert made.to_pylist()[1:-1] == [ids.make(number) for number in given]
    assert arrow_reader._ids(numbers.slice(1, 3), ids.prefix).to_pylist() == [ids.make(number) for number in given[:3]]
    assert arrow_reader._ids(numbers.slice(0, 0), ids.prefix).to_pylist() == []


def test_what_is_deleted_is_gone_before_it_is_removed(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"1", b"2", b"3"])
        queue.claim("reader", 1, 2)
        queue.confirm("reader", 1)
        one, _ = queue.read("reader", 1)
        queue.extend(one, 1000)  # turns the claim into a list
        three = queue.receive()[0]
        assert queue.delete(one) is queue.delete(three) is True
    assert scan(url).column("body").to_pylist() == [b"2"]
    with arrow_reader.opened(url) as direct:
        assert direct is not None
        batches = direct.claim("orders", "reader", 1, 0, 2, arrow.MESSAGE)
        assert pa.Table.from_batches(batches).column("body").to_pylist() == [b"2"]


def test_what_is_rarely_there_may_come_after_thousands_of_rows(url: str) -> None:
    with penstock.open(url) as broker:
        queue = broker.create("orders", deduplicate=True, groups=True, history=1000)
        queue.send_many([b"%d" % number for number in range(arrow_reader.SQLITE_ROWS + 5)])
        queue.send_many([Draft(b"%d" % number, group="g", delay=number * 1000) for number in range(2)])
        queue.send(b"", key="k", deadline=100, content_type="text/plain", attributes={"a": 1, "b": b"\0"})
        for message in queue.receive(arrow_reader.SQLITE_ROWS + 9, visibility=500):
            if message.number % 1000:
                queue.release(message)
        expected = arrow.to_batch(queue.scan(limit=arrow_reader.SQLITE_ROWS * 2), arrow.MESSAGE)
        for message in queue.peek(3):
            queue.fail(message.id, "" if message.number % 2 else "no luck")
        settled = arrow.to_batch(queue.settled(99), arrow.SETTLED)
    found = scan(url)
    assert found.num_rows <= arrow_reader.SQLITE_ROWS + 8
    expected = expected.filter(pa.compute.is_in(expected.column("id"), found.column("id").combine_chunks()))
    assert found.equals(pa.Table.from_batches([expected]).sort_by("id"))
    history = scan(url, schema=arrow.SETTLED, settled=True)
    assert history.to_pylist() == pa.Table.from_batches([settled]).sort_by("id").to_pylist()
    assert history.num_rows == 3


def test_a_head_that_is_damaged_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(url) as broker:
        broker.create("orders").send_many([Draft(b"%d" % number, attributes={"a": "b"}) for number in range(4)])
    connection = apsw.Connection(str(tmp_path / "queue.db"))
    for number, head in enumerate((b"\xff", b"[]", b'{"attributes": {"a": {}}}')):
        connection.execute("UPDATE penstock_message SET head = ? WHERE body = ?", (head, b"%d" % number))
    connection.close()
    assert scan(url).column("attributes").to_pylist() == [[], [], [], [("a", "b")]]


def test_a_file_that_shrinks_meanwhile_is_read_as_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    bodies = [b"%d" % number * 500 for number in range(arrow_reader.SQLITE_ROWS * 3)]
    with penstock.open(url) as broker:
        broker.create("orders").send_many(bodies)
    file = tmp_path / "queue.db"
    size = file.stat().st_size
    shrink = "DELETE FROM penstock_message; PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)"
    program = f"import apsw; apsw.Connection({str(file)!r}).execute({shrink!r}).fetchall()"
    with arrow_reader.opened(url) as direct:
        assert direct is not None
        batches = direct.scan("orders", 0, 2**62, arrow.schema_of(["body"]), settled=False, dense=True, conditions=[])
        first = next(batches)
        subprocess.run([sys.executable, "-c", program], check=True)
        found = [row["body"] for batch in chain([first], batches) for row in batch.to_pylist()]
    assert found == bodies
    subprocess.run([sys.executable, "-c", program], check=True)
    assert file.stat().st_size < size / 10


def test_partitions_are_sparks_and_postgresql_adds_no_helpers_of_its_own(postgresql: PostgresqlServer) -> None:
    url = postgresql.new_url()
    penstock.open(url).close()
    with arrow_reader.opened(url) as direct:
        assert direct is not None
        (rows,) = direct._run("SELECT current_setting('max_parallel_workers_per_gather') AS helpers")
        assert rows.to_pydict() == {"helpers": ["0"]}
