"""Tables of Delta and Iceberg as the sinks of pipelines, and where the checkpoints of pipelines that write to them are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from penstock.errors import BadInput
from penstock.spark.lakes.batches import prepare, put
from penstock.spark.lakes.tables import TableAddress
from penstock.spark.lakes.writing import arrow_schema
from penstock.spark.pipelines.folders import DataFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


@dataclass(frozen=True, slots=True)
class TableSink:
    """Commits each batch of a query to a table, once; Spark may pickle it to another process."""

    address: TableAddress
    app: str
    partition: tuple[str, ...]

    def prepare(self, frame: DataFrame) -> None:
        """Create the table, or add columns. It raises what would fail with the first batch."""
        prepare(self.address.open(), arrow_schema(frame.schema), self.partition)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        put(self.address.open(), frame, self.app, batch, self.partition)


def notes_of_table(address: TableAddress) -> DataFolder:
    """Where its checkpoints are by default."""
    notes = address.open().notes
    if notes is None:
        raise BadInput(f"{address} has no folder for a checkpoint: name one (--checkpoint)")
    return DataFolder(notes)


def check_s3(spark: SparkSession, place: str) -> None:
    """`BadInput` if Spark would have to write there, and cannot: it finds out late, and says so in a page of Java."""
    if not place.startswith("s3a:") or type(spark).__module__.startswith("pyspark.sql.connect"):
        return
    java = spark.sparkContext._jvm
    assert java is not None
    try:
        java.java.lang.Class.forName(S3A, False, java.java.lang.Thread.currentThread().getContextClassLoader())
    except Py4JJavaError:
        told = f"Spark itself cannot write to {place}: it has no hadoop-aws (--packages org.apache.hadoop:hadoop-aws:VERSION)"
        raise BadInput(f"{told}. A table (delta:s3://…) with its --checkpoint in a folder needs none") from None
