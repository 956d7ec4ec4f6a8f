"""How a message of kombu is kept: its body is the body, its content type the content type, and the rest is one attribute.

body          as the sender's serializer made it, so that people can read it
content_type  the serializer's
attributes    kombu: JSON of {"headers": …, "properties": …, "encoding": the content encoding, "text": whether the body was
              text and not bytes}
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kombu.utils.json import dumps, loads

from penstock.errors import BadMessage
from penstock.message import OCTETS, Draft, Message

REST = "kombu"
MILLISECONDS = 1000


def pack(message: dict[str, Any], now: datetime) -> Draft:
    """A message that is to be sent at an instant of its own (Celery's ETA and countdown) becomes visible then."""
    body = message["body"]
    headers, properties = message["headers"], message["properties"]
    rest = {
        "headers": headers,
        "properties": {name: value for name, value in properties.items() if name != "delivery_tag"},
        "encoding": message["content-encoding"],
        "text": isinstance(body, str),
    }
    return Draft(
        body.encode() if isinstance(body, str) else bytes(body or b""),
        message["content-type"] or OCTETS,
        {REST: dumps(rest)},
        delay=_delay(headers.get("eta"), now),
        deadline=_seconds(properties.get("expiration")),
    )


def unpack(message: Message, queue: str) -> dict[str, Any]:
    """Also of a message that something else has sent: it has no headers then, and kombu's user sees what it is."""
    rest = _rest(message)
    body: str | bytes = message.body
    if rest.get("text", True):
        try:
            body = message.body.decode()
        except UnicodeDecodeError:
            body = message.body
    properties = rest.get("properties", {})
    info = {"exchange": "", "routing_key": queue, **properties.get("delivery_info", {}), "redelivered": message.receives > 1}
    return {
        "body": body,
        "content-type": message.content_type,
        "content-encoding": rest.get("encoding", "utf-8"),
        "headers": rest.get("headers", {}),
        "properties": {**properties, "delivery_info": info, "delivery_tag": f"{message.id}:{message.delivery}"},
    }


def _rest(message: Message) -> dict[str, Any]:
    try:
        rest = loads(message.attributes.get(REST, "{}"))
    except (ValueError, TypeError):
        return {}
    return rest if isinstance(rest, dict) else {}


def _delay(eta: object, now: datetime) -> float | None:
    """Seconds until the instant. One without a time zone is the worker's to interpret, which keeps the task until then."""
    if not isinstance(eta, str):
        return None
    try:
        at = datetime.fromisoformat(eta)
    except ValueError:
        return None
    return None if at.tzinfo is None else max(0.0, (at - now).total_seconds())


def _seconds(expiration: object) -> float | None:
    """AMQP's time to live of a message: milliseconds, as text."""
    if expiration is None:
        return None
    try:
        return int(str(expiration)) / MILLISECONDS
    except ValueError:
        raise BadMessage(f"the expiration of a message is milliseconds, not {expiration!r:.80}") from None


def utc_now() -> datetime:
    return datetime.now(UTC)
