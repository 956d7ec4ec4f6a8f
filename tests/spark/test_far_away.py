"""On a real cluster whose workers have neither the driver's files nor its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

import penstock
from penstock.server import BackgroundServer, ServerSettings

TOKEN = "a-token-of-the-tests-long-enough"
MESSAGES = 90_000
"""Enough for five tasks, so that the cluster's cores, and not the messages, bound the partitions."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each job of job_far_away.py did."""
    if os.geteuid() != 0 and not os.environ.get("CI"):
        pytest.skip("hiding a folder from processes needs root")
    folder = tmp_path_factory.mktemp("far")
    here = folder / "only the driver"
    here.mkdir()
    file = f"sqlite:///{here}/queue.db".replace(" ", "%20")
    settings = ServerSettings(port=0, access_log=False, token=TOKEN)
    with (
        penstock.open(file) as local,
        penstock.open("memory:") as behind,
        BackgroundServer(behind, settings) as server,
        Cluster(folder, workers=1, cores=4, hides=here) as cluster,
    ):
        local.create("jobs").send_many([b"x"] * MESSAGES)
        behind.create("jobs")
        environment = os.environ | cluster.environment() | {"SPARK_LOCAL_IP": "127.0.0.1", "PENSTOCK_TOKEN": TOKEN}
        job = Path(__file__).with_name("job_far_away.py")
        ran = subprocess.run(
            [sys.executable, job, folder, file, server.url],
            env=environment, capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-4000:]
        found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return found | {"folder": str(here), "made": cluster.seen_by_workers(here), "left": local["jobs"].stats().messages}


@pytest.mark.timeout(600)
def test_partitions_are_as_many_as_the_cluster_has_cores(done: dict[str, Any]) -> None:
    assert done["partitions"] == 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("act", ["read", "write", "stream"])
def test_a_file_that_executors_do_not_see_is_told_and_not_made(done: dict[str, Any], act: str) -> None:
    assert done[f"{act} a file"].startswith(f"there is no {done['folder']}/queue.db on ")
    assert "share" in done[f"{act} a file"]
    assert "\n" not in done[f"{act} a file"]
    assert done["made"] == []
    assert done["left"] == MESSAGES


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("act", "answer"), [("write", None), ("read", 1), ("stream", 1)])
def test_the_drivers_token_is_the_executors_too(done: dict[str, Any], act: str, answer: int | None) -> None:
    assert done[f"{act} with a token"] == answer
