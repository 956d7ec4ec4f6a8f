"""The data source that Spark knows as "penstock"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import MissingExtra

try:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType
except ImportError as error:
    raise MissingExtra("Spark", "spark") from error

from penstock.spark import columns
from penstock.spark.options import ReadOptions, WriteOptions
from penstock.spark.versions import check_stream_reading, check_stream_writing

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceReader, DataSourceStreamArrowWriter

    from penstock.spark.stream import QueueStream


class PenstockDataSource(DataSource):
    """Spark makes one on the driver, and pickles it to its workers."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return columns.schema(ReadOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from penstock.spark.browse import browse
        from penstock.spark.claimed import ClaimedRead

        options = ReadOptions.parse(self.options)
        read = browse if options.reader is None else ClaimedRead
        return read(options, columns.chosen(schema))

    def streamReader(self, schema: StructType) -> QueueStream:
        check_stream_reading()
        from penstock.spark.stream import QueueStream

        return QueueStream(ReadOptions.parse(self.options), columns.chosen(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from penstock.spark.sink import BatchSink

        return BatchSink(WriteOptions.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        check_stream_writing()
        from penstock.spark.sink import StreamSink

        return StreamSink(WriteOptions.parse(self.options), schema, overwrite)
