"""dramatiq-sqs with a worker process: actors, a delay, a retry, the dead letter queue."""

from __future__ import annotations

import boto3
from dramatiq_actors import NOTES, fail, work
from expecting import ACCESS, PREFIX, expect, until
from workers import Worker

sqs = boto3.client("sqs", **ACCESS)


def notes(word: str) -> list[str]:
    return [line for line in NOTES.read_text().splitlines() if line.startswith(word)] if NOTES.exists() else []


def dead_letters() -> list[str]:
    url = sqs.get_queue_url(QueueName=f"{PREFIX}dramatiq_default_dlq")["QueueUrl"]
    found = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0, WaitTimeSeconds=1).get("Messages", [])
    return [message["Body"] for message in found]


for number in range(20):
    work.send(number)
work.send_with_options(args=(100,), delay=2000)
fail.send()
with Worker("dramatiq", "dramatiq", "dramatiq_actors", "--processes", "2", "--threads", "2") as worker:
    until("all actors", lambda: len(notes("work")) >= 21)
    expect("each ran once", sorted(notes("work")), sorted(f"work {number}" for number in [*range(20), 100]))
    until("the retry", lambda: len(notes("fail")) == 2)
    until("the dead letter", dead_letters)
    expect("the exit of the worker", worker.stop(), 0)
url = sqs.get_queue_url(QueueName=f"{PREFIX}dramatiq_default")["QueueUrl"]
expect("the tags", sqs.list_queue_tags(QueueUrl=url)["Tags"], {"team": "orders"})
