"""The connections of a client to its server: pooled and reused, one for each call that is under way."""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Lock
from typing import Any

from penstock.client.calls import Asking, Attempt, Calls, Lost, Unreached, Value
from penstock.client.http import BadAnswer, ClientConnection, HttpResponse
from penstock.forking import watch

STALE = 30.0
"""Seconds after which an idle connection is no longer trusted."""


class Line:
    """The connections to one server. Thread-safe: each call has a connection to itself."""

    def __init__(self, url: str, **options: Any) -> None:
        """The options are those of `Calls`."""
        self.calls = Calls(url, **options)
        self._idle: list[tuple[ClientConnection, float]] = []
        self._lock = Lock()
        self._closed = False
        watch(self)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, child: bool) -> None:
        if child:
            for connection, _ in self._idle:  # they belong to the parent, and stay open there
                connection.close()
            self._idle.clear()
        self._lock.release()

    def follow(self, asking: Asking[Value]) -> Value:
        """Do what a verb asks for, and return its answer."""
        try:
            step = next(asking)
            while True:
                if isinstance(step, Attempt):
                    try:
                        response = self._ask(step.request, step.timeout)
                    except (Lost, Unreached) as error:
                        step = asking.throw(error)
                    else:
                        step = asking.send(response)
                else:
                    time.sleep(step.seconds)
                    step = next(asking)
        except StopIteration as end:
            answer: Value = end.value
            return answer

    def _ask(self, request: bytes, timeout: float) -> HttpResponse:
        connection = self._take(timeout)
        try:
            response = connection.ask(request, timeout)
        except (OSError, BadAnswer) as error:
            connection.close()
            raise Lost(f"gave no answer ({type(error).__name__}: {error})") from error
        except BaseException:  # an interrupt: the answer is still to come, and the next request must not take it for its own
            connection.close()
            raise
        if connection.keeps:
            self._give(connection)
        else:
            connection.close()
        return response

    def _take(self, timeout: float) -> ClientConnection:
        while True:
            with self._lock:
                if self._closed:
                    raise self.calls.closed()
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                break
            connection, since = idle
            if time.monotonic() - since < STALE and connection.rests():
                return connection
            connection.close()
        try:
            return ClientConnection(self.calls.host, self.calls.port, timeout, self.calls.tls)
        except OSError as error:
            raise Unreached(self.calls.url, error) from error

    def _give(self, connection: ClientConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < self.calls.connections:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            with suppress(OSError):
                connection.close()
