"""What the server no longer counts in its budget is no longer in memory, and it counts all but 64 MiB."""

from __future__ import annotations

import gc
import json
import shutil
import socket
import ssl
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from test_serve import serving
from test_server_fuzz import memory

import penstock
from penstock.bridge.performing import Operation, Performer
from penstock.client import wire
from penstock.errors import PenstockError
from penstock.message import Draft
from penstock.server import BackgroundServer, ServerSettings
from penstock.server.dialects import mqs, native
from penstock.server.dialects.native import ARROW
from penstock.server.http.request_response import Refused, Request, Response
from penstock.testing.http import Http
from penstock.testing.serving import dial, held, until

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # what tests before this one have left open is not this one's
        gc.collect()
    gc.disable()
    yield
    gc.enable()


def remains() -> list[object]:
    """Requests, even without their bodies, and operations, which have what was made of them."""
    kinds = (Request, Operation)
    return [one for one in gc.get_objects() if type(one) in kinds and (type(one) is Operation or one.length >= SIZE)]


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
            until(lambda: not remains())


def test_a_refusal_keeps_nothing_of_what_it_was_about() -> None:
    """Many looks that find no room are refused in one commit; the frames that raised have the messages."""

    def refuse() -> None:
        raise Refused(503, "there is no room")

    with penstock.open("memory:") as broker:
        operation = Operation(refuse)
        Performer(broker).perform([operation])
    assert isinstance(operation.error, Refused)
    assert operation.error.__traceback__ is None


def test_the_frames_of_an_error_that_was_answered_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on, they would have the error in turn, and whatever a client has sent."""
    seen: list[PenstockError] = []
    refuse = mqs.Mqs.refuse

    def look(self: mqs.Mqs, request: Request, error: PenstockError) -> Response:
        seen.append(error)
        return refuse(self, request, error)

    monkeypatch.setattr(mqs.Mqs, "refuse", look)
    with penstock.open("memory:") as broker, BackgroundServer(broker) as server:
        broker.create("orders")
        assert Http(server.url)("POST", "/messages/orders", PARTS[:-5], **MULTIPART).status == 400
    assert [(type(error), error.__traceback__) for error in seen] == [(penstock.BadMessage, None)]


def test_a_message_counts_what_it_takes_beside_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    render = native.answer_messages

    def look(*given: Any) -> Response:
        counted.append(held(server))
        return render(*given)

    monkeypatch.setattr(native, "answer_messages", look)
    with penstock.open("memory:") as broker, BackgroundServer(broker) as server:
        broker.create("tiny").send_many([b"a"] * 1000)
        http = Http(server.url)
        for verb in ("peek", "receive"):
            assert http("POST", f"/penstock/queues/tiny/{verb}", {"arguments": {"limit": 1000}}).status == 200
        assert len(counted) == 2
        assert min(counted) > 1000 * 1500  # the objects and the text of a tiny message


def test_refused_megabytes_do_not_stay_in_memory(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders")
    parts = b"--b\r\n\r\n" + b"a" * (15 * MEBI)
    text = b'{"arguments": {"drafts": ["' + b"a" * (15 * MEBI) + b'"]}}'
    with serving(store, "--max-memory", str(64 * MEBI), "--access-log", "off") as (process, url):
        before = memory(process.pid)
        for _ in range(5):
            assert Http(url)("POST", SENDS, text).status == 400
            assert Http(url)("POST", SENDS, text[:-3]).status == 400
            assert Http(url)("POST", "/messages/orders", parts, **MULTIPART).status == 400
        assert memory(process.pid) < before + 52 * MEBI  # one such request takes 45


# what is counted is all that there is: with any budget, at most 64 MiB more are in memory

ASK_JSON = {"Content-Type": "application/json"}
ASK_RAW = {"Content-Type": wire.CONTENT_TYPE}
LARGE, TINY = "large", "tiny"
JSON_BATCH = json.dumps({"arguments": {"drafts": [wire.pack(Draft(bytes(MEBI)))] * 4}}).encode()
RAW_BATCH = b"".join(wire.join({"arguments": {"drafts": [{"bytes": MEBI}] * 8}}, [bytes(MEBI)] * 8))
MIXED_BATCH = (b"--b\r\n\r\n" + b"a" * (MEBI - 100) + b"\r\n") * 8 + b"--b--\r\n"
RAW_LIMIT = b"".join(wire.join({"arguments": {"limit": 16}}, []))
TINY_BATCH = json.dumps({"arguments": {"drafts": [{"bytes": "YQ=="}] * 10_000}}).encode()


def limit(count: int) -> bytes:
    return json.dumps({"arguments": {"limit": count}}).encode()


CROWDS: dict[str, tuple[str, str, dict[str, str], bytes]] = {
    "one large message each": ("POST", "/messages/large", {}, bytes(MEBI)),
    "batches in JSON": ("POST", "/penstock/queues/large/send_many", ASK_JSON, JSON_BATCH),
    "batches as they are": ("POST", "/penstock/queues/large/send_many", ASK_RAW, RAW_BATCH),
    "batches in parts": ("POST", "/messages/large", {"Content-Type": "multipart/mixed; boundary=b"}, MIXED_BATCH),
    "batches of tiny messages": ("POST", "/penstock/queues/tiny/send_many", ASK_JSON, TINY_BATCH),
    "receives in JSON": ("POST", "/penstock/queues/large/receive", ASK_JSON, limit(16)),
    "receives as they are": (
        "POST",
        "/penstock/queues/large/receive",
        ASK_RAW,
        RAW_LIMIT,
    ),
    "receives in parts": ("GET", "/messages/large", {"X-MQS-MAX-MESSAGES": "16"}, b""),
    "receives of one": ("GET", "/messages/large", {}, b""),
    "receives of tiny messages": ("POST", "/penstock/queues/tiny/receive", ASK_JSON, limit(1000)),
    "looks at large messages": ("POST", "/penstock/queues/large/peek", ASK_JSON, limit(100)),
    "looks at tiny messages": ("POST", "/penstock/queues/tiny/peek", ASK_JSON, limit(20_000)),
    "looks at tiny messages before large ones": ("POST", "/penstock/queues/tiny-large/scan", ASK_JSON, limit(1000)),
}


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with messages of each size; tests work on copies."""
    path = tmp_path_factory.mktemp("full") / "queue.db"
    with penstock.open(f"sqlite:///{path}") as broker:
        broker.create(LARGE).send_many([bytes(MEBI)] * 100)
        broker.create(TINY).send_many([b"a"] * 50_000)
        broker.create("tiny-large").send_many([b"a"] * 84 + [bytes(MEBI)] * 150)
    return path


