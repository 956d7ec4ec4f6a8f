"""The tables of a declared pipeline, as views of a session: its sources and steps, with their checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import BadInput
from penstock.spark.lakes.reading import read
from penstock.spark.pipelines.bodies import parsed
from penstock.spark.pipelines.checks import Checked, checked
from penstock.spark.pipelines.declaration import Pipeline, Source
from penstock.spark.pipelines.failures import at_line


class PipelineTables:
    """``messages``: the messages of a source that is a queue."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, messages: Callable[[Source], DataFrame]) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._messages = messages
        self.frames: dict[str, DataFrame] = {}
        self.checked: dict[str, Checked] = {}

    def define(self, only: set[str] | None = None) -> None:
        """``only``: these, and no others."""
        pipeline = self._pipeline
        for source in pipeline.sources:
            if only is None or source.name in only:
                with at_line(pipeline.where("source", source.name)):
                    frame = self._source(source)
                self._register(source.name, ("source", source.name), frame, source.watermark)
        for step in pipeline.steps:
            if only is None or step.name in only:
                at = ("step", step.name)
                with at_line(pipeline.where(*at, key="sql"), pipeline.first_line(*at, key="sql")):
                    frame = self._spark.sql(step.sql)
                self._register(step.name, at, frame, step.watermark)

    def _source(self, source: Source) -> DataFrame:
        if source.queue is not None:
            messages = self._messages(source)
            return parsed(messages, source.json) if source.json else messages
        if source.lake is not None:
            return read(self._spark, source.lake)
        assert source.format is not None
        reader: Any = self._spark.readStream if source.stream else self._spark.read
        reader = reader.format(source.format).options(**source.options)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        frame: DataFrame = reader.load(source.path)
        return frame

    def _register(self, name: str, at: tuple[str, ...], frame: DataFrame, watermark: tuple[str, str] | None) -> None:
        if watermark is not None:
            with at_line(self._pipeline.where(*at, key="watermark")):
                if watermark[0] not in frame.columns:
                    raise BadInput(f"there is no column {watermark[0]!r}; there are {', '.join(frame.columns)}")
                frame = frame.withWatermark(*watermark)
        found = checked(frame, name, self._pipeline)
        if found is not None:
            self.checked[name] = found
            frame = found.passed
        frame.createOrReplaceTempView(name)
        self.frames[name] = frame
