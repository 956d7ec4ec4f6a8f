"""One budget of bytes for all that the service holds for its clients: request bodies, answers, decoded values, caches."""

from __future__ import annotations

from threading import Lock

from penstock.server.http.request_response import Refused


class Budget:
    """Counts bytes that are held. The event loop and the threads beside it share one budget."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self.used = 0

    @property
    def left(self) -> int:
        return max(0, self._most - self.used)

    def take(self, count: int) -> None:
        """Count ``count`` bytes more, or raise `Refused` and count nothing if that would pass the limit."""
        with self._lock:
            if self.used + count <= self._most:
                self.used += count
                return
        raise Refused(
            503,
            f"{count} bytes more do not fit: {self.used} of {self._most} bytes (max_memory) are in use",
            {"Retry-After": "1"},
        )

    def count(self, count: int) -> None:
        """Count bytes that exist already, even beyond the limit; whatever asks for more is then refused."""
        with self._lock:
            self.used += count

    def give(self, count: int) -> None:
        with self._lock:
            self.used -= count
