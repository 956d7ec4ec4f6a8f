"""Penstock's values as they travel between client and server: what `pack` writes, `unpack` reads back as an equal value.

None, true, numbers and text are themselves, a list is a list; anything else is an object with one key, its type:

    {"bytes": …}   {"map": {key: value}}   {"time": ISO 8601}   {"Draft": {field: value}}   {"Sent": {…}}   …

In plain JSON (``application/json``), bytes are in base64. In Penstock's own format (`CONTENT_TYPE`) they travel as they are:

    4 bytes: the length of the head   the head: JSON, with {"bytes": how many} for bytes   all those bytes, in the same order

There, a field that has its default is left out. `join` and `split` are for a whole request or answer in this format.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from binascii import a2b_base64
from datetime import datetime
from enum import Enum
from operator import attrgetter
from struct import Struct
from typing import Any

from penstock import errors
from penstock.errors import BadInput, PenstockError, QueueExists, QueueNotFound, ScheduleNotFound
from penstock.message import (
    Claim,
    Curve,
    Death,
    Draft,
    Labels,
    Message,
    Mode,
    Pulse,
    Receipt,
    Redrive,
    Redriven,
    RetryPolicy,
    Sent,
    Settings,
    State,
    Stats,
)
from penstock.schedules.schedule import Schedule

CONTENT_TYPE = "application/vnd.penstock"
LENGTH = Struct(">I")
VALUES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Claim, Death, Draft, Message, Pulse, Receipt, Redrive, RetryPolicy, Schedule, Settings, Stats)
}
FIELDS = {kind: [field for field in dataclasses.fields(kind) if field.name != "home"] for kind in VALUES.values()}
SHAPES = {
    kind: ([field.name for field in fields], [field.default for field in fields], attrgetter(*(field.name for field in fields)))
    for kind, fields in FIELDS.items()
}
"""The names of each type's fields, their defaults, and what gets their values."""
ENUMS: dict[str, type[Enum]] = {"State": State, "Mode": Mode, "Curve": Curve}
ERRORS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PenstockError)}
PLAIN = frozenset({type(None), bool, int, float, str})
BYTES = (bytes, bytearray, memoryview)
to_json = json.JSONEncoder(separators=(",", ":")).encode


def join(head: object, bodies: list[bytes]) -> list[bytes]:
    """The parts of a request or an answer in our own format."""
    text = to_json(head).encode()
    return [LENGTH.pack(len(text)), text, *bodies]


def split(content: bytes) -> tuple[bytes, Bodies]:
    """The head of what `join` has joined, and what follows it; `BadInput` if this is something else."""
    end = LENGTH.size + (LENGTH.unpack_from(content)[0] if len(content) >= LENGTH.size else 0)
    if not LENGTH.size < end <= len(content):
        raise BadInput(f"{len(content)} bytes do not begin with a head and its length")
    return content[LENGTH.size : end], Bodies(content, end)


class Bodies:
    """Bytes that follow a head, taken one after the other."""

    __slots__ = ("_at", "_content")

    def __init__(self, content: bytes, at: int) -> None:
        self._content = content
        self._at = at

    def take(self, count: object) -> bytes:
        end = self._at + count if type(count) is int and count >= 0 else -1
        if not self._at <= end <= len(self._content):
            raise BadInput(f"a value has {count!r:.80} bytes, but only {len(self._content) - self._at} follow")
        taken = self._content[self._at : end]
        self._at = end
        return taken

    def check(self) -> None:
        """`BadInput` if some were not taken."""
        if self._at != len(self._content):
            raise BadInput(f"{len(self._content) - self._at} bytes belong to no value")


def pack(value: Any, bodies: list[bytes] | None = None) -> Any:
    """The value for JSON; its bytes are appended to ``bodies`` if that is given."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is bytes and bodies is not None:
        bodies.append(value)
        return {"bytes": len(value)}
    if kind is list:
        return [pack(item, bodies) for item in value]
    if kind is Sent:
        return {
            "Sent": {"id": value[0]} if bodies is not None and value[1] is False else {"id": value[0], "duplicate": value[1]}
        }
    shape = SHAPES.get(kind)
    if shape is not None:
        names, defaults, values = shape
        fields = {
            name: item if type(item) in PLAIN else pack(item, bodies)
            for name, default, item in zip(names, defaults, values(value), strict=True)
            if item is not default or bodies is None
        }
        return {kind.__name__: fields}
    return _pack_other(value, bodies)


def _pack_other(value: Any, bodies: list[bytes] | None) -> Any:
    kind = type(value).__name__
    if isinstance(value, dict | Labels):
        return {"map": {key: pack(item, bodies) for key, item in value.items()}}
    if type(value) in ENUMS.values():
        return {kind: value.value}
    if isinstance(value, Redriven):
        return {"Redriven": [int(value), value.duplicates, value.homeless]}
    if isinstance(value, BYTES):
        return {"bytes": base64.b64encode(value).decode()} if bodies is None else pack(bytes(value), bodies)
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [pack(item, bodies) for item in value]
    if isinstance(value, datetime):
        return {"time": value.isoformat()}
    raise BadInput(f"a value of the type {kind} cannot be sent: {value!r:.200}")


def unpack(packed: Any, bodies: Bodies | None = None) -> Any:
    """The value; `BadInput` if it is not in this format."""
    try:
        return _unpack(packed, bodies)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"a value cannot be read: {type(error).__name__}: {error!s:.200}") from None


def _unpack(packed: Any, bodies: Bodies | None) -> Any:
    if type(packed) in PLAIN:
        return packed
    if type(packed) is list:
        return [_unpack(item, bodies) for item in packed]
    ((kind, value),) = packed.items()
    if kind == "Sent":
        return Sent(**value)
    if kind == "bytes":
        # binascii reads text as it is; base64 would copy it first.
        return a2b_base64(value, strict_mode=True) if type(value) is str or bodies is None else bodies.take(value)
    known = VALUES.get(kind)
    if known is not None:
        return known(**{name: item if type(item) in PLAIN else _unpack(item, bodies) for name, item in value.items()})
    if kind == "map":
        return {key: _unpack(item, bodies) for key, item in value.items()}
    if kind == "time":
        return datetime.fromisoformat(value)
    if kind == "Redriven":
        return Redriven(*value)
    if kind not in ENUMS:
        raise BadInput(f'there is no type {kind!r:.80}; an object with other keys is a map: {{"map": {{key: value}}}}')
    return ENUMS[kind](value)


def pack_error(error: PenstockError) -> dict[str, Any]:
    return {"error": str(error), "type": type(error).__name__, "name": getattr(error, "name", None)}


def unpack_error(packed: Any) -> PenstockError | None:
    """The error that the server reported; None if it is not one of ours."""
    if not isinstance(packed, dict) or packed.get("type") not in ERRORS:
        return None
    kind = ERRORS[packed["type"]]
    if kind in (QueueNotFound, QueueExists, ScheduleNotFound):
        return kind(str(packed.get("name")))
    if issubclass(kind, errors.MissingExtra):
        return PenstockError(str(packed.get("error")))
    return kind(str(packed.get("error")))
