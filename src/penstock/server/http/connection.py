"""One client's connection: moves bytes between its socket and its `Conversation`, runs the handlers, and watches the clock.

    reads ──► Conversation ──► Serving ──► writes as much as the kernel takes, the rest when it takes more ──► reads
      │                           │          │
      │                           │          └ no byte leaves for read_timeout: cut
      │                           └ request_timeout: 503 if the store has not begun; else answered late
      └ the first request, or the rest of one: read_timeout; between requests: idle_timeout

An answer with a feed goes on until the feed, the client or the server ends it. Only a client that stops taking it is cut.

If the kernel does not get an answer whole, its client has not heard it, and what was claimed for it is given back.
"""

from __future__ import annotations

import asyncio
import logging
import select
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from penstock.server.http.conversation import BODY, HEAD, IDLE, Continue, Conversation, Refusal
from penstock.server.http.open_connections import Connections
from penstock.server.http.request_response import NOBODY, Feed, Refused, Request, Response
from penstock.server.http.serving import Serving

logger = logging.getLogger("penstock.server")

LINGER = 1.0
"""Seconds that a client has to read the last answer before its connection is closed. If it were closed with bytes unread, the
kernel would discard the answer too."""
PART = 64 * 1024
"""Bytes that are handed to the transport at once, since it copies what the kernel does not take."""


