"""Faults in what controls a queue: pausing."""

from __future__ import annotations

from planted import Mutant

STORES = ("tests/test_memory.py", "tests/test_sqlite.py", "tests/test_vsqs.py")


def controlled(name: str, tests: str, *changes: tuple[str, str, str], files: tuple[str, ...] = STORES[:1]) -> Mutant:
    return Mutant(name, tests, changes, files)


FAULTS = [
    controlled(
        "a receive from a paused queue succeeds",
        "nobody_receives",
        (
            "queue/receiving.py",
            "        if settings.paused:\n            self._busy",
            "        if False:\n            self._busy",
        ),
        ("queue/opened.py", "self.known is not None and self.known.paused and", "False and"),
    ),
    controlled(
        "an exchange receives from a paused queue",
        "held_can_be_settled",
        (
            "queue/receiving.py",
            "            if settings.paused:\n                return",
            "            if False:\n                return",
        ),
    ),
    controlled(
        "a named claim takes messages of a paused queue",
        "claim_of_a_paused_queue",
        ("queue/named_claims.py", "0 if self._queue.read_settings().paused else self._take", "self._take"),
    ),
    controlled(
        "a receiver does not ask whether its queue was resumed",
        "another_process_pauses",
        ("queue/opened.py", "and self.known.paused and self.read_settings().paused", "and self.known.paused"),
        files=("tests/test_sqlite.py",),
    ),
    controlled(
        "a receiver looks again and again at a paused queue",
        "paused_queue_costs",
        ("queue/opened.py", "return None if due is None or self.is_paused() else due", "return due"),
    ),
    controlled(
        "the server's polls look again and again at a paused queue",
        "poll_of_a_server_rests",
        ("bridge/taking.py", "self._commits.queue(how.queue).pulse().due_at", "self._broker.store.queue(how.queue).due()"),
        files=("tests/test_limits.py",),
    ),
    controlled(
        "files: changed settings wake nobody",
        "another_process_pauses",
        ("stores/files/queue.py", "*self.folder.layout.stamp(), *self.sidecar.stamp()", "self.folder.layout.stamp()"),
        files=("tests/test_vsqs.py",),
    ),
]
