"""The Query protocol: parameters of a form or of the address, with lists and maps flattened, and answers in XML.

To a client that accepts only JSON, the answers are the same in JSON.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl

from penstock.server.dialects.sqs.errors import SqsError, missing
from penstock.server.dialects.sqs.shapes import (
    MESSAGE,
    OPERATIONS,
    Blob,
    List,
    Map,
    MemberShape,
    OperationShape,
    Structure,
    Truth,
    Whole,
)
from penstock.server.http.request_response import JSON, Request, Response

CONTENT_TYPE = "text/xml"
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
MOST_PARAMETERS = 5000
"""Ten messages with ten attributes each need 460."""
DEEPEST = 8
PARAMETER = 2000
"""Bytes in memory of a parameter, at most, beside its value: up to nine dictionaries."""
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
Tree = dict[str, Any]
"""Parameters by the parts of their names: a value, or the tree of the parts that follow."""


def weigh(body: bytes) -> int:
    """How many bytes the parameters of a form will have in memory, at most."""
    # A form is decoded as a whole, split, and decoded in parts; one unusual character makes Python use four bytes for each.
    return len(body) * 8 + min(body.count(b"&"), MOST_PARAMETERS) * PARAMETER


def parse(request: Request) -> Tree:
    """The parameters of a request: those in its body, and those in its address."""
    tree: Tree = {}
    try:
        for text in (request.body.decode(), request.query):
            for name, value in parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS):
                _plant(tree, name.split(".", DEEPEST), value)
    except UnicodeDecodeError:
        raise SqsError("SerializationException", "The parameters of the request are not UTF-8 in a form's encoding.") from None
    except ValueError:
        text = f"The request has more than {MOST_PARAMETERS} parameters."
        raise SqsError("InvalidParameterValueException", text) from None
    return tree


def _plant(tree: Tree, parts: list[str], value: str) -> None:
    """The first of several parameters of one name counts."""
    *path, last = parts
    for part in path:
        tree = tree.setdefault(part, {})
        if type(tree) is not dict:
            return
    tree.setdefault(last, value)


def find_operation(tree: Tree, *, on_queue: bool) -> OperationShape:
    name = tree.get("Action")
    if type(name) is not str or not name:
        raise SqsError("UnknownOperationException", "", status=404)
    operation = OPERATIONS.get(name)
    if operation is None or (on_queue and name in ("CreateQueue", "ListQueues")):
        raise SqsError("InvalidAction", f"The action {name[:200]} is not valid for this endpoint.")
    return operation


def read(operation: OperationShape, tree: Tree) -> dict[str, Any]:
    """The members of a request."""
    return _read_structure(operation.input, tree, "")


def _read_structure(shape: Structure, tree: Tree, path: str) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, member in shape.members.items():
        flat = member.query if isinstance(member, List | Map) else name
        if flat in tree:
            members[name] = _read(member, tree[flat], f"{path}{flat}")
        elif isinstance(member, List) and tree.get(name) == "":  # so do botocore and others write a list that is empty
            members[name] = []
    for name in shape.needed:
        if name not in members and name != "QueueUrl":
            raise missing(f"{path}{name}")
    return members


def _read(shape: MemberShape, node: str | Tree, path: str) -> Any:
    match shape:
        case List():
            return _read_list(shape, node, path)
        case Map():
            return _read_map(shape, node, path)
        case Structure():
            return _read_structure(shape, node if isinstance(node, dict) else {}, f"{path}.")
    if not isinstance(node, str):
        raise SqsError("InvalidParameterValueException", f"The parameter {path} is not a single value.")
    match shape:
        case Whole():
            if not WHOLE.fullmatch(node):
                raise SqsError(
                    "InvalidParameterValueException",
                    f"Value {node[:200]} for parameter {path} is invalid. Reason: Must be a whole number.",
                )
            return int(node)
        case Truth():
            return node.lower() == "true"
        case Blob():
            try:
                return b64decode(node, validate=True)
            except (NotBase64, ValueError):
                raise SqsError("InvalidParameterValueException", f"The parameter {path} is not written in base64.") from None
    return node


def _places(node: Tree) -> list[str]:
    """The numbers of a list's items, in order."""
    return sorted((name for name in node if name.isascii() and name.isdecimal() and len(name) < 10), key=int)


def _read_list(shape: List, node: str | Tree, path: str) -> list[Any]:
    if isinstance(node, str):  # an empty list, or a list of one without its number
        return [_read(shape.item, node, path)] if node and not isinstance(shape.item, Structure) else []
    return [_read(shape.item, node[place], f"{path}.{place}") for place in _places(node)]


