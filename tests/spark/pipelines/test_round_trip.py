"""Archive, load and archive again: messages in several batches come back byte for byte.

With PENSTOCK_LONG=1 there are 100,000."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.message import Draft
from penstock.spark.pipelines import archive, load

COUNT = 100_000 if os.environ.get("PENSTOCK_LONG") else 21_000
COLUMNS = ["body", "content_type", "attributes", "attribute_types", "group", "key"]


def rows(lake: Path) -> list[tuple[object, ...]]:
    found = pyarrow.dataset.dataset(lake, format="parquet", partitioning="hive").to_table(COLUMNS)
    columns = [found[name].to_pylist() for name in COLUMNS]
    return sorted(
        (body, *(map(repr, rest)), repr(sorted(pairs)))
        for body, pairs, *rest in zip(columns[0], columns[2], *columns[1:], strict=True)
    )


@pytest.mark.timeout(600)
def test_what_is_archived_loaded_and_archived_again_is_the_same(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    chance = random.Random(1)
    with penstock.open(url) as broker:
        for name in ("first", "second"):
            broker.create(name, deduplicate=True)
        for start in range(0, COUNT, 10_000):
            broker["first"].send_many(
                Draft(
                    chance.randbytes(chance.randrange(60)) if number % 3 else b"%d" % number,
                    f"x/{number % 5}",
                    {"whole": number, "half": number / 2, "raw": chance.randbytes(3), "text": f"ü{number % 7}"}
                    if number % 4
                    else {},
                    key=b"\0%d" % number,
                    group=f"g{number % 11}" if number % 2 else None,
                )
                for number in range(start, min(start + 10_000, COUNT))
            )
        assert (
            archive(spark, url, "first", str(tmp_path / "one"), once=True, maxMessagesPerTrigger=str(COUNT // 3)).rows == COUNT
        )
        assert load(spark, str(tmp_path / "one"), url, "second", checkpoint=str(tmp_path / "check")).rows == COUNT
        assert [broker[name].stats().messages for name in ("first", "second")] == [0, COUNT]
        assert archive(spark, url, "second", str(tmp_path / "two"), once=True).rows == COUNT
    one, two = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert len(one) == COUNT
    assert one == two
