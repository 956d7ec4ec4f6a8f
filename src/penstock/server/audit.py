"""The audit: which token has changed what. The last lines stay in memory, for the page. In the access log, the line of a
request that has changed something says so (`"audit": "purge"`), and the end of a job has a line of its own."""

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
        """What a request has done. ``who``: the name of its token."""
        line = {"at": time.time_ns() // 1000, "deed": deed[:LONGEST], "token": who[:LONGEST], "queue": queue[:LONGEST], **facts}
        self._lines.append(line)

    def tell(self, who: str, deed: str, queue: str, **facts: Any) -> None:
        """What the server has done by itself, for somebody."""
        self.note(who, deed, queue, **facts)
        self._log.write_line({"audit": deed, "token": who, "queue": queue[:LONGEST], **facts})

    def lines(self) -> list[dict[str, Any]]:
        """The oldest first; ``at`` is in microseconds since 1970."""
        return list(self._lines)
