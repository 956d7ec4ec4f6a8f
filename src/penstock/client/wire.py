"""Penstock's values as JSON, for its own client: what `pack` writes, `unpack` reads back as an equal value.

None, true, numbers and text are themselves, a list is a list; anything else is an object with one key, its type:

    {"bytes": base64}   {"map": {key: value}}   {"time": ISO 8601}   {"Draft": {field: value}}   {"Sent": {…}}   …
"""

from __future__ import annotations

import base64
import dataclasses
from datetime import datetime
from enum import Enum
from typing import Any

from penstock import errors
from penstock.errors import BadInput, PenstockError, QueueExists, QueueNotFound
from penstock.message import Claim, Death, Draft, Message, Mode, Pulse, Receipt, Redrive, Redriven, Sent, Settings, State, Stats

VALUES: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Claim, Death, Draft, Message, Pulse, Receipt, Redrive, Settings, Stats)
}
ENUMS: dict[str, type[Enum]] = {"State": State, "Mode": Mode}
ERRORS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PenstockError)}


def pack(value: Any) -> Any:
    kind = type(value).__name__
    if type(value) in ENUMS.values():
        return {kind: value.value}
    if isinstance(value, Redriven):
        return {"Redriven": [int(value), value.duplicates, value.homeless]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Sent):
        return {"Sent": value._asdict()}
    if isinstance(value, list | tuple):
        return [pack(item) for item in value]
    if isinstance(value, dict):
        return {"map": {key: pack(item) for key, item in value.items()}}
    if isinstance(value, datetime):
        return {"time": value.isoformat()}
    if type(value) in VALUES.values():
        return {
            kind: {field.name: pack(getattr(value, field.name)) for field in dataclasses.fields(value) if field.name != "home"}
        }
    raise BadInput(f"a value of the type {kind} cannot be sent: {value!r:.200}")


def unpack(packed: Any) -> Any:
    """The value; `BadInput` if it is not in this format."""
    try:
        return _unpack(packed)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise BadInput(f"a value cannot be read: {type(error).__name__}: {error!s:.200}") from None


def _unpack(packed: Any) -> Any:
    if isinstance(packed, list):
        return [_unpack(item) for item in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, value),) = packed.items()
    if kind == "bytes":
        return base64.b64decode(value, validate=True)
    if kind == "map":
        return {key: _unpack(item) for key, item in value.items()}
    if kind == "time":
        return datetime.fromisoformat(value)
    if kind == "Redriven":
        return Redriven(*value)
    if kind == "Sent":
        return Sent(**value)
    if kind in ENUMS:
        return ENUMS[kind](value)
    return VALUES[kind](**{name: _unpack(item) for name, item in value.items()})


def pack_error(error: PenstockError) -> dict[str, Any]:
    return {"error": str(error), "type": type(error).__name__, "name": getattr(error, "name", None)}


def unpack_error(packed: Any) -> PenstockError | None:
    """The error that the server reported; None if it is not one of ours."""
    if not isinstance(packed, dict) or packed.get("type") not in ERRORS:
        return None
    kind = ERRORS[packed["type"]]
    if kind in (QueueNotFound, QueueExists):
        return kind(str(packed.get("name")))
    if issubclass(kind, errors.MissingExtra):
        return PenstockError(str(packed.get("error")))
    return kind(str(packed.get("error")))
