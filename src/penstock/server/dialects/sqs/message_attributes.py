"""Message attributes: their limits, their digests, their filters, and how the core keeps them.

A String or a Number is text and a Binary is bytes, under the sender's own name, so that receivers of other dialects find them.
What SQS knows beyond that is in one more attribute, `REMEMBERED`, as JSON; no client of SQS can send an attribute of that name:

    types          the data type of each attribute that text or bytes do not tell, such as Number or String.url
    trace          AWSTraceHeader
    deduplication  MessageDeduplicationId, where the message's key is not the same text
    sender         SenderId, where it is not the default account
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.message import OCTETS, Attribute, Message
from penstock.policy import TEXT
from penstock.server.dialects.sqs.errors import MOST_SHOWN, SqsError

REMEMBERED = "AWS.sqs"
MOST_ATTRIBUTES = 10
LONGEST = 256
NAME = re.compile(r"[\w.-]+")
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
BASES = {"String": "StringValue", "Number": "StringValue", "Binary": "BinaryValue"}
TRACE = "AWSTraceHeader"
ENCODING = "Content-Transfer-Encoding"
CONTENT_TYPE = "Content-Type"
CONTROLS = bytes(set(range(0x20)) - {0x09, 0x0A, 0x0D})
FFFE, FFFF = "\ufffe".encode(), "\uffff".encode()
ALLOWED = "#x9 | #xA | #xD | [#x20-#xD7FF] | [#xE000-#xFFFD] | [#x10000-#x10FFFF]"

md5 = partial(hashlib.md5, usedforsecurity=False)
Values = dict[str, dict[str, Any]]
"""Attributes as SQS writes them: {name: {"DataType": …, "StringValue": …}}."""


class Attached(NamedTuple):
    """The attributes of a message that is sent: as the core keeps them, their types, their size and their digest."""

    attributes: dict[str, Attribute]
    types: dict[str, str]
    size: int = 0
    digest: str | None = None


def invalid_value(text: str) -> SqsError:
    return SqsError("InvalidParameterValueException", text)


# text


def is_text(raw: bytes) -> bool:
    """Whether every character of UTF-8 text is one that SQS allows."""
    return len(raw.translate(None, CONTROLS)) == len(raw) and (raw.isascii() or (FFFE not in raw and FFFF not in raw))


def first_forbidden(text: str) -> str | None:
    """The first character that SQS does not allow, as SQS writes it."""
    for character in text:
        code = ord(character)
        if (code < 0x20 and code not in (0x09, 0x0A, 0x0D)) or 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF):
            return f"#x{code:X}"
    return None


def read_text(text: str, what: str) -> bytes:
    """Text in UTF-8; ValueError if it has a character that SQS does not allow."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raw = None
    if raw is None or not is_text(raw):
        character = first_forbidden(text)
        raise ValueError(
            f"Invalid binary character '{character}' was found in the {what}, the set of allowed characters is {ALLOWED}"
        )
    return raw


# sending

NOTHING = Attached({}, {})


def attach(given: Mapping[str, Mapping[str, Any]] | None) -> Attached:
    """The attributes that a sender gives. The first that breaks a rule is refused."""
    if not given:
        return NOTHING
    if len(given) > MOST_ATTRIBUTES:
        raise invalid_value(f"Number of message attributes [{len(given)}] exceeds the allowed maximum [{MOST_ATTRIBUTES}].")
    attributes: dict[str, Attribute] = {}
    types: dict[str, str] = {}
    parts: dict[str, tuple[str, bytes]] = {}
    size = 0
    for name, value in given.items():
        _check_name(name)
        kind, base = _check_type(name, value)
        kept, raw = _check_value(name, value, base)
        attributes[name] = kept
        if kind != base or base == "Number":
            types[name] = kind
        parts[name] = kind, raw
        size += len(name.encode()) + len(kind.encode()) + len(raw)
    return Attached(attributes, types, size, digest(parts))


def _check_name(name: str) -> None:
    if not name:
        raise invalid_value("The request must contain non-empty message (user) attribute names.")
    if len(name) > LONGEST:
        raise invalid_value("Message (user) attribute name must be shorter than 256 bytes.")
    if not NAME.fullmatch(name):
        raise invalid_value(
            "Message (user) attributes name can only contain upper and lower score characters, digits, periods, "
            "hyphens and underscores. "
        )
    if name.lower().startswith(("aws.", "amazon.", ".")) or name[-1] == ".":
        raise invalid_value(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for "
            "internal use. Additionally, they cannot start or end with '.'."
        )


def _check_type(name: str, value: Mapping[str, Any]) -> tuple[str, str]:
    """The data type of an attribute, and the one of the three types that it is based on."""
    if value.get("StringListValues") or value.get("BinaryListValues"):
        raise invalid_value("Message attribute list values in SendMessage operation are not supported.")
    kind = value.get("DataType")
    if not kind:
        if not value:
            raise invalid_value(f"The message (user) attribute '{name}' must contain a non-empty message attribute value.")
        raise invalid_value(f"The message (user) attribute '{name}' must contain a non-empty message attribute type.")
    if len(kind) > LONGEST:
        raise invalid_value("Message (user) attribute type must be shorter than 256 bytes.")
    base = kind.partition(".")[0]
    if base not in BASES or not kind.isprintable():
        raise invalid_value(
            f"The type of message (user) attribute '{name}' is invalid. You must use only the following supported type "
            "prefixes: Binary, Number, String."
        )
    return kind, base


