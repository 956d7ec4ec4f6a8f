"""What a message says: call this task with these arguments.

{"task": "shop.mail.greet", "args": ["ada"], "kwargs": {"hour": 9}}      any program can write this
{"task": "shop.mail.greet", "data": "gASV…"}                             (args, kwargs) by the task's own serializer, as base64
… "results": 3600                                                        keep what comes of it for so many seconds
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.errors import BadInput
from penstock.policy import check_seconds, shown
from penstock.tasks.shapes import Misfit

CONTENT_TYPE = "application/json"
LEAST_EXPIRY = 1
"""Seconds for which a result is kept, at least."""


class Serializer(Protocol):
    """Such as the module `pickle`, or `json`."""

    def dumps(self, value: Any, /) -> bytes | str: ...

    def loads(self, data: bytes, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class TaskCall:
    task: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    data: bytes | None = None
    results: float | None = None

    def pack(self) -> bytes:
        told: dict[str, Any] = {"task": self.task}
        if self.data is None:
            told |= {"args": self.args, "kwargs": self.kwargs}
        else:
            told["data"] = base64.b64encode(self.data).decode()
        if self.results is not None:
            told["results"] = self.results
        return to_bytes(told)


def read_call(body: bytes) -> TaskCall:
    """`Misfit` if this is none."""
    told = from_bytes(body)
    if not isinstance(told, dict) or not isinstance(told.get("task"), str):
        raise Misfit('it is no call of a task, such as {"task": "shop.greet", "args": [], "kwargs": {}}')
    args, kwargs, data, results = told.get("args", []), told.get("kwargs", {}), told.get("data"), told.get("results")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise Misfit("its args must be a list, and its kwargs an object")
    try:
        raw = None if data is None else base64.b64decode(data, validate=True)
        kept = None if results is None else check_expiry(results)
    except (ValueError, TypeError) as error:
        raise Misfit(f"its data or its results cannot be read: {error}") from None
    return TaskCall(told["task"], args, kwargs, raw, kept)


def check_expiry(results: object) -> float:
    return check_seconds(results, "results", LEAST_EXPIRY, BadInput)


def to_bytes(value: object) -> bytes:
    """`Misfit` if JSON cannot have it."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise Misfit(f"it cannot be written as JSON: {error}") from None


def from_bytes(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Misfit(f"it is not JSON: {error}") from None


def dump(serializer: Serializer, value: object) -> bytes:
    """What a serializer that was given makes of a value. Its errors are the caller's."""
    try:
        data = serializer.dumps(value)
    except Exception as error:
        raise Misfit(f"the serializer cannot write it: {type(error).__name__}: {error}") from error
    if not isinstance(data, bytes | str):
        raise Misfit(f"the serializer's dumps answers with {type(data).__name__} instead of bytes: {shown(data)}")
    return data.encode() if isinstance(data, str) else data


def load(serializer: Serializer, data: bytes) -> Any:
    try:
        return serializer.loads(data)
    except Exception as error:
        raise Misfit(f"the serializer cannot read it: {type(error).__name__}: {error}") from error
