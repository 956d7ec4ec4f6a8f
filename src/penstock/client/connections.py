"""The connections of a client to its server: pooled, reused, and retried where that is safe."""

from __future__ import annotations

import json
import secrets
import ssl
import time
from contextlib import suppress
from itertools import count
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.client.http import BadAnswer, ClientConnection, HttpResponse
from penstock.client.wire import CONTENT_TYPE, join, pack, split, unpack, unpack_error
from penstock.errors import (
    BadInput,
    BadURL,
    OutcomeUnknown,
    PenstockError,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreUnreachable,
)
from penstock.forking import watch
from penstock.policy import check_count, check_seconds
from penstock.urls import shown as shown_url
from penstock.urls import unreadable

TRIES = 5
STALE = 30.0
"""Seconds after which an idle connection is no longer trusted."""


class Lost(Exception):
    """No answer came, so the request may or may not have been carried out."""

    def __init__(self, text: str, *, again: bool = True) -> None:
        super().__init__(text)
        self.again = again


class Unreached(Exception):
    """There is no connection to the server, so nothing was done."""

    def __init__(self, url: str, error: OSError) -> None:
        super().__init__()
        self.refused = isinstance(error, ConnectionRefusedError)
        told = f"there is no server at {url}: {error.strerror}" if self.refused else f"{url} cannot be reached: {error}"
        self.problem = StoreUnreachable(told)


class Answer(NamedTuple):
    """``more``: the arguments with which to ask for what was left out, because one answer is bounded."""

    value: Any
    more: dict[str, Any] | None


