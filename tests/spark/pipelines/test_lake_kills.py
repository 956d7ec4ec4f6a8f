"""kill -9 of a driver between the writing of files and the commit of a table, and between that and Spark's own commit.

Each moment once by default, fifteen times with PENSTOCK_LONG=1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from lakes import PIPELINE, both
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import penstock

KILLS = 15 if os.environ.get("PENSTOCK_LONG") else 1
COUNT = 200
APPS = 3
"""Two sinks and an archive."""


def kill_at(moment: str, folder: Path, url: str) -> None:
    """Start a driver, and kill it and its Java when all its tables are at this moment of a commit."""
    reached, log = folder / "reached", folder / "job.log"
    reached.mkdir(exist_ok=True)
    for file in (*reached.iterdir(), folder / "pids"):
        file.unlink(missing_ok=True)
    with log.open("ab") as output:
        command = [sys.executable, str(Path(__file__).parent / "lakes.py"), str(folder), url, moment]
        job = subprocess.Popen(command, env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}, stdout=output, stderr=output)
    give_up_at = time.monotonic() + 600
    try:
        while len(list(reached.iterdir())) < APPS:
            assert job.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < give_up_at, log.read_text()[-4000:]
            time.sleep(0.05)
    finally:
        pids = (folder / "pids").read_text().split() if (folder / "pids").exists() else [str(job.pid)]
        for pid in pids if job.poll() is None else []:
            os.kill(int(pid), signal.SIGKILL)
        job.wait(60)


@pytest.mark.timeout(3000)
def test_a_driver_that_is_killed_around_a_commit_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "shop.toml").write_text(PIPELINE)
    sent = 0
    with penstock.open(url) as broker:
        queues = [broker.create(name) for name in ("orders", "archived")]
        broker.create("dead")
        for moment in ("before", "after") * KILLS:
            for queue in queues:
                queue.send_many(b'{"n": %d}' % n for n in range(sent, sent + COUNT))
            sent += COUNT
            kill_at(moment, tmp_path, url)
        assert both(spark, str(tmp_path), url) == []
        assert [queue.stats().messages for queue in queues] == [0, 0]
    whole = Counter(range(sent))
    catalog = SqlCatalog("penstock", uri=f"sqlite:///{tmp_path}/ware/catalog.db")
    assert Counter(DeltaTable(tmp_path / "numbers").to_pyarrow_table()["n"].to_pylist()) == whole
    assert Counter(catalog.load_table("shop.numbers").scan().to_arrow()["n"].to_pylist()) == whole
    archived = catalog.load_table("shop.archived").scan().to_arrow()["body"].to_pylist()
    assert Counter(archived) == Counter(b'{"n": %d}' % n for n in range(sent))
