"""Faults in the messages of the SQS dialect."""

from __future__ import annotations

from planted import Mutant

ATTRIBUTES = "server/dialects/sqs/message_attributes.py"
ATTEMPTS = "server/dialects/sqs/attempts.py"
HANDLES = "server/dialects/sqs/handles.py"
IN_FLIGHT = "server/dialects/sqs/in_flight.py"
RECEIVING = "server/dialects/sqs/receiving.py"
RULES = "server/dialects/sqs/rules.py"
SENDING = "server/dialects/sqs/sending.py"
SETTLING = "server/dialects/sqs/settling.py"


def standard(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault that standard queues show."""
    return Mutant(name, f"memory and ({tests})", changes, ("tests/test_sqs_messages.py",))


def fifo(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault that FIFO queues show."""
    return Mutant(name, f"memory and ({tests})", changes, ("tests/test_sqs_fifo.py",))


def crossing(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault that shows when a message crosses dialects."""
    return Mutant(name, f"memory and ({tests})", changes, ("tests/test_sqs_crossing.py",))


FAULTS = [
    standard(
        "a control character is a character", "that_xml_has_not", (ATTRIBUTES, "set(range(0x20)) - {", "set(range(0x1F)) - {")
    ),
    standard("U+FFFE is a character", "that_xml_has_not", (ATTRIBUTES, "FFFE not in raw and ", "")),
    standard("a Binary is digested as text", "digest_of_attributes", (ATTRIBUTES, 'b"\\2" if kind', 'b"\\1" if kind')),
    standard("attributes are digested as they come", "digest_of_attributes", (ATTRIBUTES, "in sorted(parts):", "in parts:")),
    standard(
        "a custom type is forgotten",
        "types_arrive",
        (ATTRIBUTES, 'if kind != base or base == "Number":', 'if base == "Number":'),
    ),
    standard("a Number becomes text", "types_arrive", (ATTRIBUTES, 'if kind != base or base == "Number":', "if kind != base:")),
    standard("types do not count", "mebibyte_is_the_limit", (ATTRIBUTES, " + len(kind.encode()) + len(raw)", " + len(raw)")),
    standard("eleven attributes will do", "ten_attributes", (ATTRIBUTES, "MOST_ATTRIBUTES = 10", "MOST_ATTRIBUTES = 11")),
    standard("an attribute may be called AWS", "bad_name", (ATTRIBUTES, '(("aws.", "amazon.", "."))', '(("amazon.", "."))')),
    standard(
        "a prefix is a name",
        "attributes_that_it_asks_for",
        (ATTRIBUTES, 'tuple(name[:-2] for name in names if name.endswith(".*"))', "()"),
    ),
    standard(
        "what SQS remembers is shown",
        "attributes_that_it_asks_for",
        (ATTRIBUTES, "name == REMEMBERED or not wanted(name)", "not wanted(name)"),
    ),
    standard(
        "a handle is good for any queue", "no_handle_of_this_queue", (HANDLES, 'hasher.update(queue.encode() + b"\\0")', "pass")
    ),
    standard("a part of a handle will do", "no_handle_of_this_queue", (HANDLES, "checksum != _checksum(queue, rest)", "False")),
    standard("a batch is counted by the message", "as_a_whole", (SENDING, "if total > LONGEST_MESSAGE:", "if False:")),
    standard(
        "a queue's own limit does not count",
        "lower_limit",
        (RULES, '_whole(labels, "sqs.MaximumMessageSize", LONGEST_MESSAGE)', "LONGEST_MESSAGE"),
    ),
    standard(
        "the settings of a deleted queue count",
        "lower_limit",
        (
            "bridge/verbs.py",
            "        finally:\n            self._commits.forget(queue)\n",
            "        finally:\n            pass\n",
        ),
    ),
    standard(
        "changed settings do not count at once", "lower_limit", ("queue/queue.py", "        opened.known = settings\n", "")
    ),
    standard(
        "a queue's wait does not count", "woken_by_a_message", (RECEIVING, "rules.wait if wait is None else wait", "wait or 0")
    ),
    standard(
        "who asks not to wait waits",
        "ask_not_to_wait",
        (RECEIVING, "rules.wait if wait is None else wait", "wait or rules.wait"),
    ),
    standard("an entry that fails fails all", "fails_alone", (SENDING, "            return error\n", "            raise\n")),
    standard(
        "a message that is too long fails all",
        "fails_alone",
        (SENDING, "one.size > rules.longest else one\n", "False else one\n"),
    ),
    standard(
        "both parameters count alike", "looks_at_one", (RECEIVING, 'new or old if "x-amz-target" in', 'new or old if "host" in')
    ),
    standard(
        "in flight has no limit",
        "limit_of_messages_in_flight",
        (RECEIVING, "if await self._in_flight.is_full(queue):", "if False:"),
    ),
    standard(
        "what was in flight stays",
        "limit_of_messages_in_flight",
        (IN_FLIGHT, "return stats.in_flight >= self.limit", "return True"),
    ),
    standard(
        "an old handle hides nothing",
        "old_handle_changes",
        (SETTLING, "if _is_in_flight(found[receipt.id], now) else receipt for", "if False else receipt for"),
    ),
    standard("twelve hours begin anew", "twelve_hours", (SETTLING, "if beyond else True", "if False else True")),
    fifo(
        "a message of a FIFO queue that is visible again is hidden",
        "cannot_be_hidden",
        (SETTLING, "    if fifo and not _is_in_flight(message, now):\n", "    if False:\n"),
    ),
    standard(
        "an old handle hides a message that is visible",
        "of_a_message_that_is_visible",
        (SETTLING, "if _is_in_flight(found[receipt.id], now) else receipt for", "for"),
    ),
    standard(
        "a dead letter's receives begin anew", "receives_go_on", (RECEIVING, "(0 if death is None else death.receives)", "0")
    ),
    fifo(
        "a FIFO queue knows no content",
        "digest_of_the_body",
        (SENDING, "deduplication or hashlib.sha256(raw).hexdigest()", 'deduplication or "x"'),
    ),
    fifo("ids of other groups count", "do_not_count", (RULES, "if scope == BY_QUEUE:", "if True:")),
    fifo(
        "a new scope counts at once",
        "old_scope or new_scope",
        (RULES, "self.scope if now >= self.scope_since else self.scope_before", "self.scope"),
    ),
    fifo("the id of a group's message is forgotten", "do_not_count", (SENDING, "None if told else deduplication", "None")),
    fifo("an expired handle deletes", "once_its_time_is_over", (SETTLING, "        and _is_in_flight(message, now)\n", "")),
    fifo(
        "an old handle deletes of FIFO",
        "before_the_last_receive",
        (SETTLING, "refused = id in found and id not in deleted", "refused = False"),
    ),
    fifo(
        "an attempt is always new",
        "gets_the_same_messages",
        (ATTEMPTS, "        if messages:\n            self.keep(", "        if False:\n            self.keep("),
        (ATTEMPTS, "if not held:", "if True:"),
    ),
    fifo(
        "an attempt gets what is deleted",
        "have_changed",
        (ATTEMPTS, "and message.visible_at == visible_at > now", "and message.visible_at > now"),
    ),
    fifo(
        "an attempt is never forgotten",
        "forgotten_after",
        (ATTEMPTS, "if self._core.broker.clock() - at > WINDOW:", "if False:"),
    ),
    fifo("a delay of zero is none", "no_delay_of_its_own", (SENDING, "or (rules.fifo and delay == 0)", "")),
    fifo(
        "a purged queue knows its ids",
        "purged_queue",
        ("stores/memory/queue.py", "if table.settings.groups:", "if False:"),
        (
            "stores/sql/queue.py",
            "            if found.settings.groups:\n                found = database.enter",
            "            if False:\n                found = database.enter",
        ),
    ),
    crossing(
        "a body that is no text is lost",
        "no_text_of_sqs",
        (ATTRIBUTES, "encoded = b64encode(raw)", 'encoded = raw.decode(errors="replace").encode()'),
    ),
    crossing(
        "base64 does not say so",
        "no_text_of_sqs",
        (ATTRIBUTES, '        told.append((ENCODING, "base64"))\n', "        pass\n"),
    ),
    crossing(
        "a number of another dialect is text",
        "library_to_sqs",
        (ATTRIBUTES, 'else "String" if isinstance(value, str) else "Number"', 'else "String"'),
    ),
    crossing(
        "what SQS remembers is believed",
        "anything_may_be",
        (ATTRIBUTES, "return known if isinstance(known, dict) else {}", "return known"),
    ),
]
