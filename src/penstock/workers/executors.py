"""Where a consumer's callbacks run: in its own thread, in several threads or processes, or as coroutines in one loop.

Each executor imports its own dependencies, so a program that only sends does not pay for them.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Thread
from typing import Any, Protocol

from penstock.message import Message
from penstock.policy import Failed
from penstock.retries import read_failure

KINDS = ("threads", "processes")
LAND_EVERY = 0.1
MessageHandler = Callable[[bytes, Message], Any]
Check = Callable[[Message], None]
"""Called right before a callback starts; raises `TooLate` if it must not."""


class Outcome(Protocol):
    """The outcome of a callback: a future if the callback runs in another thread or process."""

    def cancelled(self) -> bool: ...

    def exception(self) -> BaseException | None: ...


class Ended:
    """The outcome of a callback that ran in this thread: a future would cost more than all other work for a message."""

    __slots__ = ("_error", "took")

    def __init__(self, began: float, error: BaseException | None = None) -> None:
        self._error = error
        self.took = time.monotonic() - began

    def cancelled(self) -> bool:
        return False

    def exception(self) -> BaseException | None:
        return self._error


def call(handler: MessageHandler, payload: bytes, message: Message) -> None:
    """Run a callback that is not a coroutine function. Its result is dropped; returning an awaitable is an error."""
    result = handler(payload, message)
    if result is not None and inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("the callback returned an awaitable, which nobody awaits: a callback that awaits is an async def")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("the callback is a generator, of which nothing has run: a callback does not yield")


class TooLate(Exception):
    """The callback was not started: the message's deadline or lease had already passed."""


class Failure(Exception):
    """Stands in for an exception of a callback that cannot be raised here; it carries what that says."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.error)
        self.failed = failed


def reads(error: BaseException) -> Failed:
    return error.failed if isinstance(error, Failure) else read_failure(error)


def call_apart(handler: MessageHandler, payload: bytes, message: Message) -> Failed | None:
    """Run a callback in another process; if it fails, return what its exception says. An exception that cannot be pickled would
    break the pool."""
    try:
        call(handler, payload, message)
    except BaseException as error:
        return reads(error)
    return None


class Runner:
    """Runs callbacks one after the other, in the calling thread."""

    def __init__(self, handler: MessageHandler, check: Check) -> None:
        self._handler = handler
        self._check = check

    def submit(self, message: Message) -> Outcome:
        began = time.monotonic()
        try:
            self._check(message)
            call(self._handler, message.body, message)
        except Exception as error:
            return Ended(began, error)
        return Ended(began)

    def ended(self, flying: Collection[Any]) -> Collection[Any]:
        """The callbacks that have ended; if none has, wait briefly for one."""
        return flying

    def broke(self, error: BaseException) -> bool:  # noqa: ARG002
        """Whether the callback's process was killed, so that its progress is unknown."""
        return False

    def cancel(self) -> None:
        """Start no more callbacks."""

    def close(self) -> None:
        """Called when all callbacks have ended."""


class RunnerElsewhere(Runner):
    def ended(self, flying: Collection[Any]) -> Collection[Any]:
        # A cancelled future is not done for `wait` before a worker is free, which may take as long as a callback does.
        cancelled = [outcome for outcome in flying if outcome.cancelled()]
        return cancelled or (wait(flying, timeout=LAND_EVERY, return_when=FIRST_COMPLETED).done if flying else ())


class PoolRunner(RunnerElsewhere):
    """Runs callbacks in several threads."""

    def __init__(self, handler: MessageHandler, check: Check, workers: int) -> None:
        super().__init__(handler, check)
        self._pool = ThreadPoolExecutor(workers, "penstock worker")
        self._waiting: list[Future[None]] = []

    def submit(self, message: Message) -> Future[None]:
        future = self._pool.submit(self._run, message)
        self._waiting = [known for known in self._waiting if not known.done()] + [future]
        return future

    def _run(self, message: Message) -> None:
        self._check(message)
        call(self._handler, message.body, message)

    def cancel(self) -> None:
        for future in self._waiting:
            future.cancel()

    def close(self) -> None:
        self._pool.shutdown()


