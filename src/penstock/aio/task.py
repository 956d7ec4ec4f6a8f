"""Tasks as coroutines send them: ``await broker.task(greet).send("ada")``. For each verb see `penstock.tasks.task.Task`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, ParamSpec

from penstock.aio.backend import Backend
from penstock.aio.queue import AsyncQueue
from penstock.errors import BadInput, QueueNotFound
from penstock.message import Attributes, Draft, RetryPolicy, Sent
from penstock.policy import check_seconds
from penstock.tasks.outcome import TaskOutcome, pauses, read_outcome, results_of
from penstock.tasks.task import SETTINGS, Task

P = ParamSpec("P")


class AsyncTask(Generic[P]):
    """A task, on the broker of an event loop. Made by `AsyncBroker.task`."""

    def __init__(self, task: Task[P, Any], backend: Backend) -> None:
        self.task = task
        self._backend = backend

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> AsyncSentTask:
        return await self.send_with().send(*args, **kwargs)

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
    ) -> AsyncTaskSender[P]:
        options: dict[str, Any] = {"delay": delay, "visibility": visibility, "deadline": deadline, "key": key, "group": group}
        options |= {"attributes": attributes, "retry": retry, "unique": unique, "results": results}
        return AsyncTaskSender(self, options)

    async def result(self, id: str, timeout: float = 0) -> Any:
        check_seconds(timeout, "timeout", error=BadInput)
        outcome = await self._look(id)
        for pause in pauses(timeout):
            if outcome is not None:
                break
            await asyncio.sleep(pause)
            outcome = await self._look(id)
        return self.task.definition.read(id, outcome)

    async def _look(self, id: str) -> TaskOutcome | None:
        queue = AsyncQueue(results_of(self.task.queue), self._backend)
        try:
            found = await queue.find(key=id)
            return None if found is None else read_outcome(found, (await queue.pulse()).at)
        except QueueNotFound:
            return None

    async def deliver(self, draft: Draft) -> Sent:
        queue = AsyncQueue(self.task.queue, self._backend)
        try:
            return (await queue.send_many([draft]))[0]
        except QueueNotFound:
            await self._backend.call_broker("create", self.task.queue, exist_ok=True, **SETTINGS)
            return (await queue.send_many([draft]))[0]


class AsyncTaskSender(Generic[P]):
    """A task with options. Made by `AsyncTask.send_with`."""

    def __init__(self, task: AsyncTask[P], options: dict[str, Any]) -> None:
        self._task = task
        self._options = options

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> AsyncSentTask:
        sent = await self._task.deliver(self._task.task.definition.draft(args, kwargs, **self._options))
        return AsyncSentTask(sent.id, sent.duplicate, self._task)


@dataclass(frozen=True, slots=True)
class AsyncSentTask:
    """See `penstock.tasks.task.SentTask`."""

    id: str
    duplicate: bool
    task: AsyncTask[...]

    async def result(self, timeout: float = 0) -> Any:
        return await self.task.result(self.id, timeout)
