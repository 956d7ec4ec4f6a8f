"""The head of a request: its first line and plain header fields, which this file reads, and all other header fields, which
httptools' strict parser reads.

Clients repeat themselves, so short lines and blocks of fields are remembered; what is remembered is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

import httptools

from penstock.server.http.request_response import Refused

MAX_HEADERS = 100
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "QUERY"})
"""Other names would each get a line in the metrics."""
CHUNKED = -1
"""The length of a body that comes in chunks."""
SHORT_LINE, SHORT_BLOCK = 256, 2048
"""Only so many bytes are remembered: 256 of each are 2 MB at most, with what is made of them."""
SHORT_FIELD, MOST_FIELDS = 160, 1000
"""The same for single fields, at 0.5 MB."""
PLAIN = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")
FRAMING = frozenset({"transfer-encoding", "upgrade"})
"""What these say depends on other fields; the parser knows how."""
LINE = re.compile(rb"([A-Z]{1,20}) ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
IMPLAUSIBLE = re.compile(rb"\A[^A-Z]|(?<!\r)\n|\r(?!\n|\Z)")
"""Found in bytes that cannot become a head, whatever follows. No head has a bare CR or LF."""
BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")


@dataclass(frozen=True, slots=True)
class RequestLine:
    method: str
    segments: tuple[str, ...]
    query: str
    version: bytes
    raw_path: str
    """As it was sent, still encoded."""


@dataclass(frozen=True, slots=True)
class Fields:
    """``headers`` by names in lower case; those that came several times are joined with commas."""

    headers: Mapping[str, str]
    length: int
    """Of the body, or `CHUNKED`."""
    expects: bool
    """The client waits for 100 Continue before it sends the body."""
    keep_alive: bool


def read_line(line: bytes) -> RequestLine:
    return _short_line(line) if len(line) <= SHORT_LINE else _read_line(line)


def _read_line(line: bytes) -> RequestLine:
    found = LINE.fullmatch(line)
    if found is None:
        raise Refused(400, f"malformed request: {line[:80]!r} is not a method, a target and a version")
    version = found[3] + b"." + found[4]
    if version not in (b"1.0", b"1.1"):
        raise Refused(505, f"HTTP {version.decode()} is not spoken here")
    method = found[1].decode()
    if method not in METHODS:
        raise Refused(501, f"there is no method {method}")
    try:
        raw_path, query = split_target(found[2])
        segments = split_path(raw_path)
    except ValueError:
        raise Refused(400, "the target of the request cannot be read") from None
    return RequestLine(method, segments, query, version, raw_path)


def split_target(target: bytes) -> tuple[str, str]:
    """The path of a request, still encoded, and its query."""
    text = target.decode("ascii", "strict")
    if not text.startswith("/"):
        scheme, mark, rest = text.partition("://")
        host, _, path = rest.partition("/")
        if not mark or scheme.lower() not in ("http", "https") or not host:
            raise ValueError("the target of a request is a path")
        text = f"/{path}"
    path, _, query = text.partition("?")
    return path, query


def split_path(path: str) -> tuple[str, ...]:
    """Its decoded segments; an encoded slash (%2F) stays within its segment."""
    segments = path[1:].split("/")
    return tuple(segments if "%" not in path else (unquote(segment, errors="strict") for segment in segments))


def read_fields(block: bytes, version: bytes) -> Fields:
    return _short_block(block, version) if len(block) <= SHORT_BLOCK else _read_fields(block, version)


def _read_fields(block: bytes, version: bytes) -> Fields:
    """``block`` is every line of a head but the first, with their ends."""
    headers: dict[str, str] = {}
    fields = _read_plain(block, version)
    if len(fields) > MAX_HEADERS:
        raise Refused(431, f"the request has more than {MAX_HEADERS} headers")
    for key, value in fields:
        if key not in headers:
            headers[key] = value
        elif key == "host":
            raise Refused(400, "there are two Host headers")
        else:
            headers[key] += ", " + value
    if version == b"1.1" and "host" not in headers:
        raise Refused(400, "there is no Host header")
    expected = headers.get("expect")
    if expected is not None and expected.lower() != "100-continue":
        raise Refused(417, "the only expectation that is met is 100-continue")
    length = _length(headers)
    words = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    keep_alive = "close" not in words if version == b"1.1" else "keep-alive" in words and length != CHUNKED
    return Fields(headers, length, expected is not None and version == b"1.1" and length != 0, keep_alive)


def _length(headers: Mapping[str, str]) -> int:
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is None:
        if length is None:
            return 0
        if not (length.isascii() and length.isdecimal() and len(length) < 20):
            raise Refused(400, f"Content-Length {length!r:.80} is not a number")
        return int(length)
    if length is not None:
        raise Refused(400, "a request has either Content-Length or Transfer-Encoding")
    if coding.lower() != "chunked":
        raise Refused(501, f"Transfer-Encoding {coding!r:.80} is not understood, only chunked")
    return CHUNKED


class _Lines:
    """What httptools calls."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        self.whole = True


def _read_plain(block: bytes, version: bytes) -> list[tuple[str, str]]:
    """The fields of a block. Lines that can be read in one way only need no parser, and most of them were seen before: in a
    signed request all but two or three."""
    fields = []
    lines = block.split(b"\r\n")
    del lines[-1]
    for line in lines:
        field = _known.get(line)
        if field is None:
            found = PLAIN.fullmatch(line)
            if found is None:
                return _parse(block, version)
            field = (found[1].decode().lower(), found[2].decode())
            if field[0] in FRAMING:
                return _parse(block, version)
            if len(line) <= SHORT_FIELD:
                if len(_known) >= MOST_FIELDS:
                    _known.clear()
                _known[line] = field
        fields.append(field)
    return fields


def _parse(block: bytes, version: bytes) -> list[tuple[str, str]]:
    if BARE.search(block):
        raise Refused(400, "malformed request: a line of its head ends with a bare CR or LF")
    lines = _Lines()
    try:
        httptools.HttpRequestParser(lines).feed_data(b"POST / HTTP/%b\r\n%b\r\n" % (version, block))
    except httptools.HttpParserUpgrade:
        pass  # an upgrade is not taken, and the request is served
    except httptools.HttpParserError as error:
        raise Refused(400, f"malformed request: {error}") from None
    if not lines.whole:
        raise Refused(400, "malformed request: its head does not end")
    return [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in lines.fields]


_known: dict[bytes, tuple[str, str]] = {}
_short_line = lru_cache(maxsize=256)(_read_line)
_short_block = lru_cache(maxsize=256)(_read_fields)
