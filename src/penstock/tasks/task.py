"""A task: a function with a queue. Calling it is a plain call; `Task.send` has a worker call it.

The name of a task is that of its function with its module, such as ``shop.mail.greet``, so that a worker, which imports the
same module, finds it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import update_wrapper
from pathlib import Path
from time import sleep
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from penstock.clock import Clock
from penstock.errors import BadInput, BadMessage, NoResult, QueueNotFound
from penstock.message import MAX_NUMBER, Attributes, Draft, RetryPolicy, Sent
from penstock.policy import check_name, check_retry, check_seconds
from penstock.queue.protocol import Queue
from penstock.tasks.call import CONTENT_TYPE, Serializer, check_expiry
from penstock.tasks.outcome import TaskOutcome, pauses, read_outcome, results_of
from penstock.tasks.shapes import Misfit
from penstock.tasks.signature import Signature

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
LONGEST_NAME = 500
SETTINGS = {"retention": MAX_NUMBER}
"""Of a queue that is made for tasks: a task does not expire, unless its sender gives it a deadline."""


class TaskQueues(Protocol):
    """A broker, as tasks use it."""

    clock: Clock

    def create(self, name: str, *, exist_ok: bool = False, **settings: Any) -> Queue: ...

    def queue(self, name: str) -> Queue: ...


def find_or_create(broker: TaskQueues, name: str, settings: dict[str, Any]) -> Queue:
    """A program that may only use a queue, and not create any, can do so when the queue is there."""
    try:
        return broker.queue(name)
    except QueueNotFound:
        return broker.create(name, exist_ok=True, **settings)


@dataclass(frozen=True, slots=True)
class Definition:
    """What is known of a task wherever it is sent. ``results``: for how many seconds to keep what comes of it."""

    name: str
    queue: str
    retry: RetryPolicy | None
    results: float | None
    signature: Signature = field(compare=False)

    def draft(self, args: Any, kwargs: Any, results: float | None = None, **options: Any) -> Draft:
        kept = self.results if results is None else check_expiry(results)
        if results is not None:
            check_name(results_of(self.queue))
        try:
            body = self.signature.write(args, kwargs, kept).pack()
        except Misfit as error:
            raise BadMessage(f"task {self.name!r} cannot be called so: {error}") from None
        options["retry"] = options.get("retry") or self.retry
        return Draft(body, CONTENT_TYPE, options.pop("attributes", None) or {}, **options)

    def read(self, id: str, outcome: TaskOutcome | None) -> Any:
        if outcome is None:
            raise NoResult(f"task {self.name!r} with the id {id!r:.80} has no result yet, or it has expired")
        return outcome.read(self.name, self.signature)


class Task(Generic[P, R]):
    """Made by `Broker.task`."""

    def __init__(self, function: Callable[P, R], definition: Definition, broker: TaskQueues) -> None:
        self.function = function
        self.definition = definition
        self.name, self.queue = definition.name, definition.queue
        self.broker = broker
        self._found: Queue | None = None
        update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<Task {self.name!r} of queue {self.queue!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        return self.function(*args, **kwargs)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> SentTask:
        """Have a worker call the function. When this returns, the task is safe."""
        return self.send_with().send(*args, **kwargs)

    def send_with(
        self,
        *,
        delay: float | None = None,
        visibility: float | None = None,
        deadline: float | datetime | None = None,
        key: str | bytes | None = None,
        group: str | None = None,
        attributes: Attributes | None = None,
        retry: RetryPolicy | None = None,
        unique: bool = False,
        results: float | None = None,
        connection: object = None,
    ) -> TaskSender[P]:
        """``task.send_with(delay=60).send(…)``: the options are those of `Queue.send`, and the task's own ``results``."""
        options: dict[str, Any] = {"delay": delay, "visibility": visibility, "deadline": deadline, "key": key, "group": group}
        options |= {"attributes": attributes, "retry": retry, "unique": unique, "results": results}
        return TaskSender(self, options, connection)

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """The message that `send` sends: for `Queue.send_many`, or for the ``body`` of a schedule."""
        return self.send_with().draft(*args, **kwargs)

    def result(self, id: str, timeout: float = 0) -> Any:
        """What the task that was sent under this id has returned, by any process; `TaskFailed` if it has failed for good. If
        there is nothing after ``timeout`` seconds: `NoResult`."""
        check_seconds(timeout, "timeout", error=BadInput)
        outcome = self._look(id)
        for pause in pauses(timeout):
            if outcome is not None:
                break
            sleep(pause)
            outcome = self._look(id)
        return self.definition.read(id, outcome)

    def _look(self, id: str) -> TaskOutcome | None:
        try:
            found = self.broker.queue(results_of(self.queue)).find(key=id)
        except QueueNotFound:
            return None
        return None if found is None else read_outcome(found, self.broker.clock())

    def on(self, broker: TaskQueues) -> Task[P, R]:
        """The same task in another store."""
        return Task(self.function, self.definition, broker)

    def deliver(self, draft: Draft, connection: object) -> Sent:
        """Send it, to a new queue if there is none. In a transaction of the caller's there must be one."""
        try:
            return self._home(make=connection is None).send_many([draft], connection=connection)[0]
        except QueueNotFound:
            if connection is not None:
                raise
            self._found = None  # it was deleted
            return self._home(make=True).send_many([draft])[0]

    def _home(self, *, make: bool) -> Queue:
        if self._found is None:
            self._found = find_or_create(self.broker, self.queue, SETTINGS) if make else self.broker.queue(self.queue)
        return self._found


