"""How stores encode values without a column of their own: a message's head and checksum, and a queue's settings.

head      JSON, absent if all are defaults:   {"type": content type, "attributes": {name: value}, "visibility": seconds,
                                               "death": [queue, reason, receives, died_at],
                                               "retry": [attempts, delay, curve, max_delay, jitter],
                                               "failed": [failures, error]}
          an attribute of bytes is {"b": base64}; text and numbers are themselves
checksum  CRC-32 over all immutable parts of the message, the body last
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, astuple
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

from penstock.message import OCTETS, Attribute, Attributes, Curve, Death, Message, Mode, Redrive, RetryPolicy, Settings

PLAIN_HEAD = (None, None, None, 0, None)


class Head(NamedTuple):
    content_type: str
    attributes: Attributes
    visibility: float | None = None
    death: Death | None = None
    retry: RetryPolicy | None = None
    failures: int = 0
    error: str | None = None


def pack_head(head: Head) -> bytes | None:
    if not head.attributes and head[2:] == PLAIN_HEAD:
        return pack_type(head.content_type)
    fields: dict[str, Any] = {}
    if head.content_type != OCTETS:
        fields["type"] = head.content_type
    if head.attributes:
        fields["attributes"] = {
            name: {"b": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
            for name, value in head.attributes.items()
        }
    if head.visibility is not None:
        fields["visibility"] = head.visibility
    if head.death is not None:
        fields["death"] = [head.death.queue, head.death.reason, head.death.receives, head.death.died_at]
    if head.retry is not None:
        fields["retry"] = astuple(head.retry)
    if head.failures:
        fields["failed"] = [head.failures, head.error]
    return json.dumps(fields, separators=(",", ":")).encode()


@lru_cache(maxsize=256)
def pack_type(content_type: str) -> bytes | None:
    """A head with only a content type, which is all that most messages need."""
    return None if content_type == OCTETS else json.dumps({"type": content_type}, separators=(",", ":")).encode()


def unpack_head(packed: bytes | None) -> Head:
    if packed is None:
        return Head(OCTETS, {})
    fields = json.loads(packed)
    attributes: dict[str, Attribute] = {
        name: base64.b64decode(value["b"]) if isinstance(value, dict) else value
        for name, value in fields.get("attributes", {}).items()
    }
    death, retry, failed = fields.get("death"), fields.get("retry"), fields.get("failed", (0, None))
    return Head(
        fields.get("type", OCTETS),
        attributes,
        fields.get("visibility"),
        Death(*death) if death else None,
        _unpack_retry(*retry) if retry else None,
        *failed,
    )


def head_of(message: Message) -> Head:
    return Head(
        message.content_type,
        message.attributes,
        message.visibility,
        message.death,
        message.retry,
        message.failures,
        message.error,
    )


def _unpack_retry(attempts: int | None, delay: float, curve: str, max_delay: float, jitter: float) -> RetryPolicy:
    return RetryPolicy(attempts, delay, Curve(curve), max_delay, jitter)


def checksum(
    body: bytes, head: bytes | None, group: bytes | None, mark: bytes | None, sent_at: int, deadline_at: int | None
) -> int:
    total = crc32(b"%d" % sent_at)
    if head is not None:
        total = crc32(head, crc32(b"h", total))
    if group is not None:
        total = crc32(group, crc32(b"g", total))
    if mark is not None:
        total = crc32(mark, crc32(b"m", total))
    if deadline_at is not None:
        total = crc32(b"d%d" % deadline_at, total)
    return crc32(body, total)


def plain_checksum(body: bytes | memoryview, sent_at: int) -> int:
    """The checksum of a message that has only a body."""
    return crc32(body, crc32(b"%d" % sent_at))


add_body = crc32
"""A message's checksum, from its body and from the checksum it would have with an empty body."""


LATER: dict[str, Any] = {"labels": {}, "paused": False, "retry": None, "max_in_flight": None}
"""Settings that are stored only where they differ from this: other queues are stored as they were before there were any."""


@lru_cache(maxsize=1024)
def pack_settings(settings: Settings) -> str:
    fields = asdict(settings) | {"labels": dict(settings.labels)}
    return json.dumps({name: value for name, value in fields.items() if name not in LATER or value != LATER[name]})


@lru_cache(maxsize=1024)
def unpack_settings(packed: str) -> Settings:
    fields = json.loads(packed)
    redrive, retry = fields.pop("redrive"), fields.get("retry")
    return Settings(
        **fields
        | {
            "mode": Mode(fields["mode"]),
            "redrive": Redrive(**redrive) if redrive else None,
            "retry": _unpack_retry(**retry) if retry else None,
        }
    )
