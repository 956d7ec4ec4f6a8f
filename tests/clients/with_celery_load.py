"""Celery under load, while the test kills the server and starts it again: every task that was sent is done.

Two workers with two processes each. A task is sent until the client has an answer. A worker of kombu 5.7 whose poll fails may
never poll again ("'list' object has no attribute 'get'"), so that workers that do nothing are started anew."""

from __future__ import annotations

import sys
import time

from celery_tasks import QUEUE, count, count_late, notes
from expecting import PATIENCE, until
from workers import Worker

TASKS = 150
IDLE = 5
"""Seconds in which a worker that polls has done something."""


def worker(name: str) -> Worker:
    return Worker(name, "celery", "-A", "celery_tasks", "worker", "-n", name, "-Q", QUEUE, "-l", "info", "-c", "2")


def done() -> set[int]:
    return {int(note.split()[1]) for note in notes()}


def send(number: int) -> None:
    give_up_at = time.monotonic() + PATIENCE
    task = count_late if number % 2 else count
    while True:
        try:
            task.delay(number)
            return
        except Exception as error:  # the server is down: whatever the client makes of that
            if time.monotonic() > give_up_at:
                sys.exit(f"task {number} could not be sent in {PATIENCE} seconds: {error!r}")
            time.sleep(0.1)


def work(send_all: bool) -> None:
    """Have workers until all is done, or nothing is done for a while."""
    with worker("one") as one, worker("two") as two:
        until("the workers' start", lambda: one.says("ready.") and two.says("ready."))
        for number in range(TASKS if send_all else 0):
            send(number)
            print("sent", number + 1, "done", len(done()), flush=True)
        seen, seen_at = -1, time.monotonic()
        while len(done()) < TASKS and time.monotonic() < seen_at + IDLE:
            if len(done()) > seen:
                seen, seen_at = len(done()), time.monotonic()
            time.sleep(0.1)


if __name__ == "__main__":
    work(send_all=True)
    until("every task", lambda: len(done()) == TASKS or work(send_all=False))
