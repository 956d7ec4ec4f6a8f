"""A request that is being served: its handler begins in the turn of the loop that brought the request, and continues in the one
that brings what it waits for.

An asyncio task costs more: it begins a turn later, continues a turn later, and each turn is a system call. A handler here may
await operations on the store and futures, and nothing else.
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
        """End the handler where it waits."""
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
        if future is self._future:  # and not one that it no longer waits for
            self._future = None
            self.go_on()
