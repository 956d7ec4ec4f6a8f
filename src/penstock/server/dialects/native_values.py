"""Requests and answers of Penstock's own dialect: in plain JSON, or in the format of `penstock.client.wire`.

The one place where the server reads and writes values. An answer has the format of its request.
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

from penstock.client.wire import CONTENT_TYPE, LENGTH, Bodies, join, pack, split, unpack
from penstock.errors import BadInput
from penstock.server.http.request_response import JSON, Refused, Request, Response, answer_json, read_json

MAX_VALUES = 1_000_000
"""Values in one request. Python reads that many in a fraction of a second, during which it does nothing else."""
OBJECT, ITEM = 240, 64
"""Bytes in memory, at most, of an empty object or list with its place in another one, and of any other value but long text."""


def weigh(request: Request) -> int:
    """How many bytes the values of a request will have in memory, at most. Raises `Refused` if there are too many values."""
    head, _ = _split(request)
    cut = 0 if head is request.body else len(head)  # the head in our own format is a copy
    return weigh_json(head) + cut + len(request.body) - len(head)


def weigh_json(head: bytes) -> int:
    """How many bytes the values of a JSON text will have in memory, at most. Raises `Refused` if there are too many."""
    nested, others = head.count(b"{") + head.count(b"["), head.count(b",") + head.count(b":")
    if nested + others > MAX_VALUES:
        raise Refused(413, f"there may be {nested + others} values in the body, the limit is {MAX_VALUES}")
    # Text is decoded as a whole and then in parts; one unusual character makes Python use four bytes for each.
    plain = head.isascii() and (b"\\" not in head or b"\\u" not in head)  # one byte is looked for far faster than two
    wide = 2 if plain else 8
    return nested * OBJECT + others * ITEM + len(head) * wide


def read_arguments(request: Request) -> dict[str, Any]:
    head, bodies = _split(request)
    given = read_json(head)
    if not isinstance(given, dict) or given.keys() != {"arguments"} or not isinstance(given["arguments"], dict):
        raise BadInput('the body must be {"arguments": {name: value}}')
    arguments = {name: unpack(value, bodies) for name, value in given["arguments"].items()}
    if bodies is not None:
        bodies.check()
    return arguments


def _split(request: Request) -> tuple[bytes, Bodies | None]:
    if request.headers.get("content-type") == CONTENT_TYPE:
        return split(request.body)
    return request.body, None


def answer(request: Request, value: Any, more: dict[str, Any] | None = None) -> Response:
    """``more``: arguments with which the client gets what this answer had no room for."""
    named = {} if more is None else {"more": more}
    if request.headers.get("content-type") != CONTENT_TYPE:
        return answer_json(200, {"answer": pack(value), **named})
    bodies: list[bytes] = []
    parts = join({"answer": pack(value, bodies), **named}, bodies)
    return Response(200, {"Content-Type": CONTENT_TYPE}, b"".join(parts))


def copies(request: Request) -> int:
    """See `Request.copies`: base64 has four bytes for three."""
    return 2 if request.headers.get("content-type") == CONTENT_TYPE else 3


def answer_messages(request: Request, value: Any, more: dict[str, Any] | None = None) -> Response:
    """As `answer`, for many messages. Each is rendered by itself, so that their values are not all in memory beside them."""
    raw = request.headers.get("content-type") == CONTENT_TYPE
    bodies: list[bytes] | None = [] if raw else None
    text = BytesIO()
    if raw:
        text.write(LENGTH.pack(0))
    text.write(b'{"answer":')
    _render(value, bodies, text)
    text.write(b"}" if more is None else b',"more":' + json.dumps(more).encode() + b"}")
    if bodies is None:
        text.write(b"\n")
        return Response(200, {"Content-Type": JSON}, text.getvalue())
    size = text.tell() - LENGTH.size
    for body in bodies:
        text.write(body)
    text.seek(0)
    text.write(LENGTH.pack(size))
    return Response(200, {"Content-Type": CONTENT_TYPE}, text.getvalue())


def _render(value: Any, bodies: list[bytes] | None, text: BytesIO) -> None:
    if type(value) is not list:
        text.write(json.dumps(pack(value, bodies), separators=(",", ":")).encode())
        return
    for place, item in enumerate(value):
        text.write(b"," if place else b"[")
        _render(item, bodies, text)
    text.write(b"]" if value else b"[]")
