"""A request that is being served. Its handler starts in the turn of the loop that read the request, and continues in the turn
that completes what it awaits.

An asyncio task would start and continue a turn later each time, and each turn is a system call. A handler here may await only
store operations and futures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.server.commits import Operation
from penstock.server.http.request_response import Response


class Serving:
    __slots__ = ("_coroutine", "_done", "_future")

    def __init__(self, coroutine: Coroutine[Any, Any, Response], done: Callable[[Response | None], None]) -> None:
        """``done`` gets the response, or None if the handler was cancelled."""
        self._coroutine = coroutine
        self._done = done
        self._future: asyncio.Future[Any] | None = None

    def cancel(self) -> None:
        """Cancel the handler where it waits."""
        self._future = None
        self.go_on(asyncio.CancelledError())

    def go_on(self, error: asyncio.CancelledError | None = None) -> None:
        try:
            awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
        except StopIteration as end:
            self._done(end.value)
        except asyncio.CancelledError:
            self._done(None)
        else:
            if type(awaited) is Operation:
                awaited.wake = self.go_on
            else:
                self._future = awaited
                awaited.add_done_callback(self._wake)

    def _wake(self, future: asyncio.Future[Any]) -> None:
        if future is self._future:  # ignore a future that it no longer awaits
            self._future = None
            self.go_on()
