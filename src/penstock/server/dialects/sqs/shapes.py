"""The one table of SQS's operations: the members of their requests and answers, from which both protocols are read and written.

Handlers see the names and types of the JSON model. The Query protocol flattens lists and maps: a list `AttributeNames` is
`AttributeName.1`, `AttributeName.2`, …, and a map `Attributes` is `Attribute.1.Name`, `Attribute.1.Value`, …
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Text:
    pass


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""


@dataclass(frozen=True, slots=True)
class Truth:
    pass


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes; both protocols write them in base64."""


@dataclass(frozen=True, slots=True)
class Structure:
    members: Mapping[str, Shape] = field(default_factory=dict)
    needed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class List:
    """``query``: the name of each item in the Query protocol."""

    query: str
    item: Text | Blob | Structure


@dataclass(frozen=True, slots=True)
class Map:
    """``query``: the name of each pair in the Query protocol."""

    query: str
    value: Text | Structure
    key: str = "Name"


Shape = Text | Whole | Truth | Blob | Structure | List | Map


@dataclass(frozen=True, slots=True)
class Operation:
    name: str
    input: Structure
    output: Structure = Structure()


TEXT, WHOLE, TRUTH, BLOB = Text(), Whole(), Truth(), Blob()
URL = {"QueueUrl": TEXT}
ATTRIBUTES = Map("Attribute", TEXT)
TAGS = Map("Tag", TEXT, "Key")
VALUE = Structure(
    {
        "StringValue": TEXT,
        "BinaryValue": BLOB,
        "StringListValues": List("StringListValue", TEXT),
        "BinaryListValues": List("BinaryListValue", BLOB),
        "DataType": TEXT,
    }
)
MESSAGE_ATTRIBUTES = Map("MessageAttribute", VALUE)
DRAFT: dict[str, Shape] = {
    "MessageBody": TEXT,
    "DelaySeconds": WHOLE,
    "MessageAttributes": MESSAGE_ATTRIBUTES,
    "MessageSystemAttributes": Map("MessageSystemAttribute", VALUE),
    "MessageDeduplicationId": TEXT,
    "MessageGroupId": TEXT,
}
SENT: dict[str, Shape] = {
    "MessageId": TEXT,
    "MD5OfMessageBody": TEXT,
    "MD5OfMessageAttributes": TEXT,
    "MD5OfMessageSystemAttributes": TEXT,
    "SequenceNumber": TEXT,
}
MESSAGE = Structure(
    {
        "MessageId": TEXT,
        "ReceiptHandle": TEXT,
        "MD5OfBody": TEXT,
        "Body": TEXT,
        "Attributes": ATTRIBUTES,
        "MD5OfMessageAttributes": TEXT,
        "MessageAttributes": MESSAGE_ATTRIBUTES,
    }
)
HANDLE: dict[str, Shape] = {"ReceiptHandle": TEXT}
FAILED = List(
    "BatchResultErrorEntry", Structure({"Id": TEXT, "SenderFault": TRUTH, "Code": TEXT, "Message": TEXT}, ("Id", "Code"))
)
PAGE: dict[str, Shape] = {"NextToken": TEXT, "MaxResults": WHOLE}
TASK = Structure(
    {
        "TaskHandle": TEXT,
        "Status": TEXT,
        "SourceArn": TEXT,
        "DestinationArn": TEXT,
        "MaxNumberOfMessagesPerSecond": WHOLE,
        "ApproximateNumberOfMessagesMoved": WHOLE,
        "ApproximateNumberOfMessagesToMove": WHOLE,
        "FailureReason": TEXT,
        "StartedTimestamp": WHOLE,
    }
)


def _on_queue(members: Mapping[str, Shape] | None = None, *needed: str) -> Structure:
    return Structure({**URL, **(members or {})}, ("QueueUrl", *needed))