def _read_map(shape: Map, node: str | Tree, path: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    if isinstance(node, str):
        return pairs
    if shape.key in node or "Value" in node:  # a map of one pair without its number
        node = {"1": node}
    for place in _places(node):
        pair = node[place] if isinstance(node[place], dict) else {}
        name = pair.get(shape.key)
        if not isinstance(name, str):
            raise missing(f"{path}.{place}.{shape.key}")
        if "Value" not in pair:
            raise missing(f"{path}.{place}.Value")
        pairs.setdefault(name, _read(shape.value, pair["Value"], f"{path}.{place}.Value"))
    return pairs


# answers

SPECIAL = re.compile(r"[&<>\"\r\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"}


def escape(text: str) -> str:
    """Text as XML writes it; a character that XML cannot express becomes U+FFFD."""
    return SPECIAL.sub(lambda found: ESCAPES.get(found[0], "\ufffd"), text)


def _element(name: str, shape: MemberShape, value: Any) -> str:
    match shape:
        case List():
            return "".join(_element(shape.query, shape.item, item) for item in value)
        case Map():
            return "".join(
                f"<{shape.query}><{shape.key}>{escape(key)}</{shape.key}>{_element('Value', shape.value, item)}</{shape.query}>"
                for key, item in value.items()
            )
        case Structure():
            return f"<{name}>{_members(shape, value)}</{name}>"
        case Blob():
            return f"<{name}>{b64encode(value).decode()}</{name}>"
        case Truth():
            return f"<{name}>{'true' if value else 'false'}</{name}>"
    return f"<{name}>{escape(str(value))}</{name}>"


def _members(shape: Structure, output: dict[str, Any]) -> str:
    return "".join(
        _element(name, member, output[name]) for name, member in shape.members.items() if output.get(name) is not None
    )


def write(operation: OperationShape, output: dict[str, Any], request_id: str, *, as_json: bool = False) -> Response:
    if as_json:
        shown = {f"{operation.name}Result": _as_json(operation.output, output)} if operation.output.members else {}
        return _answer_json(
            200, {f"{operation.name}Response": {**shown, "ResponseMetadata": {"RequestId": request_id}}}, request_id
        )
    name, members = operation.name, _members(operation.output, output)
    result = f"<{name}Result>{members}</{name}Result>" if members else f"<{name}Result/>" if operation.output.members else ""
    start, end = _around(name, request_id)
    return Response(200, {"Content-Type": CONTENT_TYPE, "x-amzn-requestid": request_id}, f"{start}{result}{end}".encode())


def _around(name: str, request_id: str) -> tuple[str, str]:
    """What comes before and after the result of an operation."""
    metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    return f'<?xml version="1.0"?><{name}Response xmlns="{NAMESPACE}">', f"{metadata}</{name}Response>"


COPIES = 11
"""See `Request.copies`: the text of a message may have four bytes for each of its bytes, and the answer six (&quot;)."""


def write_messages(messages: list[Any], request_id: str) -> Response:
    """As `write`, for large messages. Each is written by itself, and then forgotten."""
    start, end = _around("ReceiveMessage", request_id)
    text = BytesIO()
    text.write(f"{start}<ReceiveMessageResult>".encode())
    for place, message in enumerate(messages):
        text.write(_element("Message", MESSAGE, message).encode())
        messages[place] = None
    text.write(f"</ReceiveMessageResult>{end}".encode())
    return Response(200, {"Content-Type": CONTENT_TYPE, "x-amzn-requestid": request_id}, text.getvalue())


def write_error(error: SqsError, request_id: str, *, as_json: bool = False) -> Response:
    headers = {"Content-Type": CONTENT_TYPE, "x-amzn-requestid": request_id}
    if error.shape == "UnknownOperationException":
        return Response(error.status, headers, b"<UnknownOperationException/>\n")
    kind = "Sender" if error.status < 500 else "Receiver"
    if as_json:
        shown = {"Type": kind, "Code": error.code, "Message": error.query_text, "Detail": None}
        return _answer_json(error.status, {"Error": shown, "RequestId": request_id}, request_id)
    text = (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error>'
        f"<Type>{kind}</Type><Code>{error.code}</Code>"
        f"<Message>{escape(error.query_text)}</Message><Detail/></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    return Response(error.status, headers, text.encode())


LOWER = {"Messages": "messages", "QueueUrls": "queueUrls"}
"""Members that AWS writes otherwise in the JSON of this protocol."""


def _as_json(shape: MemberShape, value: Any) -> Any:
    """A value as the JSON of this protocol has it: maps are lists of pairs, and absent members null."""
    if value is None:
        return None
    match shape:
        case List():
            return [_as_json(shape.item, item) for item in value]
        case Map():
            return [{shape.key: key, "Value": _as_json(shape.value, item)} for key, item in value.items()]
        case Structure():
            return {LOWER.get(name, name): _as_json(member, value.get(name)) for name, member in shape.members.items()}
        case Blob():
            return b64encode(value).decode()
    return value


def _answer_json(status: int, value: Any, request_id: str) -> Response:
    return Response(status, {"Content-Type": JSON, "x-amzn-requestid": request_id}, json.dumps(value).encode())
