"""A store that is away for some seconds does not end a stream: whatever is asked is asked again."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

import penstock
from penstock import StoreUnreachable
from penstock.broker import LocalBroker
from penstock.client.calls import TRIES
from penstock.patience import Patience
from penstock.server import BackgroundServer, ServerSettings
from penstock.spark import columns, insisting
from penstock.spark.options import ReadOptions, WriteOptions
from penstock.spark.sink import StreamSink
from penstock.spark.stream import QueueStream


class Service:
    """A server that can be stopped, and started again at the same address."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker, self.orders = broker, broker.create("orders")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: BackgroundServer | None = None

    def start(self) -> None:
        self._server = BackgroundServer(self.broker, ServerSettings(port=self.port, access_log=False))
        self._server.__enter__()

    def stop(self) -> None:
        if self._server is not None:
            self._server.__exit__(None, None, None)
        self._server = None


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with penstock.open(f"sqlite:///{tmp_path}/behind.db") as broker:
        assert isinstance(broker, LocalBroker)
        service = Service(broker)
        service.start()
        try:
            yield service
        finally:
            service.stop()


class Returning(Patience):
    """At the first pause, the service comes back."""

    def __init__(self, service: Service) -> None:
        super().__init__(3600)
        self._service = service
        self.pauses = 0

    def pause(self, _seconds: float) -> None:  # type: ignore[override]
        self.pauses += 1
        if self.pauses == 1:
            self._service.start()


@pytest.fixture
def without_the_service(service: Service, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    def act(act: Callable[[], Any]) -> Any:
        patience = Returning(service)
        with monkeypatch.context() as patched:
            patched.setattr(insisting, "PATIENCE", patience)
            service.stop()
            answer = act()
        assert patience.pauses
        return answer

    return act


def test_a_stream_asks_again_until_the_store_is_back(
    service: Service, without_the_service: Callable[[Callable[[], Any]], Any], caplog: pytest.LogCaptureFixture
) -> None:
    service.orders.send_many([b"1", b"2", b"3"])
    options = ReadOptions.parse({"url": service.url, "queue": "orders"})
    stream = QueueStream(options, columns.schema(options))
    start = stream.initialOffset()
    end = without_the_service(lambda: stream.latestOffset(start, ReadMaxRows(2)))
    assert end["claims"] == {"orders": 2}
    parts = without_the_service(lambda: stream.partitions(start, end))
    assert without_the_service(lambda: sum(batch.num_rows for part in parts for batch in stream.read(part))) == 2
    assert without_the_service(stream.reportLatestOffset)["visible"] == 1
    without_the_service(lambda: stream.commit(end))
    assert service.orders.stats().messages == 1
    without_the_service(stream.prepareForTriggerAvailableNow)
    stream.stop()
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in told if "trying again for up to 3600 seconds" in text]) == 6


def test_the_sink_tries_again_until_the_store_is_back(
    service: Service, without_the_service: Callable[[Callable[[], Any]], Any], spark: SparkSession
) -> None:
    schema: Any = StructType.fromDDL("body binary")
    sink = StreamSink(WriteOptions(service.url, "orders"), schema, False)
    rows = pa.record_batch({"body": pa.array([b"1"], pa.binary())})
    staged = without_the_service(lambda: sink._stage(iter([rows]), "w", 0))
    without_the_service(lambda: sink.commit([staged], 0))
    assert service.orders.stats().messages == 1


def test_a_store_that_stays_away_is_an_error_in_the_end(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    class Passing(Patience):
        seconds = 0.0

        def now(self) -> float:  # type: ignore[override]
            return self.seconds

        def pause(self, seconds: float) -> None:  # type: ignore[override]
            assert 0 < seconds <= insisting.LONGEST_PAUSE
            self.seconds += seconds

    patience = Passing(60)
    monkeypatch.setattr(insisting, "PATIENCE", patience)
    service.stop()
    options = ReadOptions.parse({"url": service.url, "queue": "orders"})
    stream = QueueStream(options, columns.schema(options))
    with pytest.raises(StoreUnreachable, match=str(service.port)):
        stream.latestOffset(stream.initialOffset(), ReadMaxRows(2))
    assert patience.seconds >= 60


def test_a_running_query_outlives_an_outage(spark: SparkSession, service: Service, tmp_path: Path) -> None:
    seen: list[bytes] = []

    def take(frame: Any, _batch: int) -> None:
        rows: list[Row] = frame.collect()
        seen.extend(row.body for row in rows)

    def wait(done: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + 200
        while not done():
            assert time.monotonic() < give_up_at
            assert query.isActive, query.exception()
            time.sleep(0.05)

    service.orders.send(b"before")
    stream = spark.readStream.format("penstock").options(url=service.url, queue="orders").load()
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", f"{tmp_path}/checkpoint")
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        wait(lambda: seen == [b"before"])
        service.stop()
        with socket.create_server(("127.0.0.1", service.port)) as nobody:  # until the driver has noticed that nobody answers
            nobody.settimeout(200)
            for _ in range(3 * TRIES):
                nobody.accept()[0].close()
        service.orders.send(b"after")
        service.start()
        wait(lambda: seen == [b"before", b"after"])
    finally:
        query.stop()
