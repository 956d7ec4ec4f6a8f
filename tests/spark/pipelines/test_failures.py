"""Spark's hundred lines become one line here, with the name and the place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.errors import BadInput, PenstockError, QueueNotFound
from penstock.spark.pipelines.failures import PipelineFailed, readable


def error_of(act: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as caught:
        act()
    return readable(caught.value)


def told(act: Callable[[], object]) -> str:
    error = error_of(act)
    assert isinstance(error, BadInput)
    assert "\n" not in str(error)
    return str(error)


def test_a_missing_column_and_where_it_is(spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("numbers")
    assert (
        told(lambda: spark.sql("SELECT id,\n  idd FROM numbers"))
        == "there is no column 'idd'; there are id (line 2, position 3)"
    )


def test_sql_that_cannot_be_read_and_where(spark: SparkSession) -> None:
    assert told(lambda: spark.sql("SELECT id\nFRM numbers x")) == "Syntax error at or near 'numbers' (line 2, position 5)"


def test_a_value_that_does_not_fit(spark: SparkSession) -> None:
    text = told(lambda: spark.sql("SELECT cast('x' AS int)").collect())
    assert text.startswith('The value \'x\' of the type "STRING" cannot be cast to "INT"')
    assert text.endswith("(line 1, position 8)")


def test_a_file_that_is_not_there(spark: SparkSession) -> None:
    assert told(lambda: spark.read.parquet("/nowhere/x.parquet")) == "there is no file /nowhere/x.parquet"


def test_a_file_that_is_not_parquet(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("this is no Parquet, but text")
    assert told(lambda: spark.read.parquet(str(tmp_path))) == f"the file {tmp_path}/x.parquet is not Parquet, or it is damaged"


def test_our_own_errors_come_back_as_what_they_were(spark: SparkSession) -> None:
    def fail(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise QueueNotFound("jobs")
        yield

    error = error_of(lambda: spark.range(1).mapInArrow(fail, "id long").collect())
    assert isinstance(error, QueueNotFound)
    assert (str(error), error.name) == ("there is no queue 'jobs'", "jobs")


def test_other_errors_of_python_are_one_line(spark: SparkSession) -> None:
    def fail(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise RuntimeError("it broke")
        yield

    error = error_of(lambda: spark.range(1).mapInArrow(fail, "id long").collect())
    assert isinstance(error, PipelineFailed)
    assert str(error) == "RuntimeError: it broke"


def test_what_is_not_of_spark_is_left_alone() -> None:
    for error in (KeyError("x"), PenstockError("y")):
        assert readable(error) is error


def test_a_spark_whose_python_has_no_penstock(spark: SparkSession) -> None:
    error = error_of(lambda: spark.read.format("penstoc").load().collect())
    assert "Failed to find the data source: penstoc" in str(error)
    text = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: penstock. Make sure the provider name is correct"
    assert "install penstock[spark] there" in str(readable(AnalysisException(text)))
