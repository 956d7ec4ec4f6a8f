"""In Spark Declarative Pipelines the source and the sink are the same: the example is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

EXAMPLE = Path(__file__).parent.parent.parent / "examples/declarative"


@pytest.mark.timeout(600)
def test_a_declarative_pipeline_reads_a_queue_and_writes_one(tmp_path: Path, remote: str) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "pipeline")
    spec = tmp_path / "pipeline/spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///data", f"file://{tmp_path}"))
    url = f"sqlite:///{tmp_path}/shop.db"
    with penstock.open(url) as broker:
        source, target = broker.create("orders"), broker.create("packing")
        source.send_many([b"tea", b"cup"])
        done = subprocess.run(
            [Path(sys.executable).parent / "spark-pipelines", "--remote", remote, "run", "--spec", str(spec)],
            env=os.environ | {"PENSTOCK_STORE": url, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        assert sorted(message.body for message in target.peek(10)) == [b"pack cup", b"pack tea"]
        assert source.stats().messages == 0
