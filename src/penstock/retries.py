"""What a handler raises to say what becomes of its message: `Retry` it, or `Reject` it.

They are no errors of Penstock, and a handler that catches `PenstockError` does not catch them.
"""

from __future__ import annotations

from penstock.errors import BadInput
from penstock.policy import check_seconds, cut_reason


class Retry(Exception):
    """The attempt has failed and shall be repeated: after so many seconds, or else when the message's policy says."""

    def __init__(self, after: float | None = None, reason: object = None) -> None:
        self.after = None if after is None else check_seconds(after, "after", error=BadInput)
        self.reason = None if reason is None else cut_reason(str(reason))
        super().__init__(self.after, self.reason)

    def __str__(self) -> str:
        return self.reason or "the handler asks for another attempt"


class Reject(Exception):
    """No attempt can succeed: the queue gives the message up at once."""

    def __init__(self, reason: object) -> None:
        self.reason = cut_reason(str(reason))
        super().__init__(self.reason)
