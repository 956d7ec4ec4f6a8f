"""One client's connection: HTTP/1.1 with httptools' strict parser, and a bound on everything that a client can make us hold.

    idle ──first byte──► head ──► body ──► waiting in line ──► served ──► idle again, or closed
      │                    │       │                             │
      └ idle_timeout       └───────┴ read_timeout: 408           └ request_timeout: 503

Requests of one connection are served one after the other, in order. After a malformed request the server answers and closes the
connection, since it is unclear where the next request would begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Any

import httptools

from penstock.server.http.open_connections import Connections
from penstock.server.http.request_response import NOBODY, Refused, Request, Response, answer_error, render, split_target
from penstock.server.http.serving import Serving

logger = logging.getLogger("penstock.server")

MAX_HEADERS = 100
LINGER = 1.0
"""Seconds that a refused client has to read the reason before its connection is closed."""


@lru_cache(maxsize=256)
def _lower(name: bytes) -> str:
    return name.decode("latin-1").lower()


UNREAD = Request("?", ("?",), "", {}, b"", 0, NOBODY)
"""What the log shows of a request whose head could not be parsed."""


class Phase(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    REFUSED = auto()


IDLE, HEAD, BODY, REFUSED = Phase
"""Plain names: in Python 3.11 each use of an enum's member is a function call, and a request would make ten."""


