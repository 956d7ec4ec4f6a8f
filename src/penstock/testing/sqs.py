"""A client of SQS for tests, in both protocols: it takes and gives the members of the JSON model, and compares no digests."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

from penstock.testing.http import Http, HttpAnswer

PROTOCOLS = ("json", "query")
LISTS = {
    "AttributeNames": "AttributeName",
    "MessageAttributeNames": "MessageAttributeName",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "TagKeys": "TagKey",
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
}
MAPS = {
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "Tags": "Tag",
    "tags": "Tag",
}
ANSWERED_LISTS = {
    "Message": "Messages",
    "BatchResultErrorEntry": "Failed",
    "SendMessageBatchResultEntry": "Successful",
    "DeleteMessageBatchResultEntry": "Successful",
    "ChangeMessageVisibilityBatchResultEntry": "Successful",
    "ListMessageMoveTasksResultEntry": "Results",
}
ANSWERED_MAPS = {"Attribute": "Attributes", "MessageAttribute": "MessageAttributes", "Tag": "Tags"}
NUMBERS = {"ApproximateNumberOfMessagesMoved", "ApproximateNumberOfMessagesToMove", "MaxNumberOfMessagesPerSecond", "StartedTimestamp"}


class Refused(Exception):
    """An error that the server answered with."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(f"{status} {code}: {text}")
        self.status = status
        self.code = code
        """As the Query protocol calls it; the JSON protocol has it in a header."""
        self.text = text


class SqsClient:
    """One connection to a server, in one protocol."""

    def __init__(self, url: str, protocol: str, headers: dict[str, str] | None = None) -> None:
        self.url = url
        self.protocol = protocol
        self._http = Http(url, headers)

    def __call__(self, operation: str, queue: str | None = None, **members: Any) -> dict[str, Any]:
        """Perform an operation, on the queue of this name if it is given. `Refused` if the server refuses it."""
        if queue is not None:
            members["QueueUrl"] = self.queue_url(queue)
        answer = self.send(operation, members)
        if answer.status != 200:
            raise self._refused(answer)
        if self.protocol == "json":
            return _decoded(json.loads(answer.body))
        result = ElementTree.fromstring(answer.body).find(f"{{*}}{operation}Result")
        return {} if result is None else _read(result, operation)

    def queue_url(self, name: str) -> str:
        return f"{self.url}/000000000000/{name}"

    def send(self, operation: str, members: dict[str, Any]) -> HttpAnswer:
        """Send a request, and return the answer as it is."""
        if self.protocol == "json":
            head = {"X_Amz_Target": f"AmazonSQS.{operation}", "Content_Type": "application/x-amz-json-1.0"}
            return self._http("POST", "/", json.dumps(members, default=_base64).encode(), **head)
        form = urlencode([("Action", operation), ("Version", "2012-11-05"), *_flattened(operation, members)])
        return self._http("POST", "/", form.encode(), Content_Type="application/x-www-form-urlencoded")

    def refusal(self, operation: str, queue: str | None = None, **members: Any) -> tuple[str, str]:
        """The code and the text of the error that this operation is refused with."""
        try:
            done = self(operation, queue, **members)
        except Refused as refused:
            return refused.code, refused.text
        raise AssertionError(f"{operation} was not refused, and answered {done}")

    def _refused(self, answer: HttpAnswer) -> Refused:
        if self.protocol == "json":
            told = json.loads(answer.body)
            code, _, fault = answer.headers["x-amzn-query-error"].partition(";")
            assert fault == ("Sender" if answer.status < 500 else "Receiver")
            return Refused(answer.status, code, told.get("message") or told.get("Message", ""))
        root = ElementTree.fromstring(answer.body)
        return Refused(answer.status, root.findtext("{*}Error/{*}Code", ""), root.findtext("{*}Error/{*}Message", ""))


def _base64(value: object) -> str:
    assert isinstance(value, bytes)
    return b64encode(value).decode()


def _decoded(value: Any) -> Any:
    """Blobs as bytes."""
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, dict):
        return {name: b64decode(item) if name == "BinaryValue" else _decoded(item) for name, item in value.items()}
    return value


def _flattened(operation: str, members: dict[str, Any], start: str = "") -> Iterator[tuple[str, str]]:
    for name, value in members.items():
        if name in LISTS:
            yield from ((f"{start}{LISTS[name]}.{place}", item) for place, item in enumerate(value, 1))
        elif name == "Entries":
            for place, entry in enumerate(value, 1):
                yield from _flattened(operation, entry, f"{operation}RequestEntry.{place}.")
        elif name in MAPS:
            key = "Key" if MAPS[name] == "Tag" else "Name"
            for place, (named, item) in enumerate(value.items(), 1):
                begin = f"{start}{MAPS[name]}.{place}."
                yield f"{begin}{key}", named
                yield from _flattened(operation, item, f"{begin}Value.") if isinstance(item, dict) else [(f"{begin}Value", item)]
        else:
            yield f"{start}{name}", _base64(value) if isinstance(value, bytes) else str(value)


def _read(element: ElementTree.Element, operation: str) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for child in element:
        name = child.tag.partition("}")[2]
        if name in ANSWERED_LISTS:
            members.setdefault(ANSWERED_LISTS[name], []).append(_read(child, operation))
        elif name in ANSWERED_MAPS:
            pair = _read(child, operation)
            members.setdefault(ANSWERED_MAPS[name], {})[pair.get("Name", pair.get("Key"))] = pair["Value"]
        elif name == "QueueUrl" and operation in ("ListQueues", "ListDeadLetterSourceQueues"):
            members.setdefault("QueueUrls" if operation == "ListQueues" else "queueUrls", []).append(child.text)
        elif len(child):
            members[name] = _read(child, operation)
        elif name == "BinaryValue":
            members[name] = b64decode(child.text or "")
        elif name == "SenderFault":
            members[name] = child.text == "true"
        else:
            members[name] = int(child.text or 0) if name in NUMBERS else child.text or ""
    return members
