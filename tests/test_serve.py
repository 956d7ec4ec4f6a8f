"""`penstock serve` as a process: overloaded, it recovers; told to stop, it finishes. For kills, see test_server_kills.py."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from threading import Event

import pytest

import penstock
from penstock.testing.http import Http
from penstock.testing.serving import dial, read_answer, until

PENSTOCK = [sys.executable, "-m", "penstock.cli"]


@contextmanager
def serving(store: str, *flags: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [*PENSTOCK, "serve", "--store", store, "--port", "0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        assert process.stderr
        line = process.stderr.readline()
        found = re.search(r" at (https?://\S+)", line)
        assert found, line
        yield process, found[1]
    finally:
        process.kill()
        process.wait()
        assert process.stderr
        process.stderr.close()


class Account:
    """What 16 clients were told: each body sent, each deleted."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.tried: set[str] = set()
        self.deleting: set[str] = set()
        self.deleted: set[str] = set()

    def work(self, url: str, name: str, stop: Event) -> None:
        http = Http(url)
        number = 0
        try:
            while not stop.is_set():
                body = f"{name}-{number}"
                number += 1
                self.tried.add(body)
                if http("POST", "/messages/orders", body.encode()).status == 201:
                    self.sent.add(body)
                if number % 3 == 0 and (got := http("GET", "/messages/orders")).status == 200:
                    taken = got.body.decode()
                    self.deleting.add(taken)
                    if http("DELETE", f"/messages/{got.headers['x-mqs-message-id']}").status == 204:
                        self.deleted.add(taken)
        except (OSError, HTTPException):
            pass  # the server is dead: requests in progress have an unknown outcome


def test_a_load_of_ten_times_what_it_can_serve_gets_503_and_it_recovers(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders")
    body = b"x" * 10_000
    request = b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with serving(store, "--max-pending", "10", "--access-log", "off") as (process, url):
        statuses: Counter[bytes] = Counter()
        clients = [dial(url) for _ in range(100)]
        high = 0
        for turn in range(30):
            for client in clients:
                client.sendall(request)
            for client in clients:
                answer = client.recv(10_000)
                statuses[answer[9:12]] += 1
                if answer[9:12] == b"503":
                    assert b"Retry-After: " in answer
            if turn == 5:
                high = _memory(process.pid)
        assert _memory(process.pid) < high * 1.3 + 10_000_000
        for client in clients:
            client.close()
        assert set(statuses) == {b"201", b"503"}
        assert statuses[b"503"] > statuses[b"201"]
        http = Http(url)
        assert [http("POST", "/messages/orders", b"x").status for _ in range(20)] == [201] * 20
        assert http("GET", "/queues/orders").json["status"]["messages"] == statuses[b"201"] + 20


def _memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_told_to_stop_it_finishes_what_was_begun_and_ends_its_polls(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders")
        broker.create("empty")
    with serving(store, "--access-log", "off") as (process, url), ThreadPoolExecutor(20) as pool:
        polls = [pool.submit(Http(url), "GET", "/messages/empty", X_MQS_MAX_WAIT_TIME="60") for _ in range(4)]
        idle = dial(url)
        half = dial(url)
        half.sendall(b"POST /messages/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhal")
        until(lambda: "penstock_resting_polls 4" in Http(url)("GET", "/metrics").body.decode())
        account = Account()
        stop = Event()
        senders = [pool.submit(account.work, url, str(number), stop) for number in range(8)]
        until(lambda: len(account.sent) > 50)
        process.send_signal(signal.SIGTERM)
        half.sendall(b"fo")
        assert read_answer(half)[9:12] == b"201"
        assert [poll.result().status for poll in polls] == [204] * 4
        assert idle.recv(10) == b""
        assert process.wait(60) == 0
        stop.set()
        for sender in senders:
            sender.result()
        for client in (idle, half):
            client.close()
    with penstock.open(store) as broker:
        bodies = {message.text for message in broker["orders"].peek(100_000)}
    assert account.sent - account.deleting <= bodies


def test_a_second_server_on_the_port_is_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*PENSTOCK, "serve", "--store", "memory:", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, f"127.0.0.1:{port}" in done.stderr, done.stderr.count("\n")) == (4, True, 1)


def test_an_address_that_others_can_reach_needs_a_token() -> None:
    command = [*PENSTOCK, "serve", "--store", "memory:", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "needs a token" in done.stderr) == (2, True)
    with serving("memory:", "--host", "0.0.0.0", PENSTOCK_TOKEN="a-token-of-some-length") as (_, url):
        port = url.rpartition(":")[2]
        assert Http(f"http://127.0.0.1:{port}")("GET", "/queues").status == 401
        known = Http(f"http://127.0.0.1:{port}", {"Authorization": "Bearer a-token-of-some-length"})
        assert known("GET", "/queues").status == 200


def test_each_request_is_a_line_of_json_without_secrets() -> None:
    with serving("memory:", PENSTOCK_TOKEN="a-token-of-some-length") as (process, url):
        http = Http(url, {"Authorization": "Bearer a-token-of-some-length"})
        Http(url)("GET", "/queues")
        http("PUT", "/jobs%0A%7B%22forged%22:1%7D")
        http("PUT", "/jobs")
        http("POST", "/jobs/messages", b"the body is nobody's business")
        process.send_signal(signal.SIGTERM)
        assert process.stderr
        text = process.stderr.read()
        lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("GET", "/queues", 401),
        ("PUT", '/jobs\n{"forged":1}', 400),
        ("PUT", "/jobs", 201),
        ("POST", "/jobs/messages", 201),
    ]
    assert [line.get("token") for line in lines] == [None, "token", "token", "token"]
    assert "a-token" not in text
    assert "business" not in text


