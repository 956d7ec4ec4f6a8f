"""The values that travel through the server: a request, what its sender may do, the response, and a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

from penstock.bridge.performing import TurnedAway
from penstock.errors import BadInput

REASONS = {status.value: status.phrase for status in HTTPStatus}
LEFT = 499
"""The status, in the log and the metrics, of a request that was not begun because its client had left."""
JSON = "application/json"


class Refused(TurnedAway):
    """A request that is answered with an error before, or instead of, a call of the queue."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


class Scope(StrEnum):
    """count: settings and numbers of messages; read: the messages too; send; receive: take and settle; admin: create, change,
    purge and delete queues. A token that may read may count."""

    COUNT = "count"
    READ = "read"
    SEND = "send"
    RECEIVE = "receive"
    ADMIN = "admin"


def _limit(help: str) -> Any:
    return field(default=None, metadata={"help": help})


@dataclass(frozen=True, slots=True)
class Limits:
    """What the clients of one token may use together; None: as much as there is."""

    max_rate: float | None = _limit("requests a second, and as many at once; more give 429")
    max_byte_rate: float | None = _limit("bytes of requests' bodies a second; more give 429")
    max_connections: int | None = _limit("open connections; more give 429")
    max_queues: int | None = _limit("queues whose names match `queues`; it creates no more")
    max_messages: int | None = _limit("messages in these queues; it sends no more")
    max_in_flight: int | None = _limit("messages of these queues that are received and not settled; it receives no more")


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Grant:
    """What the sender of a request may do."""

    name: str
    scopes: frozenset[Scope] = frozenset()
    queues: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    dialects: frozenset[str] = frozenset()
    """Empty: any."""
    keys: tuple[bytes, ...] = field(default=(), repr=False, compare=False)
    """The digests of the token's secrets, the newest last; none if the server has no tokens."""
    account: str = ""
    """The account of an SQS key; empty: the server's own."""

    def knows(self, queue: str) -> bool:
        """Whether the sender may know that there is such a queue."""
        return "*" in self.queues or any(fnmatchcase(queue, pattern) for pattern in self.queues)

    def allows(self, scope: Scope, queue: str) -> bool:
        return scope in self.scopes and self.knows(queue)

    def allows_all(self, scope: Scope) -> bool:
        return scope in self.scopes and "*" in self.queues

    def check(self, scope: Scope, queue: str) -> None:
        if not self.allows(scope, queue):
            raise Refused(403, f"this token may not {scope} on queue {queue!r:.200}")


NOBODY = Grant("")
EVERYTHING = Grant("", frozenset(Scope), ("*",))


@dataclass(slots=True)
class Request:
    """``body`` holds the part of ``length`` bytes that was kept. Header names are in lower case; segments are decoded."""

    method: str
    segments: tuple[str, ...]
    query: str
    headers: Mapping[str, str]
    body: bytes
    length: int
    grant: Grant
    resting: bool = False
    """It waits in a long poll, which ends if its client disconnects."""
    queue: str = ""
    """The queue that it is about, for the log and the metrics."""
    client: object = None
    """The connection on which it came."""
    held: int = 0
    """Bytes that the budget counts for it until it is answered."""
    copies: int = 1
    """How often memory has the bytes of a message that it receives: in the message, and in the answer."""
    unheard: bool = False
    """Its client has left, so that nobody hears the answer."""
    raw_path: str = ""
    """As it was sent, still encoded."""
    prove: Callable[[str], Grant] | None = None
    """What its sender may do is known only with the whole body, which it has signed: given the body's SHA-256 in hexadecimal,
    this returns it, or raises `Refused`."""

    deed: str = ""
    """What it changes, for the audit."""
    facts: dict[str, Any] | None = None
    """More for the audit."""
    still: Callable[[], bool] | None = None
    """Whether what its sender showed still counts; None: always. An answer without an end asks now and then."""

    @property
    def path(self) -> str:
        return "/" + "/".join(self.segments)


class Feed(Protocol):
    """The body of an answer that goes on. Its connection asks for the next piece when the client has taken the last one, so
    that a slow client gets fewer pieces and holds no backlog. Used in the event loop only."""

    wake: Callable[[], None]
    """Set by the connection: tells it that there is a piece again."""

    def take(self) -> bytes | None:
        """The next piece, of at most `PIECE` bytes; None: nothing now; empty: this is the end."""

    def close(self) -> None:
        """The answer has ended, or its client has left."""


PIECE = 64 * 1024


@dataclass(slots=True)
class Response:
    """``undo`` gives back what was claimed for this response if it never reaches the client."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    undo: Callable[[], None] | None = None
    close: bool = False
    bare: bool = False
    """It answers HEAD, so its body is not sent: the client would take it for the next answer."""
    cause: str = ""
    """How the store failed, for the log."""
    feed: Feed | None = None
    """In place of the body: what it gives is sent as it comes, until it ends, and then the connection is closed."""
    fed: int = 0
    """Bytes that it has given."""


def read_json(body: bytes) -> Any:
    """Parse JSON; `BadInput` if that fails."""
    try:
        return json.loads(body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise BadInput("the body is not JSON") from None
    except ValueError:  # Python refuses to parse integers that long
        raise BadInput("the body contains a number with thousands of digits") from None


def answer_json(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(status, {"Content-Type": JSON, **(headers or {})}, json.dumps(value).encode() + b"\n")


def answer_error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return answer_json(status, {"error": text}, headers)


@lru_cache(maxsize=64)
def _begin(status: int, date: str) -> str:
    return f"HTTP/1.1 {status} {REASONS[status]}\r\nDate: {date}\r\n"


def render(response: Response, *, keep_alive: bool, date: str, chunked: bool = False) -> bytes:
    """The head of an answer. ``chunked``: its feed comes in chunks; otherwise, it ends with the connection."""
    head = _begin(response.status, date)
    for name, value in response.headers.items():
        head += f"{name}: {value}\r\n"
    lines = 2 + len(response.headers)
    if head.count("\n") != lines or head.count("\r") != lines or "\0" in head:
        raise ValueError("a header has a line break")  # no name, id or content type may inject headers
    if response.feed is not None:
        head += "Transfer-Encoding: chunked\r\n" if chunked else ""
    elif response.status not in (204, 304):
        head += f"Content-Length: {len(response.body)}\r\n"
    if not keep_alive:
        head += "Connection: close\r\n"
    return f"{head}\r\n".encode("latin-1")
