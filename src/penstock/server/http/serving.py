"""A request that is being served. Its handler starts in the turn of the loop that read the request, and continues in the turn
that completes what it awaits.

An asyncio task would start and continue a turn later each time, and each turn is a system call. A handler here may await only
store operations and futures.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.bridge.commits import Operation
from penstock.server.http.request_response import Request, Response, answer_error

logger = logging.getLogger("penstock.server")


class Serving:
    """Runs the handler of one request to its end. It always ends with a response, which ``done`` gets."""

    __slots__ = ("_awaited", "_coroutine", "_done", "request", "started")

    def __init__(
        self, request: Request, coroutine: Coroutine[Any, Any, Response], done: Callable[[Response], None], started: float
    ) -> None:
        self.request = request
        self.started = started
        self._coroutine = coroutine
        self._done = done
        self._awaited: Any = None

    def stop(self) -> None:
        """End the handler if it rests, or waits for an operation that has not begun: then nothing was done, and never will
        be. If the store has begun, only its end tells the outcome, and the handler goes on."""
        awaited = self._awaited
        if type(awaited) is Operation:
            if not awaited.withdraw():
                return
        elif awaited is None or not self.request.resting:
            return
        self._awaited = None
        self._go_on(asyncio.CancelledError())

    def go_on(self) -> None:
        self._awaited = None
        self._go_on(None)

    def _go_on(self, error: asyncio.CancelledError | None) -> None:
        try:
            awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
        except StopIteration as end:
            self._done(end.value)
            return
        except (Exception, asyncio.CancelledError):  # a bug; the handler answers every error that it knows
            logger.exception("a defect in Penstock: a handler failed")
            self._done(answer_error(500, "the server hit a defect of its own"))
            return
        self._awaited = awaited
        if type(awaited) is Operation:
            awaited.wake = self.go_on
        else:
            awaited._asyncio_future_blocking = False  # as tasks do, so that other handlers can await it too
            awaited.add_done_callback(self._wake)
        if self.request.unheard:
            self.stop()

    def _wake(self, future: asyncio.Future[Any]) -> None:
        if future is self._awaited:  # ignore a future that it no longer awaits
            self.go_on()
