"""Through Spark Connect the source and the sink are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock


@pytest.mark.timeout(300)
def test_a_queue_flows_into_another_through_spark_connect(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(url) as broker:
        source, target = broker.create("in"), broker.create("out")
        source.send(b"\x00one", attributes={"kind": "order"})
        source.send_many([b"two", b"three"])
        environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run(
            [sys.executable, Path(__file__).parent / "connected.py", str(tmp_path), url],
            env=environment, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout.split() == ["3"]
        arrived = target.peek(10)
        assert sorted(message.body for message in arrived) == [b"\x00one", b"three", b"two"]
        assert {str(message.attributes.get("kind")) for message in arrived} == {"order", "None"}
        assert source.stats().messages == 0
