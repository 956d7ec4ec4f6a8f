"""The data source as "faulty": at the step that the file ``arm`` in its folder names, it kills the driver with SIGKILL."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.spark.datasource import PenstockDataSource
from penstock.spark.sink import StreamSink
from penstock.spark.stream import QueueStream

STEPS = (
    "after claim",
    "after offset log",
    "after confirm",
    "in read",
    "before source commit",
    "in write",
    "before sink commit",
    "after sink commit",
)


def step(name: str) -> None:
    if "PENSTOCK_FAULTS" not in os.environ:  # on an executor of a cluster
        return
    folder = Path(os.environ["PENSTOCK_FAULTS"])
    armed = folder / "arm"
    try:
        if armed.read_text() != f"{name} of {os.environ.get('PENSTOCK_JOB')}":  # workers may outlive their driver for a while
            return
        armed.rename(folder / "fired")
    except FileNotFoundError:  # not armed, or another process was first
        return
    for pid in (folder / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyStream(QueueStream):
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        end = super().latestOffset(start, limit)
        if end != start:
            step("after claim")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Any:
        step("after offset log")
        parts = super().partitions(start, end)
        step("after confirm")
        return parts

    def read(self, partition: Any) -> Iterator[Any]:
        for batch in super().read(partition):
            yield batch
            step("in read")

    def commit(self, end: dict[str, Any]) -> None:
        step("before source commit")
        super().commit(end)


class FaultySink(StreamSink):
    def write(self, iterator: Any) -> Any:
        written = super().write(iterator)
        step("in write")
        return written

    def commit(self, messages: Any, batchId: int) -> None:
        if any(messages):
            step("before sink commit")
        super().commit(messages, batchId)
        if any(messages):
            step("after sink commit")


class DefaultSource(PenstockDataSource):
    @classmethod
    def name(cls) -> str:
        return "faulty"

    def streamReader(self, schema: Any) -> Any:
        return remade(FaultyStream, super().streamReader(schema))

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return remade(FaultySink, super().streamWriter(schema, overwrite))


def remade(kind: type, plain: object) -> object:
    plain.__class__ = kind
    return plain
