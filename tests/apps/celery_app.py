"""An application of Celery on Penstock. Every task notes in a file what it did; results come back over the broker itself."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from noting import note

FOLDER = Path(os.environ["APP_FOLDER"])

app = Celery("celery_app", broker=f"penstock+{os.environ['APP_URL']}", backend="rpc://")
app.conf.update(
    broker_transport_options={"visibility_timeout": float(os.environ.get("APP_VISIBILITY", "30"))},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_connection_timeout=60,
    worker_prefetch_multiplier=4,
    task_acks_late=True,
    task_publish_retry_policy={"max_retries": 100, "interval_start": 0.1, "interval_step": 0, "interval_max": 0.1},
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task(bind=True, max_retries=3)
def stumble(self: Any) -> int:
    """Fails twice."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.5)
    return int(self.request.retries)


@app.task
def fail() -> None:
    raise ValueError("no such order")


@app.task
def slow(number: int) -> int:
    """Ends when the caller says so."""
    note("slow", number)
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    note("slow-end", number)
    return number


@app.task(acks_late=False)
def early(seconds: float) -> None:
    time.sleep(seconds)


@app.task
def count(number: int, not_before: float = 0.0) -> None:
    note("count", number, *(["early"] if time.time() < not_before - 0.1 else []))
