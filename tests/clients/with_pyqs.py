"""pyqs with two worker processes: tasks at once and later, found by the prefix of their queue."""

from __future__ import annotations

import boto3
from expecting import ACCESS, expect, until
from pyqs_tasks import NOTES, QUEUE, work
from workers import Worker

sqs = boto3.client("sqs", **ACCESS)
for number in range(20):
    work.delay(number)  # creates the queue, as it is not there
work.delay(100, _delay_seconds=1)
url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "3600"})  # nothing comes again on a slow machine


def notes() -> list[str]:
    return NOTES.read_text().splitlines() if NOTES.exists() else []


def left() -> list[str]:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return [found[name] for name in names]


with Worker("pyqs", "pyqs", "-c", "2", f"{QUEUE}*"):
    until("all tasks", lambda: len(notes()) >= 21)
    expect("each ran once", sorted(notes()), sorted(f"work {number}" for number in [*range(20), 100]))
    until("an empty queue", lambda: left() == ["0", "0", "0"])
