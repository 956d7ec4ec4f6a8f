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
    members: Mapping[str, MemberShape] = field(default_factory=dict)
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


MemberShape = Text | Whole | Truth | Blob | Structure | List | Map


@dataclass(frozen=True, slots=True)
class OperationShape:
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
DRAFT: dict[str, MemberShape] = {
    "MessageBody": TEXT,
    "DelaySeconds": WHOLE,
    "MessageAttributes": MESSAGE_ATTRIBUTES,
    "MessageSystemAttributes": Map("MessageSystemAttribute", VALUE),
    "MessageDeduplicationId": TEXT,
    "MessageGroupId": TEXT,
}
SENT: dict[str, MemberShape] = {
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
HANDLE: dict[str, MemberShape] = {"ReceiptHandle": TEXT}
FAILED = List(
    "BatchResultErrorEntry", Structure({"Id": TEXT, "SenderFault": TRUTH, "Code": TEXT, "Message": TEXT}, ("Id", "Code"))
)
PAGE: dict[str, MemberShape] = {"NextToken": TEXT, "MaxResults": WHOLE}
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


def _on_queue(members: Mapping[str, MemberShape] | None = None, *needed: str) -> Structure:
    return Structure({**URL, **(members or {})}, ("QueueUrl", *needed))


def _batch(
    name: str, entry: Mapping[str, MemberShape], needed: tuple[str, ...], done: Mapping[str, MemberShape]
) -> OperationShape:
    """An operation on up to ten entries. If there are none, its handler says so."""
    entries = List(f"{name}RequestEntry", Structure({"Id": TEXT, **entry}, ("Id", *needed)))
    successful = List(f"{name}ResultEntry", Structure({"Id": TEXT, **done}))
    return OperationShape(name, _on_queue({"Entries": entries}), Structure({"Successful": successful, "Failed": FAILED}))


OPERATIONS: dict[str, OperationShape] = {
    operation.name: operation
    for operation in (
        OperationShape(
            "CreateQueue",
            Structure({"QueueName": TEXT, "Attributes": ATTRIBUTES, "tags": TAGS}, ("QueueName",)),
            Structure(URL),
        ),
        OperationShape("DeleteQueue", _on_queue()),
        OperationShape(
            "GetQueueUrl", Structure({"QueueName": TEXT, "QueueOwnerAWSAccountId": TEXT}, ("QueueName",)), Structure(URL)
        ),
        OperationShape(
            "ListQueues",
            Structure({"QueueNamePrefix": TEXT, **PAGE}),
            Structure({"QueueUrls": List("QueueUrl", TEXT), "NextToken": TEXT}),
        ),
        OperationShape(
            "GetQueueAttributes",
            _on_queue({"AttributeNames": List("AttributeName", TEXT)}),
            Structure({"Attributes": ATTRIBUTES}),
        ),
        OperationShape("SetQueueAttributes", _on_queue({"Attributes": ATTRIBUTES}, "Attributes")),
        OperationShape("SendMessage", _on_queue(DRAFT, "MessageBody"), Structure(SENT)),
        _batch("SendMessageBatch", DRAFT, ("MessageBody",), SENT),
        OperationShape(
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
        OperationShape("DeleteMessage", _on_queue(HANDLE, "ReceiptHandle")),
        _batch("DeleteMessageBatch", HANDLE, ("ReceiptHandle",), {}),
        OperationShape(
            "ChangeMessageVisibility",
            _on_queue({**HANDLE, "VisibilityTimeout": WHOLE}, "ReceiptHandle", "VisibilityTimeout"),
        ),
        _batch("ChangeMessageVisibilityBatch", {**HANDLE, "VisibilityTimeout": WHOLE}, ("ReceiptHandle",), {}),
        OperationShape("PurgeQueue", _on_queue()),
        OperationShape(
            "ListDeadLetterSourceQueues",
            _on_queue(PAGE),
            Structure({"queueUrls": List("QueueUrl", TEXT), "NextToken": TEXT}),
        ),
        OperationShape("TagQueue", _on_queue({"Tags": TAGS}, "Tags")),
        OperationShape("UntagQueue", _on_queue({"TagKeys": List("TagKey", TEXT)}, "TagKeys")),
        OperationShape("ListQueueTags", _on_queue(), Structure({"Tags": TAGS})),
        OperationShape(
            "AddPermission",
            _on_queue(
                {"Label": TEXT, "AWSAccountIds": List("AWSAccountId", TEXT), "Actions": List("ActionName", TEXT)},
                "Label",
                "AWSAccountIds",
                "Actions",
            ),
        ),
        OperationShape("RemovePermission", _on_queue({"Label": TEXT}, "Label")),
        OperationShape(
            "StartMessageMoveTask",
            Structure({"SourceArn": TEXT, "DestinationArn": TEXT, "MaxNumberOfMessagesPerSecond": WHOLE}, ("SourceArn",)),
            Structure({"TaskHandle": TEXT}),
        ),
        OperationShape(
            "ListMessageMoveTasks",
            Structure({"SourceArn": TEXT, "MaxResults": WHOLE}, ("SourceArn",)),
            Structure({"Results": List("ListMessageMoveTasksResultEntry", TASK)}),
        ),
        OperationShape(
            "CancelMessageMoveTask",
            Structure({"TaskHandle": TEXT}, ("TaskHandle",)),
            Structure({"ApproximateNumberOfMessagesMoved": WHOLE}),
        ),
    )
}
