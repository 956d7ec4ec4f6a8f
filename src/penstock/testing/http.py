"""A plain HTTP client for the chapters about the server, and a server on the store under test."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import pytest

import penstock
from penstock import Broker
from penstock.broker import LocalBroker
from penstock.server import BackgroundServer, ServerSettings
from penstock.testing.clock import FakeClock

SETTINGS = ServerSettings(port=0, access_log=False)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Http:
    """One connection, reused."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        self._headers = headers or {}

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> HttpAnswer:
        """A dict is sent as JSON; in header names, _ stands for -."""
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, path, body, {**self._headers, **named})
        response = self._connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return HttpAnswer(response.status, found, response.read())

    def __del__(self) -> None:
        self._connection.close()


class ServerFixtures:
    server_settings = SETTINGS

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def broker(self, url: str, clock: FakeClock) -> Iterator[Broker]:
        with penstock.open(url, clock=clock) as broker:
            yield broker

    @pytest.fixture
    def server(self, broker: LocalBroker) -> Iterator[BackgroundServer]:
        with BackgroundServer(broker, self.server_settings) as server:
            yield server

    @pytest.fixture
    def http(self, server: BackgroundServer) -> Http:
        return Http(server.url)

    @pytest.fixture
    def refusing(self, broker: LocalBroker) -> Iterator[Http]:
        """A server that refuses what mqs would truncate."""
        with BackgroundServer(broker, replace(self.server_settings, oversize="refuse")) as server:
            yield Http(server.url)
