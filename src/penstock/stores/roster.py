"""The consumers of this process, for stores without a table of consumers."""

from __future__ import annotations

from threading import Lock

from penstock.stores.ports import Roster


class LocalRoster(Roster):
    def __init__(self) -> None:
        self._lock = Lock()
        self._beats: dict[str, dict[str, int]] = {}

    def beat(self, queue: str, consumer: str, now: int) -> None:
        with self._lock:
            self._beats.setdefault(queue, {})[consumer] = now

    def strike(self, queue: str, before: int) -> None:
        with self._lock:
            living = self._beats.get(queue, {})
            self._beats[queue] = {consumer: beat_at for consumer, beat_at in living.items() if beat_at >= before}

    def living(self, queue: str) -> list[str]:
        with self._lock:
            return list(self._beats.get(queue, {}))

    def leave(self, queue: str, consumer: str) -> None:
        with self._lock:
            self._beats.get(queue, {}).pop(consumer, None)
