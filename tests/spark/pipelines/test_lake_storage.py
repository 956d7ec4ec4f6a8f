"""Tables and folders of pipelines on S3, with moto's server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from penstock.spark.pipelines.folders import DataFolder, File
from penstock.testing.servers import free_port

BUCKET = "lakes"


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address, which is in the environment, too, with a catalog of Iceberg whose tables are there."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    known = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "PYICEBERG_CATALOG__PROD__URI": f"sqlite:///{tmp_path}/catalog.db",
        "PYICEBERG_CATALOG__PROD__WAREHOUSE": f"s3://{BUCKET}/ware",
        "PYICEBERG_CATALOG__PROD__S3__ENDPOINT": address,
        "PYICEBERG_CATALOG__PROD__S3__REGION": "us-east-1",
    }
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    with (tmp_path / "moto.log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        give_up_at = time.monotonic() + 120
        while True:
            try:
                boto3.client("s3").create_bucket(Bucket=BUCKET)
                break
            except EndpointConnectionError:
                assert server.poll() is None, (tmp_path / "moto.log").read_text()
                assert time.monotonic() < give_up_at
                time.sleep(0.1)
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_a_folder_of_a_pipeline_is_the_same_under_both_names(s3: str, scheme: str) -> None:
    home = DataFolder(f"{scheme}://{BUCKET}/notes/")
    home.write("a/columns.ddl", "n int")
    assert (home.url, home.local, home.exists, home.is_file) == (f"s3a://{BUCKET}/notes", False, True, False)
    home.move({"a/columns.ddl": "b/columns.ddl"})
    assert (home.read("a/columns.ddl"), home.read("b/columns.ddl")) == (None, "n int")
    assert DataFolder(f"s3://{BUCKET}/notes").files() == [File("b/columns.ddl", 5)]
    home.clear("b")
    home.remove(["nothing"])
    assert home.files() == []


@pytest.mark.timeout(900)
def test_tables_on_s3_get_each_message_once_and_need_nothing_of_hadoop(s3: str, tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "s3_lakes.py"), str(tmp_path), BUCKET]
    done = subprocess.run(
        command, env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}, capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = done.stdout.splitlines()
    assert [line.partition(": it has no hadoop-aws (--packages org.apache.hadoop:hadoop-aws:VERSION)")[0] for line in told] == [
        f"Spark itself cannot write to s3a://{BUCKET}/{place}"
        for place in ("lake/_penstock/checkpoints/" + told[0].partition("checkpoints/")[2][:12], "plain")
    ]
    expected = Counter([*range(20), *range(15, 20)])
    assert Counter(row["n"] for row in DeltaTable(f"s3://{BUCKET}/lake").to_pyarrow_table()["data"].to_pylist()) == expected
    known = {"warehouse": f"s3://{BUCKET}/ware", "s3.endpoint": s3, "s3.region": "us-east-1"}
    catalog = SqlCatalog("prod", uri=f"sqlite:///{tmp_path}/catalog.db", **known)
    rows = catalog.load_table("shop.jobs").scan().to_arrow()["data"].to_pylist()
    assert Counter(row["n"] for row in rows) == expected
