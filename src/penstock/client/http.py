"""As much of HTTP/1.1 as a client needs: an answer is read strictly and within limits, without I/O; and a connection.

Python's own client parses an answer's head as if it were a mail, which takes longer than all the rest of a request.
"""

from __future__ import annotations

import re
import select
import socket
import ssl
from collections.abc import Generator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

MAX_HEAD = 64 * 1024
MAX_ANSWER = 2**31
"""Bytes of an answer's body. A server bounds its answers by its ``max_body``, which is at most half of this."""
SHORT_HEAD = 1024
"""Bytes of a head that is worth remembering."""
PIECE = 64 * 1024
STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n]*)?")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[^\r\n]*)?")
NO_BODY = (204, 304)

Value = TypeVar("Value")
Reading = Generator[int, bytes, Value]
"""Yields how many bytes it would take, gets some of them, or none if there will be no more, and returns what it has read."""


class BadAnswer(Exception):
    """What came is not an answer in HTTP/1.1, or passes a limit."""


class HttpResponse(NamedTuple):
    status: int
    headers: Mapping[bytes, bytes]
    """Names in lower case."""
    body: bytes


class AnswerHead(NamedTuple):
    """The first line of an answer, which has the last digit of the version, and its headers."""

    version: bytes
    status: int
    headers: Mapping[bytes, bytes]


def _parse(head: bytes) -> AnswerHead:
    first, *lines = head.split(b"\r\n")
    begun = STATUS.fullmatch(first)
    if begun is None:
        raise BadAnswer(f"this is not the status of an answer: {first!r:.80}")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        field = FIELD.fullmatch(line)
        if field is None:
            raise BadAnswer(f"this is not a header of an answer: {line!r:.80}")
        name, value = field[1].lower(), field[2]
        headers[name] = value if name not in headers else b"%b, %b" % (headers[name], value)
    return AnswerHead(begun[1], int(begun[2]), headers)


_parse_again = lru_cache(maxsize=64)(_parse)
"""Most heads of one second are the same."""


class AnswerReader:
    """Reads the answers of one connection, one after the other. Owns what came after the last one."""

    def __init__(self) -> None:
        self._rest = b""
        self.keeps = True
        """Whether the server takes another request on this connection."""

    def read(self) -> Reading[HttpResponse]:
        """Raises `BadAnswer`; after that, nothing can be read from this connection."""
        while True:
            version, status, headers = yield from self._read_head()
            if status >= 200:
                break
        self.keeps = version == b"1" and b"close" not in headers.get(b"connection", b"").lower()
        body = yield from self._read_body(status, headers)
        self.keeps = self.keeps and not self._rest
        return HttpResponse(status, headers, body)

    def _read_head(self) -> Reading[AnswerHead]:
        got = self._rest or (yield PIECE)
        while (end := got.find(b"\r\n\r\n")) < 0 or end > MAX_HEAD:
            if len(got) > MAX_HEAD:
                raise BadAnswer(f"the head of its answer has more than {MAX_HEAD} bytes")
            more = yield PIECE
            if not more:
                raise BadAnswer("the server closed the connection")
            got += more
        self._rest = got[end + 4 :]
        return (_parse_again if end <= SHORT_HEAD else _parse)(got[:end])

    def _read_body(self, status: int, headers: Mapping[bytes, bytes]) -> Reading[bytes]:
        if status in NO_BODY:
            return b""
        length, coding = headers.get(b"content-length"), headers.get(b"transfer-encoding")
        if coding is not None:
            if coding.lower() != b"chunked" or length is not None:
                raise BadAnswer(f"it is unclear where an answer ends: {coding!r:.80}, {length!r:.80}")
            return (yield from self._read_chunks())
        if length is None:
            self.keeps = False
            return (yield from self._read_all())
        if not length.isdigit() or len(length) > 10 or int(length) > MAX_ANSWER:
            raise BadAnswer(f"an answer has {length!r:.80} bytes, the limit is {MAX_ANSWER}")
        return (yield from self._take(int(length)))

    def _read_chunks(self) -> Reading[bytes]:
        """From a proxy: our own server says how long its answers are."""
        chunks: list[bytes] = []
        total = 0
        while True:
            size = SIZE.fullmatch((yield from self._read_line()))
            total += int(size[1], 16) if size else MAX_ANSWER + 1
            if size is None or total > MAX_ANSWER:
                raise BadAnswer(f"a chunk of an answer has no length, or the answer more than {MAX_ANSWER} bytes")
            if int(size[1], 16) == 0:
                break
            chunks.append((yield from self._take(int(size[1], 16))))
            if (yield from self._take(2)) != b"\r\n":
                raise BadAnswer("a chunk of an answer does not end where it should")
        if (yield from self._read_line()):
            raise BadAnswer("there are headers behind an answer")
        return b"".join(chunks)

    def _read_line(self) -> Reading[bytes]:
        while (end := self._rest.find(b"\r\n")) < 0:
            if len(self._rest) > MAX_HEAD:
                raise BadAnswer(f"a line of an answer has more than {MAX_HEAD} bytes")
            self._rest += yield from self._take_more()
        line, self._rest = self._rest[:end], self._rest[end + 2 :]
        return line

    def _take(self, count: int) -> Reading[bytes]:
        got = self._rest
        if len(got) < count:
            parts = [got]
            missing = count - len(got)
            while missing > 0:
                parts.append((yield from self._take_more(missing)))
                missing -= len(parts[-1])
            got = b"".join(parts)
        self._rest = got[count:]
        return got if len(got) == count else got[:count]

    def _take_more(self, missing: int = PIECE) -> Reading[bytes]:
        more = yield min(max(missing, PIECE), 16 * PIECE)
        if not more:
            raise BadAnswer("the server closed the connection in the middle of its answer")
        return more

    def _read_all(self) -> Reading[bytes]:
        parts = [self._rest]
        self._rest = b""
        total = len(parts[0])
        while parts[-1] or len(parts) == 1:
            parts.append((yield PIECE))
            total += len(parts[-1])
            if total > MAX_ANSWER:
                raise BadAnswer(f"an answer has more than {MAX_ANSWER} bytes")
        return b"".join(parts)


class ClientConnection:
    """Owns a socket. One thread uses it at a time; after an error or an interrupt it must be closed."""

    def __init__(self, host: str, port: int, timeout: float, tls: ssl.SSLContext | None) -> None:
        """Raises OSError if there is no connection."""
        plain = socket.create_connection((host, port), timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
        self._timeout = timeout
        self._reader = AnswerReader()
        self._poll = select.poll()  # select() cannot handle descriptors above 1023
        self._poll.register(self._socket, select.POLLIN)

    @property
    def keeps(self) -> bool:
        """Whether the server takes another request on this connection."""
        return self._reader.keeps

    def close(self) -> None:
        self._socket.close()

    def rests(self) -> bool:
        """Whether the connection is idle; if it is readable, the server has closed it."""
        return not self._poll.poll(0)

    def ask(self, request: bytes, timeout: float) -> HttpResponse:
        """Send a request and read its answer. Raises OSError or `BadAnswer`."""
        if timeout != self._timeout:
            self._timeout = timeout
            self._socket.settimeout(timeout)
        self._socket.sendall(request)
        reading = self._reader.read()
        try:
            wanted = next(reading)
            while True:
                wanted = reading.send(self._receive(wanted))
        except StopIteration as end:
            response: HttpResponse = end.value
            return response

    def _receive(self, count: int) -> bytes:
        return self._socket.recv(count)
