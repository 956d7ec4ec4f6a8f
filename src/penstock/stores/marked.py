"""Inserting messages once, by marks, for stores whose batches are not atomic and that have no journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock import marks
from penstock.message import Entry, Settings, micros
from penstock.stores.ports import Step, Store

Unmark = Callable[[str, Sequence[bytes]], object]
"""Forgets marks of a queue that are no longer needed, before they expire."""
WINDOW = 7 * 86400
"""Seconds for which the marks count if nobody removes them earlier."""


def insert_marked(
    store: Store,
    unmark: Unmark,
    step: Step,
    queue: str,
    entries: Sequence[Entry],
    now: int,
    settings: Settings,
) -> Callable[[], object] | None:
    """See `Ledger.insert_once`. A queue that deduplicates uses its own marks, and so does a unique message."""
    spent: list[bytes] = []
    if settings.deduplicate is False:
        spent = marks.of_places(range(len(entries)), " ".join(map(str, step)))
        until = now + micros(WINDOW)
        placed = zip(entries, spent, strict=True)
        entries = [entry._replace(mark=mark, mark_until=until) if entry.mark is None else entry for entry, mark in placed]
    return None if store.queue(queue).insert(entries, now, settings) is None else lambda: unmark(queue, spent)
