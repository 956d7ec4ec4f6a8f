"""``penstock bench http``: durable single sends through the service, its own web stack without a store, and bare SQLite.

They take turns: the service on a new SQLite file; the same service (parser, limits, tokens, routes, metrics), which answers a
send at once, without a store; and SQLite alone, which commits as many rows at a time as there are connections. The client is a
separate process, with one request at a time on each of its persistent connections.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import penstock
from penstock.bench.limits import BareSqlite
from penstock.bench.machine import facts
from penstock.broker import open_local
from penstock.server import ServerSettings, serve
from penstock.server.dialects.mqs import Mqs
from penstock.server.http.request_response import Request, Response

BODY = b"x" * 100
ID = "00000000-0000-8000-8000-000000000001"
SHARE = 0.5
GAIN = 8


class Instant(Mqs):
    """The dialect mqs, but it answers sends without a store."""

    async def send(self, request: Request, queue: str) -> Response:  # noqa: ARG002
        return Response(201, {"X-MQS-MESSAGE-ID": ID})


def serve_without_store() -> None:
    settings = ServerSettings(port=0, access_log=False)
    with open_local("memory:") as broker:
        serve(broker, settings, started=lambda url: print("at", url, file=sys.stderr, flush=True), dialects=(Instant,))


def drive(url: str, connections: int, seconds: float) -> float:
    """Answers a second to single sends, over this many connections."""
    address = urlsplit(url)
    head = (
        f"POST /messages/bench HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: {len(BODY)}\r\n\r\n"
    )
    request = head.encode() + BODY
    with contextlib.ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        sockets: dict[int, socket.socket] = {}
        for _ in range(connections):
            client = stack.enter_context(socket.create_connection((address.hostname, address.port or 0)))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets[client.fileno()] = client
            poll.register(client, select.EPOLLIN)
            client.sendall(request)
        answers = 0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            for handle, _ in poll.poll(1):
                answer = sockets[handle].recv(4096)
                assert answer.startswith(b"HTTP/1.1 201"), answer
                answers += 1
                sockets[handle].sendall(request)
        return answers / (time.perf_counter() - started)


def commit_rows(path: Path, batch: int, seconds: float) -> float:
    session = BareSqlite(path)
    rows = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        session.send([BODY] * batch)
        rows += batch
    rate = rows / (time.perf_counter() - started)
    session.close()
    return rate


@contextlib.contextmanager
def process(*command: str) -> Iterator[str]:
    """Start a server; returns its URL, the last word of its first line."""
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr
            yield running.stderr.readline().split()[-1]
        finally:
            running.send_signal(signal.SIGTERM)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="penstock bench http", description="Measure durable single sends through the service."
    )
    parser.add_argument("--connections", metavar="N", type=int, default=32, help="kept open together (32)")
    parser.add_argument("--seconds", metavar="S", type=float, default=2, help="for each turn (2)")
    parser.add_argument("--repeats", metavar="N", type=int, default=5, help="turns of each (5)")
    parser.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help="where the queue lies (not a tmpfs)")
    arguments = parser.parse_args(argv)
    with TemporaryDirectory(prefix=".penstock-bench-", dir=arguments.folder) as name:
        folder = Path(name).resolve()
        known = facts(folder)
        rates = measure(folder, arguments.connections, arguments.seconds, arguments.repeats)
    print("\n".join(f"* {fact}: {value}" for fact, value in known.items()), end="\n\n")
    print(report(rates, arguments.connections))
    return 0


def measure(folder: Path, connections: int, seconds: float, repeats: int) -> list[tuple[float, float, float, float]]:
    """In each repeat: the service over all connections and over one, the stack alone, and bare SQLite."""
    store = f"sqlite:///{folder}/service.db"
    with penstock.open(store) as broker:
        broker.create("bench")
    flags = ["serve", "--store", store, "--port", "0", "--access-log", "off"]
    with process("-m", "penstock.cli", *flags) as service, process("-m", "penstock.bench.http") as instant:
        return [
            (
                drive(service, connections, seconds),
                drive(service, 1, seconds),
                drive(instant, connections, seconds),
                commit_rows(folder / f"bare-{repeat}.db", connections, seconds),
            )
            for repeat in range(repeats)
        ]


def report(rates: list[tuple[float, float, float, float]], connections: int) -> str:
    many, one, instant, bare = (median(column) for column in zip(*rates, strict=True))
    share = median(rate[0] / rate[2] for rate in rates)
    gain = median(rate[0] / rate[1] for rate in rates)
    sqlite = median(rate[0] / rate[3] for rate in rates)

    def verdict(met: bool) -> str:
        return "met" if met else "NOT met"

    return f"""\
| durable single sends, {len(BODY)} B | a second |
|---|---:|
| the service, {connections} connections | {many:,.0f} |
| the service, 1 connection | {one:,.0f} |
| (a) the same stack without a store, {connections} connections | {instant:,.0f} |
| (b) bare SQLite, {connections} rows a commit | {bare:,.0f} |

* of (a): {share:.0%}, at least {SHARE:.0%} wanted: **{verdict(share >= SHARE)}**
* of (b): {sqlite:.0%}
* {connections} connections against one: {gain:.1f} ×, at least {GAIN} × wanted: **{verdict(gain >= GAIN)}**
"""


if __name__ == "__main__":
    serve_without_store()
