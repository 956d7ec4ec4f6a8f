"""What a client says on one connection, and what it is answered: HTTP/1.1 as a state machine without I/O.

Bytes go in (`receive`, `end`), and requests and refusals come out (`next`), one at a time, in order. Answers go in (`answer`),
their heads come out, and `answered` says that they have left.

      ┌──────────────────── answered ──────────────────┐
      ▼                                                │
    IDLE ──bytes──► HEAD ──► BODY ──the whole body──► SERVED
      │               │        │                       │
      │ end           └────┬───┘                       │ answered; it was the last
      │                    │ malformed, not allowed,   │
      │                    ▼ too large, too slow, cut  │
      │                 REFUSED ──answered──┐          │
      └──────────────────────────────────► DONE ◄──────┘

The law:
* REFUSED and DONE are final. Whatever arrives then is dropped unread.
* A request is looked at only after the one before it has been answered. So nothing behind a refused request is ever executed.
* How the bytes are cut into pieces makes no difference.
* What is held is bounded (a head, the part of a body that is kept, and `AHEAD` bytes behind them) and counted in the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from io import BytesIO
from typing import Protocol

from penstock.server.budget import Budget
from penstock.server.http.chunks import Chunks
from penstock.server.http.head import CHUNKED, IMPLAUSIBLE, read_fields, read_line
from penstock.server.http.request_response import NOBODY, Refused, Request, Response, render

AHEAD = 64 * 1024
"""How many bytes a client may send before it is answered; then nobody reads on."""
OVERHEAD = 1024
"""What a request costs beside its bytes, about."""


class Phase(Enum):
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    SERVED = auto()
    REFUSED = auto()
    DONE = auto()


IDLE, HEAD, BODY, SERVED, REFUSED, DONE = Phase
"""Plain names: in Python 3.11 each use of an enum's member is a function call, and a request would make ten."""


class ConversationLimits(Protocol):
    @property
    def max_head(self) -> int: ...
    @property
    def max_body(self) -> int: ...


def unread() -> Request:
    """What the log shows of a request whose head could not be read."""
    return Request("?", ("?",), "", {}, b"", 0, NOBODY)


@dataclass(frozen=True, slots=True)
class Refusal:
    request: Request
    error: Refused


class Continue:
    """The client waits for permission to send its body."""


CONTINUE = Continue()
Event = Request | Refusal | Continue


