"""A process that sets the wall clock and reports what happens to its messages. `penstock.testing.stepping` provides the clock.

python -m penstock.testing.stepper URL scenes        each scene and its outcome, as JSON
python -m penstock.testing.stepper URL hold          take a message, and hold it for five minutes
python -m penstock.testing.stepper URL receive       the bodies that can be received
python -m penstock.testing.stepper URL clock         the store's clock less the steady one, for each line of input
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from penstock.broker import LocalBroker, open_local
from penstock.clock import steady
from penstock.errors import PenstockError
from penstock.queue.protocol import Queue
from penstock.workers.heartbeat import Heartbeat

HOUR, DAYS = 3600, 5 * 86400
SOON = 5
"""Seconds to wait for what must be there; a format that counts in milliseconds shows a message slightly later."""


def step(seconds: int) -> None:
    """Set the wall clock this far from its original value."""
    before = time.time()
    Path(os.environ["PENSTOCK_STEP"]).write_text(str(seconds))
    assert seconds == 0 or abs(time.time() - before) > HOUR / 2, "the wall clock of this process was not set"


def hold_forward(queue: Queue) -> object:
    queue.send(b"held")
    (held,) = queue.receive()
    step(HOUR)
    return [message.body.decode() for message in queue.receive(5)], held.delete()


def hold_back(queue: Queue) -> object:
    queue.send(b"held")
    (held,) = queue.receive()
    step(-HOUR)
    return [message.body.decode() for message in queue.receive(5)], held.delete()


def sent_while_wrong(queue: Queue) -> object:
    step(HOUR)
    queue.send(b"sent")
    step(0)
    return queue.stats().delayed, [message.body.decode() for message in queue.receive(5, wait=SOON)]


def sent_before_a_step_back(queue: Queue) -> object:
    queue.send(b"sent")
    step(-HOUR)
    return [message.body.decode() for message in queue.receive(5, wait=SOON)]


def released_while_wrong(queue: Queue) -> object:
    queue.send(b"sent")
    (held,) = queue.receive()
    step(HOUR)
    held.release()
    step(0)
    return [message.body.decode() for message in queue.receive(5, wait=SOON)]


def retention(queue: Queue) -> object:
    queue.send_many([b"1", b"2", b"3"])
    step(DAYS)
    queue.stats()
    taken = [message.body.decode() for message in queue.receive(1)]
    step(0)
    return taken, len(queue.receive(5, wait=SOON))


def delay(queue: Queue) -> object:
    queue.send(b"later", delay=600)
    step(HOUR)
    return [message.body.decode() for message in queue.receive(5)], queue.stats().messages


def deadline(queue: Queue) -> object:
    queue.send(b"soon", deadline=600)
    step(HOUR)
    return [message.body.decode() for message in queue.receive(5, wait=SOON)]


def duplicates(queue: Queue) -> object:
    queue.update(deduplicate=300)
    queue.send(b"same")
    step(HOUR)
    return queue.send(b"same").duplicate


def named_claim(queue: Queue) -> object:
    queue.send(b"claimed")
    queue.claim("reader", 1, 5)
    step(HOUR)
    return queue.confirm("reader", 1).size


def consumers(queue: Queue, broker: LocalBroker) -> object:
    beats = {"interval": 2, "check_every": 1, "max_missed": 3, "visibility": None}
    hearts = [Heartbeat(queue, broker.store.roster, broker.clock, **beats) for _ in range(2)]  # type: ignore[arg-type]
    for heart in hearts:
        heart.beat()
    step(HOUR)
    hearts[0].beat()
    return len(broker.store.roster.living(queue.name))


SCENES: dict[str, tuple[Any, object]] = {
    "held, and the clock is set forward": (hold_forward, [[], True]),
    "held, and the clock is set back": (hold_back, [[], True]),
    "sent while the clock was an hour ahead": (sent_while_wrong, [0, ["sent"]]),
    "sent, and the clock is set back": (sent_before_a_step_back, ["sent"]),
    "released while the clock was an hour ahead": (released_while_wrong, ["sent"]),
    "five days ahead for a moment": (retention, [["1"], 2]),
    "delayed, and the clock is set forward": (delay, [[], 1]),
    "with a deadline, and the clock is set forward": (deadline, ["soon"]),
    "sent twice within the window, by a clock set forward": (duplicates, True),
    "a tentative claim, and the clock is set forward": (named_claim, 1),
    "two consumers, and the clock is set forward": (consumers, 2),
}
"""Each scene with its expected outcome."""


def say(value: object) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")
    sys.stdout.flush()


def main(url: str, role: str) -> None:
    with open_local(url) as broker:
        if role == "scenes":
            found = {}
            for number, (name, (play, _)) in enumerate(SCENES.items()):
                step(0)
                queue = broker.create(f"scene-{number}", visibility=300)
                try:
                    found[name] = play(queue, broker) if play is consumers else play(queue)
                except (PenstockError, ValueError) as error:  # go on to the other scenes
                    found[name] = str(error)
            say(found)
        elif role == "hold":
            queue = broker.create("orders", visibility=300)
            queue.send_many([b"held", b"left"])
            say([message.body.decode() for message in queue.receive()])
        elif role == "receive":
            say([message.body.decode() for message in broker["orders"].receive(5, wait=SOON)])
        else:
            for _ in sys.stdin:
                before = steady()
                shown = broker.clock()
                say([shown - steady(), shown - before])


if __name__ == "__main__":
    main(*sys.argv[1:])
