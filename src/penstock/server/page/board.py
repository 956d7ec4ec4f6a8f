"""What is known of each queue, as rows for a page, and which of them have changed since when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from penstock.message import SECOND
from penstock.server.http.request_response import Grant, Scope

QueueRow = dict[str, Any]
MOST_SOURCES = 10
"""Queues that are named as those whose dead letters a queue takes."""
REMEMBERED = 10_000
"""Names of queues that are gone."""


class Board:
    """Owns the rows. Each change has a number, so that a reader can ask what has changed since one."""

    def __init__(self) -> None:
        self.rows: dict[str, QueueRow] = {}
        self.number = 0
        """Of the last change."""
        self.news: dict[str, QueueRow] = {}
        """The fields that the last change has changed, by queue."""
        self.news_gone: list[str] = []
        self._changed: dict[str, int] = {}
        """The number of each row's last change."""
        self._gone: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)
        self.floor = 0
        """What has changed since this change, or a later one, is known."""
        self._targets: dict[str, str] = {}
        """Where the dead letters of a queue go."""
        self._sources: dict[str, set[str]] = {}
        """The same the other way round."""

    def put(self, counted: Mapping[str, QueueRow], gone: Iterable[str] = ()) -> bool:
        """Take over rows that were counted, without what they say of other queues. Whether anything has changed."""
        lost = [name for name in gone if self.rows.pop(name, None) is not None]
        touched = {*counted, *lost}
        for name in (*counted, *lost):
            touched |= self._link(name, counted.get(name))
        news: dict[str, QueueRow] = {}
        for name in touched:
            old = self.rows.get(name, {})
            base = counted.get(name, old)
            if base:
                row = {**base, **self._others(name, base, counted)}
                changes = {field: value for field, value in row.items() if old.get(field, _NONE) != value}
                if changes:
                    news[name] = changes
                    self.rows[name] = row
        if not news and not lost:
            return False
        self.number += 1
        self.news, self.news_gone = news, lost
        for name in news:
            self._changed.pop(name, None)
            self._changed[name] = self.number
        for name in lost:
            self._changed.pop(name, None)
            if len(self._gone) == REMEMBERED:
                self.floor = self._gone[0][0]
            self._gone.append((self.number, name))
        return True

    def _link(self, name: str, row: QueueRow | None) -> set[str]:
        """Note where its dead letters go. Returns the queues whose rows may change with this one."""
        target: str | None = None if row is None else row["dead_letter_queue"]
        former = self._targets.pop(name, None)
        if former is not None:
            self._sources[former].discard(name)
            if not self._sources[former]:
                del self._sources[former]
        if target is not None:
            self._targets[name] = target
            self._sources.setdefault(target, set()).add(name)
        return {*self._sources.get(name, ()), *(other for other in (former, target) if other is not None and former != target)}

    def _others(self, name: str, base: QueueRow, counted: Mapping[str, QueueRow]) -> QueueRow:
        target = base["dead_letter_queue"]
        letters = counted.get(target) or self.rows.get(target)
        return {
            "dead_letters": None if letters is None else letters["messages"],
            "dead_letter_of": sorted(self._sources.get(name, ()))[:MOST_SOURCES],
        }

    def latest(self, count: int) -> list[str]:
        """The queues that have changed last."""
        return list(islice(reversed(self._changed), count))

    def since(self, number: int) -> tuple[list[str], list[str]]:
        """The queues whose rows have changed after a change that is not below the floor, and those that are gone since."""
        changed = []
        for name in reversed(self._changed):
            if self._changed[name] <= number:
                break
            changed.append(name)
        gone = [name for at, name in self._gone if at > number and name not in self.rows]
        return changed, gone


_NONE = object()


def seen(fields: QueueRow, row: QueueRow, grant: Grant, at: int) -> QueueRow:
    """A row's fields, all or some, at an instant, as a token may see them: nothing of queues that it may not count."""
    if "oldest_at" in fields:
        oldest_at = fields["oldest_at"]
        fields = {**fields, "oldest_age": None if oldest_at is None else max(0, at - oldest_at) / SECOND}
    if grant.allows_all(Scope.COUNT):
        return fields
    fields = dict(fields)
    if fields.get("dead_letter_of"):
        fields["dead_letter_of"] = [name for name in fields["dead_letter_of"] if grant.allows(Scope.COUNT, name)]
    target = row["dead_letter_queue"]
    if target is not None and not grant.allows(Scope.COUNT, target):
        fields |= {field: None for field in ("dead_letter_queue", "dead_letters") if field in fields}
    return fields
