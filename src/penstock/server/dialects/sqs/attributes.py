"""The attributes of a queue: which there are, what their values may be, and where the core keeps them.

The core's own settings are visibility, delay, retention, redrive and groups. It has no word for the others, which are labels:
`sqs.MaximumMessageSize` and so on. A queue that another dialect has made has none of these labels, and the defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.message import Redrive, Settings
from penstock.policy import MAX_BODY
from penstock.server.dialects.sqs.errors import SqsError

LABEL = "sqs."
CREATED, MODIFIED, PURGED = "sqs.CreatedTimestamp", "sqs.LastModifiedTimestamp", "sqs.PurgedTimestamp"
WINDOW = 300
"""Seconds for which a FIFO queue knows a message's deduplication id."""
COUNTERS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesDelayed")
COMPUTED = ("QueueArn", *COUNTERS, "CreatedTimestamp", "LastModifiedTimestamp")
NUMBER = re.compile(r"[0-9]{1,10}")
TRUE, FALSE = "true", "false"


@dataclass(frozen=True, slots=True)
class Number:
    """``setting``: the core's name of it; empty: it is a label."""

    least: int
    most: int
    default: int
    setting: str = ""


NUMBERS = {
    "VisibilityTimeout": Number(0, 43200, 30, "visibility"),
    "DelaySeconds": Number(0, 900, 0, "delay"),
    "MessageRetentionPeriod": Number(60, 1209600, 345600, "retention"),
    "MaximumMessageSize": Number(1024, MAX_BODY, MAX_BODY),
    "ReceiveMessageWaitTimeSeconds": Number(0, 20, 0),
    "KmsDataKeyReusePeriodSeconds": Number(60, 86400, 300),
}
CHOICES = {
    "SqsManagedSseEnabled": (TRUE, FALSE),
    "ContentBasedDeduplication": (FALSE, TRUE),
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
"""The first is the default."""
OF_FIFO = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
THROUGHPUT = ("DeduplicationScope", "FifoThroughputLimit")
DOCUMENTS = ("Policy", "RedriveAllowPolicy", "KmsMasterKeyId")
"""Text that an empty value removes."""
SETTABLE = frozenset({*NUMBERS, *CHOICES, *DOCUMENTS, "RedrivePolicy", "FifoQueue"})
KNOWN = SETTABLE | {*COMPUTED, "All"}
LONGEST_KEY_ID = 2048


@dataclass(slots=True)
class Changes:
    """What a request changes in the core's settings; a label that is None is removed."""

    settings: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str | None] = field(default_factory=dict)

    def as_arguments(self) -> dict[str, Any]:
        return {**self.settings, "labels": self.labels} if self.labels else dict(self.settings)


def value_error(name: str, reason: str = "") -> SqsError:
    return SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.{reason and f' Reason: {reason}'}")


def unknown(name: str) -> SqsError:
    return SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")


def number(settings: Settings, name: str) -> int:
    """An attribute that is a number."""
    known = NUMBERS[name]
    if known.setting:
        return int(getattr(settings, known.setting))
    text = settings.labels.get(LABEL + name, "")
    return int(text) if NUMBER.fullmatch(text) else known.default  # other programs can write labels, too


def instant(settings: Settings, label: str) -> int:
    """Seconds since 1970; 0 if nobody knows."""
    text = settings.labels.get(label, "")
    return int(text) if NUMBER.fullmatch(text) else 0


def choice(settings: Settings, name: str) -> str:
    """An attribute that is one of several words."""
    return settings.labels.get(LABEL + name, CHOICES[name][0])


def trimmed(given: Mapping[str, str]) -> dict[str, str]:
    """Attributes by their names without blanks around them, which a form or a shell easily adds."""
    return {name.strip(): value for name, value in given.items()}


def read(given: Mapping[str, str], fifo: bool, redrive: Callable[[str], Redrive]) -> Changes:
    """What these attributes change. ``redrive`` reads a RedrivePolicy."""
    changes = Changes()
    for name, value in given.items():
        if name not in SETTABLE:
            raise unknown(name)
        if not fifo and name in OF_FIFO:
            raise _not_fifo(name)
        if name in NUMBERS:
            _read_number(changes, name, value)
        elif name in CHOICES:
            if value not in CHOICES[name]:
                raise value_error(name)
            changes.labels[LABEL + name] = value
        elif name == "RedrivePolicy":
            changes.settings["redrive"] = redrive(value) if value else None
        elif name == "FifoQueue":
            if value.lower() != TRUE:
                raise value_error(name, "Modifying queue type is not supported.")
        else:
            _check_document(name, value)
            changes.labels[LABEL + name] = value or None
    return changes


def _not_fifo(name: str) -> SqsError:
    if name in THROUGHPUT:
        return SqsError("InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true.")
    return unknown(name)


def _read_number(changes: Changes, name: str, value: str) -> None:
    known = NUMBERS[name]
    if not NUMBER.fullmatch(value) or not known.least <= int(value) <= known.most:
        raise value_error(name)
    if known.setting:
        changes.settings[known.setting] = int(value)
    else:
        changes.labels[LABEL + name] = str(int(value))


