"""The connections of a client to its server: pooled, reused, and retried where that is safe."""

from __future__ import annotations

import http.client
import json
import secrets
import select
import ssl
import time
from contextlib import suppress
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from penstock.client.wire import pack, unpack, unpack_error
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
from penstock.policy import check_seconds
from penstock.urls import unreadable

TRIES = 5
MOST_IDLE = 16
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


class Line:
    """The connections to one server. Thread-safe: each call has a connection to itself."""

    def __init__(self, url: str, *, token: str | None, timeout: float, cafile: str | None) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise unreadable(url, error) from None
        if not self._host or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
            raise BadURL(f"URL {parts.scheme}://{self._host}…: write {parts.scheme}://host:port, and the token as an option")
        if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise BadURL("token must be printable ASCII text")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._timeout = check_seconds(timeout, "timeout", 0.01, BadURL)
        try:
            self._tls = ssl.create_default_context(cafile=cafile) if parts.scheme == "https" else None
        except (OSError, TypeError) as error:
            raise BadURL(f"cafile {cafile!r:.200} cannot be read: {error}") from None
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._lock = Lock()
        self._closed = False
        watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            for connection, _ in self._idle:  # they belong to the parent, and stay open there
                connection.close()
            self._idle.clear()
        self._lock.release()

    def call(
        self,
        path: str,
        arguments: dict[str, Any],
        *,
        again: bool,
        changes: bool,
        wait: float = 0,
        accept: str | None = None,
    ) -> Any:
        """The value of the answer, or its bytes if ``accept`` names another content type.

        ``again``: the request may be repeated. ``changes``: a lost answer is an `OutcomeUnknown`."""
        body = json.dumps({"arguments": {name: pack(value) for name, value in arguments.items()}}).encode()
        return self._call(path, body, again=again, changes=changes, wait=wait, accept=accept)

    def put(self, path: str, body: bytes) -> Any:
        """Send raw bytes; sending them twice is safe."""
        return self._call(path, body, again=True, changes=True, wait=0, accept=None)

    def _call(self, path: str, body: bytes, *, again: bool, changes: bool, wait: float, accept: str | None) -> Any:
        problem: PenstockError
        lost: Lost | None = None  # the server may have carried out an earlier attempt, whatever happens to this one
        for attempt in range(TRIES):
            try:
                status, answer = self._ask(path, body, self._timeout + wait, accept)
                if status == 200:
                    return self._read(answer, accept)
                problem = unpack_error(answer) or _foreign(self.url, status, answer)
                more = isinstance(problem, StoreBusy) and again
            except Unreached as error:
                problem = error.problem
                more = again or error.refused
            except Lost as error:
                problem, lost = StoreError(f"{self.url} {error}"), error
                more = again and error.again
            if not more or attempt == TRIES - 1:
                break
            time.sleep(0.05 * 2**attempt * (1 + secrets.randbelow(100) / 100))
        if lost is not None and changes and isinstance(problem, StoreError):
            first = f"{self.url} {lost}"
            told = first if str(problem) == first else f"{first}, and later: {problem}"
            raise OutcomeUnknown(f"{told}; whether it was done is unknown") from lost
        raise problem from lost

    def _read(self, answer: Any, accept: str | None) -> Any:
        try:
            if accept is None:
                return unpack(answer["answer"])
            if isinstance(answer, bytes):
                return answer
        except (TypeError, KeyError, BadInput):
            pass
        raise Lost("did not answer like a Penstock server", again=False)

    def _ask(self, path: str, body: bytes, timeout: float, accept: str | None) -> tuple[int, Any]:
        connection = self._take(timeout)
        try:
            connection.request("POST", path, body, self._headers | ({} if accept is None else {"Accept": accept}))
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Lost(f"gave no answer ({type(error).__name__}: {error})") from error
        if response.will_close:
            connection.close()
        else:
            self._give(connection)
        if response.status == 200 and accept is not None and response.getheader("Content-Type") == accept:
            return response.status, content
        try:
            return response.status, json.loads(content)
        except ValueError:
            return response.status, None

    def _take(self, timeout: float) -> http.client.HTTPConnection:
        while True:
            with self._lock:
                if self._closed:
                    raise StoreClosed(f"the connection to {self.url} was closed")
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                break
            connection, since = idle
            if time.monotonic() - since < STALE and _rests(connection):
                connection.sock.settimeout(timeout)
                return connection
            connection.close()
        if self._tls is not None:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.connect()
        except OSError as error:
            raise Unreached(self.url, error) from error
        return connection

    def _give(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MOST_IDLE:
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


def _rests(connection: http.client.HTTPConnection) -> bool:
    """Whether the connection is idle; if it is readable, the server has closed it."""
    poll = select.poll()  # select() cannot handle descriptors above 1023
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _foreign(url: str, status: int, answer: Any) -> PenstockError:
    text = answer.get("error") if isinstance(answer, dict) else None
    if status in (401, 403):
        return BadInput(f"{url} refuses: {text}")
    if status in (429, 503):
        return StoreBusy(f"{url} is busy: {text}")
    if status >= 500:  # from a proxy, or from a server that failed halfway
        raise Lost(f"answered {status}: {text or 'no Penstock server said so'}")
    return StoreError(f"{url} answered {status}: {text or 'this is not a Penstock server'}")
