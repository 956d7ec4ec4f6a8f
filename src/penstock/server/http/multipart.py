"""multipart/mixed, both ways: several messages in one body, each byte for byte.

--boundary CRLF headers CRLF CRLF body CRLF --boundary … CRLF --boundary--

Each step takes time in proportion to its bytes, whatever they are, and looks at no more parts or headers than are allowed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from penstock.errors import BadMessage

MIXED = "multipart/mixed"
WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
NAME = re.compile(WORD.encode())
PARAMETER = re.compile(rf'[ \t]*;[ \t]*(?:({WORD})=(?:"([^"]*)"|([^\s;,"]*)))?')
READABLE = bytes({*range(256)} - {*range(32), 127} | {9})
"""The bytes that the value of a header may have."""
MAX_CONTENT_TYPE = 255
MAX_PART_HEAD = 4096
MAX_PART_HEADERS = 32


@dataclass(frozen=True, slots=True)
class Part:
    headers: dict[str, str]
    body: bytes


def boundary_of(content_type: str) -> bytes | None:
    """The boundary; None for any other type, and empty if there is none that can be used."""
    if content_type[: len(MIXED)].lower() != MIXED:
        return None
    if len(content_type) > MAX_CONTENT_TYPE:
        return b""
    found: list[str] = []
    place = len(MIXED)
    while parameter := PARAMETER.match(content_type, place):
        place = parameter.end()
        if (parameter[1] or "").lower() == "boundary":
            found.append(parameter[2] or parameter[3] or "")
    usable = not content_type[place:].strip() and len(found) == 1 and len(found[0]) <= 70
    return found[0].encode("latin-1") if usable else b""


def split_parts(body: bytes, boundary: bytes, most: int) -> list[Part]:
    """The parts, at least one and at most so many."""
    if not boundary:
        raise BadMessage(f"{MIXED} needs one boundary of 1 to 70 characters, in at most {MAX_CONTENT_TYPE} in all")
    places = _find_all(body, boundary, most + 2)
    if len(places) > most + 1:
        raise BadMessage(f"there are more than {most} parts, the limit")
    if len(places) < 2 or body[: max(0, places[0][0])].strip() or not body.startswith(b"--", places[-1][1]):
        raise BadMessage(f"the body does not begin with --{boundary.decode('latin-1')} and end with the same and --")
    return [_read_part(body, start, end, number) for number, ((_, start), (end, _)) in enumerate(pairwise(places), 1)]


def _find_all(body: bytes, boundary: bytes, most: int) -> list[tuple[int, int]]:
    """Where the first boundaries begin and end. Each has a line's end before it, but for one at the very beginning."""
    mark = b"\r\n--" + boundary
    places = [(-2, len(mark) - 2)] if body.startswith(mark[2:]) else []
    while len(places) < most and (at := body.find(mark, places[-1][1] if places else 0)) >= 0:
        places.append((at, at + len(mark)))
    return places


def _read_part(body: bytes, start: int, end: int, number: int) -> Part:
    """Only what belongs to the part is copied: a body may have megabytes."""
    line_end = body.find(b"\r\n", start, end)
    if line_end < 0 or body[start:line_end].strip():
        raise BadMessage(f"part {number}: its boundary is not alone on its line")
    head_end = body.find(b"\r\n\r\n", line_end, min(end, line_end + 2 + MAX_PART_HEAD + 4))
    if head_end < 0:
        raise BadMessage(f"part {number}: its headers do not end within {MAX_PART_HEAD} bytes")
    return Part(_read_head(body[line_end + 2 : head_end], number), body[head_end + 4 : end])


def _read_head(head: bytes, number: int) -> dict[str, str]:
    headers: dict[str, str] = {}
    lines = head.split(b"\r\n", MAX_PART_HEADERS) if head else []
    if len(lines) > MAX_PART_HEADERS:
        raise BadMessage(f"part {number}: it has more than {MAX_PART_HEADERS} headers")
    for line in lines:
        given, colon, value = line.partition(b":")
        if not colon or not NAME.fullmatch(given) or value.translate(None, READABLE):
            raise BadMessage(f"part {number}: {line[:80]!r} is not a header")
        name = given.decode("ascii").lower()
        if name in headers:
            raise BadMessage(f"part {number}: it has two headers {name[:80]!r}")
        headers[name] = value.strip(b" \t").decode("latin-1")
    return headers


def join_parts(parts: Sequence[tuple[dict[str, str], bytes]]) -> tuple[str, bytes]:
    """The content type and the body."""
    boundary = secrets.token_hex(16)
    pieces: list[bytes] = []
    for headers, body in parts:
        if any(mark in value for value in headers.values() for mark in "\r\n\0"):
            raise ValueError("a header has a line break")
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        pieces += [f"--{boundary}\r\n{head}\r\n".encode("latin-1"), body, b"\r\n"]
    return f'{MIXED}; boundary="{boundary}"', b"".join([*pieces, f"--{boundary}--\r\n".encode()])
