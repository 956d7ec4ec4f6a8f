"""Traces by OpenTelemetry: spans of queues, consumers, asyncio and Spark's batches, and the context in the attributes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import penstock
from penstock import Draft
from penstock.client.queue import RemoteQueue
from penstock.contrib.opentelemetry import PenstockInstrumentor, processing
from penstock.contrib.opentelemetry.spans import stamp
from penstock.policy import MAX_ATTRIBUTES, MAX_BODY, MAX_MESSAGE
from penstock.queue.queue import LocalQueue
from penstock.server import BackgroundServer


class Seen:
    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


@pytest.fixture
def seen() -> Iterator[Seen]:
    found, instrumentor = Seen(), PenstockInstrumentor()
    instrumentor.instrument(tracer_provider=found.provider)
    yield found
    instrumentor.uninstrument()
    found.provider.shutdown()


@pytest.fixture(params=["memory", "http"])
def queue(request: pytest.FixtureRequest) -> Iterator[penstock.Queue]:
    with penstock.open("memory:") as broker:
        broker.create("orders", visibility=30)
        if request.param == "memory":
            yield broker["orders"]
        else:
            with BackgroundServer(broker) as server, penstock.open(server.url) as remote:
                yield remote["orders"]


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def test_a_message_carries_the_context_of_its_sender_to_its_consumer(seen: Seen, queue: penstock.Queue) -> None:
    with seen.tracer.start_as_current_span("request") as request:
        sent = queue.send(b"hello", content_type="text/plain", attributes={"mine": 1})
    (message,) = queue.receive(wait=1)
    with processing(message, seen.provider):
        seen.tracer.start_span("work").end()
    send, receive, process, work = (seen.one(name) for name in ("send orders", "receive orders", "process orders", "work"))
    assert (send.kind, receive.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER)
    assert send.parent == request.get_span_context()
    assert process.parent is not None
    assert work.parent is not None
    assert (process.parent.span_id, work.parent.span_id) == (send.context.span_id, process.context.span_id)
    assert linked(receive) == linked(process) == [send.context.span_id]
    assert message.attributes["mine"] == 1
    assert dict(send.attributes or {}) == {
        "messaging.system": "penstock",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": sent.id,
        "messaging.message.body.size": 5,
    } | ({} if isinstance(queue, LocalQueue) else {"server.address": "127.0.0.1", "server.port": queue._calls.port})  # type: ignore[attr-defined]


def test_each_verb_has_one_span_and_a_receive_of_nothing_has_none(seen: Seen, queue: penstock.Queue) -> None:
    assert queue.receive() == []
    queue.send(b"1")
    queue.send_many([b"2", Draft(b"3", attributes={"a": "b"})])
    queue.send_once([b"4"], "a token")
    assert [span.name for span in seen.spans] == ["send orders"] * 3
    counts = [(span.attributes or {}).get("messaging.batch.message_count") for span in seen.spans]
    assert counts == [None, 2, 1]
    messages = queue.receive(2)
    assert len(queue.exchange(messages, 2)[1]) == 2
    assert [span.name for span in seen.spans[3:]] == ["receive orders"] * 2
    assert len(seen.spans[3].links) == 2
    assert seen.spans[3].end_time is not None


def test_a_send_that_fails_is_a_span_that_failed(seen: Seen, queue: penstock.Queue) -> None:
    with pytest.raises(penstock.BadMessage):
        queue.send(b"x" * (MAX_BODY + 1))
    for wrong in (b"bytes", 5, None):
        with pytest.raises((penstock.BadMessage, TypeError)):
            queue.send_many(wrong)  # type: ignore[arg-type]
    span = seen.one("send orders")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "BadMessage"


def test_a_context_takes_no_room_that_a_message_needs() -> None:
    carrier = {"traceparent": "00-" + "0" * 52}
    full = Draft(b"x", attributes={f"a{number}": 1 for number in range(MAX_ATTRIBUTES)})
    assert stamp(full, carrier) is full
    heavy = Draft(b"x" * MAX_BODY, attributes={"a": "x" * (MAX_MESSAGE - MAX_BODY - 10)})
    assert stamp(heavy, carrier) is heavy
    forwarded = Draft(b"x", attributes={"traceparent": "of another"})
    assert stamp(forwarded, carrier) is forwarded
    light = stamp(b"x" * MAX_BODY, carrier)
    assert isinstance(light, Draft)
    assert light.attributes == carrier
    with penstock.open("memory:") as broker:
        broker.create("orders").send_many([full, heavy, forwarded, light])


def test_a_duplicate_is_one_in_any_trace(seen: Seen) -> None:
    with penstock.open("memory:") as broker:
        queue = broker.create("orders", deduplicate=True)
        assert queue.send(b"x").duplicate is False
        assert queue.send(b"x").duplicate is True


@pytest.mark.parametrize("how", ["threads", "coroutine"])
def test_a_consumers_callback_is_a_span_of_its_own_trace(seen: Seen, how: str) -> None:
    with penstock.open("memory:") as broker:
        broker.create("orders").send_many([b"good", b"bad"])
        consumer = broker.consumer("orders", back_off=3600)
        inside: list[int] = []

        def handle(payload: bytes, message: penstock.Message) -> None:
            inside.append(trace.get_current_span().get_span_context().span_id)
            if payload == b"bad":
                raise ValueError("no such order")

        async def handle_async(payload: bytes, message: penstock.Message) -> None:
            handle(payload, message)

        registered = consumer.process(handle if how == "threads" else handle_async)
        assert registered in (handle, handle_async)
        consumer.run(until_empty=True)
    good, bad = sorted(seen.named("process orders"), key=lambda span: span.status.status_code.value)
    assert {good.context.span_id, bad.context.span_id} == set(inside)
    assert bad.status.status_code is StatusCode.ERROR
    assert (bad.attributes or {})["error.type"] == "ValueError"
    assert [event.name for event in bad.events] == ["exception"]
    assert good.parent
    assert good.parent.span_id == seen.one("send orders").context.span_id


def test_a_message_of_a_producer_has_the_context_of_its_own_sender(seen: Seen) -> None:
    with penstock.open("memory:") as broker:
        queue = broker.create("orders")
        with broker.producer("orders", batch_size=10, max_delay=60) as producer:
            for name in ("one", "two"):
                with seen.tracer.start_as_current_span(name):
                    producer.push(name.encode())
        for message in queue.receive(2):
            with processing(message, seen.provider):
                pass
    parents = [span.parent.span_id for span in seen.named("process orders") if span.parent]
    assert parents == [seen.one(name).context.span_id for name in ("one", "two")]


@pytest.mark.parametrize("store", ["memory", "http"])
def test_tasks_of_asyncio_have_spans_too(seen: Seen, store: str) -> None:
    async def work(url: str) -> None:
        async with penstock.aopen(url) as broker:
            queue = await broker.create("orders")
            await queue.send(b"1")
            await queue.send_many([b"2"])
            done = 0
            with pytest.raises(ZeroDivisionError):
                async for message in queue.messages(limit=1):
                    async with message:
                        seen.tracer.start_span("work").end()
                        done += 1
                        if done == 2:
                            raise ZeroDivisionError

    if store == "memory":
        asyncio.run(work("memory:"))
    else:
        with penstock.open("memory:") as broker, BackgroundServer(broker) as server:
            asyncio.run(work(server.url))
    sends, processes = seen.named("send orders"), seen.named("process orders")
    assert [span.parent.span_id for span in processes if span.parent] == [span.context.span_id for span in sends]
    assert [span.status.status_code for span in processes] == [StatusCode.UNSET, StatusCode.ERROR]
    assert [span.parent.span_id for span in seen.named("work") if span.parent] == [span.context.span_id for span in processes]
    assert len(seen.named("receive orders")) == 2


def test_nothing_is_left_when_it_is_taken_off() -> None:
    before = [dict(vars(kind)) for kind in (LocalQueue, RemoteQueue)]
    instrumentor, path = PenstockInstrumentor(), list(sys.meta_path)
    for _ in range(2):
        instrumentor.instrument()
    assert instrumentor.is_instrumented_by_opentelemetry
    assert dict(vars(LocalQueue)) != before[0]
    for _ in range(2):
        PenstockInstrumentor().uninstrument()
    assert [dict(vars(kind)) for kind in (LocalQueue, RemoteQueue)] == before
    assert sys.meta_path == path


def test_a_program_that_does_not_instrument_loads_nothing() -> None:
    program = (
        "import sys, penstock\n"
        "queue = penstock.open('memory:').create('orders'); queue.send(b'x'); queue.receive()\n"
        "print([name for name in sys.modules if 'opentelemetry' in name])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_opentelemetry_the_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import penstock\n"
        "try:\n    import penstock.contrib.opentelemetry\n"
        "except penstock.MissingExtra as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    told = 'penstock.contrib.opentelemetry needs an optional library: pip install "penstock[opentelemetry]"\n'
    assert ran.stdout == told


SPARK = """
import json, sys
from penstock.contrib.opentelemetry import PenstockInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
PenstockInstrumentor().instrument(tracer_provider=provider)
assert "pyspark" not in sys.modules, "it is not loaded for this"

