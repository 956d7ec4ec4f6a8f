"""A client that follows the stream of changes, as a page does."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit


class Follower:
    """Knows what the stream has told so far: rows by queue, and jobs by id."""

    def __init__(self, url: str, queue: str | None = None, tls: ssl.SSLContext | None = None, **headers: str) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if tls is None:
            self.connection = http.client.HTTPConnection(host, port, timeout=60)
        else:
            self.connection = http.client.HTTPSConnection(host, port, timeout=60, context=tls)
        path = "/penstock/changes" + (f"?queue={quote(queue, safe='')}" if queue is not None else "")
        self.connection.request("GET", path, headers=headers)
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.rows: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.heartbeats = 0
        self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.response.close()
        self.connection.close()

    def until(self, true: Callable[[], bool]) -> None:
        """Read until that is so, a minute at most."""
        give_up_at = time.monotonic() + 60
        while not true():
            assert self.read(), "the stream has ended"
            assert time.monotonic() < give_up_at, "it was never told"

    def to_the_end(self) -> None:
        """Read until the stream has ended, a minute at most."""
        give_up_at = time.monotonic() + 60
        while self.read():
            assert time.monotonic() < give_up_at, "it goes on"

    def first(self) -> None:
        """Read the first picture, all of it."""
        self.until(lambda: bool(self.events) and self.events[-1][1].get("left") == 0)

    def read(self) -> bool:
        """Read to the end of the next event; False at the end of the stream."""
        kind = ""
        while line := self.response.readline():
            self.bytes += len(line)
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                kind = text.removeprefix("event: ")
            elif text.startswith("data: "):
                self._take(kind, json.loads(text.removeprefix("data: ")))
            elif text == ":":
                self.heartbeats += 1
            elif not text:
                return True
        return False

    def _take(self, kind: str, event: dict[str, Any]) -> None:
        self.events.append((kind, event))
        if kind == "jobs":
            self.jobs |= {job["id"]: job for job in event["jobs"]}
            return
        if event["whole"]:
            self.rows = {}
        for row in event["rows"]:
            self.rows.setdefault(row["name"], {}).update(row)
        for name in event["gone"]:
            self.rows.pop(name, None)
