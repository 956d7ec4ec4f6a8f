"""Runs tasks: the callback of a consumer.

    message ──► a call ──► its task ──► its arguments ──► the function ──► what it returns ──► the message is processed
                  │            │             │                │  raises         └──► queue of results, if the sender wants it
                  └── none ────┴── unknown ──┴── do not fit   └──► as any callback: again, or given up
                                    └──► given up at once: another attempt would end in the same way

Functions run in the threads of the consumer. What a coroutine function returns is awaited in one event loop for the whole
process, so that its tasks can share what belongs to a loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, Protocol

from penstock.errors import BadSetting, PenstockError, QueueNotFound
from penstock.message import Message
from penstock.queue.protocol import Queue
from penstock.retries import Reject, read_error
from penstock.tasks.call import TaskCall, read_call
from penstock.tasks.outcome import TaskOutcome, draft_of, results_of, settings_of, suits
from penstock.tasks.shapes import Misfit
from penstock.tasks.task import Task, TaskQueues, find_or_create

logger = logging.getLogger("penstock")


class KnownTasks(Protocol):
    def get(self, name: str) -> Task[..., object] | None: ...


class TaskFault(Exception):
    """A task has raised what would end a thread or an event loop, such as SystemExit."""


class TaskCallback:
    """The callback for the tasks of one queue."""

    def __init__(self, queue: str, broker: TaskQueues, tasks: KnownTasks, loop: TaskLoop) -> None:
        self._tasks = tasks
        self._loop = loop
        self._results = Results(broker, results_of(queue))

    def __call__(self, payload: bytes, message: Message) -> None:
        try:
            call = read_call(payload)
            task, bound = self._find(call)
        except Misfit as error:
            raise Reject(f"message {message.id} of queue {message.queue!r} cannot be run as a task: {error}") from error
        value = self._run(task, bound)
        if call.results is not None:
            self._results.keep(message.id, self._written(task, value), call.results)

    def given_up(self, message: Message, reason: str) -> None:
        """There is no other attempt: whoever wants the result is told."""
        with suppress(Misfit):
            call = read_call(message.body)
            if call.results is not None:
                self._results.keep(message.id, TaskOutcome(error=reason), call.results)

    def _find(self, call: TaskCall) -> tuple[Task[..., object], inspect.BoundArguments]:
        task = self._tasks.get(call.task)
        if task is None:
            raise Misfit(f"this worker knows no task {call.task!r:.200}")
        try:
            return task, task.definition.signature.read(call)
        except Misfit as error:
            raise Misfit(f"the arguments do not fit task {task.name!r:.200}: {error}") from error

    def _run(self, task: Task[..., object], bound: inspect.BoundArguments) -> Any:
        try:
            value = task.function(*bound.args, **bound.kwargs)
            return self._loop.run(value) if inspect.isawaitable(value) else value
        except Exception:
            raise
        except BaseException as error:  # it must not stop the worker
            raise TaskFault(f"the task has raised {type(error).__name__}: {error}") from error

    def _written(self, task: Task[..., object], value: object) -> TaskOutcome:
        try:
            outcome = TaskOutcome(task.definition.signature.write_result(value))
            outcome.pack()
        except Exception as error:  # whatever the error: the task has run
            told = error if isinstance(error, Misfit | PenstockError) else read_error(error)
            return TaskOutcome(error=f"it has run, but what it returned cannot be kept: {told}")
        return outcome


class Results:
    """Keeps what comes of the tasks of one queue."""

    def __init__(self, broker: TaskQueues, queue: str) -> None:
        self._broker = broker
        self._name = queue
        self._lock = Lock()
        self._found: Queue | None = None
        self._longest = 0.0

    def keep(self, id: str, outcome: TaskOutcome, expiry: float) -> None:
        """The task has run. Were it to run again because of its result, it would do its work twice: an error is logged."""
        try:
            queue, draft = self._open(expiry), draft_of(id, outcome.pack(), expiry)
            try:
                (sent,) = queue.send_many([draft])
            except QueueNotFound:
                self._found = None
                queue = self._open(expiry)
                (sent,) = queue.send_many([draft])
            if sent.duplicate:  # the task has run before; or another worker, which thinks that it holds it, is running it
                queue.delete(sent.id)
                queue.send_many([draft])
        except PenstockError as error:
            logger.warning("the result of task %s could not be kept in queue %r: %s", id, self._name, error)

    def _open(self, expiry: float) -> Queue:
        with self._lock:
            if self._found is None or expiry > self._longest:
                found = find_or_create(self._broker, self._name, settings_of(expiry))
                known = found.settings
                if not suits(known):
                    raise BadSetting(f"queue {self._name!r} was made for something else: it does not deduplicate")
                if known.retention < expiry:
                    found.update(retention=expiry)
                self._found, self._longest = found, max(expiry, known.retention)
            return self._found


class TaskLoop:
    """The event loop for the coroutines of one process. It is started when the first one comes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def run(self, awaitable: Awaitable[Any]) -> Any:
        value, error = asyncio.run_coroutine_threadsafe(_shielded(awaitable), self._started()).result()
        if error is not None:
            raise error
        return value

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=self._loop.run_forever, name="penstock tasks", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Cancel what tasks have left running in the loop, and end it."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


async def _shielded(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """No exception leaves the coroutine: some of them would end the loop."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error


async def _end_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