import penstock
from penstock.publishing.segments import pack_drafts
from penstock.spark.options import ReadOptions, WriteOptions
from penstock.spark.sink import StagedByTask, StreamSink
from penstock.spark.stream import QueueStream
from penstock.spark import columns
from pyspark.sql.streaming.datasource import ReadAllAvailable

url = sys.argv[1]
with penstock.open(url) as broker:
    broker.create("orders").send_many([b"1", b"2", b"3"])
    broker.create("copies")
    options = ReadOptions.parse({"url": url, "queue": "orders"})
    stream = QueueStream(options, columns.schema(options))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    stream.partitions(start, end)
    assert not [span for span in exporter.get_finished_spans() if span.name.startswith("process")], "it is not settled yet"
    stream.commit(end)
    stream.stop()
    sink = StreamSink(WriteOptions.parse({"url": url, "queue": "copies"}), columns.schema(options), False)
    broker.stage("writer", 0, "segment", pack_drafts("copies", [penstock.Draft(b"x")]))
    sink.commit([StagedByTask("writer", 0, {"segment": 1})], 0)
for span in exporter.get_finished_spans():
    print(json.dumps([span.name, span.kind.name, dict(span.attributes)]))
"""


def test_a_batch_of_spark_is_a_span_from_its_plan_to_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SPARK, f"sqlite:///{tmp_path}/queue.db"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    spans: dict[str, Any] = {name: (kind, attributes) for name, kind, attributes in map(json.loads, ran.stdout.splitlines())}
    kind, attributes = spans["process orders"]
    assert (kind, attributes["messaging.batch.message_count"], attributes["penstock.epoch"]) == ("CONSUMER", 3, 1)
    assert attributes["messaging.consumer.group.name"].startswith("spark-")
    kind, attributes = spans["send copies"]
    assert (kind, attributes["messaging.batch.message_count"], attributes["messaging.client.id"]) == ("PRODUCER", 1, "writer")
