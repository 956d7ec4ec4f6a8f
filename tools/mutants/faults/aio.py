"""Faults in tasks: what becomes of what a cancelled one has taken, and shared commits."""

from __future__ import annotations

from planted import Mutant


def awaited(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tests, changes, ("tests/test_aio.py",))


FAULTS = [
    awaited(
        "a task that is cancelled with its answer keeps its claim",
        "between_its_answer",
        (
            "bridge/performing.py",
            "        if self.answered:\n            self._revert()\n",
            "        if self.answered:\n            pass\n",
        ),
    ),
    awaited(
        "what the store claims for a cancelled task stays claimed",
        "claims_for_a_cancelled",
        (
            "bridge/performing.py",
            "        if self.gone or self.withdrawn:\n            self._revert()\n",
            "        if self.gone or self.withdrawn:\n            pass\n",
        ),
    ),
    awaited(
        "a cancelled task is done all the same",
        "not_begun",
        ("bridge/performing.py", "        else:\n            self.withdraw()\n", "        else:\n            pass\n"),
    ),
    awaited(
        "a member that a cancelled task has popped is lost",
        "cancellations and memory and Uvloop",
        ("aio/embedded.py", ", undo=partial(self._put_back, queue)", ""),
    ),
    awaited(
        "over HTTP, what a cancelled task was answered is forgotten",
        "over_http_a_task_that_is_cancelled",
        ("aio/remote.py", "await self._line.follow(asking, undo)", "await self._line.follow(asking)"),
    ),
    awaited(
        "the server does not hear that a long poll was cancelled",
        "ends_at_the_server",
        ("aio/connections.py", "        connection.stop_sending()\n        try:\n", "        try:\n"),
    ),
    awaited(
        "what was settled for a cancelled task is lost",
        "settled_for_a_cancelled",
        (
            "aio/backend.py",
            "            self._settled.setdefault((queue, mode), deque()).extend(settled)\n",
            "            pass\n",
        ),
    ),
    awaited(
        "a client that stops sending does not get what was settled for it",
        "still_gets_what_was_settled",
        ("server/dialects/native.py", "if not messages or messages[0].settled_at is None:", "if True:"),
    ),
    awaited(
        "a loop keeps the messages that it has not come to",
        "not_come_to and memory",
        ("aio/backend.py", "            self.leave(*held)\n", "            pass\n"),
    ),
    awaited(
        "a closed broker keeps what its loops have not come to",
        "closed_gives_back and sqlite",
        ("aio/embedded.py", "        self.unseen.give_back()\n", ""),
        ("aio/remote.py", "        self.unseen.give_back()\n", ""),
    ),
    awaited(
        "a loop delivers messages from the past",
        "lease_has_lapsed",
        ("aio/queue.py", "if not _lapsed(", "if True or not _lapsed("),
    ),
    awaited(
        "each task has a commit of its own",
        "share_a_commit",
        (
            "aio/embedded.py",
            "(await self._commits.send(queue, batch)).sent",
            'await self._commits.run(partial(self._act, queue, "send_many", arguments, named))',
        ),
    ),
    awaited(
        "a cancelled opening leaves its store open",
        "cancelled_opening",
        ("aio/broker.py", "opening.add_done_callback(_close)", "pass"),
    ),
    awaited(
        "a cancelled close stops halfway",
        "cancelled_close",
        ("aio/broker.py", "await asyncio.shield(self._closing)", "await self._closing"),
    ),
    awaited(
        "calls of tasks have no bound",
        "connections_are_kept",
        ("aio/connections.py", "asyncio.Semaphore(self.calls.connections)", "asyncio.Semaphore(10**6)"),
    ),
    awaited(
        "a block that was cancelled keeps its message",
        "by_how_it_ends",
        ("aio/message.py", "self._home().let_go(self.receipt)", "pass"),
    ),
]
