"""Damage in the file of a queue, found where a stream reads it: it costs its message alone, which stays."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import penstock

STORES = ["sqlite", "http"]


@pytest.mark.parametrize(
    "damage",
    ["body = x'00' || body", "body = 'text'", "sent_at = sent_at + 1", "sent_at = 'x'", "head = x'7b7d'", "checksum = 1"],
)
def test_a_damaged_message_is_left_out_and_stays(spark: SparkSession, url: str, tmp_path: Path, damage: str) -> None:
    seen: list[list[bytes]] = []

    def take(frame: DataFrame, _: int) -> None:
        seen.append([row.body for row in frame.collect()])
        if len(seen) == 1:
            raise RuntimeError("the sink fails")

    def run() -> None:
        stream = spark.readStream.format("penstock").options(url=url, queue="orders").load()
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(take)
        writer.trigger(availableNow=True).start().awaitTermination()

    with penstock.open(url) as broker:
        queue = broker.create("orders")
        queue.send_many([b"0", b"1", b"2"])
        queue.send(b"", attributes={"a": 1}, deadline=1000)
        (file,) = [path for path in tmp_path.iterdir() if path.name in ("queue", "behind.db")]
        apsw.Connection(str(file)).execute(f"UPDATE penstock_message SET {damage} WHERE number = 2")
        with pytest.raises(PySparkException, match="the sink fails"):
            run()
        run()
        assert seen == [[b"0", b"2", b""]] * 2
        stats = queue.stats()
        assert (stats.messages, stats.damaged) == (1, 1)