def crowd(url: str, request: bytes, count: int, certificate: Path | None = None) -> Counter[bytes]:
    """So many clients at once, which keep their connections until all have been answered, and read nothing but the status."""
    context = None if certificate is None else ssl.create_default_context(cafile=str(certificate))
    everyone = Barrier(count)

    def ask(_: int) -> bytes:
        status = b"cut"
        client: socket.socket | None = None
        try:
            with suppress(OSError):
                client = dial(url)
                client = client if context is None else context.wrap_socket(client, server_hostname="127.0.0.1")
                with suppress(OSError):  # it may be refused before all is sent
                    client.sendall(request)
                status = client.recv(12)[9:]
        finally:
            everyone.wait(120)
            if client is not None:
                client.close()
        return status

    with ThreadPoolExecutor(count) as pool:
        return Counter(pool.map(ask, range(count)))


def asked(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


@pytest.mark.parametrize("name", CROWDS)
def test_memory_stays_within_64_mebibytes_of_its_budget(name: str, full: Path, tmp_path: Path) -> None:
    shutil.copy(full, tmp_path / "queue.db")
    flags = ["--max-memory", str(32 * MEBI), "--access-log", "off", "--read-timeout", "300", "--request-timeout", "300"]
    with serving(f"sqlite:///{tmp_path}/queue.db", *flags) as (process, url):
        statuses = crowd(url, asked(*CROWDS[name]), 60)
        assert memory(process.pid) < 96 * MEBI, statuses
        assert statuses.keys() <= {b"200", b"201", b"204", b"503", b"cut", b""}
        until(lambda: crowd(url, asked(*CROWDS[name]), 1).keys() <= {b"200", b"201"})  # alone, there is room


def test_memory_stays_within_64_mebibytes_of_the_least_budget_with_tls(full: Path, tmp_path: Path) -> None:
    shutil.copy(full, tmp_path / "queue.db")
    certificate = make_certificate(tmp_path)
    flags = ["--max-memory", str(8 * MEBI), "--access-log", "off", "--tls-cert", str(certificate), "--tls-key"]
    with serving(f"sqlite:///{tmp_path}/queue.db", *flags, str(tmp_path / "key.pem")) as (process, url):
        for name in ("one large message each", "batches in parts", "receives in JSON", "looks at large messages"):
            crowd(url, asked(*CROWDS[name]), 40, certificate)
        assert memory(process.pid) < 72 * MEBI


def make_certificate(folder: Path) -> Path:
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, "-days", "2", *names]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "cert.pem"


def test_the_library_for_arrow_counts_from_its_first_use(full: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shutil.copy(full, tmp_path / "queue.db")
    accept = {"Accept": ARROW}
    body = json.dumps({"arguments": {"columns": ["body"], "limit": 1000}}).encode()
    look = asked("POST", "/penstock/queues/tiny/scan", accept, body)
    for budget, status in ((32, b"503"), (96, b"200")):
        with serving(f"sqlite:///{tmp_path}/queue.db", "--max-memory", str(budget * MEBI), "--access-log", "off") as (
            process,
            url,
        ):
            assert crowd(url, look, 1)[status] == 1
            crowd(url, look.replace(b"tiny", b"large"), 20)
            assert memory(process.pid) < (budget + 64) * MEBI


def test_the_names_of_many_queues_count_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"queue-{'n' * 50}-{number:04}" for number in range(8000)]
    least = sum(map(sys.getsizeof, names))
    counted: list[int] = []
    render = native.answer

    def look(*given: Any) -> Response:
        counted.append(held(server))
        return render(*given)

    monkeypatch.setattr(native, "answer", look)
    with penstock.open("memory:") as broker, BackgroundServer(broker, ServerSettings(port=0, max_memory=8 * MEBI)) as server:
        for name in names:
            broker.create(name)
        assert len(Http(server.url)("POST", "/penstock/broker/names", {"arguments": {}}).json["answer"]) == 8000
        assert Http(server.url)("GET", "/queues").json["total"] == 8000
    assert least + 3 * len(json.dumps(names)) < counted[0] < 6 * MEBI
