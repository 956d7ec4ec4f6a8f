"""Django's task framework: that of Django 6, or its backport."""

from __future__ import annotations

from penstock.errors import MissingExtra

try:
    import django
except ImportError:
    raise MissingExtra("penstock.contrib.django", "django") from None

try:
    if django.VERSION >= (6,):
        from django.tasks import signals, task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import TaskResultDoesNotExist
        from django.utils.json import normalize_json
    else:
        from django_tasks import signals, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.utils import normalize_json
except ImportError:
    raise MissingExtra("penstock.contrib.django", "django") from None

__all__ = [
    "BaseTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "signals",
    "task_backends",
]
