"""Runs tasks: the callback of a consumer finds the task, calls it, and keeps what became of it.

the task returns       successful: recorded, then settled
the task raises        failed: recorded, then settled. It does not run again: Django's framework has no retries
its process dies       it runs again, when its lease lapses
it cannot be found     it stays in the queue, and is tried again: this worker may be older than the application that sent it
it cannot be recorded  it runs again
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from traceback import format_exception
from typing import Any

from django.db import DatabaseError, close_old_connections, connections
from django.utils import timezone

from penstock.contrib.django.backend import PenstockBackend, TaskOrder
from penstock.contrib.django.framework import TaskContext, TaskError, TaskResultStatus, normalize_json, signals
from penstock.errors import StoreUnreachable
from penstock.message import Message
from penstock.workers.side_by_side import run_all

logger = logging.getLogger("penstock")
CLEAR_EVERY = timedelta(minutes=1)
CLEARED = 1000
"""Old results that are removed at a time."""
ERROR_PAUSE = 1.0


class TaskRunner:
    """The callback for the tasks of one backend."""

    def __init__(self, backend: PenstockBackend) -> None:
        self._backend = backend
        self._clear_at: datetime | None = None

    def __call__(self, _payload: bytes, message: Message) -> None:
        close_old_connections()
        try:
            self._run(message, self._backend.read(message))
        finally:
            close_old_connections()

    def _run(self, message: Message, order: TaskOrder) -> None:
        sender = type(self._backend)
        running = self._backend.result_of(message, order, TaskResultStatus.RUNNING)
        signals.task_started.send_robust(sender, task_result=running)
        errors, value = [], None
        try:
            context = (TaskContext(task_result=running),) if order.task.takes_context else ()
            value = normalize_json(order.task.call(*context, *order.args, **order.kwargs))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            path = f"{type(error).__module__}.{type(error).__qualname__}"
            errors.append(TaskError(exception_class_path=path, traceback="".join(format_exception(error))))
        status = TaskResultStatus.FAILED if errors else TaskResultStatus.SUCCESSFUL
        ended = self._backend.result_of(message, order, status, finished_at=timezone.now(), errors=errors)
        object.__setattr__(ended, "_return_value", value)
        if self._backend.results:
            self._record(ended)
        signals.task_finished.send_robust(sender, task_result=ended)

    def _record(self, ended: Any) -> None:
        from penstock.contrib.django.models import FinishedTask

        now = timezone.now()
        row = FinishedTask(
            id=ended.id,
            task=ended.task.module_path,
            queue_name=ended.task.queue_name,
            backend=ended.backend,
            status=ended.status.value,
            args=ended.args,
            kwargs=ended.kwargs,
            return_value=ended._return_value,
            errors=[{"exception_class_path": e.exception_class_path, "traceback": e.traceback} for e in ended.errors],
            workers=ended.worker_ids,
            enqueued_at=ended.enqueued_at,
            started_at=ended.started_at,
            finished_at=ended.finished_at,
            expires_at=now + timedelta(seconds=self._backend.results),
        )
        # One statement: on SQLite, a read before the write would fail at once if another thread has written in between.
        others = [field.name for field in FinishedTask._meta.fields if not field.primary_key]
        named = connections[FinishedTask.objects.db].features.supports_update_conflicts_with_target
        FinishedTask.objects.bulk_create(
            [row], update_conflicts=True, update_fields=others, unique_fields=["id"] if named else None
        )
        if self._clear_at is None or now >= self._clear_at:
            self._clear_at = now + CLEAR_EVERY
            self._clear(now)

    def _clear(self, now: datetime) -> None:
        from penstock.contrib.django.models import FinishedTask

        try:
            old = FinishedTask.objects.filter(expires_at__lte=now).values_list("id", flat=True)[:CLEARED]
            FinishedTask.objects.filter(id__in=list(old)).delete()
        except DatabaseError as error:
            logger.warning("old results of tasks could not be removed, and will be later: %s", error)


def work(backend: PenstockBackend, queues: Iterable[str], *, threads: int, until_empty: bool) -> int:
    """Run the tasks of these queues until a signal comes. Returns how many have run; the error of a consumer is raised."""
    _reach(backend, queues, patient=not until_empty)
    consumers = [backend.store.consumer(name, workers=threads, visibility=backend.visibility) for name in queues]
    for consumer in consumers:
        consumer.process(TaskRunner(backend))
    return run_all(consumers, until_empty=until_empty).processed


def _reach(backend: PenstockBackend, queues: Iterable[str], *, patient: bool) -> None:
    """After a power cut a worker may start before the server of its store, which is no reason to end."""
    while True:
        try:
            for name in queues:
                backend.queue(name)
        except StoreUnreachable as error:
            if not patient:
                raise
            logger.warning("no tasks can be had for now: %s", error)
            time.sleep(ERROR_PAUSE)
        else:
            return
