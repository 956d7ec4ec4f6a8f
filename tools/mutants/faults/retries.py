"""Faults in what becomes of a message whose handler has failed."""

from __future__ import annotations

from planted import Mutant

MEMORY = ("tests/test_memory.py",)
RULES = ("tests/test_retries.py",)


def retried(name: str, tests: str, *changes: tuple[str, str, str], files: tuple[str, ...] = MEMORY) -> Mutant:
    return Mutant(name, tests, changes, files)


FAULTS = [
    retried(
        "an error keeps its null characters, and PostgreSQL never gives its message up",
        "whatever_characters",
        ("policy.py", 'text.replace("\\0", NO_NULL).encode', "text.encode"),
    ),
    retried(
        "PostgreSQL alone refuses a reason with a null character",
        "not_every_store_can_keep",
        ("policy.py", 'if "\\0" in reason:', "if False:"),
    ),
    retried(
        "a release does not count the failure",
        "keeps_the_error",
        ("stores/messages.py", "(message.failures + 1, error)", "(message.failures, error)"),
    ),
    retried(
        "SQL: a release does not note the error",
        "keeps_the_error",
        ("stores/sql/extending.py", "(error is None or _note_failure(", "(True or _note_failure("),
        files=("tests/test_sqlite.py",),
    ),
    retried(
        "SQL: an error is noted of a message that nobody holds",
        "stale_receipt_notes_no_error",
        ("stores/sql/extending.py", "if row is None or row[STATE] != State.CONSUMED:", "if row is None:"),
        files=("tests/test_sqlite.py",),
    ),
    retried(
        "SQL: an error that is noted leaves the old checksum",
        "error_changes_nothing_else",
        (
            "stores/sql/common.sql",
            "SET head = :head, checksum = :checksum WHERE number = :number\n\n-- name: hide_held",
            "SET head = :head WHERE number = :number\n\n-- name: hide_held",
        ),
        files=("tests/test_sqlite.py",),
    ),
    retried(
        "files: a release does not note the error",
        "keeps_the_error",
        ("stores/files/holding.py", "        if error is not None:\n", "        if False:\n"),
        files=("tests/test_vsqs.py",),
    ),
    retried(
        "files: the history names what an older version does not know",
        "writes_nothing_beside",
        ("stores/files/history.py", '"home", "retry", "failures", "error")', '"home", "retry")'),
        files=RULES,
    ),
    retried(
        "memcached: a release does not note the error",
        "keeps_the_error",
        ("stores/memcached/contents.py", "                page.states[slot] |= FAILED\n", ""),
        files=("tests/test_memcached.py",),
    ),
    retried(
        "memcached: each failure is the first",
        "keeps_the_error",
        ("stores/memcached/contents.py", "[known[number] + 1, error]", "[1, error]"),
        files=("tests/test_memcached.py",),
    ),
    retried(
        "a dead letter keeps its failures",
        "after_its_last_attempt",
        ("stores/messages.py", "        failures=0,\n        error=None,\n", ""),
    ),
    retried(
        "a queue's policy comes before a message's own",
        "own_policy_comes_before",
        ("policy.py", "message.retry or settings.retry or retry", "settings.retry or message.retry or retry"),
    ),
    retried(
        "a consumer's back-off comes before a queue's policy",
        "own_policy_comes_before",
        ("policy.py", "message.retry or settings.retry or retry", "message.retry or retry"),
    ),
    retried(
        "a message is given up an attempt too late",
        "after_its_last_attempt",
        ("policy.py", "failures >= retry.attempts", "failures > retry.attempts"),
    ),
    retried(
        "every receive is an attempt",
        "only_a_failed_attempt_counts",
        ("policy.py", "message.failures + 1, chance)", "message.receives, chance)"),
    ),
    retried(
        "a delay grows beyond its cap",
        "each_curve_grows",
        ("policy.py", "min(grown, retry.max_delay)", "grown"),
        files=RULES,
    ),
    retried(
        "jitter makes a delay longer",
        "jitter",
        ("policy.py", "(1 - retry.jitter * chance)", "(1 + retry.jitter * chance)"),
        files=RULES,
    ),
    retried(
        "a policy's attempts come before max_receives",
        "stricter_of_attempts",
        (
            "policy.py",
            "    if settings.redrive is not None and message.receives >= settings",
            "    if False and message.receives >= settings",
        ),
    ),
    retried(
        "a message that was received too often is buried without its error",
        "only_a_failed_attempt_counts",
        ("policy.py", '"max_receives" if message.error is None else', '"max_receives" if True else'),
    ),
    retried(
        "a letter that was given up does not say how often it was received",
        "after_its_last_attempt",
        ("policy.py", "message.receives if death.receives == AS_COUNTED else", "0 if death.receives == AS_COUNTED else"),
    ),
    retried(
        "a rejected message comes again",
        "asks_for_another_attempt",
        ("policy.py", "    if failed.rejects:\n", "    if False:\n"),
    ),
    retried(
        "a Retry's own delay does not count",
        "asks_for_another_attempt",
        ("policy.py", "delay if failed.after is None else failed.after", "delay"),
    ),
    retried(
        "a Retry loses the error that was handled",
        "asks_for_another_attempt",
        ("retries.py", "error.__cause__ or error.__context__", "None"),
    ),
    retried(
        "from another process comes only the text of what was raised",
        "callback_in_another_process",
        (
            "workers/executors.py",
            "        return reads(error)\n    return None",
            "        return Failed(reads(error).error)\n    return None",
        ),
        files=RULES,
    ),
    retried(
        "a callback that takes its process down has not failed",
        "takes_its_process_down",
        ("workers/consumer.py", " or bool(message.retry or self.queue.settings.retry)", ""),
        files=RULES,
    ),
    retried(
        "a message past its deadline comes again",
        "retried_by_hand",
        ("policy.py", "        return Verdict.EXPIRE, failed.error, 0\n", "        return Verdict.DELIVER, failed.error, 0\n"),
    ),
    retried(
        "a given-up message of a group keeps the others waiting",
        "keeps_its_group_waiting",
        (
            "queue/dead_letters.py",
            "done = queue.stored.move([held], moving)[0] is Moved.DONE",
            "done = queue.stored.extend([held], 2**62)[0]",
        ),
    ),
    retried(
        "a task's failed message is only released",
        "task_that_fails",
        ("aio/message.py", "self._home().retry(self, error)", "self.release()"),
    ),
    retried(
        "every queue is stored with a policy",
        "stored_as_before",
        ("stores/encoding.py", '"paused": False, "retry": None, ', '"paused": False, '),
        files=RULES,
    ),
    retried(
        "whoever may count buries messages",
        "may_only_count",
        ("server/dialects/native.py", '"release", "bury"}', '"release"}'),
        files=RULES,
    ),
    retried(
        "a schedule loses its messages' policy",
        "schedule_s_messages",
        ("schedules/schedule.py", "    if retry is not None:\n", "    if False:\n"),
        files=RULES,
    ),
]