def test_without_the_extra_it_is_named() -> None:
    program = "import sys; sys.modules['httptools'] = None; from penstock.cli import main; sys.exit(main(['serve']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        'penstock: the server needs an optional library: pip install "penstock[server]"\n',
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "x"], "--port is 'x'; it must be a whole number"),
        (["--port", "70000"], "--port is '70000'; it must be between 0 and 65535"),
        (["--oversize", "perhaps"], "oversize is 'perhaps'; it must be cut or refuse"),
        (["--tls-cert", "x"], "tls_cert and tls_key belong together"),
        (["--tls-cert", "x", "--tls-key", "y"], "cannot be used"),
        (["--config", "missing.toml"], "missing.toml cannot be read"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_a_bad_flag_is_named(flags: list[str], words: str) -> None:
    command = [*PENSTOCK, "serve", "--store", "memory:", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, words in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr


def test_an_unread_log_stops_nothing(tmp_path: Path) -> None:
    """572 lines fit into a pipe."""
    store = f"sqlite:///{tmp_path}/queue.db"
    with serving(store) as (process, url):
        http = Http(url)
        assert [http("GET", f"/nothing/at/{'x' * 250}").status for _ in range(1500)] == [404] * 1500
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_without_descriptors_connections_are_refused_with_one_line(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/queue.db"
    with penstock.open(store) as broker:
        broker.create("orders")
    with serving(store, "--access-log", "off") as (process, url):
        known = Http(url)
        assert known("POST", "/messages/orders", b"x").status == 201
        used = sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + 3, used + 3))
        clients = [dial(url) for _ in range(40)]
        for client in clients:
            client.sendall(b"GET /queues HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answers = Counter(client.recv(1000)[9:12] for client in clients)
        assert set(answers) == {b"200", b"503"}
        assert answers[b"503"] >= 37
        assert [known("POST", "/messages/orders", b"x").status for _ in range(20)] == [201] * 20
        for client in clients:
            client.close()
        until(lambda: Http(url)("GET", "/health").status == 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr
        lines = process.stderr.read().splitlines()
    assert len(lines) == 1
    assert "connections are refused: Too many open files" in lines[0]


def test_connections_leave_descriptors_to_the_store(tmp_path: Path) -> None:
    """The system allows fewer files than max_connections: the server says so, and never runs out."""
    command = [*PENSTOCK, "serve", "--store", f"sqlite:///{tmp_path}/queue.db", "--port", "0", "--access-log", "off"]
    limited = ["prlimit", "--nofile=120:120", *command]
    process = subprocess.Popen(limited, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        warning, started = process.stderr.readline(), process.stderr.readline()
        found = re.search(r"may open 120 files \(ulimit -n\), so it takes (\d+) connections and not 1000", warning)
        url = re.search(r" at (https?://\S+)", started)
        assert found, warning
        assert url, started
        process.send_signal(signal.SIGSTOP)  # so that many come in one turn of the loop, and each cuts one that is silent
        silent = [dial(url[1]) for _ in range(300)]
        process.send_signal(signal.SIGCONT)
        assert Http(url[1])("GET", "/queues").status == 200
        for client in silent:
            client.close()
        clients = [Http(url[1]) for _ in range(int(found[1]) + 1)]
        statuses = [client("GET", "/queues").status for client in clients]
        assert statuses == [200] * int(found[1]) + [503]
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()
        assert process.stderr
        process.stderr.close()