class Connection(asyncio.BufferedProtocol):
    """Owns a socket, the handler that runs for it, and the part of an answer that the kernel has not taken."""

    def __init__(self, connections: Connections, address: str) -> None:
        self.address = address
        self._all = connections
        self._loop = connections.loop
        self._handler = connections.handler
        self._settings = connections.handler.settings
        self._talk = Conversation(self._settings, self._handler.budget, self._check)
        self._transport: Any = None
        self._job: Serving | None = None
        self._answering: tuple[Request, Response, float] | None = None
        self._unsent: memoryview | None = None
        self._feed: Feed | None = None
        """Gives the rest of the answer, piece by piece."""
        self._blocked = False
        """The transport holds bytes that the kernel has not taken."""
        self._left = 0
        """Bytes that had not left when the clock was last looked at."""
        self._since = self._loop.time()
        """When what it does now began: nothing, reading, serving, or writing."""
        self._reads = True
        self._lost = False
        self.handshake: asyncio.Task[None] | None = None
        """Sets up the transport; with TLS, that takes the client's help."""
        self.known = False
        """Its client has shown that it may do something here."""
        self.ended = False
        """The client will send nothing more."""

    # the transport's side

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        # Report when the write buffer is empty. (TLS pauses when a buffer reaches the mark, plain sockets when it exceeds it.)
        transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1, low=0)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._lost = True
        self._all.remove(self)
        self._talk.close()
        if self._answering is not None:
            self._end_answer(unheard=self._feed is None)
        self._leave()

    def eof_received(self) -> bool:
        """A client that closes its half may still read an answer. But it looks like a client that is gone, and that must not
        cost a message: a long poll ends, and the messages claimed for it are given back."""
        self._end()
        return bool(self._transport.can_write_eof())  # TLS has no half-close

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        if self._answering is not None:
            self._pump()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._all.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._talk.receive(self._all.buffer[:nbytes])
        if self._job is None and self._answering is None:
            self._go_on()
        elif self._reads and self._talk.full:
            self._reads = False
            self._transport.pause_reading()

    # serving

    def _go_on(self) -> None:
        """Serve what has come. While a request is being served or answered, there is nothing to do."""
        phase = self._talk.phase
        event = self._talk.next()
        if isinstance(event, Continue):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            event = self._talk.next()
        if type(event) is Request:
            self._serve(event)
        elif isinstance(event, Refusal):
            self._refuse(event)
        else:
            if phase is IDLE and self._talk.phase is not IDLE:
                self._since = self._loop.time()  # the first bytes of a request have come
            if self._talk.done:
                self._finish()
            if not self._reads and self._job is None and self._answering is None:
                self._reads = True
                self._transport.resume_reading()

    def _check(self, request: Request) -> int:
        request.client = self
        keep = self._handler.check(request)
        if request.grant is not NOBODY:
            self.known = True
        return keep

    def _serve(self, request: Request) -> None:
        self._since = now = self._loop.time()
        self._job = Serving(request, self._handler.handle(request), self._answer, now)
        self._job.go_on()

    def _refuse(self, refusal: Refusal) -> None:
        answer = self._handler.refuse(refusal.request, refusal.error)
        answer.bare = refusal.request.method == "HEAD"
        self._answering = (refusal.request, answer, 0.0)
        self._safely(self._write)

    def _answer(self, response: Response) -> None:
        """The handler has ended."""
        job, self._job = self._job, None
        assert job is not None
        job.request.body = b""
        self.known = self.known or job.request.grant is not NOBODY
        response.bare = job.request.method == "HEAD"
        self._answering = (job.request, response, self._loop.time() - job.started)
        if self._all.held is None:
            self._safely(self._write)
        else:
            self._all.held.append(partial(self._safely, self._write))

    def _safely(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Exception:  # a bug; answers of other clients may come after this one
            logger.exception("a defect in Penstock: an answer cannot be written")
            if self._answering is not None:
                self._end_answer(unheard=True)
            self.abort()

    def _write(self) -> None:
        if self._answering is None:
            return  # the connection was lost before its turn came
        request, response, _ = self._answering
        if response.undo is not None and not self._reads and self._hung_up():
            self.ended = True
        if self._lost or request.unheard or self._transport.is_closing() or (self.ended and response.undo is not None):
            self._end_answer(unheard=True)
            self.abort()
            return
        head = self._talk.answer(response, self._all.date(), stopping=self._handler.stopping)
        body = b"" if response.bare else response.body
        if response.feed is not None and not response.bare:
            self._feed = response.feed
            self._feed.wake = partial(self._safely, self._pump)
        if len(body) <= PART:
            self._transport.write(head + body)
        else:
            self._unsent = memoryview(body)
            self._transport.write(head)
        if self._feed is not None:
            self._left, self._since = -1, self._loop.time()
        elif self._blocked or self._unsent is not None:
            self._recount(request, len(body) + PART, more=response.undo is not None)
            self._left, self._since = -1, self._loop.time()
        self._pump()

    def _recount(self, request: Request, held: int, *, more: bool) -> None:
        """Count what the answer takes until it has left. ``more``: it keeps the messages, which were counted before."""
        if held > request.held:
            self._handler.budget.count(held - request.held)
        elif more:
            return
        else:
            self._handler.budget.give(request.held - held)
        request.held = held

    def _pump(self) -> None:
        """Hand the rest of the answer to the kernel, as much as it takes."""
        while self._unsent is not None and not self._blocked and not self._transport.is_closing():
            part, rest = self._unsent[:PART], self._unsent[PART:]
            self._unsent = rest if rest else None
            self._transport.write(part)
        while self._feed is not None and not self._blocked and not self._transport.is_closing():
            piece = self._feed.take()
            if piece is None:
                return
            self._write_piece(piece)
        if self._transport.is_closing():
            self._end_answer(unheard=self._feed is None)  # the kernel refused some of it
        elif self._unsent is None and not self._blocked:
            self._end_answer(unheard=False)  # the kernel has every byte: as far as we can know, the client got it
            self._talk.answered()
            self._since = self._loop.time()
            if self._talk.waiting:
                self._loop.call_soon(self._go_on)  # give other connections their turn
            elif self._talk.done or self.ended or not self._reads:
                self._go_on()

    def _write_piece(self, piece: bytes) -> None:
        """An empty one is the end: in chunks, an empty chunk says so."""
        assert self._answering is not None
        if not piece:
            self._feed = None
        self._answering[1].fed += len(piece)
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._talk.chunks else piece)

    def _end_answer(self, *, unheard: bool) -> None:
        assert self._answering is not None
        request, response, seconds = self._answering
        self._answering = self._unsent = self._feed = None
        if response.feed is not None:
            response.feed.close()
        if request.held:
            self._handler.budget.give(request.held)
            request.held = 0
        if unheard:
            request.unheard = True
            if response.undo is not None:
                response.undo()
        self._handler.note(request, response, seconds)

    # how it ends

    def _finish(self) -> None:
        """Nothing more will be read, and everything is answered."""
        if self.ended or not self._transport.can_write_eof():
            self._transport.close()
        elif not self._transport.is_closing():
            try:
                self._transport.write_eof()
            except OSError:  # the client has just reset the connection
                self.abort()

    def _end(self) -> None:
        self.ended = True
        self._talk.end()
        if self._job is None and self._answering is None:
            self._go_on()
        elif self._job is not None and self._job.request.resting:
            self._leave()
        elif self._feed is not None:
            self._end_answer(unheard=False)
            self.abort()

    def _leave(self) -> None:
        if self._job is not None:
            self._job.request.unheard = True
            self._job.stop()

    def _hung_up(self) -> bool:
        """Whether the client has closed its half behind bytes that nobody has read yet."""
        with suppress(OSError, ValueError, AttributeError):  # it is closed already; or this system has no POLLRDHUP
            poll = select.poll()
            poll.register(self._transport.get_extra_info("socket"), select.POLLRDHUP)
            return bool(poll.poll(0))
        return False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    # time

    def tick(self, now: float) -> None:
        """Close connections that are too slow; called a few times a second."""
        settings, spent = self._settings, now - self._since
        if self._transport is None or self._transport.is_closing():
            return  # TLS handshakes have a limit of their own
        if not self._reads and not self.ended and self._hung_up():
            self._end()
        elif self._answering is not None:
            self._watch_progress(now)
        elif self._job is not None:
            if self._job.request.resting:
                self._since = now
            elif spent > settings.request_timeout:
                self._job.stop()
        elif self._talk.done:
            if spent > LINGER:
                self._transport.close()
        elif self._talk.phase in (HEAD, BODY):
            if spent > settings.read_timeout:
                self._all.cut += 1
                self._talk.refuse(Refused(408, f"the request did not arrive within {settings.read_timeout} s"))
                self._go_on()
        elif spent > (settings.idle_timeout if self.known else min(settings.idle_timeout, settings.read_timeout)):
            self._transport.close()

    def _watch_progress(self, now: float) -> None:
        """A client may take its answer as slowly as it likes, but it must go on taking it."""
        left = len(self._unsent or b"") + self._transport.get_write_buffer_size() + self._in_kernel()
        if left != self._left or (self._feed is not None and not left):
            self._left, self._since = left, now
        elif now - self._since > self._settings.read_timeout:
            self._all.cut += 1
            self.abort()

    def _in_kernel(self) -> int:
        """Bytes that the kernel has and the client's side has not. It takes more from us only when much of that has left."""
        if sys.platform != "linux":
            return 0
        import fcntl
        import termios

        try:
            answer = fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
        except OSError:
            return 0
        return int(struct.unpack("i", answer)[0])

    @property
    def silent_since(self) -> float | None:
        """Since when nobody knows what its client wants; None if it is known, or is being served."""
        return None if self.known or self._job is not None or self._answering is not None else self._since

    def close_if_idle(self) -> None:
        phase = self._talk.phase
        if self._transport is None:
            self.abort()
        elif self._job is None and (phase is HEAD or (phase is IDLE and not self._talk.waiting)):
            self._transport.close()
        elif self._feed is not None:
            self._end_feed()

    def _end_feed(self) -> None:
        """The server stops. A client that has not taken the last piece learns it from the end of the connection."""
        if self._blocked:
            self._end_answer(unheard=False)
            self.abort()
        else:
            self._write_piece(b"")
            self._pump()