def _check_value(name: str, value: Mapping[str, Any], base: str) -> tuple[Attribute, bytes]:
    kept = value.get(BASES[base])
    if not kept:
        raise invalid_value(f"Message (user) attribute '{name}' must contain a non-empty value of type '{base}'.")
    if isinstance(kept, bytes):
        return kept, kept
    if base == "Number" and not NUMBER.fullmatch(kept):
        raise invalid_value(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    try:
        return kept, read_text(kept, f"message (user) attribute '{name}'")
    except ValueError as error:
        raise invalid_value(str(error)) from None


def read_trace(given: Mapping[str, Mapping[str, Any]] | None) -> tuple[str | None, str | None]:
    """The trace header of a message that is sent, the only system attribute that a sender may give; and its digest."""
    if not given:
        return None, None
    for name, value in given.items():
        if name != TRACE:
            raise invalid_value(f"Message system attribute name '{name[:MOST_SHOWN]}' is invalid.")
        if value.get("DataType") != "String":
            raise invalid_value(
                f"The type of message (system) attribute '{name}' is invalid. You must use only the following supported "
                "type: String."
            )
        if not value.get("StringValue"):
            raise invalid_value(f"Message (system) attribute '{name}' must contain a non-empty value of type 'String'.")
    trace: str = given[TRACE]["StringValue"]
    try:
        raw = read_text(trace, f"message (system) attribute '{TRACE}'")
    except ValueError as error:
        raise invalid_value(str(error)) from None
    return trace, digest({TRACE: ("String", raw)})


def digest(parts: Mapping[str, tuple[str, bytes]]) -> str:
    """The MD5 of attributes, each given by its data type and its value. Clients compute it too."""
    encoded: list[bytes] = []
    for name in sorted(parts):
        kind, raw = parts[name]
        named, typed = name.encode(), kind.encode()
        encoded += (
            len(named).to_bytes(4),
            named,
            len(typed).to_bytes(4),
            typed,
            b"\2" if kind.startswith("Binary") else b"\1",
            len(raw).to_bytes(4),
            raw,
        )
    return md5(b"".join(encoded)).hexdigest()


def remember(attached: Attached, **facts: str | None) -> dict[str, Attribute]:
    """The attributes as the core keeps them, with what SQS knows beyond them."""
    known: dict[str, Any] = {name: fact for name, fact in facts.items() if fact is not None}
    if attached.types:
        known["types"] = attached.types
    if not known:
        return attached.attributes
    return {**attached.attributes, REMEMBERED: json.dumps(known, ensure_ascii=False)}


# receiving


def recall(message: Message) -> dict[str, Any]:
    """What `remember` has kept. Another program may have written anything there."""
    kept = message.attributes.get(REMEMBERED)
    if not isinstance(kept, str):
        return {}
    try:
        known = json.loads(kept)
    except (ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


class Filter:
    """Which message attributes a receiver wants: All, all that begin with a prefix (``prefix.*``), or those of a name."""

    def __init__(self, names: Sequence[str] | None) -> None:
        names = names or ()
        self.all = any(name in ("All", ".*", "*") for name in names)
        self.nothing = not names
        self._names = frozenset(names)
        self._prefixes = tuple(name[:-2] for name in names if name.endswith(".*"))

    def __call__(self, name: str) -> bool:
        return self.all or name in self._names or (bool(self._prefixes) and name.startswith(self._prefixes))


def show(message: Message, known: Mapping[str, Any], wanted: Filter, encoded: bool) -> tuple[Values, str | None]:
    """The attributes of a received message that the receiver wants, and their digest. ``encoded``: its body is in base64."""
    types = known.get("types")
    if not isinstance(types, dict):
        types = {}
    values: Values = {}
    parts: dict[str, tuple[str, bytes]] = {}
    for name, value in (*_of_others(message, encoded), *message.attributes.items()):
        if name == REMEMBERED or not wanted(name):
            continue
        kind = _type_of(types.get(name), value)
        if isinstance(value, bytes):
            values[name] = {"BinaryValue": value, "DataType": kind}
            parts[name] = kind, value
        else:
            text = value if isinstance(value, str) else repr(value)
            raw = text.encode(errors="replace")
            if not is_text(raw):
                text = "".join("\ufffd" if first_forbidden(character) else character for character in text)
                raw = text.encode()
            values[name] = {"StringValue": text, "DataType": kind}
            parts[name] = kind, raw
    return values, digest(parts) if parts else None


def _type_of(known: object, value: Attribute) -> str:
    """The data type of an attribute: what its sender said, if it fits the value."""
    usual = "Binary" if isinstance(value, bytes) else "String" if isinstance(value, str) else "Number"
    if not isinstance(known, str):
        return usual
    base = known.partition(".")[0]
    return known if (base == "Binary") == (usual == "Binary") and base in BASES else usual


def _of_others(message: Message, encoded: bool) -> list[tuple[str, str]]:
    """What a sender of another dialect has said about the body, as attributes; those of the same name count more."""
    told: list[tuple[str, str]] = []
    if message.content_type not in (TEXT, OCTETS):
        told.append((CONTENT_TYPE, message.content_type))
    if encoded:
        told.append((ENCODING, "base64"))
    return told


def body_of(message: Message) -> tuple[str, bytes, bool]:
    """The body as text that SQS can express, the same in UTF-8, and whether it is in base64."""
    raw = message.body
    if is_text(raw):
        try:
            return raw.decode(), raw, False
        except UnicodeDecodeError:
            pass
    encoded = b64encode(raw)
    return encoded.decode(), encoded, True