def _check_document(name: str, value: str) -> None:
    if name == "KmsMasterKeyId":
        if len(value) > LONGEST_KEY_ID:
            raise value_error(name)
    elif value and name == "Policy":
        if not isinstance(read_document(value), dict):
            raise value_error(name)
    elif value:
        _check_allowed(value)


def read_document(text: str) -> Any:
    """The JSON in an attribute; None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


MOST_SOURCES = 10
_FORMAT = "Amazon SQS can't create the redrive allow policy, as it’s in an unsupported format."


def _check_allowed(text: str) -> None:
    policy = read_document(text)
    if not isinstance(policy, dict) or not policy.keys() <= {"redrivePermission", "sourceQueueArns"}:
        raise value_error("RedriveAllowPolicy", _FORMAT)
    permission, sources = policy.get("redrivePermission"), policy.get("sourceQueueArns")
    listed = sources is None or (isinstance(sources, list) and all(isinstance(arn, str) for arn in sources))
    if permission not in ("allowAll", "denyAll", "byQueue") or not listed:
        raise value_error("RedriveAllowPolicy", _FORMAT)
    reason = ""
    if permission == "byQueue" and not sources:
        reason = "When you specify the byQueue permission type, you must also specify one or more sourceQueueArns values."
    elif permission != "byQueue" and sources:
        reason = "To specify one or more source queue ARNs, you must set redrivePermission to byQueue."
    elif sources and len(sources) > MOST_SOURCES:
        reason = f"The maximum number of source queue ARNs you can specify is {MOST_SOURCES}."
    if reason:
        start = f"Value {text} for parameter RedriveAllowPolicy is invalid. Reason: "
        raise SqsError("InvalidParameterValueException", f"{start}Amazon SQS can't create the redrive allow policy. {reason}")


def settle(changes: Changes, base: Settings) -> None:
    """Check what must fit together, and complete it, with the settings ``base`` that the queue has."""
    labels = {name: text for name, text in {**base.labels, **changes.labels}.items() if text is not None}
    limit, scope = labels.get(LABEL + "FifoThroughputLimit"), labels.get(LABEL + "DeduplicationScope")
    if limit == "perMessageGroupId" and scope != "messageGroup":
        reason = "The perMessageGroupId value is allowed only when the value for DeduplicationScope is messageGroup."
        raise value_error("FifoThroughputLimit", reason)
    managed = LABEL + "SqsManagedSseEnabled"
    if LABEL + "KmsMasterKeyId" in labels:
        if changes.labels.get(managed) == TRUE:
            raise SqsError(
                "InvalidAttributeName",
                "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
            )
        changes.labels[managed] = FALSE
    elif LABEL + "KmsMasterKeyId" in changes.labels:
        changes.labels[LABEL + "KmsDataKeyReusePeriodSeconds"] = None


def differing(given: Mapping[str, str], changes: Changes, settings: Settings) -> str | None:
    """The first of the given attributes that an existing queue has another value for."""
    for name, value in given.items():
        if name in NUMBERS:
            same = number(settings, name) == int(value)
        elif name in CHOICES:
            same = choice(settings, name) == value
        elif name == "RedrivePolicy":
            same = settings.redrive == changes.settings["redrive"]
        elif name == "FifoQueue":
            same = settings.groups
        else:
            text = settings.labels.get(LABEL + name, "")
            same = text == value or (bool(text and value) and read_document(text) == read_document(value) is not None)
        if not same:
            return name
    return None


def show(settings: Settings, arn: str, dead_letters_arn: str | None) -> dict[str, str]:
    """Every attribute but the counters. ``dead_letters_arn``: None if there is no such queue that the caller may know."""
    labels = settings.labels
    shown = {
        "QueueArn": arn,
        "CreatedTimestamp": str(instant(settings, CREATED)),
        "LastModifiedTimestamp": str(instant(settings, MODIFIED)),
        **{name: str(number(settings, name)) for name in NUMBERS if name != "KmsDataKeyReusePeriodSeconds"},
        "SqsManagedSseEnabled": choice(settings, "SqsManagedSseEnabled"),
    }
    for name in DOCUMENTS:
        if LABEL + name in labels:
            shown[name] = labels[LABEL + name]
    if "KmsMasterKeyId" in shown or LABEL + "KmsDataKeyReusePeriodSeconds" in labels:
        shown["KmsDataKeyReusePeriodSeconds"] = str(number(settings, "KmsDataKeyReusePeriodSeconds"))
    if settings.redrive is not None and dead_letters_arn is not None:
        policy = {"deadLetterTargetArn": dead_letters_arn, "maxReceiveCount": settings.redrive.max_receives}
        shown["RedrivePolicy"] = json.dumps(policy, separators=(",", ":"))
    if settings.groups:
        shown["FifoQueue"] = TRUE
        shown |= {name: choice(settings, name) for name in CHOICES if name in OF_FIFO}
    return shown
