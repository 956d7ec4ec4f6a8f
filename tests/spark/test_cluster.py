"""On a standalone cluster: the package travels as a zip, and each row arrives once, whatever became of its attempts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cluster import Cluster

import penstock
from penstock.testing.servers import PostgresqlServer

QUEUES = ("slow", "bad", "slow-stream", "bad-stream")


@pytest.mark.timeout(600)
def test_speculation_and_retries_double_no_row(postgresql: PostgresqlServer, tmp_path: Path) -> None:
    url = postgresql.new_url()
    with Cluster(tmp_path) as cluster, penstock.open(url) as broker:
        for name in QUEUES:
            broker.create(name)
        environment = os.environ | cluster.environment() | {"SPARK_LOCAL_IP": "127.0.0.1"}
        script = Path(__file__).parent / "attempts.py"
        done = subprocess.run(
            [sys.executable, script, str(tmp_path), url],
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        for name in QUEUES:
            bodies = Counter(message.text for message in broker[name].peek(100_000))
            assert bodies == Counter(str(number) for number in range(2000)), name
