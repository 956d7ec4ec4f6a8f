"""A short tour of the embedded queue: prints and runs each statement of `tour`, and shows its result."""

# ruff: noqa: T201

from __future__ import annotations

import ast
import inspect
import tempfile
import textwrap
from threading import Timer

import penstock


def tour(folder: str) -> None:
    # One file holds many queues. A message that is received too often goes to a dead letter queue.
    broker = penstock.open(f"sqlite:///{folder}/tour.db")
    dead = broker.create("jobs-dead")
    jobs = broker.create("jobs", redrive=(dead.name, 1), visibility=30)

    # When send returns, the message is on the disk. A batch costs one commit.
    jobs.send(b"resize cat.jpg", content_type="text/plain", attributes={"width": 640})
    jobs.send_many([b"resize dog.jpg", b"resize cow.jpg"])

    # A received message is hidden from other receivers until it is deleted, or its visibility timeout ends.
    [message] = jobs.receive()
    message.text, dict(message.attributes)
    message.delete()
    message.delete()  # a receipt works once

    # A message can be sent now and become visible later.
    jobs.purge()
    jobs.send(b"remind me", delay=0.3)
    jobs.receive()
    [m.text for m in jobs.receive(wait=5)]

    # A sender wakes a waiting receiver, here from another thread.
    Timer(0.3, jobs.send, [b"wake up"]).start()
    [m.text for m in jobs.receive(wait=5)]

    # Received once and never deleted: with max_receives=1 the next receive buries it. Redrive sends it back.
    jobs.purge()
    jobs.send(b"poison")
    [m.release() for m in jobs.receive()]
    jobs.receive()
    [(m.text, m.death.reason, m.death.queue) for m in dead.peek() if m.death]
    dead.redrive()
    [m.text for m in jobs.peek()]

    # A queue that deduplicates returns the first message's id.
    mails = broker.create("mails", deduplicate=True)
    mails.send(b"hello")
    mails.send(b"hello")

    # Every queue is also a set.
    seen = broker.create("seen")
    seen.sadd("cat.jpg"), seen.sadd("cat.jpg")
    seen.sismember("cat.jpg"), seen.spop(), seen.spop()

    # See how the queues are doing.
    broker.queues()
    jobs.stats()
    broker.close()


def main() -> None:
    lines = inspect.getsource(tour).splitlines()
    body = ast.parse("\n".join(lines)).body[0]
    assert isinstance(body, ast.FunctionDef)
    with tempfile.TemporaryDirectory() as folder:
        names = {**globals(), "folder": folder}
        done = 1
        for statement in body.body:
            end = statement.end_lineno or statement.lineno
            for line in textwrap.dedent("\n".join(lines[done:end])).splitlines():
                print(line if not line or line.startswith("#") else f">>> {line}")
            # "single" prints the value of an expression, like the prompt
            exec(compile(ast.Interactive([statement]), __file__, "single"), names)  # noqa: S102
            done = end
    print("\nNext: README.md for the whole API, docs/cli.md for the same from a shell, penstock bench to measure.")


if __name__ == "__main__":
    main()
