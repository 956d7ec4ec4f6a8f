"""What a client asks of a server and what it makes of the answers, without I/O: requests, and which of them are repeated.

A verb is a generator. It yields an `Attempt`, and gets the response, or `Lost` or `Unreached` is thrown into it; or a `Pause`.
It returns its answer. `penstock.client.connections` does what it asks for in the caller's thread, `penstock.aio.connections`
in an event loop.
"""

from __future__ import annotations

import json
import secrets
import ssl
import time
from collections.abc import Callable, Generator
from functools import wraps
from itertools import count
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit

from penstock.client.http import HttpResponse
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

Value = TypeVar("Value")
VerbArguments = ParamSpec("VerbArguments")


class Attempt(NamedTuple):
    """Send a request, and wait so many seconds for each part of its answer. ``waits``: it is a long poll."""

    request: bytes
    timeout: float
    waits: bool


class Pause(NamedTuple):
    seconds: float


Asking = Generator[Attempt | Pause, Any, Value]


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


class Follower(Protocol):
    """The connections to a server, which do what a verb asks for."""

    def follow(self, asking: Asking[Any]) -> Any: ...


class Asker(Protocol):
    """What has verbs."""

    @property
    def _line(self) -> Follower: ...


Owner = TypeVar("Owner", bound=Asker)


def asks(
    plan: Callable[Concatenate[Owner, VerbArguments], Asking[Value]],
) -> Callable[Concatenate[Owner, VerbArguments], Value]:
    """A verb, which does what this generator asks for. The generator itself is its ``__wrapped__``."""

    @wraps(plan)
    def act(self: Owner, /, *arguments: VerbArguments.args, **named: VerbArguments.kwargs) -> Value:
        answer: Value = self._line.follow(plan(self, *arguments, **named))
        return answer

    return act


class Calls:
    """The calls of one server: its address, what each request begins with, and the rules for answers. Thread-safe."""

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
            self.host, port = (parts.hostname or "").encode("idna").decode(), parts.port
        except ValueError as error:
            raise unreadable(url, error) from None
        if not self.host or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
            raise BadURL(f"URL {parts.scheme}://{self.host}…: write {parts.scheme}://host:port, and the token as an option")
        if not self.host.isprintable() or " " in self.host:
            raise BadURL(f"URL {shown_url(url)}: this is not the name of a host")
        if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable()):
            raise BadURL("token must be printable ASCII text")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._timeout = check_seconds(timeout, "timeout", 0.01, BadURL)
        self.connections = check_count(connections, "connections", 1, 100_000, BadURL)
        self.tls = _tls(cafile, certfile, keyfile) if parts.scheme == "https" else None
        self.port = port or (80 if self.tls is None else 443)
        who = f"Authorization: Bearer {token}\r\n" if token else ""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self._head = f" HTTP/1.1\r\nHost: {shown}{f':{port}' if port else ''}\r\n{who}"
        self._process, self._tokens = secrets.token_hex(8), count()
        watch(self)

    def before_fork(self) -> None:
        pass

    def after_fork(self, *, child: bool) -> None:
        if child:
            self._process = secrets.token_hex(8)

    def new_token(self) -> str:
        """A token that nobody else has. Those that begin with the time are kept near each other, which costs the store less.
        To ask the system for a random number each time would cost a change of threads."""
        return f"{time.time_ns():x}{self._process}{next(self._tokens):x}"

    def closed(self) -> StoreClosed:
        return StoreClosed(f"the connection to {self.url} was closed")

    def call(self, path: str, arguments: dict[str, Any], *, again: bool, changes: bool, wait: float = 0) -> Asking[Any]:
        """The value of the answer.

        ``again``: the request may be repeated. ``changes``: a lost answer is an `OutcomeUnknown`."""
        answer = yield from self.look(path, arguments, again=again, changes=changes, wait=wait)
        return answer.value

    def look(
        self,
        path: str,
        arguments: dict[str, Any],
        *,
        again: bool = True,
        changes: bool = False,
        wait: float = 0,
        accept: str | None = None,
    ) -> Asking[Answer]:
        """The value of an answer that may be a part; its bytes if ``accept`` names another content type."""
        bodies: list[bytes] = []
        packed = join({"arguments": {name: pack(value, bodies) for name, value in arguments.items()}}, bodies)
        asked = "" if accept is None else f"Accept: {accept}\r\n"
        return (yield from self._call(path, packed, CONTENT_TYPE, again, changes, wait, accept, asked))

    def put(self, path: str, body: bytes) -> Asking[None]:
        """Send raw bytes; sending them twice is safe."""
        yield from self._call(path, [body], "application/octet-stream", True, True, 0, None, "")

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
    ) -> Asking[Answer]:
        length = sum(map(len, parts))
        about = f"{more_headers}Content-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
        request = b"".join((f"POST {path}{self._head}{about}".encode("ascii"), *parts))
        problem: PenstockError
        lost: Lost | None = None  # the server may have carried out an earlier attempt, whatever happens to this one
        for attempt in range(TRIES):
            try:
                response = yield Attempt(request, self._timeout + wait, wait > 0)
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
            yield Pause(0.05 * 2**attempt * (1 + secrets.randbelow(100) / 100))
        if lost is not None and changes and isinstance(problem, StoreError):
            first = f"{self.url} {lost}"
            told = first if str(problem) == first else f"{first}, and later: {problem}"
            raise OutcomeUnknown(f"{told}; whether it was done is unknown") from lost
        raise problem from lost


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
