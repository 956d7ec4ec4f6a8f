"""An application of Celery on SQS. Every task notes in a file what it did; results are files as well."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from expecting import PREFIX, REGION, URL

FOLDER = Path(os.environ["SQS_FOLDER"])
NOTES = FOLDER / "notes"
QUEUE, FIFO = "tasks", "ordered.fifo"

app = Celery("celery_tasks", broker=URL.replace("http://", "sqs://test:test@"), backend=f"file://{FOLDER}/results")
app.conf.update(
    broker_transport_options={
        "region": REGION,
        "is_secure": False,
        "queue_name_prefix": PREFIX,
        "visibility_timeout": int(os.environ.get("SQS_VISIBILITY", "3600")),
        "wait_time_seconds": 5,
        "polling_interval": 0,
    },
    task_default_queue=QUEUE,
    worker_prefetch_multiplier=4,
    worker_enable_remote_control=False,  # SQS has no broadcast
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
)


def note(*words: object) -> None:
    """One write: processes that append at once keep their lines apart."""
    handle = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (" ".join(map(str, words)) + "\n").encode())
    finally:
        os.close(handle)


def notes() -> list[str]:
    return NOTES.read_text().splitlines() if NOTES.exists() else []


@app.task
def add(x: int, y: int) -> int:
    note("add", x, y)
    return x + y


@app.task(bind=True, max_retries=3)
def stumble(self: Any) -> str:
    """Fails twice."""
    note("stumble", self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=1)
    return "done"


@app.task
def fail() -> None:
    note("fail")
    raise ValueError("no such order")


@app.task
def measure(text: str) -> int:
    return len(text)


@app.task
def ordered(group: str, number: int) -> None:
    note("ordered", group, number)


@app.task
def slow(number: int) -> int:
    """Ends when the caller says so."""
    note("slow", number)
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    note("slow-end", number)
    return number


@app.task
def count(number: int) -> None:
    note("count", number)


@app.task(acks_late=True)
def count_late(number: int) -> None:
    note("count", number)
