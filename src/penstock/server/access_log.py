"""The access log: one line of JSON for each request. A busy server gathers lines for a moment and writes several at once.

    {"time": "2026-01-31T12:00:00.123Z", "method": "POST", "path": "/messages/orders", "status": 201, "ms": 1.2, "in": 5,
     "out": 0, "token": "shop"}

JSON escapes the values, so no name can forge a line. Headers and bodies, which may contain secrets, are never written.
"""

from __future__ import annotations

import json
import time
from typing import TextIO

from penstock.server.http.request_response import Request, Response

MOST_LINES = 500
LONGEST_PATH = 300


class AccessLog:
    def __init__(self, stream: TextIO | None) -> None:
        """Without a ``stream``, nothing is written."""
        self._stream = stream
        self._lines: list[str] = []

    def write(self, request: Request, response: Response, seconds: float) -> None:
        if self._stream is None:
            return
        now = time.time()
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03}Z",
            "method": request.method,
            "path": ("/" + "/".join(request.segments))[:LONGEST_PATH],
            "status": response.status,
            "ms": round(seconds * 1000, 2),
            "in": request.length,
            "out": len(response.body),
        }
        if request.grant.name:
            line["token"] = request.grant.name
        self._lines.append(json.dumps(line))
        if len(self._lines) >= MOST_LINES:
            self.flush()

    def flush(self) -> None:
        if self._stream is not None and self._lines:
            lines, self._lines = self._lines, []
            try:
                self._stream.write("\n".join(lines) + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # the reader of the log is gone; keep serving
                self._stream = None
