"""What a check finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.message import FOREVER, Message
from penstock.stores.ports import History, StoredQueue

PAGE = 64
SHOWN = 5
RESTORE = "restore a backup, or export the queues that can still be read"


@dataclass(frozen=True, slots=True)
class Problem:
    queue: str | None
    """None: it is about the whole store."""
    what: str
    remedy: str
    """What has been done about it, or what to do."""
    repaired: bool = False


def few(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")


def each(part: StoredQueue | History) -> Iterator[Message]:
    """All messages, some of them in memory at a time."""
    start = 0
    while page := part.scan(start, FOREVER, PAGE):
        yield from page
        start = page[-1].number + 1
