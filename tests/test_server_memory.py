"""What the server no longer counts in its budget is no longer in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.server import BackgroundServer
from penstock.server.http.request_response import Request
from penstock.testing.http import Http
from penstock.testing.serving import until
from tests.test_serve import serving
from tests.test_server_fuzz import memory

SIZE = 200_000
MEBI = 1024 * 1024
MULTIPART = {"Content_Type": "multipart/mixed; boundary=b"}
SENDS = "/penstock/queues/orders/send_many"
TEXT = b'{"arguments": {"drafts": ["' + b"a" * SIZE + b'"]}}'
PARTS = b"--b\r\n\r\n" + b"a" * SIZE + b"\r\n--b--\r\n"
REQUESTS: dict[str, tuple[str, bytes, dict[str, str], int]] = {
    "sent": ("/messages/orders", b"a" * SIZE, {}, 201),
    "sent in parts": ("/messages/orders", PARTS, MULTIPART, 201),
    "malformed parts": ("/messages/orders", PARTS[:-5], MULTIPART, 400),
    "no such queue": ("/messages/nowhere", b"a" * SIZE, {}, 404),
    "no such queue, for parts": ("/messages/nowhere", PARTS, MULTIPART, 404),
    "malformed JSON": (SENDS, TEXT[:-3], {}, 400),
    "a refused value": (SENDS, TEXT, {}, 400),
    "an unknown argument": ("/penstock/queues/orders/stats", TEXT, {}, 400),
    "no such queue, for JSON": ("/penstock/queues/nowhere/send_many", TEXT, {}, 404),
    "an unreadable segment": ("/penstock/staged/w/x/a", b"a" * SIZE, {}, 400),
}


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Python finds circles of references late, and knows nothing of their bytes: the server must not make any."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def bodies() -> list[Request]:
    return [one for one in gc.get_objects() if type(one) is Request and len(one.body) >= SIZE]


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.usefixtures("without_collector")
def test_no_request_outlives_its_answer(name: str, tmp_path: Path) -> None:
    path, body, headers, status = REQUESTS[name]
    with penstock.open(f"sqlite:///{tmp_path}/queue.db") as broker:
        broker.create("orders")
        with BackgroundServer(broker) as server:
            http = Http(server.url)  # its connection stays open
            for _ in range(2):
                assert http("POST", path, body, **headers).status == status
            until(lambda: not bodies())


def test_refused_megabytes_do_not_stay_in_memory(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders")
    parts = b"--b\r\n\r\n" + b"a" * (15 * MEBI)
    text = b'{"arguments": {"drafts": ["' + b"a" * (15 * MEBI) + b'"]}}'
    with serving(store, "--max-memory", str(64 * MEBI), "--access-log", "off") as (process, url):
        for _ in range(5):
            assert Http(url)("POST", SENDS, text).status == 400
            assert Http(url)("POST", SENDS, text[:-3]).status == 400
            assert Http(url)("POST", "/messages/orders", parts, **MULTIPART).status == 400
        assert memory(process.pid) < 104 * MEBI  # Python itself takes 35, and one such request 45
