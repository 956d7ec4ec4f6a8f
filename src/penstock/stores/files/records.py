"""The formats of sidecar files. A disk can damage anything, so everything read from there is checked first.

Each check takes what was read, and raises one of `DAMAGE` if it is not a valid record. `penstock.stores.files.sidecar` and
`penstock.stores.files.outbox` describe the files.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.message import FOREVER, MAX_NUMBER, Death, Message, RetryPolicy, Settings, State
from penstock.stores.encoding import Head, pack_head, unpack_head, unpack_settings

DAMAGE = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
"""The exceptions from reading garbage as a record."""


def need(fits: bool) -> None:
    if not fits:
        raise ValueError("this is not such a record")


NUMBERS = 9
RECEIVED = struct.Struct(f"<{NUMBERS}q")


def is_instant(value: object) -> bool:
    return type(value) is int and 0 <= value <= FOREVER


def is_duration(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_NUMBER  # type: ignore[operator]


def is_id(value: object) -> bool:
    """Whether it can be the name of a file in a folder; anything else is not found there."""
    return type(value) is str and bool(value) and "/" not in value and "\0" not in value


ASIDE = 2


class Received(NamedTuple):
    """The record of a received message.

    ``released`` is 1 once it was given back, and `ASIDE` once it was set aside as damaged. A receipt is valid while the message
    is where ``hidden_until`` says or, as the record is written before the rename, where ``hidden_before`` says. ``seal``
    distinguishes our hiding from another program's if the path does not. ``holder`` is the name that the receiver gave.

    On the disk: nine numbers of eight bytes, a byte with the length of the holder, the holder in UTF-8. In records of older
    versions, nothing follows the numbers, not even the length. Bytes after the holder are left over from a longer record."""

    receives: int
    delivery: int
    sent_at: int
    first_received_at: int
    received_at: int
    hidden_until: int
    released: int
    hidden_before: int = 0
    seal: int = 0
    holder: str | None = None

    def pack(self) -> bytes:
        holder = (self.holder or "").encode()
        return RECEIVED.pack(*self[:NUMBERS]) + bytes([len(holder)]) + holder

    @classmethod
    def unpack(cls, content: bytes) -> Received:
        need(len(content) >= RECEIVED.size)
        holder = content[RECEIVED.size + 1 :][: content[RECEIVED.size]] if len(content) > RECEIVED.size else b""
        received = cls(*RECEIVED.unpack_from(content))._replace(holder=holder.decode(errors="replace") or None)
        need(any(received[:NUMBERS]) and all(map(is_instant, received[:NUMBERS])))
        need(received.receives <= MAX_NUMBER and received.released in (0, 1, ASIDE))
        return received


class Extra(NamedTuple):
    """The content of a message's head file."""

    head: Head
    sent_at: int | None = None
    visible_at: int | None = None
    expires_at: int | None = None
    deadline_at: int | None = None
    group: str | None = None
    mark: bytes | None = None
    moved_at: int | None = None
    intact: bool = True

    def pack(self) -> dict[str, Any]:
        head = pack_head(self.head)
        fields = self._replace(head=None, mark=self.mark and self.mark.hex(), intact=None)._asdict()  # type: ignore[arg-type]
        return {name: value for name, value in fields.items() if value is not None} | ({"head": head.decode()} if head else {})

    @classmethod
    def unpack(cls, fields: dict[str, Any] | None) -> Extra:
        if fields is None:
            return cls(unpack_head(None))
        rest = {name: value for name, value in fields.items() if name not in ("head", "mark")}
        head, mark = fields.get("head"), fields.get("mark")
        return cls(unpack_head(head and head.encode()), **rest, mark=mark and bytes.fromhex(mark))


def check_head(head: Head) -> None:
    need(type(head.content_type) is str and head.content_type.isprintable())
    need(all(type(name) is str for name in head.attributes))
    need(all(type(value) in (str, int, float, bytes) for value in head.attributes.values()))
    need(head.visibility is None or is_duration(head.visibility))
    if head.death is not None:
        _check_death(head.death)
    if head.retry is not None:
        _check_retry(head.retry)
    need(is_instant(head.failures) and (head.error is None or type(head.error) is str))


def _check_death(death: Death) -> None:
    need(type(death.queue) is str and type(death.reason) is str)
    need(is_instant(death.receives) and is_instant(death.died_at))


