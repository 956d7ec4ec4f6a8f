"""RedrivePolicy: which queue gets the messages that were received too often, and whether that queue agrees."""

from __future__ import annotations

import re

from penstock.broker import LocalBroker
from penstock.message import Redrive
from penstock.server.dialects.sqs.attributes import LABEL, read_document, value_error
from penstock.server.dialects.sqs.errors import SqsError
from penstock.server.dialects.sqs.names import FIFO, Names, QueueAddress

MOST_RECEIVES = 1000
COUNT = re.compile(r"[0-9]{1,4}")


class RedrivePolicies:
    """Reads the policies that name a dead letter queue. Called where the store may be read."""

    def __init__(self, broker: LocalBroker, names: Names) -> None:
        self._broker = broker
        self._names = names

    def read(self, text: str, source: QueueAddress) -> Redrive:
        """The RedrivePolicy of the queue ``source``."""
        policy = read_document(text)
        if not isinstance(policy, dict):
            raise value_error("RedrivePolicy", "Redrive policy is not a valid JSON map.")
        for name in ("maxReceiveCount", "deadLetterTargetArn"):
            if name not in policy:
                raise _invalid(text, f"Redrive policy does not contain mandatory attribute: {name}.")
        count, arn = policy["maxReceiveCount"], policy["deadLetterTargetArn"]
        if not COUNT.fullmatch(str(count)) or not 1 <= int(count) <= MOST_RECEIVES:
            reason = f"Invalid value for maxReceiveCount: {str(count)[:100]}, valid values are from 1 to 1000 both inclusive."
            raise _invalid(text, reason)
        if len(policy) > 2:
            raise _invalid(text, "Only following attributes are supported: [maxReceiveCount, deadLetterTargetArn].")
        return Redrive(self._target(text, arn, source), int(count))

    def _target(self, text: str, arn: object, source: QueueAddress) -> str:
        parts = arn.split(":") if isinstance(arn, str) else []
        if len(parts) != 6 or parts[0] != "arn":
            raise _invalid(text, "Invalid value for deadLetterTargetArn.")
        queue = self._names.queue_of_arn(arn)
        if queue is None:
            sqs = parts[2] == "sqs"
            raise _invalid(
                text,
                "Dead letter target does not exist." if sqs else "Only SQS queues are valid resources for deadLetterTargetArn.",
            )
        if parts[4] != source.account:
            raise _invalid(text, "Dead-letter target owner should be same as the source.")
        if parts[3] != source.region:
            raise _invalid(text, "Dead-letter target should be in the same region as the source.")
        if parts[5].endswith(FIFO) != source.name.endswith(FIFO):
            raise _invalid(text, "Dead-letter queue must be same type of queue as the source..")
        settings = self._broker.store.load(queue)
        if settings is None:
            raise _invalid(text, "Dead letter target does not exist.")
        if not _allows(settings.labels.get(f"{LABEL}RedriveAllowPolicy"), source.arn):
            raise _invalid(text, "Dead letter target does not allow this source queue in its RedriveAllowPolicy.")
        return queue


def _allows(text: str | None, arn: str) -> bool:
    policy = read_document(text) if text else None
    if not isinstance(policy, dict):
        return True
    permission = policy.get("redrivePermission")
    return permission == "allowAll" or (permission == "byQueue" and arn in policy.get("sourceQueueArns", []))


def _invalid(text: str, reason: str) -> SqsError:
    return SqsError("InvalidParameterValueException", f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}")
