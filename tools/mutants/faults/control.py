"""Faults in what controls a queue: pausing, cancelling, unique messages, limits."""

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
            "            if settings.paused or",
            "            if",
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
        ("queue/opened.py", "if due is None or self.is_paused():", "if due is None:"),
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
    controlled(
        "a cancel takes a message from its holder",
        "somebody_holds_is_not",
        ("policy.py", "    return message.state is State.QUEUED or message.visible_at <= now", "    return True"),
        files=STORES,
    ),
    controlled(
        "a cancel deletes the message whoever has it by then",
        "receiver_that_comes_in_between",
        ("queue/cancelling.py", "message.id, message.delivery)", "message.id, None)"),
        files=STORES,
    ),
    controlled(
        "a cancel by a key takes another message",
        "redriven_message_is_cancelled",
        ("queue/finding.py", "if message.id == id)", "if message.id != id)"),
    ),
    controlled(
        "SQLite: a lapsed named claim still holds its messages against a cancel",
        "named_claim_holds_its_messages_until",
        ("queue/finding.py", "message.visible_at == FOREVER", "False"),
        files=("tests/test_sqlite.py",),
    ),
    controlled(
        "memcached: a message that was moved is not found by its id",
        "redriven_message_is_cancelled",
        ("stores/memcached/queue.py", "if moved is None else int(moved[0])", ""),
        files=("tests/test_memcached.py",),
    ),
    controlled(
        "a key of a window is not found",
        "key_of_a_window",
        (
            "stores/sql/marks.py",
            "if self._exists(number):\n                return Marked",
            "if self._exists(number) and until == FOREVER:\n                return Marked",
        ),
        files=("tests/test_sqlite.py",),
    ),
    controlled(
        "files: a key of a window is not found",
        "key_of_a_window",
        (
            "stores/files/marks.py",
            'str(record["id"]) if record and',
            'str(record["id"]) if record and record["until"] == FOREVER and',
        ),
        files=("tests/test_vsqs.py",),
    ),
    controlled(
        "a cancel in a group wakes nobody and frees nobody",
        "blocked_message_is_cancelled",
        (
            "stores/memory/table.py",
            "        elif not row.blocked:\n            following",
            "        elif False:\n            following",
        ),
    ),
    controlled(
        "a unique message counts only until it is received",
        "unique_message_is_there_once",
        (
            "stores/memory/table.py",
            "        before = row.message\n",
            "        before = row.message\n        self.marks.records.pop(row.mark or b'', None)\n",
        ),
    ),
    controlled(
        "a unique message counts for a window only",
        "for_as_long_as_it_is_there",
        ("policy.py", "key, settings), FOREVER", "key, settings), now + SECOND"),
        files=STORES,
    ),
    controlled(
        "a unique message is so against all with its key",
        "not_unique_are_as_many",
        ("policy.py", "    if draft.unique is not False:", "    if key is not None:"),
        ("policy.py", "    if unique is not True:", "    if False:"),
    ),
    controlled(
        "SQL: a message that has failed forgets its policy",
        "named_claim_takes_unique",
        (
            "stores/sql/extending.py",
            "failures=message.failures + 1, error=error",
            "failures=message.failures + 1, error=error, retry=None",
        ),
        files=("tests/test_sqlite.py",),
    ),
    controlled(
        "a redriven message is not unique any more",
        "redriven_message_is_unique",
        ("policy.py", "FOREVER if marks.is_unique(known) else 0", "0"),
        files=STORES,
    ),
    controlled(
        "a token takes the place of a unique message's mark",
        "batch_that_is_sent_again_adds_nothing",
        ("policy.py", "if entry.mark is None else entry for", "for"),
        (
            "policy.py",
            "    if any(entry.mark is not None for entry in entries):\n        return mark_batch",
            "    if False:\n        return mark_batch",
        ),
        files=STORES,
    ),
    controlled(
        "a unique message that was sent with a token is told to be new",
        "batch_that_is_sent_again_adds_nothing",
        ("queue/sending.py", "isinstance(draft, Draft) and draft.unique", "False"),
        files=STORES,
    ),
    controlled(
        "a cancel does not find a unique message by its key",
        "key_finds_the_unique",
        ("queue/finding.py", "queue.stored.marked(marks.of_unique(key)).id or ", ""),
    ),
    controlled(
        "a receive does not look how much is in flight",
        "at_most_so_many or poll_rests_while",
        ("queue/receiving.py", "limit = min(limit, self._queue.room(settings, now))", "pass"),
    ),
    controlled(
        "an exchange knows no limit",
        "exchange_is_limited",
        ("queue/receiving.py", "if settings.paused or settings.max_in_flight is not None:", "if settings.paused:"),
        files=("tests/test_sqlite.py",),
    ),
    controlled(
        "SQLite: a named claim knows no limit",
        "claim_has_what_there_is_room",
        ("queue/named_claims.py", "most, certainty = min(limit, self._queue.room(settings, now)),", "most, certainty = limit,"),
        files=("tests/test_sqlite.py",),
    ),
    controlled(
        "a receiver at the limit does not see that it was changed",
        "changes_the_limit",
        ("queue/receiving.py", "return [], self._queue.read_settings() != settings, False", "return [], False, False"),
        ("queue/opened.py", "self.room(self.read_settings(), now)", "self.room(self.known, now)"),
        files=("tests/test_sqlite.py",),
    ),
    controlled(
        "a lease that lapses wakes nobody at the limit",
        "poll_rests_while and lapse",
        ("queue/opened.py", "return now + FULL_PAUSE if limited", "return None if limited"),
    ),
]