def _check_retry(retry: RetryPolicy) -> None:
    need(retry.attempts is None or is_instant(retry.attempts))
    need(is_duration(retry.delay) and is_duration(retry.max_delay) and is_duration(retry.jitter) and retry.jitter <= 1)


def check_settled(message: Message) -> None:
    """Check a message of the history."""
    numbers = (message.number, message.receives, message.delivery, message.sent_at, message.visible_at, message.expires_at)
    instants = (message.deadline_at, message.moved_at, message.first_received_at, message.received_at)
    texts = (message.reason, message.group, message.holder)
    need(all(map(is_instant, (*numbers, message.settled_at))) and all(value is None or is_instant(value) for value in instants))
    need(type(message.id) is str and type(message.queue) is str)
    need(all(text is None or type(text) is str for text in texts))


def check_queue(record: Any) -> None:
    """Check the settings of a queue, and its retentions: which one applied to messages after which number."""
    need(type(record["name"]) is str and type(record["born"]) is str)
    _check_settings(unpack_settings(record["settings"]))
    need(record["retentions"][0][0] == 0)
    for since, retention in record["retentions"]:
        need(type(since) is int and is_duration(retention))


def _check_settings(settings: Settings) -> None:
    need(all(map(is_duration, (settings.visibility, settings.retention, settings.delay, settings.history))))
    need(type(settings.groups) is bool and type(settings.paused) is bool)
    need(settings.max_in_flight is None or type(settings.max_in_flight) is int)
    need(type(settings.deduplicate) is bool or is_duration(settings.deduplicate))
    need(all(type(name) is str and type(text) is str for name, text in settings.labels.items()))
    if settings.redrive is not None:
        need(is_id(settings.redrive.dead_letter_queue) and is_instant(settings.redrive.max_receives))
    if settings.retry is not None:
        _check_retry(settings.retry)


def check_writer(record: Any) -> None:
    need(is_instant(record["batch"]) and is_instant(record["keep_until"]))
    need(type(record.get("digest")) in (str, type(None)))


def check_journal(record: Any) -> None:
    need(type(record["place"]) is str and type(record["queue"]) is str and type(record["born"]) in (str, type(None)))
    for id, sent_at, visible_at, mark, mark_until in record["rows"]:
        need(is_id(id) and is_instant(sent_at) and is_instant(visible_at) and is_instant(mark_until))
        need(mark is None or bool(bytes.fromhex(mark)))


def _check_extra(fields: Any) -> None:
    need(type(fields) is dict and bool(fields))
    extra = Extra.unpack(fields)
    check_head(extra.head)
    need(all(value is None or is_instant(value) for name, value in extra._asdict().items() if name.endswith("_at")))
    need((extra.group is None or type(extra.group) is str) and extra.intact is True)


DAMAGED_HEAD = {"intact": False}


def check_record(kind: str, name: str, record: Any) -> None:
    """Check a JSON record of the sidecar folder ``kind``."""
    match kind, name:
        case "head", _:
            _check_extra(record)
        case "mark", _:
            need(is_id(record["id"]) and is_instant(record["until"]) and type(record.get("published", True)) is bool)
        case _, "name":
            need(type(record["reader"]) is str)
        case _, "settled":
            state, settled_at, reason, keep_until = record["settlement"]
            need(is_instant(record["epoch"]) and is_instant(settled_at) and (reason is None or type(reason) is str))
            need(keep_until is None or is_instant(keep_until))
            State(state)
        case _:
            need(record["epoch"] == int(name) and is_instant(record["epoch"]) and is_instant(record["lapses_at"]))
            need(type(record["confirmed"]) is bool and type(record["receipts"]) is list)
            need(all(is_id(id) and is_instant(delivery) for id, delivery in record["receipts"]))


def set_aside(
    path: str, content: bytes, folder: str, read: Callable[[str], bytes | None], on_damage: Callable[[str], object]
) -> None:
    """Move a damaged file into ``folder``, where nobody reads it, and report it. A file that cannot be moved stays.

    Another process may have set it aside before us, or rewritten it since we read it."""
    target = f"{folder}/{os.path.basename(os.path.dirname(path))}.{os.path.basename(path)}.{secrets.token_hex(4)}"
    with suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        os.rename(path, target)
        if read(target) == content:
            on_damage(f"the file {path} is damaged; it was set aside as {target}")
        else:
            with suppress(FileExistsError):
                os.link(target, path)
            os.unlink(target)
