"""What a handler raises to say what becomes of its message: `Retry` it, or `Reject` it. And what any error says.

They are no errors of Penstock, and a handler that catches `PenstockError` does not catch them.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import BadInput
from penstock.message import MessageFields, Retried, RetryPolicy, Settings
from penstock.policy import Failed, Verdict, after_failure, check_seconds, cut_reason


class Retry(Exception):
    """The attempt has failed and shall be repeated: after so many seconds, or else when the message's policy says.

    It counts as an attempt. Without a reason, the exception that the handler was handling is kept as the error."""

    def __init__(self, after: float | None = None, reason: object = None) -> None:
        self.after = None if after is None else check_seconds(after, "after", error=BadInput)
        self.reason = None if reason is None else cut_reason(str(reason))
        super().__init__(self.after, self.reason)

    def __str__(self) -> str:
        return self.reason or "the handler asks for another attempt"


class Reject(Exception):
    """No attempt can succeed: the message is given up at once."""

    def __init__(self, reason: object) -> None:
        self.reason = cut_reason(str(reason))
        super().__init__(self.reason)


def plan_retry(
    message: MessageFields,
    settings: Settings,
    otherwise: RetryPolicy,
    error: BaseException | Failed | str,
    now: int,
    chance: float,
) -> tuple[str, tuple[Any, ...], Retried]:
    """By which verb of its queue, with what arguments, a message is settled whose handler has failed; and what it becomes."""
    verdict, reason, delay = after_failure(message, settings, otherwise, read_failure(error), now, chance)
    match verdict:
        case Verdict.DELIVER:
            return "release", (delay, reason), Retried.AGAIN
        case Verdict.BURY:
            return "bury", (reason,), Retried.GIVEN_UP
    return "fail", (reason,), Retried.GIVEN_UP


def read_failure(error: BaseException | Failed | str) -> Failed:
    """What a handler's exception, or its text, says."""
    if isinstance(error, Failed):
        return error
    if isinstance(error, str):
        return Failed(cut_reason(error))
    if isinstance(error, Reject):
        return Failed(error.reason, rejects=True)
    if isinstance(error, Retry):
        handled = error.__cause__ or error.__context__
        return Failed(str(error) if error.reason or handled is None else read_error(handled), error.after)
    return Failed(read_error(error))


def read_error(error: BaseException) -> str:
    try:
        return cut_reason(f"{type(error).__name__}: {error}")
    except Exception as second:
        return f"{type(error).__name__}, which cannot be told ({type(second).__name__})"
