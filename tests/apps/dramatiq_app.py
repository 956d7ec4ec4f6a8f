"""An application of Dramatiq on Penstock. Every actor notes in a file what it did."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dramatiq
from noting import note

from penstock.contrib.dramatiq import PenstockBroker

FOLDER = Path(os.environ["APP_FOLDER"])

broker = PenstockBroker(os.environ["APP_URL"], visibility=float(os.environ.get("APP_VISIBILITY", "30")))
dramatiq.set_broker(broker)


@dramatiq.actor
def count(number: int, not_before: float = 0.0) -> None:
    note("count", number, *(["early"] if time.time() < not_before - 0.1 else []))


@dramatiq.actor(max_retries=2, min_backoff=100, max_backoff=100)
def fail(number: int) -> None:
    note("fail", number)
    raise ValueError("no such order")


@dramatiq.actor(queue_name="slow")
def slow(number: int) -> None:
    """Ends when the caller says so."""
    note("slow", number)
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    note("slow-end", number)
