"""The digest of a batch: the same for the same rows, however they are split and ordered; another for others."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from penstock.publishing.segments import COLUMNS
from penstock.spark.digests import WRAP, digest_of

ROWS: list[dict[str, Any]] = [
    {
        "queue": "orders" if number % 3 else "other",
        "body": b"x" * (number % 7) + b"%d" % number,
        "content_type": "text/plain",
        "attributes": [("a", str(number)), ("b", "")] if number % 2 else None,
        "attribute_types": [("a", "integer")] if number % 2 else None,
        "delay": float(number) if number % 5 else None,
        "deadline": None,
        "deadline_at": 10**15 + number if number % 4 else None,
        "key": b"k%d" % number if number % 4 else None,
        "group": "g" if number % 2 else None,
    }
    for number in range(40)
]


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array([row[name] for row in rows], kind) for name, kind in COLUMNS.items()})


def test_the_order_and_the_parts_do_not_matter() -> None:
    whole = digest_of(batch(ROWS))
    mixed = random.Random(7).sample(ROWS, len(ROWS))
    mixed = [row | {"attributes": row["attributes"] and row["attributes"][::-1]} for row in mixed]
    assert digest_of(batch(mixed)) == whole
    for cut in (0, 1, 17, len(ROWS)):
        parts = batch(mixed).slice(0, cut), batch(mixed).slice(cut)
        assert sum(map(digest_of, parts)) % WRAP == whole


def test_a_column_of_nulls_is_no_column() -> None:
    whole = batch(ROWS).select(["queue", "body"])
    for name, kind in COLUMNS.items():
        if name not in whole.schema.names:
            assert digest_of(whole.append_column(name, pa.nulls(len(ROWS), kind))) == digest_of(whole), name


def test_every_column_matters() -> None:
    whole = digest_of(batch(ROWS))
    others: dict[str, Any] = {
        "queue": "another", "body": b"", "content_type": None, "attributes": [("a", "no")], "attribute_types": None,
        "delay": 0.5, "deadline": 1.0, "deadline_at": 1, "key": b"1", "group": "h",
    }  # fmt: skip
    assert others.keys() == COLUMNS.keys()
    for name, value in others.items():
        changed = [dict(row) for row in ROWS]
        changed[11][name] = value
        assert digest_of(batch(changed)) != whole, name


def test_what_is_empty_has_a_digest() -> None:
    assert digest_of(batch([])) == 0
    assert digest_of(pa.record_batch({"body": pa.array([b"", b""], pa.binary())})) != 0
