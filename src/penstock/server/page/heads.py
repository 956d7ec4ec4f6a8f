"""A message as the page shows it, in JSON that a browser can read: its head, and all of it.

Numbers beyond 2**53 would not survive there: what may be one is text."""

from __future__ import annotations

from base64 import b64encode
from codecs import getincrementaldecoder
from typing import Any

from penstock.message import Attribute, Message, State
from penstock.server.jobs.filters import state_of

PREVIEW = 200
"""Characters."""
OVER = {State.PROCESSED: "processed", State.FAILED: "failed"}


def head_of(message: Message, now: int) -> dict[str, Any]:
    """Without the body and the attributes' values."""
    death = message.death
    return {
        "id": message.id,
        "number": str(message.number),
        "state": OVER.get(message.state) or state_of(message, now),
        "sent_at": message.sent_at,
        "moved_at": message.moved_at,
        "visible_at": message.visible_at,
        "expires_at": message.expires_at,
        "deadline_at": message.deadline_at,
        "first_received_at": message.first_received_at,
        "received_at": message.received_at,
        "receives": message.receives,
        "lapsed": message.lapsed,
        "holder": message.holder,
        "group": message.group,
        "content_type": message.content_type,
        "size": len(message.body),
        "attributes": len(message.attributes),
        "preview": preview(message.body) if message.intact else None,
        "death": death and {"queue": death.queue, "reason": death.reason, "receives": death.receives, "died_at": death.died_at},
    }


def in_full(message: Message, now: int) -> dict[str, Any]:
    return {
        **head_of(message, now),
        "settled_at": message.settled_at,
        "reason": message.reason,
        "failures": message.failures,
        "error": message.error,
        "retry": message.retry and str(message.retry),
        "visibility": message.visibility,
        "key": None if message.key is None else b64encode(message.key).decode(),
        "attributes": [_attribute(name, value) for name, value in message.attributes.items()],
        "body": b64encode(message.body).decode(),
    }


def preview(body: bytes) -> str | None:
    """How a text begins; None if it is none."""
    try:
        return getincrementaldecoder("utf-8")().decode(body[: PREVIEW * 4])[:PREVIEW]
    except UnicodeDecodeError:
        return None


def _attribute(name: str, value: Attribute) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"name": name, "type": "bytes", "value": b64encode(value).decode()}
    return {"name": name, "type": "text" if isinstance(value, str) else "number", "value": str(value)}
