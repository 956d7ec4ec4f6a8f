"""Requests whose senders are known only when their bodies are there: bounded, so that they leave room for the others."""

from __future__ import annotations

from collections.abc import Collection

from penstock.server.http.request_response import Refused, Request
from penstock.server.settings import ServerSettings

PART = 4
"""Strangers may use one part in so many of the server's memory."""


class Strangers:
    """Counts the bodies that are on their way. Somebody who knows a key's id, but not its secret, can send such bodies and be
    refused only then. Connections on which a sender has proved itself are not counted."""

    def __init__(self, settings: ServerSettings, open: Collection[object]) -> None:
        """``open``: the connections that are open."""
        self._most = settings.max_memory // PART
        self._longest = settings.max_body
        self._open = open
        self._bodies: dict[object, int] = {}

    def enter(self, request: Request) -> None:
        """By the head of a request."""
        if getattr(request.client, "known", False):
            return
        length = int(request.headers.get("content-length", self._longest))  # in chunks, it may be any
        self._bodies = {client: size for client, size in self._bodies.items() if client in self._open}
        held = sum(self._bodies.values())
        if self._bodies and held + length > self._most:
            text = f"{length} bytes more of clients that have not proved who they are do not fit: there are {held}"
            raise Refused(503, text, {"Retry-After": "1"})
        self._bodies[request.client] = length

    def leave(self, request: Request) -> None:
        """The body is there, and the budget counts it."""
        self._bodies.pop(request.client, None)