class ProcessRunner(PoolRunner):
    """Runs callbacks in processes. A pool breaks when any of its processes dies, so each process is a pool of its own, and one
    of our threads waits for it."""

    def __init__(self, handler: MessageHandler, check: Check, workers: int, make: Callable[[], Executor]) -> None:
        super().__init__(handler, check, workers)
        self._make = make
        self._processes: dict[int, Executor] = {}
        self._free = list(range(workers))

    def broke(self, error: BaseException) -> bool:
        return isinstance(error, BrokenExecutor)

    def _run(self, message: Message) -> None:
        place = self._free.pop()  # there are as many pools as threads
        try:
            failure = self._begin(place, message).result()
        finally:
            self._free.append(place)
        if failure is not None:
            raise Failure(failure)

    def _begin(self, place: int, message: Message) -> Future[Failed | None]:
        if place in self._processes:
            try:
                return self._call_in(place, message)
            except BrokenExecutor:  # the process has died since
                self._processes[place].shutdown()
        process = self._processes[place] = self._make()
        process.submit(int).result()  # wait for the process to start; the message may become too late meanwhile
        return self._call_in(place, message)

    def _call_in(self, place: int, message: Message) -> Future[Failed | None]:
        self._check(message)
        return self._processes[place].submit(call_apart, self._handler, message.body, dataclasses.replace(message, home=None))

    def close(self) -> None:
        super().close()
        for process in self._processes.values():
            process.shutdown()


class LoopRunner(RunnerElsewhere):
    """Runs coroutines, a limited number at a time, in an event loop with its own thread."""

    def __init__(self, handler: MessageHandler, check: Check, workers: int) -> None:
        import asyncio

        super().__init__(handler, check)
        self._asyncio = asyncio
        self._loop = asyncio.new_event_loop()
        self._places = asyncio.Semaphore(workers)
        self._waiting: set[asyncio.Task[None] | None] = set()
        """Those that have no place yet; the loop's to change."""
        self._stopping = False
        self._closing = False
        self._thread = Thread(target=self._turn, name="penstock loop", daemon=True)
        self._thread.start()

    def submit(self, message: Message) -> Future[None]:
        return self._asyncio.run_coroutine_threadsafe(self._handle(message), self._loop)

    def _turn(self) -> None:
        while not self._closing:
            # Either exception ends asyncio's loop, but by then it is also the failure of its own callback: keep running the
            # others.
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()

    async def _handle(self, message: Message) -> None:
        waiting = self._asyncio.current_task()
        self._waiting.add(waiting)
        try:
            await self._places.acquire()
        finally:
            self._waiting.discard(waiting)
        try:
            if self._stopping:
                raise self._asyncio.CancelledError
            self._check(message)
            try:
                await self._handler(message.body, message)
            except self._asyncio.CancelledError as error:  # the callback raised it itself; do not confuse it with our cancel
                raise Failure(reads(error)) from error
        finally:
            self._places.release()

    def cancel(self) -> None:
        self._stopping = True
        self._loop.call_soon_threadsafe(self._cancel_waiting)

    def _cancel_waiting(self) -> None:
        for task in self._waiting:
            if task is not None:
                task.cancel()

    def close(self) -> None:
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def make_runner(kind: str, handler: MessageHandler, check: Check, workers: int) -> Runner:
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        return LoopRunner(handler, check, workers)
    if kind == "processes":
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        context = multiprocessing.get_context("spawn")  # a fork would inherit the connections
        return ProcessRunner(handler, check, workers, lambda: ProcessPoolExecutor(1, mp_context=context))
    if workers > 1:
        return PoolRunner(handler, check, workers)
    return Runner(handler, check)
