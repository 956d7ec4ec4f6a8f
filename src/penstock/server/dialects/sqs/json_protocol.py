"""The protocol JSON 1.0: requests and answers are objects with the members of the table."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from io import BytesIO
from typing import Any

from penstock.server.dialects.sqs.errors import ACCESS, SqsError, missing
from penstock.server.dialects.sqs.shapes import (
    OPERATIONS,
    Blob,
    List,
    Map,
    MemberShape,
    OperationShape,
    Structure,
    Text,
    Truth,
    Whole,
)
from penstock.server.http.request_response import Request, Response

CONTENT_TYPE = "application/x-amz-json-1.0"
PREFIX = "AmazonSQS."
ERROR_PREFIX = "com.amazonaws.sqs#"
COMMON_PREFIX = "com.amazon.coral.service#"
COMMON = frozenset({"UnknownOperationException", "SerializationException", *ACCESS})
"""Errors that all of AWS's services have."""
ReadValue = Callable[[Any], Any]
LARGEST = 2**63 - 1
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class Absent(Exception):
    """A member of a structure is missing: its path in the words of the Query protocol, which both use for this."""


def find_operation(request: Request) -> OperationShape:
    target = request.headers.get("x-amz-target", "")
    operation = OPERATIONS.get(target[len(PREFIX) :]) if target.startswith(PREFIX) else None
    if operation is None:
        raise SqsError("UnknownOperationException", f"The operation {target[:200]} is not one of SQS." if target else "")
    return operation


def read(operation: OperationShape, body: bytes) -> dict[str, Any]:
    """The members of a request."""
    try:
        given = _decode(body.decode()) if body else {}
    except (ValueError, RecursionError):
        raise SqsError("SerializationException", "The body of the request is not JSON.") from None
    try:
        members: dict[str, Any] = READERS[operation.name](given)
    except Absent as absent:
        raise missing(str(absent)) from None
    return members


def _wrong(value: object, wanted: str) -> SqsError:
    if type(value) is dict:
        text = "Start of structure or map found where not expected."
    elif type(value) is list:
        text = "Start of list found where not expected"
    elif wanted in ("List", "Map", "Structure"):
        text = f"Expected {wanted.lower()} or null"
    else:
        kinds = {bool: "TRUE_VALUE" if value else "FALSE_VALUE", str: "STRING_VALUE"}
        text = f"{kinds.get(type(value), 'NUMBER_VALUE')} can not be converted to {wanted}"
    return SqsError("SerializationException", text)


def _text(value: Any) -> str:
    """AWS takes numbers and truth values for text, and some clients send them."""
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return str(value)
    if type(value) is float:
        return repr(value)
    raise _wrong(value, "String")


def _whole(value: Any) -> int:
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return value
    if type(value) is float and value.is_integer():
        return _whole(int(value))
    if type(value) is str and WHOLE.fullmatch(value):
        return int(value)
    raise _wrong(value, "Integer")


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong(value, "Boolean")
    return value


def _blob(value: Any) -> bytes:
    if type(value) is not str:
        raise _wrong(value, "Blob")
    try:
        return b64decode(value, validate=True)
    except (NotBase64, ValueError):
        raise SqsError("SerializationException", "A blob is not written in base64.") from None


def _structure(shape: Structure) -> ReadValue:
    readers, needed = {name: _reader(member) for name, member in shape.members.items()}, shape.needed

    def read_structure(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(value, "Structure")
        members = {}
        for name, member in value.items():
            if member is not None and name in readers:
                members[name] = readers[name](member)
        for name in needed:
            if name not in members and name != "QueueUrl":
                raise Absent(name)
        return members

    return read_structure


def _list(shape: List) -> ReadValue:
    read_item = _reader(shape.item)

    def read_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _wrong(value, "List")
        items: list[Any] = []
        try:
            for item in value:
                items.append(read_item(item))  # noqa: PERF401
        except Absent as absent:
            raise Absent(f"{shape.query}.{len(items) + 1}.{absent}") from None
        return items

    return read_list


def _map(shape: Map) -> ReadValue:
    read_value = _reader(shape.value)

    def read_map(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _wrong(value, "Map")
        return {name: read_value(item) for name, item in value.items() if item is not None}

    return read_map


def _reader(shape: MemberShape) -> ReadValue:
    match shape:
        case Text():
            return _text
        case Whole():
            return _whole
        case Truth():
            return _truth
        case Blob():
            return _blob
        case List():
            return _list(shape)
        case Map():
            return _map(shape)
        case Structure():
            return _structure(shape)


_decode = json.JSONDecoder().decode
READERS = {name: _structure(operation.input) for name, operation in OPERATIONS.items()}


def _base64(value: object) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is no value of SQS")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_base64).encode
EMPTY: tuple[Any, ...] = (None, [], {})


def write(output: dict[str, Any], request_id: str) -> Response:
    """Members that are empty are left out."""
    members = {name: value for name, value in output.items() if value or value not in EMPTY}
    body = _encode(members).encode("utf-8", "replace") if members else b"{}"
    return Response(200, {"Content-Type": CONTENT_TYPE, "x-amzn-requestid": request_id}, body)


COPIES = 7
"""See `Request.copies`: the text of a message may have four bytes for each of its bytes, and the answer two."""


def write_messages(messages: list[Any], request_id: str) -> Response:
    """As `write`, for large messages. Each is written by itself, and then forgotten."""
    text = BytesIO()
    for place, message in enumerate(messages):
        text.write(b"," if place else b'{"Messages":[')
        text.write(_encode(message).encode("utf-8", "replace"))
        messages[place] = None
    text.write(b"]}")
    return Response(200, {"Content-Type": CONTENT_TYPE, "x-amzn-requestid": request_id}, text.getvalue())


def write_error(error: SqsError, request_id: str) -> Response:
    prefix = COMMON_PREFIX if error.shape in COMMON else ERROR_PREFIX
    shown = {"__type": prefix + error.shape, "message": error.text}
    headers = {
        "Content-Type": CONTENT_TYPE,
        "x-amzn-requestid": request_id,
        "x-amzn-query-error": f"{error.code};{'Sender' if error.status < 500 else 'Receiver'}",
    }
    return Response(error.status, headers, json.dumps(shown).encode())
