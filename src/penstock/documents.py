"""A message as a JSON document: what the command line prints, what an export writes, and what an import reads.

    {"id": …, "body": "resize cat.jpg", "content_type": "text/plain", "attributes": {"size": 3, "raw": {"base64": "AAH/"}},
     "group": "cats", "key": "cat 7", "visible_at": 1793000000000000, …}

A body or a key that is not UTF-8 is ``body_base64`` or ``key_base64``. Instants are microseconds since 1970.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from penstock.errors import BadMessage
from penstock.message import SECOND, Attribute, Draft, Message, MessageFields, to_datetime
from penstock.policy import check_retry

GIVEN = ("content_type", "delay", "deadline", "visibility", "group")
"""What a draft takes as it is."""
CHECKED = {*GIVEN, "retry", "body", "body_base64", "key", "key_base64", "attributes", "visible_at", "deadline_at", "state"}
KNOWN = CHECKED | {"receipt"} | {field.name for field in fields(MessageFields)} - {"blocked"}
"""All names in a document. The others tell what became of a message that is in a queue, and say nothing to one that is sent."""


def to_document(message: Message | Draft) -> dict[str, Any]:
    """All fields of a message, or of one that is to be sent."""
    document: dict[str, Any] = {}
    for field in fields(message):
        value = getattr(message, field.name)
        match field.name:
            case "home" | "blocked":
                continue
            case "body" | "key":
                document |= _from_bytes(field.name, value)
            case "attributes":
                document["attributes"] = {name: _from_attribute(attribute) for name, attribute in value.items()}
            case "state":
                document["state"] = value.name.lower()
            case "death" | "retry":
                document[field.name] = value and asdict(value)
            case _:
                document[field.name] = value
    return document


def _from_bytes(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, bytes):  # no key; or a damaged body, which can be anything
        return {name: value}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _from_attribute(value: Attribute) -> object:
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def to_draft(document: object, now: int) -> Draft:
    """A document as a new message, at an instant of its queue's clock. Raises `BadMessage` if it is none.

    It is as late as the old one if that was not received: a ``visible_at`` that is still to come becomes its delay."""
    if not isinstance(document, Mapping):
        raise BadMessage(f"it must be an object with a body, not {type(document).__name__}")
    unknown = sorted(document.keys() - KNOWN)
    if unknown:
        raise BadMessage(f"a message has no {unknown[0]!r:.80}")
    body = _to_bytes(document, "body")
    if body is None:
        raise BadMessage("it has neither body nor body_base64")
    given = {name: value for name in GIVEN if (value := document.get(name)) is not None}
    if "deadline" not in given and document.get("deadline_at") is not None:
        given["deadline"] = to_datetime(_instant(document, "deadline_at"))
    if "delay" not in given and document.get("visible_at") is not None and document.get("state", "queued") == "queued":
        left = _instant(document, "visible_at") - now
        if left > 0:
            given["delay"] = left / SECOND
    attributes, retry = _to_attributes(document.get("attributes")), check_retry(document.get("retry"))
    return Draft(body, **given, attributes=attributes, key=_to_bytes(document, "key"), retry=retry)


def _to_bytes(document: Mapping[str, Any], name: str) -> bytes | None:
    text, encoded = document.get(name), document.get(f"{name}_base64")
    if text is not None and encoded is not None:
        raise BadMessage(f"it has {name} and {name}_base64: give one of them")
    if encoded is not None:
        return _decode(encoded, f"{name}_base64")
    if text is None:
        return None
    if not isinstance(text, str):
        raise BadMessage(f"{name} must be text, not {type(text).__name__}: {text!r:.80}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadMessage(f"{name} {text!r:.80} cannot be written in UTF-8") from None


def _decode(encoded: object, name: str) -> bytes:
    try:
        if isinstance(encoded, str):
            return base64.b64decode(encoded, validate=True)
    except ValueError:
        pass
    raise BadMessage(f"{name} is not base64: {encoded!r:.80}")


def _instant(document: Mapping[str, Any], name: str) -> int:
    value = document[name]
    if type(value) is not int or not 0 <= value < 2**62:
        raise BadMessage(f"{name} must be microseconds since 1970, not {value!r:.80}")
    try:
        to_datetime(value)
    except OverflowError:
        raise BadMessage(f"{name} {value} is beyond the calendar") from None
    return value


def _to_attributes(given: object) -> dict[str, Attribute]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise BadMessage(f"attributes must be an object, not {type(given).__name__}: {given!r:.80}")
    return {name: _to_attribute(name, value) for name, value in given.items()}


def _to_attribute(name: str, value: Any) -> Attribute:
    if isinstance(value, Mapping):
        if value.keys() != {"base64"}:
            raise BadMessage(f'attribute {name!r:.80} must be text, a number, or {{"base64": …}}')
        return _decode(value["base64"], f"attribute {name!r:.80}")
    return value  # type: ignore[no-any-return]  # the rules check it
