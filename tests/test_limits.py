"""Pausing behind HTTP, in the dialects, and on the command line; the chapters themselves run on every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Broker, Queue
from penstock.broker import open_local
from penstock.server import BackgroundServer
from penstock.testing.cancelling import Cancelling, CancellingGroups
from penstock.testing.clock import FakeClock
from penstock.testing.http import SETTINGS, Http
from penstock.testing.pausing import Pausing, PausingAcross, PausingLive
from penstock.testing.verbs import wrap_verb


class TestOverHttp(Pausing, PausingLive, PausingAcross, Cancelling, CancellingGroups):
    """The contract's chapters, with the HTTP client as the broker."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def url(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
        """A test that steps the clock has it behind the server too."""
        given = request.getfixturevalue("clock") if "clock" in request.fixturenames else None
        with open_local(f"sqlite:///{tmp_path}/queue.db", clock=given) as behind, BackgroundServer(behind, SETTINGS) as server:
            yield server.url

    @pytest.fixture
    def broker(self, url: str) -> Iterator[Broker]:
        with penstock.open(url) as broker:
            yield broker

    @pytest.fixture
    def queue(self, broker: Broker) -> Queue:
        return broker.create("orders")


def test_a_paused_queue_is_empty_in_every_dialect() -> None:
    with penstock.open("memory:") as broker, BackgroundServer(broker, SETTINGS) as server:
        queue = broker.create("orders")
        queue.send(b"x")
        http = Http(server.url)
        sqs = {"QueueUrl": f"{server.url}/000000000000/orders", "VisibilityTimeout": 0}
        as_json = {"x_amz_target": "AmazonSQS.ReceiveMessage", "content_type": "application/x-amz-json-1.0"}

        def received() -> list[object]:
            return [
                http("GET", "/orders/messages").status == 200,
                http("GET", "/messages/orders").status == 200,
                "Messages" in http("POST", "/", sqs, **as_json).json,
            ]

        queue.pause()
        assert received() == [False] * 3
        queue.resume()
        queue.update(visibility=0)
        assert received() == [True] * 3


def test_a_poll_of_a_server_rests_at_a_paused_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_local("memory:") as broker, BackgroundServer(broker, SETTINGS) as server, penstock.open(server.url) as remote:
        queue = remote.create("orders", paused=True)
        queue.send(b"x")
        looks: list[str] = []

        def count(look: Callable[..., object], name: str, *arguments: object) -> object:
            looks.append(name)
            return look(*arguments)

        wrap_verb(monkeypatch, broker, "due", count)
        assert queue.receive(wait=1) == []
        assert 1 <= looks.count("orders") < 100