class Conversation:
    """Owns the bytes that one client has sent and that no request holds yet, and counts them in the budget."""

    def __init__(self, limits: ConversationLimits, budget: Budget, admit: Callable[[Request], int]) -> None:
        """``admit`` looks at a request's head. It says how many bytes of the body to keep, or raises `Refused`."""
        self._limits = limits
        self._budget = budget
        self._admit = admit
        self.phase = IDLE
        self._ahead = b""
        self._body: bytes | BytesIO = b""
        """What has come of the body; pieces are gathered in a buffer that becomes the whole without a copy."""
        self._kept = 0
        """Its bytes."""
        self._held = 0
        """Bytes counted for the two above."""
        self._ended = False
        self._refused: Refused | None = None

    @property
    def full(self) -> bool:
        """Enough has come; nothing more needs to be read until `next` has used it."""
        return len(self._ahead) >= AHEAD

    @property
    def waiting(self) -> bool:
        """Something has come that `next` has not looked at."""
        return bool(self._ahead)

    @property
    def done(self) -> bool:
        return self.phase is DONE

    def receive(self, data: bytes | memoryview) -> None:
        if self.phase is REFUSED or self.phase is DONE or self._refused is not None:
            return
        self._ahead = self._ahead + data if self._ahead else bytes(data)
        if self.phase is SERVED:
            try:
                self._count()
            except Refused as refusal:
                self.refuse(refusal)

    def end(self) -> None:
        """The client will send nothing more."""
        self._ended = True

    def refuse(self, refusal: Refused) -> None:
        """`next` returns this refusal in place of whatever has come and is not served, and then nothing more."""
        if self.phase is not REFUSED and self.phase is not DONE and self._refused is None:
            self._refused = refusal
            self._forget()

    def close(self) -> None:
        """The connection is gone."""
        self.phase = DONE
        self._forget()

    def next(self) -> Event | None:
        """The next request, or a refusal. None: nothing more before more bytes come, or before the last one is answered."""
        if self.phase is SERVED or self.phase is REFUSED or self.phase is DONE:
            return None
        try:
            if self._refused is not None:
                raise self._refused
            if self.phase is not BODY and self._read_head():
                return CONTINUE
            if self.phase is BODY and self._read_body():
                return self._whole()
            if self._ended:
                if self.phase is IDLE:
                    self.phase = DONE
                    return None
                raise Refused(400, "the request ends in the middle")
            if self._held or self._ahead or self._kept:
                self._count()
        except Refused as refusal:
            request = unread() if self.phase is IDLE or self.phase is HEAD else self._request
            self.phase = REFUSED
            self._forget()
            return Refusal(request, refusal)
        return None

    def answer(self, response: Response, date: str, *, stopping: bool) -> bytes:
        """The head of an answer to the request or refusal that `next` returned last."""
        self._last = self.phase is REFUSED or not self._keep_alive or response.close or stopping or response.feed is not None
        return render(response, keep_alive=not self._last, date=date, chunked=self.chunks)

    def answered(self) -> None:
        """The answer has left."""
        self.phase = DONE if self._last else IDLE
        if self._last:
            self._forget()

    # reading

    _request = unread()
    _keep_alive = _last = False
    chunks = False
    """The client understands an answer in chunks: it speaks HTTP/1.1."""

    def _read_head(self) -> bool:
        """Read the head if it has come; then the phase is BODY. Returns whether the client waits for 100 Continue."""
        data = self._ahead
        empty = 0
        while data.startswith(b"\r\n", empty):  # some clients send an empty line behind a body
            empty += 2
        if empty:
            data = self._ahead = data[empty:]
        if not data or data == b"\r":
            return False
        self.phase = HEAD
        most = self._limits.max_head
        end = data.find(b"\r\n\r\n", 0, most)
        if end < 0:
            if IMPLAUSIBLE.search(data[:most]):
                raise Refused(400, "malformed request: this is not the head of one")
            if len(data) > most:
                raise Refused(431, f"the head of the request has more than {most} bytes")
            return False
        line_end = data.find(b"\r\n")
        line = read_line(data[:line_end])
        self._request = request = Request(line.method, line.segments, line.query, {}, b"", 0, NOBODY, raw_path=line.raw_path)
        self.chunks = line.version == b"1.1"
        self.phase = BODY  # from here on, a refusal names the request
        fields = read_fields(data[line_end + 2 : end + 2], line.version)
        request.headers = fields.headers
        if fields.length > self._limits.max_body:
            raise Refused(413, f"the body has more than {self._limits.max_body} bytes, the limit")
        self._keep = self._admit(request)
        self._keep_alive = fields.keep_alive
        self._head_size = end + 4
        self._ahead = data[end + 4 :]
        self._body, self._kept = b"", 0
        self._left = fields.length
        self._chunks = Chunks(self._limits.max_body, most) if fields.length == CHUNKED else None
        return fields.expects

    def _read_body(self) -> bool:
        """Take what has come of the body; True if that was the last of it."""
        if self._chunks is not None:
            piece, self._ahead = self._chunks.read(self._ahead)
            done = self._chunks.done
        else:
            piece, self._ahead = self._ahead[: self._left], self._ahead[self._left :]
            self._left -= len(piece)
            done = not self._left
        self._request.length += len(piece)
        kept = piece[: self._keep - self._kept]
        if not self._kept:
            self._body = kept
        elif kept:
            if isinstance(self._body, bytes):
                first, self._body = self._body, BytesIO()
                self._body.write(first)
            self._body.write(kept)
        self._kept += len(kept)
        return done

    def _whole(self) -> Request:
        request = self._request
        ahead = len(self._ahead)
        cost = OVERHEAD + self._head_size + self._kept
        if cost + ahead >= self._held:
            self._budget.take(cost + ahead - self._held)
        else:
            self._budget.give(self._held - cost - ahead)
        request.held, self._held = cost, ahead
        request.body = self._body if isinstance(self._body, bytes) else self._body.getvalue()
        del self._request  # the budget counts it as long as it is served, and the next one may come much later
        self._body, self._kept = b"", 0
        self.phase = SERVED
        return request

    def _count(self) -> None:
        """Count what is held, once for all that came together."""
        held = len(self._ahead) + self._kept
        if held > self._held:
            self._budget.take(held - self._held)
        else:
            self._budget.give(self._held - held)
        self._held = held

    def _forget(self) -> None:
        self._ahead = self._body = b""
        self._kept = 0
        self._count()
