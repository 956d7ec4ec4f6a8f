"""A process that sends or receives and logs each step, so that it can be killed at any moment and its account checked.

    python -m penstock.testing.worker URL QUEUE send|receive LOG NAME BATCH COUNT

A line is written before each step and after its answer: ``try BODY`` / ``sent BODY``; ``got SINCE BODY RECEIVES`` /
``deleting BODY`` / ``deleted AT BODY`` (SINCE: when the receive was begun; AT: when the delete was answered).
"""

from __future__ import annotations

import os
import sys
import time

import penstock


def main(url: str, name: str, role: str, log: str, prefix: str, batch: int, count: int) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(lines: list[str]) -> None:
        os.write(handle, "".join(f"{line}\n" for line in lines).encode())

    with penstock.open(url) as broker:
        queue = broker[name]
        write(["ready"])
        if role == "send":
            for start in range(0, count, batch):
                bodies = [f"{prefix}-{number}" for number in range(start, min(start + batch, count))]
                write([f"try {body}" for body in bodies])
                queue.send_many([body.encode() for body in bodies])
                write([f"sent {body}" for body in bodies])
            return
        while True:
            since = time.monotonic_ns()
            messages = queue.receive(batch, wait=0.5)
            if not messages and count == 0:
                return
            write([f"got {since} {message.text} {message.receives}" for message in messages])
            write([f"deleting {message.text}" for message in messages])
            answers = queue.delete_many(messages)
            at = time.monotonic_ns()
            write([f"deleted {at} {message.text}" for message, done in zip(messages, answers, strict=True) if done])


if __name__ == "__main__":
    url, name, role, log, prefix, batch, count = sys.argv[1:]
    main(url, name, role, log, prefix, int(batch), int(count))
