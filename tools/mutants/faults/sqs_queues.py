"""Faults in the SQS dialect's protocols and queues."""

from __future__ import annotations

from planted import Mutant

SQS = "server/dialects/sqs/"
ATTRIBUTES, QUEUES, NAMES = f"{SQS}attributes.py", f"{SQS}queues.py", f"{SQS}names.py"
JSON, QUERY, DIALECT, DEAD = f"{SQS}json_protocol.py", f"{SQS}query_protocol.py", f"{SQS}dialect.py", f"{SQS}dead_letters.py"
HEAD = "server/http/head.py"


def asked(name: str, tests: str, *changes: tuple[str, str, str]) -> Mutant:
    """A fault in what SQS's clients ask for, and how."""
    chosen = f"({tests}) and (memory or TestRules or TestProtocols)"
    return Mutant(name, chosen, changes, ("tests/test_sqs_queues.py", "tests/test_sqs_protocol.py", "tests/test_dialects.py"))


FAULTS = [
    # protocols
    asked("null is a value", "null_or_unknown", (JSON, "if member is not None and name in readers:", "if name in readers:")),
    asked("AWS's truth is Python's", "taken_for_text", (JSON, 'return "true" if value else "false"', "return str(value)")),
    asked(
        "a missing member is found later",
        "missing_is_named",
        (JSON, "                raise Absent(name)\n", "                pass\n"),
    ),
    asked("an entry has the wrong number", "missing_is_named", (JSON, "{len(items) + 1}", "{len(items)}")),
    asked("deep JSON is a defect", "another_shape", (JSON, "except (ValueError, RecursionError):", "except ValueError:")),
    asked("an empty member is written", "tags_are_kept", (JSON, "if value or value not in EMPTY}", "}")),
    asked("SDKs cannot tell errors apart", "deleted_queue_is_gone", (JSON, "{error.code};", "{error.shape};")),
    asked("a form has no limit", "very_many_parameters", (QUERY, "max_num_fields=MOST_PARAMETERS", "max_num_fields=10**9")),
    asked("the last parameter counts", "first_of_several", (QUERY, "tree.setdefault(last, value)", "tree[last] = value")),
    asked(
        "a list ends at its first gap",
        "may_have_gaps",
        (QUERY, "for place in _places(node)]", "for place in _places(node)[:1]]"),
    ),
    asked("a carriage return is lost in XML", "survives_xml", (QUERY, '"\\r": "&#13;"', '"\\r": "\\r"')),
    asked("XML breaks on odd characters", "cannot_express", (QUERY, '"\\ufffd"), text)', "found[0]), text)")),
    asked("a path beats a QueueUrl", "own_path", (DIALECT, 'given.get("QueueUrl") or path', 'path or given.get("QueueUrl")')),
    asked("a queue's path lists all queues", "no_action_for_other", (QUERY, "(on_queue and name in", "(False and name in")),
    asked(
        "SQS takes a path of MQ-Core's",
        "keep_their_paths",
        (DIALECT, 'segments[1] != "messages" or', "True or"),
    ),
    asked(
        "refusals are not SQS's",
        "another_part_of_the_server",
        ("server/app.py", "return self._dialect(request).answer_refused(", "return self._root.answer_refused("),
    ),
    asked("large requests are not weighed", "budget", (DIALECT, "self.core.budget.hold(request, weight)", "weight = 0")),
    # names
    asked(
        "regions share their queues",
        "regions_and_accounts",
        (NAMES, "return name if region == self.region else", "return name if True else"),
    ),
    asked("accounts share their queues", "regions_and_accounts", (NAMES, "if account != self.account:", "if False:")),
    asked(
        "other regions are listed",
        "regions_and_accounts",
        (QUEUES, "(place.account, place.region) == (call.account, call.region)", "True"),
    ),
    asked(
        "the address is the client's, whatever is set",
        "are_settings",
        (NAMES, "        if self._url:\n", "        if False:\n"),
    ),
    # queues
    asked(
        "a queue is created anew with other attributes",
        "created_once",
        (QUEUES, 'if name is not None:\n            text = f"A queue', 'if False:\n            text = f"A queue'),
    ),
    asked(
        "attributes that are not given are compared",
        "created_once",
        (
            ATTRIBUTES,
            "    for name, value in given.items():\n        if name in NUMBERS:\n            same",
            '    for name, value in {"DelaySeconds": "0", **given}.items():\n        if name in NUMBERS:\n            same',
        ),
    ),
    asked(
        "half of a change is made", "outside_its_limits", (ATTRIBUTES, "not known.least <= int(value) <= known.most", "False")
    ),
    asked(
        "digits of other scripts are numbers",
        "outside_its_limits",
        (ATTRIBUTES, 'NUMBER = re.compile(r"[0-9]{1,10}")', 'NUMBER = re.compile(r"\\d{1,10}")'),
    ),
    asked("what is computed can be set", "cannot_be_set", (ATTRIBUTES, "if name not in SETTABLE:", "if name not in KNOWN:")),
    asked("a standard queue has a scope", "none_of_a_fifo", (ATTRIBUTES, "if not fifo and name in OF_FIFO:", "if False:")),
    asked("two kinds of encryption", "one_kind_of_it", (ATTRIBUTES, "if changes.labels.get(managed) == TRUE:", "if False:")),
    asked(
        "an empty policy is kept",
        "empty_text_removes",
        (ATTRIBUTES, "changes.labels[LABEL + name] = value or None", "changes.labels[LABEL + name] = value"),
    ),
    asked(
        "the time of a change is not kept",
        "time_of_the_change",
        (QUEUES, "changes.labels[MODIFIED] = str(self._now())", "pass"),
    ),
    asked("a dead letter queue has no say", "which_queues_may_use_it", (DEAD, "if not _allows(", "if False and not _allows(")),
    asked(
        "dead letters of another kind",
        "cannot_be_kept",
        (DEAD, "if parts[5].endswith(FIFO) != source.name.endswith(FIFO):", "if False:"),
    ),
    asked("messages die in another account", "cannot_be_kept", (DEAD, "if parts[4] != source.account:", "if False:")),
    asked("a page begins again", "by_prefix_and_in_pages", (QUEUES, "start = bisect_right(", "start = 0 * bisect_right(")),
    asked("tags without end", "50_tags", (QUEUES, "> MOST_TAGS:", "> 10**6:")),
    asked(
        "a permission is given twice",
        "permissions_edit",
        (f"{SQS}permissions.py", "if any(_is(statement, label)", "if False and any(_is(statement, label)"),
    ),
    asked("waits are not kept", "the_waits", (QUEUES, "< WAIT:\n            name", "< 0:\n            name")),
    asked("a deleted name is free at once", "the_waits", (QUEUES, "self._deleted[queue] = now", "pass")),
    asked(
        "a token creates any queue",
        "only_its_queues",
        (QUEUES, "call.request.grant.check(Scope.ADMIN, queue)\n        labels", "labels"),
    ),
    asked(
        "the name of a hidden queue is shown",
        "only_its_queues",
        (QUEUES, "redrive is not None and call.request.grant.knows(redrive.dead_letter_queue)", "redrive is not None"),
    ),
    Mutant(
        "a field of a head is read in two ways",
        "strict_parser or not_understood",
        ((HEAD, 'FRAMING = frozenset({"transfer-encoding", "upgrade"})', "FRAMING: frozenset[str] = frozenset()"),),
        ("tests/test_conversation.py",),
    ),
]
