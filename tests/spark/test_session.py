"""The session that Penstock makes: which Python its workers are."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import _worker_python


def test_workers_are_of_this_environment_and_import_no_zip(spark: SparkSession) -> None:
    def where(_: int) -> tuple[str, str, str]:
        import py4j
        import pyspark

        return sys.executable, pyspark.__file__, py4j.__file__

    python, found, gateway = spark.sparkContext.parallelize([0], 1).map(where).first()
    assert (python, found) == (sys.executable, pyspark.__file__)
    assert ".zip" not in gateway


def test_workers_of_a_spark_that_is_elsewhere_import_what_it_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _worker_python() != sys.executable
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert _worker_python() == sys.executable