class Line:
    """The connections to one server. Thread-safe: each call has a connection to itself."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        timeout: float,
        cafile: str | None,
        certfile: str | None,
        keyfile: str | None,
        connections: int,
    ) -> None:
        try:
            parts = urlsplit(url)
            self._host, port = (parts.hostname or "").encode("idna").decode(), parts.port
        except ValueError as error:
            raise unreadable(url, error) from None
        if not self._host or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
            raise BadURL(f"URL {parts.scheme}://{self._host}…: write {parts.scheme}://host:port, and the token as an option")
        if not self._host.isprintable() or " " in self._host:
            raise BadURL(f"URL {shown_url(url)}: this is not the name of a host")
        if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise BadURL("token must be printable ASCII text")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._timeout = check_seconds(timeout, "timeout", 0.01, BadURL)
        self._most_idle = check_count(connections, "connections", 1, 100_000, BadURL)
        self._tls = _tls(cafile, certfile, keyfile) if parts.scheme == "https" else None
        self._port = port or (80 if self._tls is None else 443)
        who = f"Authorization: Bearer {token}\r\n" if token else ""
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self._head = f" HTTP/1.1\r\nHost: {shown}{f':{port}' if port else ''}\r\n{who}"
        self._idle: list[tuple[ClientConnection, float]] = []
        self._lock = Lock()
        self._closed = False
        self._process, self._tokens = secrets.token_hex(8), count()
        watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            for connection, _ in self._idle:  # they belong to the parent, and stay open there
                connection.close()
            self._idle.clear()
            self._process = secrets.token_hex(8)
        self._lock.release()

    def new_token(self) -> str:
        """A token that nobody else has. Those that begin with the time are kept near each other, which costs the store less.
        To ask the system for a random number each time would cost a change of threads."""
        return f"{time.time_ns():x}{self._process}{next(self._tokens):x}"

    def call(self, path: str, arguments: dict[str, Any], *, again: bool, changes: bool, wait: float = 0) -> Any:
        """The value of the answer.

        ``again``: the request may be repeated. ``changes``: a lost answer is an `OutcomeUnknown`."""
        return self.look(path, arguments, again=again, changes=changes, wait=wait).value

    def look(
        self,
        path: str,
        arguments: dict[str, Any],
        *,
        again: bool = True,
        changes: bool = False,
        wait: float = 0,
        accept: str | None = None,
    ) -> Answer:
        """The value of an answer that may be a part; its bytes if ``accept`` names another content type."""
        bodies: list[bytes] = []
        packed = join({"arguments": {name: pack(value, bodies) for name, value in arguments.items()}}, bodies)
        asked = "" if accept is None else f"Accept: {accept}\r\n"
        return self._call(path, packed, CONTENT_TYPE, again, changes, wait, accept, asked)

    def put(self, path: str, body: bytes) -> None:
        """Send raw bytes; sending them twice is safe."""
        self._call(path, [body], "application/octet-stream", True, True, 0, None, "")

    def _call(
        self,
        path: str,
        parts: list[bytes],
        content_type: str,
        again: bool,
        changes: bool,
        wait: float,
        accept: str | None,
        more_headers: str,
    ) -> Answer:
        length = sum(map(len, parts))
        about = f"{more_headers}Content-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
        request = b"".join((f"POST {path}{self._head}{about}".encode("ascii"), *parts))
        problem: PenstockError
        lost: Lost | None = None  # the server may have carried out an earlier attempt, whatever happens to this one
        for attempt in range(TRIES):
            try:
                response = self._ask(request, self._timeout + wait)
                if response.status == 200:
                    return _read(response, accept)
                told = _told(response.body)
                problem = unpack_error(told) or _foreign(self.url, response.status, told)
                more = isinstance(problem, StoreBusy) and again
            except Unreached as error:
                problem = error.problem
                more = again or error.refused
            except Lost as error:
                problem, lost = (StoreUnreachable if error.again else StoreError)(f"{self.url} {error}"), error
                more = again and error.again
            if not more or attempt == TRIES - 1:
                break
            time.sleep(0.05 * 2**attempt * (1 + secrets.randbelow(100) / 100))
        if lost is not None and changes and isinstance(problem, StoreError):
            first = f"{self.url} {lost}"
            told = first if str(problem) == first else f"{first}, and later: {problem}"
            raise OutcomeUnknown(f"{told}; whether it was done is unknown") from lost
        raise problem from lost

    def _ask(self, request: bytes, timeout: float) -> HttpResponse:
        connection = self._take(timeout)
        try:
            response = connection.ask(request, timeout)
        except (OSError, BadAnswer) as error:
            connection.close()
            raise Lost(f"gave no answer ({type(error).__name__}: {error})") from error
        except BaseException:  # an interrupt: the answer is still to come, and the next request must not take it for its own
            connection.close()
            raise
        if connection.keeps:
            self._give(connection)
        else:
            connection.close()
        return response

    def _take(self, timeout: float) -> ClientConnection:
        while True:
            with self._lock:
                if self._closed:
                    raise StoreClosed(f"the connection to {self.url} was closed")
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                break
            connection, since = idle
            if time.monotonic() - since < STALE and connection.rests():
                return connection
            connection.close()
        try:
            return ClientConnection(self._host, self._port, timeout, self._tls)
        except OSError as error:
            raise Unreached(self.url, error) from error

    def _give(self, connection: ClientConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < self._most_idle:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            with suppress(OSError):
                connection.close()


def _read(response: HttpResponse, accept: str | None) -> Answer:
    kind = response.headers.get(b"content-type", b"").decode("latin-1")
    try:
        if accept is not None and kind == accept:
            more = response.headers.get(b"penstock-more")
            return Answer(response.body, None if more is None else dict(json.loads(more)))
        if accept is None and kind in (CONTENT_TYPE, "application/json"):
            head, bodies = split(response.body) if kind == CONTENT_TYPE else (response.body, None)
            told = json.loads(head.decode())
            value = unpack(told["answer"], bodies)
            if bodies is not None:
                bodies.check()
            more = told.get("more")
            return Answer(value, None if more is None else dict(more))
    except (TypeError, KeyError, ValueError, RecursionError):
        pass
    raise Lost("did not answer like a Penstock server", again=False)


def _told(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _tls(cafile: str | None, certfile: str | None, keyfile: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=cafile)
    except (OSError, TypeError) as error:
        raise BadURL(f"cafile {cafile!r:.200} cannot be read: {error}") from None
    if certfile is not None:
        try:
            context.load_cert_chain(certfile, keyfile)
        except (OSError, TypeError) as error:
            raise BadURL(f"certfile {certfile!r:.200} and keyfile {keyfile!r:.200} cannot be used: {error}") from None
    return context


def _foreign(url: str, status: int, answer: Any) -> PenstockError:
    text = answer.get("error") if isinstance(answer, dict) else None
    if status in (401, 403):
        return BadInput(f"{url} refuses: {text}")
    if status in (429, 503):
        return StoreBusy(f"{url} is busy: {text}")
    if status >= 500:  # from a proxy, or from a server that failed halfway
        raise Lost(f"answered {status}: {text or 'no Penstock server said so'}")
    return StoreError(f"{url} answered {status}: {text or 'this is not a Penstock server'}")