class Connection(asyncio.BufferedProtocol):
    def __init__(self, connections: Connections) -> None:
        self._all = connections
        self._settings = connections.handler.settings
        self._budget = connections.handler.budget
        self._loop = connections.loop
        self._parser = httptools.HttpRequestParser(self)
        self._phase = IDLE
        self._line: deque[tuple[Request | Response, bool]] = deque()
        self._job: Serving | None = None
        self._undo: Callable[[], None] | None = None
        self._blocked_since: float | None = None
        self._overdue = False
        self._head = self._size = 0
        self._known: list[tuple[bytes, bytes]] = []
        self._headers: Mapping[str, str] = {}
        self._since = self._loop.time()
        self._closing = False
        self.ended = False

    # the transport's side

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        # Report when the write buffer is empty. (TLS pauses when a buffer reaches the mark, plain sockets when it exceeds it.)
        transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1, low=0)
        self._all.open.add(self)
        if len(self._all.open) > self._settings.max_connections:
            self._refuse(503, f"there are {self._settings.max_connections} connections, the limit", {"Retry-After": "1"})

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._all.open.discard(self)
        self._closing = True
        self._forget_body()
        while self._line:
            item, _ = self._line.popleft()
            if isinstance(item, Request):
                self._budget.give(len(item.body))
        if self._undo is not None:
            self._undo()
            self._undo = None
        if self._job is not None:
            self._job.cancel()

    def eof_received(self) -> bool:
        """A client that closes its half may still read an answer. But it looks like a client that is gone, and that must not
        cost a message: a long poll ends, and the messages claimed for it are given back."""
        self.ended = True
        if self._phase in (HEAD, BODY):
            self._refuse(400, "the request ends in the middle")
        if self._job is not None and self._serving.resting:
            self._job.cancel()
            return False
        self._closing = True
        half_open = self._job or self._line or self._transport.get_write_buffer_size()
        return bool(half_open) and self._transport.can_write_eof()  # TLS has no half-close

    def pause_writing(self) -> None:
        self._blocked_since = self._loop.time()

    def resume_writing(self) -> None:
        self._blocked_since = None
        self._undo = None  # the kernel has every byte: as far as we can know, the client got it
        self._go_on()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._all.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._phase is REFUSED:
            return
        begins = self._phase is IDLE
        if begins:
            self._phase = HEAD
        self._head += nbytes  # reset if a request begins in these bytes, since we cannot tell how many belong to it
        try:
            self._parser.feed_data(self._all.buffer[:nbytes])
        except httptools.HttpParserUpgrade:
            self._phase = REFUSED  # serve the request without the upgrade, then close
        except httptools.HttpParserError as error:
            if self._phase is not REFUSED:
                text = str(error) if not isinstance(error, httptools.HttpParserCallbackError) else "it cannot be read"
                self._refuse(400, f"malformed request: {text}")
        if self._phase is not IDLE:  # the request is not complete yet
            if begins:
                self._since = self._loop.time()
            if self._phase is not REFUSED and self._head > self._settings.max_head:
                self._refuse_head()
        if self._line:
            self._go_on()
            if self._line:  # a client that sends more before its answer must wait
                self._transport.pause_reading()

    # the parser's side

    def on_message_begin(self) -> None:
        self._phase = HEAD
        self._refused = UNREAD
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._head = self._length = self._kept = 0
        self._request: Request | None = None

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase is HEAD:  # ignore trailers
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        if self._phase is REFUSED:
            return
        if self._fields != self._known and not self._read_fields():
            return
        headers = self._headers
        if len(self._target) + self._size > self._settings.max_head or len(self._fields) > MAX_HEADERS:
            self._refuse_head()
            return
        version = self._parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._refuse(505, f"HTTP {version} is not spoken here")
            return
        if version == "1.1" and "host" not in headers:
            self._refuse(400, "there is no Host header")
            return
        try:
            segments, query = split_target(self._target)
        except ValueError:
            self._refuse(400, "the target of the request cannot be read")
            return
        method = self._parser.get_method().decode("ascii")
        request = self._refused = Request(method, segments, query, headers, b"", 0, NOBODY, client=self)
        if int(headers.get("content-length", "0") or "0") > self._settings.max_body:
            self._refuse_body()
            return
        try:
            self._keep = self._all.handler.check(request)
        except Refused as refusal:
            self._refuse(refusal.status, str(refusal), refusal.headers)
            return
        self._request = request
        self._phase = BODY
        self._head = 0
        if "expect" in headers:
            if headers["expect"].lower() != "100-continue":
                self._refuse(417, "the only expectation that is met is 100-continue")
                return
            if version == "1.1" and not self._job and not self._line:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _read_fields(self) -> bool:
        """The headers by name; False if they were refused. Most clients repeat their headers on a connection, so the parsed
        ones are cached, and never changed."""
        headers: dict[str, str] = {}
        size = 0
        for name, value in self._fields:
            size += len(name) + len(value) + 4
            key = _lower(name)
            if key not in headers:
                headers[key] = value.decode("latin-1")
            elif key == "host":
                self._refuse(400, "there are two Host headers")
                return False
            else:
                headers[key] += ", " + value.decode("latin-1")
        self._known, self._headers, self._size = self._fields, headers, size
        return True

    def on_body(self, data: bytes) -> None:
        if self._phase is REFUSED:
            return
        self._head = 0  # trailers after the body count against the limit of a head
        self._length += len(data)
        if self._length > self._settings.max_body:
            self._refuse_body()
            return
        part = data[: self._keep - self._kept]
        if part:
            try:
                self._budget.take(len(part))
            except Refused as refusal:
                self._refuse(refusal.status, str(refusal), refusal.headers)
                return
            self._body.append(part)
            self._kept += len(part)

    def on_message_complete(self) -> None:
        if self._phase is REFUSED or self._request is None:
            return
        request = self._request
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request.length = self._length
        self._body, self._kept = [], 0
        self._phase = IDLE
        self._line.append((request, self._parser.should_keep_alive()))

    # serving

    _serving = _refused = UNREAD
    _keep_alive = False

    def _go_on(self) -> None:
        """Serve the next request in line, once the previous answer is written."""
        if self._job is not None or self._blocked_since is not None or self._transport.is_closing():
            return
        if self._line:
            item, keep_alive = self._line.popleft()
            self._since = self._loop.time()
            if isinstance(item, Response):
                self._write(item, keep_alive=False)
            else:
                self._serving, self._keep_alive = item, keep_alive
                self._job = Serving(self._all.handler.handle(item), self._answer)
                self._job.go_on()
        elif self._closing:
            self._transport.close()
        else:
            self._since = self._loop.time()
            self._transport.resume_reading()

    def _answer(self, response: Response | None) -> None:
        """The handler has ended; there is no response if it was cancelled."""
        self._job = None
        self._budget.give(len(self._serving.body))
        bare = self._serving.method == "HEAD"
        self._serving = UNREAD
        if response is None:
            if not self._overdue:
                return
            self._overdue = False
            response = answer_error(503, "this took too long", {"Retry-After": "1"})
        response.bare = bare
        more = bool(self._line) or self._phase is not REFUSED
        keep_alive = self._keep_alive and more and not response.close and not self._all.handler.stopping
        if self._all.held is None:
            self._write_safely(response, keep_alive)
        else:
            self._all.held.append((self._write_safely, response, keep_alive))

    def _write_safely(self, response: Response, keep_alive: bool) -> None:
        try:
            self._write(response, keep_alive=keep_alive)
        except Exception:  # a bug; answers of other clients may come after this one
            logger.exception("a defect in Penstock: an answer cannot be written")
            self.abort()

    def _write(self, response: Response, *, keep_alive: bool) -> None:
        if self._transport.is_closing() or (self.ended and response.undo is not None):
            if response.undo is not None:
                response.undo()
            self._transport.close()
            return
        self._undo = response.undo
        self._transport.write(render(response, keep_alive=keep_alive, date=self._all.date()))
        if self._blocked_since is None:
            self._undo = None
        if not keep_alive:
            self._closing = True
            if self._phase is REFUSED and self._transport.can_write_eof():
                # If we closed with bytes unread, the kernel would discard the answer too.
                if self._blocked_since is None:
                    self._transport.write_eof()
                self._transport.resume_reading()
                self._since = self._loop.time()
                return
        if self._line:
            self._loop.call_soon(self._go_on)  # give other connections their turn
        else:
            self._go_on()

    def _refuse(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        """Answer in place of the request that is being read, after the requests before it, and read no further."""
        if self._phase is REFUSED:
            return
        self._phase = REFUSED
        self._forget_body()
        answer = answer_error(status, text, headers)
        answer.bare = self._refused.method == "HEAD"
        self._all.handler.note(self._refused, answer, 0)
        self._line.append((answer, False))
        self._go_on()

    def _refuse_head(self) -> None:
        limit = self._settings.max_head
        self._refuse(
            431, f"the head of the request, or what follows its body, has more than {limit} bytes or {MAX_HEADERS} headers"
        )

    def _refuse_body(self) -> None:
        self._refuse(413, f"the body has more than {self._settings.max_body} bytes, the limit")

    def _forget_body(self) -> None:
        self._budget.give(getattr(self, "_kept", 0))
        self._kept, self._body = 0, []

    # time

    def tick(self, now: float) -> None:
        """Close connections that are too slow; called a few times a second."""
        settings, spent = self._settings, now - self._since
        if self._blocked_since is not None:
            if now - self._blocked_since > settings.read_timeout:
                self.abort()  # the client does not read its answer
        elif self._job is not None:
            if spent > settings.request_timeout and not self._serving.resting:
                self._overdue = True
                self._job.cancel()
        elif self._phase is REFUSED:
            if spent > LINGER:
                self._transport.close()
        elif self._phase in (HEAD, BODY):
            if spent > settings.read_timeout:
                self._all.cut += 1
                self._refuse(408, f"the request did not arrive within {settings.read_timeout} s")
        elif spent > settings.idle_timeout:
            self._transport.close()

    def close_if_idle(self) -> None:
        if self._job is None and not self._line and self._phase in (IDLE, HEAD) and self._blocked_since is None:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
