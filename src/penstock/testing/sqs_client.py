"""A plain client of SQS for the dialect suite. It speaks both protocols, and checks the form of every answer."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

from penstock.server.dialects.sqs.shapes import OPERATIONS, Blob, List, Map, MemberShape, Structure, Truth, Whole
from penstock.testing.http import Http, HttpAnswer

PROTOCOLS = ("json", "query")
NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
FORM = "application/x-www-form-urlencoded"
REGION, ACCOUNT = "us-east-1", "000000000000"


class Fault(Exception):
    """An error that the server has answered."""

    def __init__(self, code: str, text: str, status: int, shape: str = "") -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text, self.status, self.shape = code, text, status, shape


class Sqs:
    """Calls operations by their names, with the members of the JSON model; the answer has them too, whatever the protocol."""

    def __init__(self, http: Http, protocol: str, *, region: str = REGION, key: str = "test", token: str = "") -> None:
        """``token``: a bearer token in place of the signature."""
        self.http = http
        self.protocol = protocol
        signed = f"AWS4-HMAC-SHA256 Credential={key}/20260101/{region}/sqs/aws4_request, SignedHeaders=host, Signature=0"
        self._authorization = f"Bearer {token}" if token else signed

    def __call__(self, operation: str, **members: Any) -> dict[str, Any]:
        answer = self.send(operation, **members)
        assert answer.headers["x-amzn-requestid"]
        if answer.status == 200:
            return self._read(operation, answer)
        raise self.fault(answer)

    def send(self, operation: str, **members: Any) -> HttpAnswer:
        if self.protocol == "json":
            body = json.dumps(members, default=lambda value: b64encode(value).decode()).encode()
            return self._post(body, X_Amz_Target=f"AmazonSQS.{operation}", Content_Type="application/x-amz-json-1.0")
        parameters = {"Action": operation, "Version": "2012-11-05"}
        _flatten(OPERATIONS[operation].input, members, "", parameters)
        return self._post(urlencode(parameters).encode(), Content_Type=FORM)

    def _post(self, body: bytes, **headers: str) -> HttpAnswer:
        return self.http("POST", "/", body, Authorization=self._authorization, **headers)

    def _read(self, operation: str, answer: HttpAnswer) -> dict[str, Any]:
        shape = OPERATIONS[operation].output
        if self.protocol == "json":
            assert answer.headers["content-type"] == "application/x-amz-json-1.0"
            given = answer.json if answer.body else {}
            assert all(value not in ([], {}, None) for value in given.values()), "empty members are left out"
            return _decoded(shape, given)
        assert answer.headers["content-type"].startswith("text/xml")
        tree = ElementTree.fromstring(answer.body)
        assert tree.tag == f"{NAMESPACE}{operation}Response"
        found = tree.find(f"{NAMESPACE}ResponseMetadata/{NAMESPACE}RequestId")
        assert found is not None and found.text == answer.headers["x-amzn-requestid"]
        result = tree.find(f"{NAMESPACE}{operation}Result")
        return {} if result is None else _parsed(shape, result)

    def fault(self, answer: HttpAnswer) -> Fault:
        if self.protocol == "json":
            code, kind = answer.headers["x-amzn-query-error"].split(";")
            shape, text = answer.json["__type"].partition("#")[2], answer.json["message"]
        else:
            tree = ElementTree.fromstring(answer.body)
            assert tree.tag == f"{NAMESPACE}ErrorResponse"
            error = {child.tag.removeprefix(NAMESPACE): child.text or "" for child in tree[0]}
            code, kind, shape, text = error["Code"], error["Type"], "", error["Message"]
            assert tree[1].text == answer.headers["x-amzn-requestid"]
        assert kind == ("Sender" if answer.status < 500 else "Receiver")
        return Fault(code, text, answer.status, shape)


def _flatten(shape: Structure, members: dict[str, Any], path: str, parameters: dict[str, str]) -> None:
    for name, value in members.items():
        member = shape.members[name]
        match member:
            case List():
                for place, item in enumerate(value, 1):
                    _put(member.item, item, f"{path}{member.query}.{place}", parameters)
                if not value:
                    parameters[f"{path}{member.query}"] = ""
            case Map():
                for place, (key, item) in enumerate(value.items(), 1):
                    parameters[f"{path}{member.query}.{place}.{member.key}"] = key
                    _put(member.value, item, f"{path}{member.query}.{place}.Value", parameters)
            case _:
                _put(member, value, f"{path}{name}", parameters)


def _put(shape: MemberShape, value: Any, name: str, parameters: dict[str, str]) -> None:
    if isinstance(shape, Structure):
        _flatten(shape, value, f"{name}.", parameters)
    else:
        parameters[name] = b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _decoded(shape: Structure, given: dict[str, Any]) -> dict[str, Any]:
    """Blobs as bytes."""
    found = dict(given)
    for name, value in given.items():
        match shape.members[name]:
            case Blob():
                found[name] = b64decode(value)
            case List(item=Structure() as inner):
                found[name] = [_decoded(inner, item) for item in value]
            case Map(value=Structure() as inner):
                found[name] = {key: _decoded(inner, item) for key, item in value.items()}
    return found


def _parsed(shape: Structure, tree: ElementTree.Element) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, member in shape.members.items():
        children = tree.findall(NAMESPACE + (member.query if isinstance(member, List | Map) else name))
        if not children:
            continue
        match member:
            case List():
                found[name] = [_value(member.item, child) for child in children]
            case Map():
                pairs = [(child.find(NAMESPACE + member.key), child.find(f"{NAMESPACE}Value")) for child in children]
                found[name] = {key.text: _value(member.value, value) for key, value in pairs}  # type: ignore[union-attr, arg-type]
            case _:
                found[name] = _value(member, children[0])
    return found


def _value(shape: MemberShape, tree: ElementTree.Element) -> Any:
    text = tree.text or ""
    match shape:
        case Structure():
            return _parsed(shape, tree)
        case Whole():
            return int(text)
        case Truth():
            return text == "true"
        case Blob():
            return b64decode(text)
    return text
