"""A Spark that is not where it should be is told in one line, before Java starts and before anybody waits."""

from __future__ import annotations

import socket
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.cli import main
from penstock.cli.frame import Frame
from penstock.errors import BadInput
from penstock.spark import reaching
from penstock.spark.reaching import SparkUnreachable, await_executors, check_master


@pytest.fixture
def dead() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> str:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("penstock.spark.session.find_java", find)


def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    url = f"sqlite:///{tmp_path}/queues.db"
    with penstock.open(url) as broker:
        broker.create("jobs", exist_ok=True)
    code = main(["pipeline", "archive", "jobs", f"{tmp_path}/lake", "--once", "--store", url, *words])
    return code, capsys.readouterr().err


def test_a_master_that_is_not_there(dead: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = told(tmp_path, capsys, "--master", f"spark://127.0.0.1:{dead}")
    assert code == 4
    place = f"127.0.0.1:{dead}"
    assert error == f"penstock: no Spark master answers at 'spark://{place}': {place}: Connection refused\n"


@pytest.mark.timeout(60)  # Spark itself would try for minutes
def test_a_server_of_spark_connect_that_is_not_there(dead: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"127.0.0.1:{dead}"
    code, error = told(tmp_path, capsys, "--remote", f"sc://{place}/;token=secret")
    assert code == 4
    assert error == f"penstock: no Spark Connect server answers at 'sc://{place}': {place}: Connection refused\n"


def test_something_else_where_spark_connect_should_be(
    silent: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "GREETING", 0.3)
    code, error = told(tmp_path, capsys, "--remote", f"sc://127.0.0.1:{silent}")
    assert code == 4
    assert error.startswith(f"penstock: what answers at 'sc://127.0.0.1:{silent}' is no Spark Connect server")
    assert error.count("\n") == 1


def test_a_master_that_spark_does_not_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, error = told(tmp_path, capsys, "--master", "everywhere")
    assert code == 2
    assert error.startswith("penstock: master 'everywhere' is none that Spark knows")
    with pytest.raises(BadInput):
        check_master("local(2)")


def test_one_of_several_masters_is_enough(dead: int, silent: int) -> None:
    check_master(f"spark://127.0.0.1:{dead},127.0.0.1:{silent}")
    check_master(f"k8s://https://127.0.0.1:{silent}")
    for elsewhere in ("local", "local[*]", "local[2,4]", "local-cluster[2,1,1024]", "yarn"):
        check_master(elsewhere)
    with pytest.raises(SparkUnreachable, match=rf"127\.0\.0\.1:{dead}: .*; localhost:{dead}: "):
        check_master(f"spark://127.0.0.1:{dead},localhost:{dead}")


def test_a_cluster_without_executors_is_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reaching, "MUSTER", 0.1)
    assert not await_executors(spark)  # a local session has a driver, and no other process
    Frame(Namespace(store="sqlite:////x", master="spark://far:7077"))._await_executors(spark)
    assert capsys.readouterr().err.startswith("penstock: spark://far:7077 has given no executor yet: ")
