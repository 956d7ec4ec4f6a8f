"""The access log: one line of JSON for each request. A busy server gathers lines for a moment and writes several at once.

    {"time": "2026-01-31T12:00:00.123Z", "method": "POST", "path": "/messages/orders", "status": 201, "ms": 1.2, "in": 5,
     "out": 0, "token": "shop"}

`"audit": "purge"` says what a request has changed. `"unheard": true` marks a request whose client left before its answer: what
the status says was done all the same. JSON escapes the values, so no name can forge a line. Headers and bodies, which may
contain secrets, are never written.
"""

from __future__ import annotations

import json
import time
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from penstock.server.http.request_response import Request, Response
from penstock.server.log_writer import LogWriter

MOST_LINES = 500
LONGEST_PATH = 300
LONGEST_CAUSE = 500


class AccessLog:
    """Owns the lines of the last moment."""

    def __init__(self, writer: LogWriter | None) -> None:
        """Without a ``writer``, nothing is written."""
        self._writer = writer
        self._lines: list[str] = []
        self._second = (0, "")

    def write(self, request: Request, response: Response, seconds: float) -> None:
        if self._writer is None:
            return
        method, path = quote(request.method), quote(("/" + "/".join(request.segments))[:LONGEST_PATH])
        more = f', "token": {quote(request.grant.name)}' if request.grant.name else ""
        if request.deed and response.status < 400:
            more += f', "audit": {quote(request.deed)}'
        if request.unheard:
            more += ', "unheard": true'
        if response.cause:
            more += f', "cause": {quote(response.cause[:LONGEST_CAUSE])}'
        self._lines.append(
            f'{{"time": "{self._now()}", "method": {method}, "path": {path}, '
            f'"status": {response.status}, "ms": {round(seconds * 1000, 2)}, "in": {request.length}, '
            f'"out": {len(response.body) + response.fed}{more}}}'
        )
        if len(self._lines) >= MOST_LINES:
            self.flush()

    def write_line(self, told: dict[str, Any]) -> None:
        """A line about something else than a request."""
        if self._writer is not None:
            self._lines.append(json.dumps({"time": self._now(), **told}))

    def _now(self) -> str:
        now = time.time()
        second = int(now)
        if self._second[0] != second:
            self._second = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))
        return f"{self._second[1]}.{int((now - second) * 1000):03}Z"

    @property
    def dropped(self) -> int:
        """Lines that nobody read in time."""
        return 0 if self._writer is None else self._writer.dropped

    def flush(self) -> None:
        if self._writer is not None and self._lines:
            lines, self._lines = self._lines, []
            self._writer.write(lines)
