"""multipart/mixed, both ways: several messages in one body, each byte for byte.

--boundary CRLF headers CRLF CRLF body CRLF --boundary … CRLF --boundary--
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from penstock.errors import BadMessage

BOUNDARY = re.compile(r'multipart/mixed\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))\s*(?:;.*)?', re.IGNORECASE)
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t\x80-\xff]*?)[ \t]*")
MAX_PART_HEAD = 4096


@dataclass(frozen=True, slots=True)
class Part:
    headers: dict[str, str]
    body: bytes


@lru_cache(maxsize=256)
def boundary_of(content_type: str) -> bytes | None:
    """The boundary; None for any other type. A multipart type without a boundary is malformed."""
    if not content_type.lower().startswith("multipart/mixed"):
        return None
    found = BOUNDARY.fullmatch(content_type)
    text = (found[1] or found[2]) if found else ""
    return text.encode("latin-1")


def split_parts(body: bytes, boundary: bytes) -> list[Part]:
    if not boundary:
        raise BadMessage("multipart/mixed needs a boundary of 1 to 70 characters")
    mark = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(mark)
    if len(pieces) < 3 or pieces[0].strip() or not pieces[-1].startswith(b"--"):
        raise BadMessage(f"the body does not begin with --{boundary.decode('latin-1')} and end with the same and --")
    return [_read_part(piece, number) for number, piece in enumerate(pieces[1:-1], 1)]


def _read_part(piece: bytes, number: int) -> Part:
    start, line_end, rest = piece.partition(b"\r\n")
    if start.strip() or not line_end:
        raise BadMessage(f"part {number}: its boundary is not alone on its line")
    if rest.startswith(b"\r\n"):
        return Part({}, rest[2:])
    head, end, content = rest.partition(b"\r\n\r\n")
    if not end or len(head) > MAX_PART_HEAD:
        raise BadMessage(f"part {number}: its headers do not end within {MAX_PART_HEAD} bytes")
    headers: dict[str, str] = {}
    for line in head.split(b"\r\n"):
        found = HEADER.fullmatch(line)
        if not found:
            raise BadMessage(f"part {number}: {line[:80]!r} is not a header")
        headers[found[1].decode("ascii").lower()] = found[2].decode("latin-1")
    return Part(headers, content)


def join_parts(parts: Sequence[tuple[dict[str, str], bytes]]) -> tuple[str, bytes]:
    """The content type and the body."""
    boundary = secrets.token_hex(16)
    pieces: list[bytes] = []
    for headers, body in parts:
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        pieces += [f"--{boundary}\r\n{head}\r\n".encode("latin-1"), body, b"\r\n"]
    return f'multipart/mixed; boundary="{boundary}"', b"".join([*pieces, f"--{boundary}--\r\n".encode()])
