"""What a command prints: plain text for people, JSON for programs, one line on stderr for errors."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from penstock.documents import to_document
from penstock.message import OCTETS, Attribute, Message, Redrive, Settings, Stats, to_datetime

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that could control a terminal, or reverse its text."""
USER = re.compile(r"(?<=://)(?!/)\S*@")
"""The user and the password in a URL."""


def complain(text: str) -> None:
    if sys.stderr is not None:
        told = USER.sub("", shown(text))  # whatever the command line was, no line shows a password
        print("penstock:", told.replace("\n", "\\n"), file=sys.stderr)


def stays(count: int, why: str) -> str:
    """The line about letters that a redrive did not move."""
    return f"{count:,} letters stay: {why}" if count != 1 else f"1 letter stays: {why}"


def shown(text: str) -> str:
    """Untrusted text, made safe to print."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def emit(value: object) -> None:
    """One JSON document in one line; in ASCII, because the encoding of stdout is not always UTF-8."""
    print(json.dumps(value))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is left-aligned, numbers are right-aligned."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in pairs) + 2
    for name, value in pairs:
        for line in value.split("\n"):
            print(f"{name.ljust(width)}{line}" if line else name)
            name = ""


def time(at: int) -> str:
    """An instant for people; one beyond the calendar, such as FOREVER, is "never"."""
    try:
        moment = to_datetime(at)
    except OverflowError:
        return "never"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03} UTC"


def age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def settings_json(settings: Settings) -> dict[str, Any]:
    return {**asdict(settings), "labels": dict(settings.labels)}


def print_settings(settings: Settings) -> None:
    """Print them in the syntax of the options of `create`."""
    plain = [(field.name, _setting(getattr(settings, field.name))) for field in fields(settings) if field.name != "labels"]
    print_pairs([*plain, *(("label", shown(f"{name}={text}")) for name, text in settings.labels.items())])


def _setting(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "on" if value else "off"
        case Redrive(dead_letter_queue=name, max_receives=receives):
            return f"{name}:{receives}"
    return str(value)


def stats_json(name: str, stats: Stats) -> dict[str, Any]:
    return {"name": name, **asdict(stats)}


def receipt(message: Message) -> str:
    return f"{message.id}#{message.delivery}"


def message_json(message: Message, *, held: bool = False) -> dict[str, Any]:
    """All fields of a message; ``held``: with the receipt, which only its receiver should use."""
    document = to_document(message)
    return {"id": document.pop("id"), "receipt": receipt(message), **document} if held else document


def print_message(message: Message, *, held: bool = False) -> None:
    pairs = [("id", message.id)]
    if held:
        pairs.append(("receipt", receipt(message)))
    else:
        pairs += [("state", message.state.name.lower()), ("receives", str(message.receives))]
    if message.holder is not None:
        pairs.append(("holder", shown(message.holder)))
    pairs.append(("sent", time(message.sent_at)))
    if message.settled_at is None:
        hidden = held or message.state.name == "CONSUMED"
        pairs += [("hidden until" if hidden else "visible", time(message.visible_at)), ("expires", time(message.expires_at))]
    else:
        pairs.append(("settled", time(message.settled_at) + (f", {shown(message.reason)}" if message.reason else "")))
    if message.deadline_at is not None:
        pairs.append(("deadline", time(message.deadline_at)))
    if message.error is not None:
        pairs.append(("failures", shown(f"{message.failures}, last: {message.error}")))
    if message.retry is not None:
        pairs.append(("retry", str(message.retry)))
    if message.death is not None:
        death = message.death
        pairs.append(("died", f"{time(death.died_at)} in {death.queue}, {shown(death.reason)} after {death.receives} receives"))
    pairs += [(name, _text(value)) for name, value in (("group", message.group), ("key", message.key)) if value is not None]
    if message.content_type != OCTETS:
        pairs.append(("content type", message.content_type))
    pairs += [("attribute", f"{shown(name)} = {_text(value)}") for name, value in message.attributes.items()]
    print_pairs([*pairs, ("body", _text(message.body))])


def _text(value: Attribute) -> str:
    if not isinstance(value, bytes):
        return shown(str(value))
    try:
        return shown(value.decode())
    except UnicodeDecodeError:
        return f"({len(value)} bytes that are not UTF-8, in base64) {base64.b64encode(value).decode()}"