class TaskSender(Generic[P]):
    """A task with options. Made by `Task.send_with`."""

    def __init__(self, task: Task[P, Any], options: dict[str, Any], connection: object) -> None:
        self._task = task
        self._options = options
        self._connection = connection

    def send(self, *args: P.args, **kwargs: P.kwargs) -> SentTask:
        sent = self._task.deliver(self.draft(*args, **kwargs), self._connection)
        return SentTask(sent.id, sent.duplicate, self._task)

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        return self._task.definition.draft(args, kwargs, **self._options)


@dataclass(frozen=True, slots=True)
class SentTask:
    """A task that was sent: its id, by which any process finds its result; and whether it is a duplicate of an earlier one,
    whose id this is then."""

    id: str
    duplicate: bool
    task: Task[..., Any]

    def result(self, timeout: float = 0) -> Any:
        """See `Task.result`."""
        return self.task.result(self.id, timeout)


def define(
    function: Callable[..., Any],
    *,
    queue: str,
    name: str | None,
    retry: RetryPolicy | None,
    results: float | None,
    serializer: Serializer | None,
) -> Definition:
    if not inspect.isfunction(function):
        raise BadInput(f"a task is a function, not {function!r:.200}: write @broker.task(queue=…) before its definition")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadInput(f"task {function.__qualname__!r} is a generator: a task does not yield")
    known = _name_of(function) if name is None else name
    if not isinstance(known, str) or not 1 <= len(known) <= LONGEST_NAME or not known.isprintable():
        raise BadInput(f"the name of a task has 1 to {LONGEST_NAME} printable characters, not {known!r:.80}")
    for verb in () if serializer is None else ("dumps", "loads"):
        if not callable(getattr(serializer, verb, None)):
            raise BadInput(f"serializer {serializer!r:.80} has no {verb}")
    kept = None if results is None else check_expiry(results)
    check_name(queue if results is None else results_of(check_name(queue)))
    return Definition(known, queue, check_retry(retry, BadInput), kept, Signature(known, function, serializer))


def _name_of(function: Callable[..., Any]) -> str:
    name = function.__qualname__
    if "<" in name:
        raise BadInput(f"task {name!r} is defined in a function, where no worker finds it: give it a name=")
    module = function.__module__
    if module == "__main__":  # a worker imports the file under its own name
        spec, path = getattr(sys.modules[module], "__spec__", None), getattr(sys.modules[module], "__file__", None)
        module = spec.name if spec is not None else Path(path).stem if path else ""
    return f"{module}.{name}" if module else name
