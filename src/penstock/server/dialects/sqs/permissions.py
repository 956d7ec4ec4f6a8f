"""AddPermission and RemovePermission: edits of the queue's policy. Nobody is let in by a policy; it is kept and shown."""

from __future__ import annotations

import json
import re
from typing import Any

from penstock.server.dialects.sqs.attributes import read_document
from penstock.server.dialects.sqs.errors import SqsError, invalid
from penstock.server.dialects.sqs.names import ACCOUNT

MOST_ACTIONS = 7
LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
FOR_OTHERS = frozenset(
    {
        "*",
        "ChangeMessageVisibility",
        "DeleteMessage",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
        "ReceiveMessage",
        "SendMessage",
    }
)
"""What an account can be permitted to do in a queue of another one."""


def check(given: dict[str, Any]) -> None:
    """The members of AddPermission."""
    label, accounts, actions = given["Label"], given["AWSAccountIds"], given["Actions"]
    if not LABEL.fullmatch(label):
        raise invalid("Label", label, "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
    if not accounts or not all(map(ACCOUNT.fullmatch, accounts)):
        raise invalid("PrincipalId", f"[{', '.join(accounts)}]", "Unable to verify.")
    if not actions:
        raise SqsError("MissingRequiredParameterException", "The request must contain the parameter Actions.")
    if len(actions) > MOST_ACTIONS:
        raise SqsError("OverLimit", f"{len(actions)} Actions were found, maximum allowed is {MOST_ACTIONS}.")
    for action in actions:
        if action not in FOR_OTHERS:
            raise invalid("ActionName", f"SQS:{action}", "Only the queue owner is allowed to invoke this action.")


def add(text: str, arn: str, given: dict[str, Any]) -> str:
    """The policy ``text`` (empty: none) with one statement more."""
    policy = _read(text, arn)
    label = given["Label"]
    if any(_is(statement, label) for statement in policy["Statement"]):
        raise invalid("Label", label, "Already exists.")
    policy["Statement"].append(
        {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": _one([f"arn:aws:iam::{account}:root" for account in given["AWSAccountIds"]])},
            "Action": _one([f"SQS:{action}" for action in given["Actions"]]),
            "Resource": arn,
        }
    )
    return json.dumps(policy, separators=(",", ":"))


def remove(text: str, arn: str, label: str) -> str:
    """The policy without this statement; empty if it was the last."""
    policy = _read(text, arn)
    left = [statement for statement in policy["Statement"] if not _is(statement, label)]
    if len(left) == len(policy["Statement"]):
        raise invalid("Label", label, "can't find label.")
    return json.dumps({**policy, "Statement": left}, separators=(",", ":")) if left else ""


def _read(text: str, arn: str) -> dict[str, Any]:
    found = read_document(text) if text else None
    policy = found if isinstance(found, dict) else {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy"}
    statements = policy.get("Statement", [])
    policy["Statement"] = statements if isinstance(statements, list) else [statements]
    return policy


def _is(statement: object, label: str) -> bool:
    return isinstance(statement, dict) and statement.get("Sid") == label


def _one(items: list[str]) -> str | list[str]:
    return items[0] if len(items) == 1 else items
