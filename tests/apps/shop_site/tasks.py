"""Tasks that note in a file what they did."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import django
from noting import note

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task

FOLDER = Path(os.environ["APP_FOLDER"])


@task
def add(x: int, y: int) -> int:
    return x + y


@task
def fail() -> None:
    raise ValueError("no such order")


@task
def odd() -> Any:
    """Returns what JSON has no word for."""
    return object()


@task
async def later(x: int) -> int:
    return x


@task(takes_context=True)
def tell(context: Any, word: str) -> list[Any]:
    return [word, context.attempt, context.task_result.id]


@task
def count(number: int, not_before: float = 0.0) -> None:
    note("count", number, *(["early"] if time.time() < not_before - 0.1 else []))


@task(queue_name="slow")
def slow(number: int) -> None:
    """Ends when the caller says so."""
    note("slow", number)
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    note("slow-end", number)
