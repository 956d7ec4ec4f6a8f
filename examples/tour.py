"""A short tour of the embedded queue: each statement of `tour` is printed and run, with its result below it."""

# ruff: noqa: T201

from __future__ import annotations

import ast
import inspect
import tempfile
import textwrap
from threading import Timer

import penstock


def tour(folder: str) -> None:
    # One file holds many queues. What is received too often goes to a dead letter queue.
    broker = penstock.open(f"sqlite:///{folder}/tour.db")
    dead = broker.create("jobs-dead")
    jobs = broker.create("jobs", redrive=(dead.name, 1), visibility=30)

    # When send returns, the message is on the disk. Many cost one commit.
    jobs.send(b"resize cat.jpg", content_type="text/plain", attributes={"width": 640})
    jobs.send_many([b"resize dog.jpg", b"resize cow.jpg"])

    # A received message is hidden from others until it is deleted, or its visibility is over.
    [message] = jobs.receive()
    message.text, dict(message.attributes)
    message.delete()
    message.delete()  # a receipt counts once

    # A message can be sent now and become visible later.
    jobs.purge()
    jobs.send(b"remind me", delay=0.3)
    jobs.receive()
    [m.text for m in jobs.receive(wait=5)]

    # A receiver that waits is woken by a sender, here in another thread.
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

    # A queue that deduplicates answers with the first message's id.
    mails = broker.create("mails", deduplicate=True)
    mails.send(b"hello")
    mails.send(b"hello")

    # Every queue is also a set.
    seen = broker.create("seen")
    seen.sadd("cat.jpg"), seen.sadd("cat.jpg")
    seen.sismember("cat.jpg"), seen.spop(), seen.spop()

    # How is it going?
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
            # "single" shows the value of an expression, as the prompt does
            exec(compile(ast.Interactive([statement]), __file__, "single"), names)  # noqa: S102
            done = end
    print("\nNext: README.md for the whole API, docs/cli.md for the same from a shell, penstock bench to measure.")


if __name__ == "__main__":
    main()
