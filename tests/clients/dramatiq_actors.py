"""Actors of dramatiq on SQS, which note what they did in a file."""

from __future__ import annotations

import os
from pathlib import Path

import dramatiq
from dramatiq.middleware import Retries
from dramatiq_sqs import SQSBroker
from expecting import ACCESS, PREFIX

NOTES = Path(os.environ["SQS_FOLDER"]) / "notes"
broker = SQSBroker(
    namespace=PREFIX + "dramatiq",
    dead_letter=True,
    tags={"team": "orders"},
    middleware=[Retries(max_retries=1, min_backoff=100, max_backoff=1000)],
    **ACCESS,
)
dramatiq.set_broker(broker)


def note(line: str) -> None:
    handle = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, line.encode() + b"\n")
    finally:
        os.close(handle)


@dramatiq.actor
def work(number: int) -> None:
    note(f"work {number}")


@dramatiq.actor
def fail() -> None:
    note("fail")
    raise ValueError("no such order")
