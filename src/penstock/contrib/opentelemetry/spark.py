"""Spans of Spark's batches, in the processes in which Spark plans and commits them.

    process   CONSUMER  a batch that a stream has claimed: from its planning until it is settled
    send      PRODUCER  a batch that is published

These modules need PySpark. If they are not loaded yet, their methods are exchanged when they are: a finder before all others
waits for them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from opentelemetry.trace import Span, SpanKind

from penstock.contrib.opentelemetry.spans import Method, Tracing, fail

STREAM, SINK = "penstock.spark.stream", "penstock.spark.sink"
Exchange = Callable[[type, str, Callable[[Method], Method]], None]


class SparkTracing(MetaPathFinder):
    """Owns the spans of batches that are not settled yet, by reader."""

    def __init__(self, tracing: Tracing, exchange: Exchange) -> None:
        self._tracing = tracing
        self._exchange = exchange
        self._open: dict[str, tuple[int, Span]] = {}

    def begin(self) -> None:
        for name in (STREAM, SINK):
            if name in sys.modules:
                self.loaded(sys.modules[name])
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        sys.meta_path.remove(self)
        for _, span in self._open.values():
            span.end()
        self._open.clear()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in (STREAM, SINK):
            return None
        sys.meta_path.remove(self)
        try:
            spec = find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderThatTells(spec.loader, self.loaded)
        return spec

    def loaded(self, module: ModuleType) -> None:
        if module.__name__ == STREAM:
            self._exchange(module.QueueStream, "partitions", self._planning)
            self._exchange(module.QueueStream, "_settle", self._settling)
        else:
            self._exchange(module._Sink, "_publish_batch", self._publishing)

    def _planning(self, partitions: Method) -> Method:
        def act(stream: Any, start: Any, end: Any) -> Any:
            if end["epoch"] <= start["epoch"]:
                return partitions(stream, start, end)
            self._close(end["reader"])
            span = self._tracing.begin(
                "process",
                ", ".join(sorted(end["claims"])),
                SpanKind.CONSUMER,
                **{
                    "messaging.consumer.group.name": end["reader"],
                    "messaging.batch.message_count": sum(end["claims"].values()),
                    "penstock.epoch": end["epoch"],
                },
            )
            self._open[end["reader"]] = end["epoch"], span
            try:
                return partitions(stream, start, end)
            except BaseException as error:
                fail(span, error)
                self._close(end["reader"])
                raise

        return act

    def _settling(self, settle: Method) -> Method:
        def act(stream: Any, done: Any) -> Any:
            answer = settle(stream, done)
            known = self._open.get(done["reader"])
            if known is not None and known[0] <= done["epoch"]:
                self._close(done["reader"])
            return answer

        return act

    def _close(self, reader: str) -> None:
        known = self._open.pop(reader, None)
        if known is not None:
            known[1].end()

    def _publishing(self, publish: Method) -> Method:
        def act(sink: Any, staged: Any, how: Any) -> Any:
            more = {
                "messaging.batch.message_count": sum(staged.segments.values()),
                "messaging.client.id": staged.writer,
                "penstock.batch": staged.batch,
            }
            queue = sink._options.queue or "several queues"
            with self._tracing.spanning(self._tracing.begin("send", queue, SpanKind.PRODUCER, **more)):
                return publish(sink, staged, how)

        return act


class _LoaderThatTells(Loader):
    """Another loader, which tells when it has loaded its module."""

    def __init__(self, loader: Any, tell: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._tell = tell

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._tell(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