def _batch(name: str, entry: Mapping[str, Shape], needed: tuple[str, ...], done: Mapping[str, Shape]) -> Operation:
    """An operation on up to ten entries. If there are none, its handler says so."""
    entries = List(f"{name}RequestEntry", Structure({"Id": TEXT, **entry}, ("Id", *needed)))
    successful = List(f"{name}ResultEntry", Structure({"Id": TEXT, **done}))
    return Operation(name, _on_queue({"Entries": entries}), Structure({"Successful": successful, "Failed": FAILED}))


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            "CreateQueue",
            Structure({"QueueName": TEXT, "Attributes": ATTRIBUTES, "tags": TAGS}, ("QueueName",)),
            Structure(URL),
        ),
        Operation("DeleteQueue", _on_queue()),
        Operation(
            "GetQueueUrl", Structure({"QueueName": TEXT, "QueueOwnerAWSAccountId": TEXT}, ("QueueName",)), Structure(URL)
        ),
        Operation(
            "ListQueues",
            Structure({"QueueNamePrefix": TEXT, **PAGE}),
            Structure({"QueueUrls": List("QueueUrl", TEXT), "NextToken": TEXT}),
        ),
        Operation(
            "GetQueueAttributes",
            _on_queue({"AttributeNames": List("AttributeName", TEXT)}),
            Structure({"Attributes": ATTRIBUTES}),
        ),
        Operation("SetQueueAttributes", _on_queue({"Attributes": ATTRIBUTES}, "Attributes")),
        Operation("SendMessage", _on_queue(DRAFT, "MessageBody"), Structure(SENT)),
        _batch("SendMessageBatch", DRAFT, ("MessageBody",), SENT),
        Operation(
            "ReceiveMessage",
            _on_queue(
                {
                    "AttributeNames": List("AttributeName", TEXT),
                    "MessageSystemAttributeNames": List("MessageSystemAttributeName", TEXT),
                    "MessageAttributeNames": List("MessageAttributeName", TEXT),
                    "MaxNumberOfMessages": WHOLE,
                    "VisibilityTimeout": WHOLE,
                    "WaitTimeSeconds": WHOLE,
                    "ReceiveRequestAttemptId": TEXT,
                }
            ),
            Structure({"Messages": List("Message", MESSAGE)}),
        ),
        Operation("DeleteMessage", _on_queue(HANDLE, "ReceiptHandle")),
        _batch("DeleteMessageBatch", HANDLE, ("ReceiptHandle",), {}),
        Operation(
            "ChangeMessageVisibility",
            _on_queue({**HANDLE, "VisibilityTimeout": WHOLE}, "ReceiptHandle", "VisibilityTimeout"),
        ),
        _batch("ChangeMessageVisibilityBatch", {**HANDLE, "VisibilityTimeout": WHOLE}, ("ReceiptHandle",), {}),
        Operation("PurgeQueue", _on_queue()),
        Operation(
            "ListDeadLetterSourceQueues",
            _on_queue(PAGE),
            Structure({"queueUrls": List("QueueUrl", TEXT), "NextToken": TEXT}),
        ),
        Operation("TagQueue", _on_queue({"Tags": TAGS}, "Tags")),
        Operation("UntagQueue", _on_queue({"TagKeys": List("TagKey", TEXT)}, "TagKeys")),
        Operation("ListQueueTags", _on_queue(), Structure({"Tags": TAGS})),
        Operation(
            "AddPermission",
            _on_queue(
                {"Label": TEXT, "AWSAccountIds": List("AWSAccountId", TEXT), "Actions": List("ActionName", TEXT)},
                "Label",
                "AWSAccountIds",
                "Actions",
            ),
        ),
        Operation("RemovePermission", _on_queue({"Label": TEXT}, "Label")),
        Operation(
            "StartMessageMoveTask",
            Structure({"SourceArn": TEXT, "DestinationArn": TEXT, "MaxNumberOfMessagesPerSecond": WHOLE}, ("SourceArn",)),
            Structure({"TaskHandle": TEXT}),
        ),
        Operation(
            "ListMessageMoveTasks",
            Structure({"SourceArn": TEXT, "MaxResults": WHOLE}, ("SourceArn",)),
            Structure({"Results": List("ListMessageMoveTasksResultEntry", TASK)}),
        ),
        Operation(
            "CancelMessageMoveTask",
            Structure({"TaskHandle": TEXT}, ("TaskHandle",)),
            Structure({"ApproximateNumberOfMessagesMoved": WHOLE}),
        ),
    )
}
