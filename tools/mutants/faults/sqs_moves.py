"""Faults in SQS's move tasks."""

from __future__ import annotations

from planted import Mutant

SQS = "server/dialects/sqs/"
TASKS = f"{SQS}move_tasks.py"
BOOK, WORK, RUNNER = "server/jobs/book.py", "server/jobs/work.py", "server/jobs/runner.py"
LETTERS = "queue/dead_letters.py"


def moved(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    return Mutant(name, f"({tests}) and not vsqs and not spool and not OnPostgresql", changes, ("tests/test_sqs_moves.py",))


FAULTS = [
    moved("a task moves what comes later", "comes_later", (LETTERS, "policy.came_at(message) <= came_by and ", "")),
    moved(
        "a sent message was always there",
        "comes_later",
        ("policy.py", "message.sent_at if message.moved_at is None else message.moved_at", "message.moved_at or 0"),
    ),
    moved("a task's rate is forgotten", "than_its_rate", (WORK, "now - part.changed * SECOND // -plan.rate", "now")),
    moved(
        "a part is a second's worth",
        "than_its_rate",
        (WORK, "min(self._part, max(1, plan.rate // PARTS_A_SECOND))", "min(self._part, plan.rate)"),
    ),
    moved("progress undoes a cancel", "cancelled_task", (WORK, "if job.status == CANCELLING:", "if False:")),
    moved(
        "a note forgets that a task is cancelled",
        "cancelled_task",
        (BOOK, "self._write(replace(job, **changes))", "self._write(replace(job, **{'status': RUNNING, **changes}))"),
        (
            WORK,
            "        if now >= self._renew_at:\n",
            "        self._book.note(plan, done=job.done)\n        if now >= self._renew_at:\n",
        ),
        (WORK, "if job.status == CANCELLING:", "if (self._book.find(plan) or job).status == CANCELLING:"),
    ),
    moved(
        "two tasks of one source",
        "one_task_at_a_time",
        (BOOK, "            if not all(map(beside, active)):\n", "            if False:\n"),
    ),
    moved(
        "tasks are kept for ever", "last_ten", (BOOK, "for old in ended[max(0, KEPT - 1 - len(active)) :]}", "for old in ()}")
    ),
    moved(
        "the oldest task comes first",
        "last_ten",
        (
            BOOK,
            "    return sorted(found, key=lambda job: job.started_at, reverse=True)",
            "    return sorted(found, key=lambda job: job.started_at)",
        ),
    ),
    moved(
        "a message without a queue stays silently",
        "fails_the_task",
        (WORK, "FAILED if self._reason else COMPLETED", "COMPLETED"),
    ),
    moved(
        "a message that did not die is taken for one whose queue is gone",
        "did_not_die",
        (WORK, "NO_SOURCE if part.gone[0] is None else NO_QUEUE", "NO_QUEUE"),
    ),
    moved(
        "a group ends with its first message",
        "whole_and_in_order",
        (WORK, "elif self._moved_since_start and home.settings.groups:", "elif False:"),
    ),
    moved(
        "any message is a task",
        "makes_a_task",
        (BOOK, "job if job is not None and job.proof == plan.proof else None", "job"),
    ),
    moved(
        "a removed task runs for ever",
        "was_removed",
        (BOOK, "[job for job in jobs if job.is_active and job.proof in living]", "[job for job in jobs if job.is_active]"),
    ),
    moved(
        "a server that stops keeps its tasks",
        "gives_its_tasks_back or told_to_stop",
        (RUNNER, "                await self._do(work.give_back)\n", "                pass\n"),
    ),
    moved(
        "nobody looks for tasks",
        "claim_lapses or next_server",
        (RUNNER, "            await self._pause(bell, pause)\n", "            await self._pause(bell, 3600)\n"),
    ),
    moved(
        "a task is forgotten when its server is killed",
        "next_server",
        (
            RUNNER,
            "                pause = await self._do(work.step)\n",
            "                await self._do(work._claimed.delete)\n                pause = await self._do(work.step)\n",
        ),
        (WORK, "if not self._claimed.extend(LEASE):", "if False:"),
    ),
    moved(
        "a task's end is not told",
        "ends_with_its_source",
        (
            WORK,
            "            self._claimed.delete()\n            return None\n        if now",
            "            return None\n        if now",
        ),
    ),
    moved(
        "a task may move messages anywhere",
        "rights_of_a_redrive",
        (TASKS, "        if not grant.allows(Scope.ADMIN, to):\n", "        if False:\n"),
    ),
    moved(
        "a task without a destination needs no right",
        "rights_of_a_redrive",
        (TASKS, "            if not grant.allows_all(Scope.ADMIN):\n", "            if False:\n"),
    ),
    moved(
        "a task needs no right on its source",
        "rights_of_a_redrive",
        (TASKS, "        if not call.request.grant.allows(scope, queue):\n", "        if False:\n"),
    ),
    moved("a FIFO queue gets messages without groups", "whole_and_in_order", (TASKS, "own.groups != settings.groups", "False")),
    moved(
        "any queue is a source", "cannot_be_a_task", (TASKS, "if not await self._is_dead_letter_queue(source):", "if False:")
    ),
    moved(
        "a handle outlives its task",
        "than_its_rate or cancelled_task",
        (TASKS, "        if task.status == RUNNING:\n", "        if True:\n"),
    ),
]
