"""The audit: who has changed what. The last lines stay in memory, for the page; the access log has all of them.

{"time": "2026-01-31T12:00:00.123Z", "audit": "purge", "token": "shop", "queue": "orders", "messages": 12}
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from penstock.server.access_log import AccessLog

KEPT = 200
LONGEST = 200


class Audit:
    """Owns the last lines. Used in the event loop only."""

    def __init__(self, log: AccessLog) -> None:
        self._log = log
        self._lines: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def note(self, who: str, deed: str, queue: str = "", **facts: Any) -> None:
        """``who``: the name of the token."""
        line = {"at": time.time_ns() // 1000, "deed": deed[:LONGEST], "token": who[:LONGEST], "queue": queue[:LONGEST], **facts}
        self._lines.append(line)
        self._log.write_line({"audit": deed[:LONGEST], "token": who[:LONGEST], "queue": queue[:LONGEST], **facts})

    def lines(self) -> list[dict[str, Any]]:
        """The oldest first; ``at`` is in microseconds since 1970."""
        return list(self._lines)
