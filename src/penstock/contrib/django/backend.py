"""The backend: tasks become messages, in the transaction that is open if they are kept in Django's own database.

body        JSON: {"task": "shop.tasks.ship", "args": […], "kwargs": {…}}
delay       until the task's run_after
id          that of the message, which is the id of the task's result
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

import penstock
from penstock.broker import location
from penstock.contrib.django.framework import (
    BaseTaskBackend,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    signals,
)
from penstock.contrib.django.stores import STORES, url_of
from penstock.errors import QueueNotFound, Unsupported
from penstock.message import MAX_NUMBER, Draft, Message, to_datetime
from penstock.queue.protocol import Queue
from penstock.stores.ids import number_of

DAY = 86400.0
KNOWN = {"url", "database", "results", "visibility", "open_options"}


class NoTask(ValueError):
    """A message that is not a task, or that of a newer version of the application."""


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """What a message asks for."""

    task: Task
    args: list[Any]
    kwargs: dict[str, Any]


class PenstockBackend(BaseTaskBackend):
    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = self.options.keys() - KNOWN
        if unknown or ("url" in self.options) == ("database" in self.options):
            raise ImproperlyConfigured(
                f"TASKS[{alias!r}]: OPTIONS has a url or a database, and may have results, visibility and open_options, "
                f"not {', '.join(sorted(unknown)) or 'both or neither'}"
            )
        self.database: str | None = self.options.get("database")
        self.results = float(self.options.get("results", DAY))
        self.visibility = float(self.options.get("visibility", 30))

    @property
    def store(self) -> penstock.Broker:
        """Opened when it is first used."""
        url = self.options["url"] if self.database is None else url_of(self.database)
        return STORES.get(url, self.options.get("open_options", {}))

    def queue(self, name: str) -> Queue:
        return self.store.create(name, exist_ok=True, retention=MAX_NUMBER, visibility=self.visibility)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        order = {"task": task.module_path, "args": normalize_json(args), "kwargs": normalize_json(kwargs)}
        delay = None if task.run_after is None else max(0.0, (_aware(task.run_after) - timezone.now()).total_seconds())
        draft = Draft(json.dumps(order).encode(), "application/json", delay=delay)
        now = timezone.now()
        (sent,) = self._send(task.queue_name, draft)
        result = self._result(task, sent.id, TaskResultStatus.READY, order["args"], order["kwargs"], enqueued_at=now)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def _send(self, name: str, draft: Draft) -> list[penstock.Sent]:
        queue = self.queue(name)
        if self.database is not None and connections[self.database].in_atomic_block:
            return queue.send_many([draft], connection=connections[self.database].connection)
        return queue.send_many([draft])

    def get_result(self, result_id: str) -> Any:
        from penstock.contrib.django.models import FinishedTask

        found = FinishedTask.objects.filter(id=result_id, backend=self.alias).first() if self.results else None
        if found is not None and found.expires_at > timezone.now():
            return self._finished(found)
        message = self._find(result_id)
        if message is None:
            raise TaskResultDoesNotExist(result_id)
        status = TaskResultStatus.RUNNING if message.state is penstock.State.CONSUMED else TaskResultStatus.READY
        return self.result_of(message, self.read(message), status)

    def _find(self, id: str) -> Message | None:
        """What waits or runs; a task's id tells the place of its message."""
        number = number_of(id)
        if number is None:
            kind = location(self.options["url"])[0] if self.database is None else ""
            if kind in ("vsqs", "spool", "memcached"):
                raise Unsupported(f"a store of {kind} cannot find a task by its id before it has finished")
            return None
        for name in self.queues or self.store.queues().names:
            try:
                messages = self.store.queue(name).scan(number, number + 1, 1)
            except QueueNotFound:
                continue
            if messages and messages[0].id == id:
                return messages[0]
        return None

    def read(self, message: Message) -> TaskOrder:
        try:
            order = json.loads(message.body)
            task, args, kwargs = import_string(order["task"]), list(order["args"]), dict(order["kwargs"])
        except (ValueError, TypeError, KeyError, ImportError) as error:
            raise NoTask(f"message {message.id} of queue {message.queue!r} is no task that we know: {error}") from error
        if not isinstance(task, Task):
            raise NoTask(f"message {message.id} of queue {message.queue!r} is for {order['task']!r:.200}, which is not a task")
        return TaskOrder(task.using(queue_name=message.queue, backend=self.alias), args, kwargs)

    def result_of(self, message: Message, order: TaskOrder, status: Any, **more: Any) -> Any:
        started = None if message.received_at is None else to_datetime(message.received_at)
        given = {"enqueued_at": to_datetime(message.sent_at), "started_at": started, "last_attempted_at": started}
        workers = [message.holder or "?"] * message.receives
        return self._result(order.task, message.id, status, order.args, order.kwargs, **given | {"workers": workers} | more)

    def _result(self, task: Any, id: str, status: Any, args: Any, kwargs: Any, *, workers: Any = (), **given: Any) -> Any:
        dates = {name: given.get(name) for name in ("enqueued_at", "started_at", "finished_at", "last_attempted_at")}
        return TaskResult(
            task=task,
            id=id,
            status=status,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=given.get("errors", []),
            worker_ids=list(workers),
            **dates,
        )

    def _finished(self, found: Any) -> Any:
        task = import_string(found.task).using(queue_name=found.queue_name)
        result = self._result(
            task,
            found.id,
            TaskResultStatus(found.status),
            found.args,
            found.kwargs,
            workers=found.workers,
            errors=[TaskError(**error) for error in found.errors],
            enqueued_at=found.enqueued_at,
            started_at=found.started_at,
            last_attempted_at=found.started_at,
            finished_at=found.finished_at,
        )
        object.__setattr__(result, "_return_value", found.return_value)
        return result

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        if not apps.is_installed("penstock.contrib.django"):
            hint = 'Add "penstock.contrib.django" to INSTALLED_APPS and run migrate.'
            yield checks.Error(
                "The worker and the results of Penstock's tasks are not installed.", hint=hint, id="penstock.E001"
            )
        if self.database is None and any(_is_same_file(self.options["url"], alias) for alias in connections):
            hint = "Two copies of SQLite in one process break each other's locks. Give the tasks a file of their own."
            yield checks.Error("The tasks are in the SQLite file of one of Django's databases.", hint=hint, id="penstock.E002")


def _is_same_file(url: str, database: str) -> bool:
    kind, path = location(url)
    known = connections[database].settings_dict
    return (
        kind == "sqlite" and connections[database].vendor == "sqlite" and Path(path).resolve() == Path(known["NAME"]).resolve()
    )


def _aware(at: datetime) -> datetime:
    return at if timezone.is_aware(at) else timezone.make_aware(at, UTC)
