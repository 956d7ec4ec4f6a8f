"""What came of a task, as a message in the queue of results.

    {"value": 42}        what the function has returned; {"data": "…"}: by the task's serializer, as base64
    {"error": "ValueError: no such customer"}

The message has the id of the task's message as its key, and its deadline is when the result expires. The queue takes equal
messages once, so that an id has one result: what a later run of the task leaves takes its place.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

from penstock.errors import TaskFailed
from penstock.message import Draft, MessageFields, Settings
from penstock.policy import MAX_REASON, cut_reason
from penstock.tasks.call import CONTENT_TYPE, from_bytes, to_bytes
from penstock.tasks.shapes import Misfit
from penstock.tasks.signature import Signature

MAX_RESULT = 256 * 1024
"""Bytes of a result as JSON."""
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.25
"""Seconds between two looks for a result."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    value: Any = None
    """As it is written."""
    error: str | None = None

    def pack(self) -> bytes:
        """`Misfit` if it is too large, or JSON cannot have it."""
        if self.error is not None:
            return to_bytes({"error": cut_reason(self.error)})
        told = {"data": base64.b64encode(self.value).decode()} if isinstance(self.value, bytes) else {"value": self.value}
        packed = to_bytes(told)
        if len(packed) > MAX_RESULT:
            raise Misfit(f"it has {len(packed)} bytes, the limit is {MAX_RESULT}")
        return packed

    def read(self, task: str, signature: Signature) -> Any:
        """What the function has returned; else `TaskFailed`."""
        if self.error is not None:
            raise TaskFailed(f"task {task!r}: {self.error}")
        try:
            return signature.read_result(self.value)
        except Misfit as error:
            raise TaskFailed(f"task {task!r} has run, but what it returned cannot be read: {error}") from error


def read_outcome(message: MessageFields | None, now: int) -> TaskOutcome | None:
    """None if there is none, or none any more."""
    if message is None or (message.deadline_at is not None and message.deadline_at <= now):
        return None
    try:
        told = from_bytes(message.body)
        if isinstance(told, dict) and isinstance(told.get("error"), str):
            return TaskOutcome(error=told["error"])
        if "data" in told:
            return TaskOutcome(base64.b64decode(told["data"], validate=True))
        return TaskOutcome(told["value"])
    except (ValueError, TypeError, KeyError):
        return TaskOutcome(error=f"what came of it cannot be read: {message.body[: MAX_REASON // 10]!r}")


def draft_of(id: str, packed: bytes, expiry: float) -> Draft:
    return Draft(packed, CONTENT_TYPE, key=id, deadline=expiry)


def results_of(queue: str) -> str:
    """Where the results of a queue's tasks are."""
    return f"{queue}.results"


def settings_of(expiry: float) -> dict[str, Any]:
    return {"deduplicate": True, "retention": expiry}


def suits(settings: Settings) -> bool:
    """Whether a queue of this name can have results."""
    return settings.deduplicate is True


def pauses(timeout: float) -> Iterator[float]:
    """Before each look for a result but the first, for how long to rest."""
    give_up_at, pause = monotonic() + timeout, FIRST_PAUSE
    while (left := give_up_at - monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 1.5, LONGEST_PAUSE)
