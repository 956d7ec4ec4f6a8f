"""Celery with worker processes: results, retry, countdown, failure, a large message, FIFO, and a warm shutdown."""

from __future__ import annotations

from celery.exceptions import TimeoutError as Late
from celery_tasks import FIFO, FOLDER, QUEUE, add, fail, measure, notes, ordered, slow, stumble
from expecting import PATIENCE, expect, until
from workers import Worker


def worker(name: str) -> Worker:
    """It runs one task at a time: two would not keep the order of a group, since Celery deletes a message before its task."""
    command = ["celery", "-A", "celery_tasks", "worker", "-n", name, "-Q", f"{QUEUE},{FIFO}", "-l", "info", "-c", "1"]
    return Worker(name, *command)


def tasks() -> None:
    results = [add.delay(number, 1) for number in range(20)]
    again, failed, large = stumble.delay(), fail.delay(), measure.delay("é" * 75_000)
    later = add.apply_async((100, 100), countdown=3)
    delayed_by_sqs = add.apply_async((200, 200), DelaySeconds=2)
    for group in "ab":
        for number in range(5):
            ordered.apply_async((group, number), queue=FIFO, MessageGroupId=group, MessageDeduplicationId=f"{group}{number}")
    expect("results", [result.get(PATIENCE) for result in results], [number + 1 for number in range(20)])
    expect("a task that was retried", again.get(PATIENCE), "done")
    expect("its tries", [note for note in notes() if note.startswith("stumble")], ["stumble 0", "stumble 1", "stumble 2"])
    expect("a failure", repr(failed.get(PATIENCE, propagate=False)), repr(ValueError("no such order")))
    expect("a large argument", large.get(PATIENCE), 75_000)
    expect("a countdown", later.get(PATIENCE), 200)
    expect("a delayed message", delayed_by_sqs.get(PATIENCE), 400)


def order() -> None:
    until("all ordered tasks", lambda: sum(note.startswith("ordered") for note in notes()) >= 10)
    for group in "ab":
        found = [note for note in notes() if note.startswith(f"ordered {group}")]
        expect(f"the order of group {group}", found, [f"ordered {group} {number}" for number in range(5)])


def shutdown(first: Worker) -> None:
    """The task that runs is finished, and what was only prefetched is done by the next worker."""
    before = len(notes())
    results = [slow.delay(number) for number in range(6)]
    until("a running task", lambda: len(notes()) > before)
    first.ask_to_stop()
    until("the warm shutdown", lambda: first.says("Warm shutdown"))
    (FOLDER / "go").touch()
    expect("the exit of the worker", first.stop(), 0)
    started = {note.split()[1] for note in notes() if note.startswith("slow ")}
    ended = {note.split()[1] for note in notes() if note.startswith("slow-end ")}
    expect("what it had started has ended", ended, started)
    with worker("second"):
        try:
            found = [result.get(PATIENCE) for result in results]
        except Late:
            found = []
        expect("all are done", found, list(range(6)))


if __name__ == "__main__":
    with worker("first") as first:
        until("the worker's start", lambda: first.says("ready."))
        tasks()
        order()
        shutdown(first)
