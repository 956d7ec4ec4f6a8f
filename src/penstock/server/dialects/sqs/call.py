"""One call of an operation, as its handler gets it from either protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.server.http.request_response import Request


@dataclass(slots=True)
class Call:
    """``given``: the members of the request as the JSON model names them, without those that are absent. Numbers are int and
    blobs bytes."""

    request: Request
    operation: str
    given: dict[str, Any]
    account: str
    """The caller's."""
    region: str
    queue: str | None
    """The name in the core of the queue that it is about; nobody has looked whether it exists."""
    base: str
    """The address of this server in the URLs of queues, such as http://127.0.0.1:7843."""
    undo: Callable[[], None] | None = None
    """Set by a handler that has claimed messages: gives them back if the answer never reaches the client."""
