"""How long messages wait in a queue."""

from __future__ import annotations

from penstock.queue.protocol import Queue


def oldest_wait(queue: Queue) -> float | None:
    """The seconds for which the first visible message has waited; None if none is visible."""
    pulse = queue.pulse()
    if pulse.due_at is None or pulse.due_at > pulse.at:
        return None
    first = queue.peek() if pulse.due_at == 0 else []  # a store of files does not report since when
    return max(0, pulse.at - (first[0].visible_at if first else pulse.due_at or pulse.at)) / 1_000_000
