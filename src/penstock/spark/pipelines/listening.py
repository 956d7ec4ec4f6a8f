"""Answers over HTTP how a pipeline gets on.

GET /metrics    its figures, in Prometheus' text format
GET /health     200: this process lives; as JSON, in which state the pipeline is
GET /ready      the same, and 503 unless its queries run
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.errors import BadInput

ProgressAnswer = Callable[[], tuple[int, str, str]]
"""The status, the type and the text of an answer."""
MOST_CONNECTIONS = 16
PATIENCE = 10.0
"""Seconds that a client may take for its request."""


def read_address(text: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT, [HOST]:PORT or PORT; without a host, this machine's own."""
    found = re.fullmatch(r"(?:(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]+)):)?(?P<port>\d{1,5})", text)
    if not found or int(found["port"]) > 65535:
        raise BadInput(f"the address {text!r:.80} is not HOST:PORT or PORT, such as 127.0.0.1:9464")
    return found["six"] or found["host"] or "127.0.0.1", int(found["port"])


class ProgressServer(ThreadingHTTPServer):
    """Owns the socket and the threads that answer. A client too many is sent away without an answer."""

    daemon_threads = True

    def __init__(self, address: str, pages: dict[str, ProgressAnswer]) -> None:
        host, port = read_address(address)
        self.pages = pages
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            self.address_family = found[0][0]
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise BadInput(f"cannot listen at {address}: {error.strerror or error}") from None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: a client that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: ProgressServer
    timeout = PATIENCE

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path)
        if page is None:
            self.send_error(404)
            return
        status, kind, text = page()
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent: stderr shows the live line."""


def told(status: int, **state: Any) -> tuple[int, str, str]:
    return status, "application/json", json.dumps(state) + "\n"
