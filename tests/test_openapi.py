"""The OpenAPI description is accurate: it has exactly the server's routes, and fuzzing from it finds no 500 and no hang."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.server import BackgroundServer, ServerSettings
from penstock.testing.http import Http

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance,unsupported_method"
)


@pytest.fixture
def server() -> Iterator[BackgroundServer]:
    with penstock.open("memory:") as broker:
        broker.create("orders").send_many([b"x"] * 1000)
        with BackgroundServer(broker, ServerSettings(port=0, max_wait=1)) as server:
            yield server


def test_every_route_is_described_and_every_description_is_a_route(server: BackgroundServer) -> None:
    paths = Http(server.url)("GET", "/openapi.json").json["paths"]
    described = {(method.upper(), path) for path, item in paths.items() for method in item if method != "parameters"}
    routes = {(route.method, route.path) for dialect in server.app.dialects for route in dialect.routes()}
    assert described == routes


def test_the_page_names_every_route(server: BackgroundServer) -> None:
    page = Http(server.url)("GET", "/").body.decode()
    for dialect in server.app.dialects:
        for route in dialect.routes():
            assert f"{route.method} {route.path}" in page


def test_fuzzing_finds_nothing(server: BackgroundServer, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "schemathesis"
    limits = ["--max-examples", "15", "--request-timeout", "5", "--seed", "1", "--workers", "1"]
    command = [
        program,
        "run",
        f"{server.url}/openapi.json",
        "--checks",
        CHECKS,
        "--phases",
        "examples,coverage,fuzzing",
        *limits,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    paths = Http(server.url)("GET", "/openapi.json").json["paths"]
    told = {(path.rstrip("/"), method) for path, item in paths.items() for method in item if method != "parameters"}
    count = len(told)  # it takes /dashboard and /dashboard/ for one
    assert f"{count}/{count}" in done.stdout
    assert Http(server.url)("GET", "/health").status == 200
