"""Who consumes which queue, kept in memory: for stores that have no table of consumers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from threading import Lock


class Roster:
    def __init__(self) -> None:
        self._lock = Lock()
        self._beats: dict[str, dict[str, int]] = {}

    def batch(self, *, durable: bool = True) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def enroll(self, queue: str, consumer: str, now: int) -> None:
        with self._lock:
            self._beats.setdefault(queue, {})[consumer] = now

    def beat(self, queue: str, consumer: str, now: int) -> bool:
        with self._lock:
            living = self._beats.get(queue, {})
            if consumer not in living:
                return False
            living[consumer] = now
            return True

    def strike(self, queue: str, before: int) -> int:
        with self._lock:
            living = self._beats.get(queue, {})
            dead = [consumer for consumer, beat_at in living.items() if beat_at < before]
            for consumer in dead:
                del living[consumer]
            return len(dead)

    def living(self, queue: str) -> list[str]:
        with self._lock:
            return list(self._beats.get(queue, {}))

    def leave(self, queue: str, consumer: str) -> None:
        with self._lock:
            self._beats.get(queue, {}).pop(consumer, None)
