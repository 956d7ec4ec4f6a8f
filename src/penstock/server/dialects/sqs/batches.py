"""What the three batches have in common: the checks of the whole request, and an answer for each entry."""

from __future__ import annotations

import re
from typing import Any

from penstock.server.dialects.sqs.call import Call
from penstock.server.dialects.sqs.errors import SqsError

MOST_ENTRIES = 10
ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
Entries = list[dict[str, Any]]


def entries_of(call: Call) -> Entries:
    """The entries of a batch. What is wrong with the batch as a whole is refused."""
    entries: Entries = call.given.get("Entries") or []
    if not entries:
        raise SqsError("EmptyBatchRequest", f"There should be at least one {call.operation}RequestEntry in the request.")
    if len(entries) > MOST_ENTRIES:
        text = f"Maximum number of entries per request are {MOST_ENTRIES}. You have sent {len(entries)}."
        raise SqsError("TooManyEntriesInBatchRequest", text)
    seen: set[str] = set()
    for entry in entries:
        id = entry["Id"]
        if not ID.fullmatch(id):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 "
                "letters long.",
            )
        if id in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {id} repeated.")
        seen.add(id)
    return entries


def failure(entry: dict[str, Any], error: SqsError) -> dict[str, Any]:
    return {"Id": entry["Id"], "SenderFault": error.status < 500, "Code": error.code, "Message": error.text}
