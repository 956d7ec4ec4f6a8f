"""A body in chunks: size CRLF data CRLF … 0 CRLF trailers CRLF. Extensions and trailers are checked and dropped."""

from __future__ import annotations

import re
from enum import Enum, auto

from penstock.server.http.request_response import Refused

MOST_CHUNKS = 100_000
"""Of one body. Each costs a microsecond, however short it is."""
TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;%b(?:=%b)?)*" % (TOKEN, TOKEN))
TRAILER = re.compile(rb"%b:[\t\x20-\x7e\x80-\xff]*" % TOKEN)
START_OF_SIZE = re.compile(rb"(?:[0-9A-Fa-f]{1,8}(?:;(?:%b(?:=(?:%b)?)?)?)*)?\r?" % (TOKEN, TOKEN))
START_OF_TRAILER = re.compile(rb"(?:%b(?::[\t\x20-\x7e\x80-\xff]*)?)?\r?" % TOKEN)
"""What an incomplete line may look like: nobody waits for the rest of a line that is wrong already."""


class ChunkPart(Enum):
    SIZE = auto()
    DATA = auto()
    END_OF_DATA = auto()
    TRAILER = auto()
    DONE = auto()


AT_SIZE, IN_DATA, END_OF_DATA, IN_TRAILERS, DONE = ChunkPart
"""Plain names: in Python 3.11 each use of an enum's member is a function call."""


class Chunks:
    """Give it the bytes that have come, in order; it returns those of the body, and those that it has not used."""

    def __init__(self, most: int, longest_line: int) -> None:
        """``most`` bytes of body; ``longest_line`` of a size with its extension, and of all trailers together."""
        self._most = most
        self._longest = longest_line
        self._part = AT_SIZE
        self._left = self._trailed = self._chunks = self._total = 0

    @property
    def done(self) -> bool:
        return self._part is DONE

    def read(self, data: bytes) -> tuple[bytes, bytes]:
        body, at = bytearray(), 0
        while self._part is not DONE:
            before, part = at, self._part
            if part is IN_DATA:
                piece = data[at : at + self._left]
                body += piece
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._part = END_OF_DATA
            elif part is END_OF_DATA:
                at = self._end_data(data, at)
            else:
                at = self._read_line(data, at)
            if at == before and self._part is part:
                break  # more has to come
        return bytes(body), data[at:]

    def _end_data(self, data: bytes, at: int) -> int:
        end = data[at : at + 2]
        if end == b"\r\n":
            self._part = AT_SIZE
            return at + 2
        if end not in (b"", b"\r"):
            raise Refused(400, f"malformed request: a chunk is followed by {end!r} and not by the end of a line")
        return at

    def _read_line(self, data: bytes, at: int) -> int:
        """Returns where the line ends, or ``at`` if its end has not come."""
        sizes = self._part is AT_SIZE
        room = self._longest - self._trailed
        end = data.find(b"\r\n", at, at + room + 2)
        line = data[at : end if end >= 0 else at + room + 2]
        pattern = (SIZE if sizes else TRAILER) if end >= 0 else (START_OF_SIZE if sizes else START_OF_TRAILER)
        found = pattern.fullmatch(line)
        if found is None and (sizes or line):
            what = "size of a chunk" if sizes else "trailer"
            raise Refused(400, f"malformed request: {line[:80]!r} is not the {what}")
        if end < 0:
            if len(data) - at >= room + 2:
                raise Refused(431, f"what is between or behind the chunks of the body has more than {self._longest} bytes")
            return at
        if sizes:
            assert found is not None
            self._begin(int(found[1], 16))
        elif line:
            self._trailed += len(line) + 2
        else:
            self._part = DONE
        return end + 2

    def _begin(self, size: int) -> None:
        self._chunks += 1
        self._left = size
        self._total += size
        self._part = IN_DATA if size else IN_TRAILERS
        if self._total > self._most:
            raise Refused(413, f"the body has more than {self._most} bytes, the limit")
        if self._chunks > MOST_CHUNKS:
            raise Refused(413, f"the body has more than {MOST_CHUNKS} chunks, the limit")
