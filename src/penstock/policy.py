"""The rules of a queue, without I/O: what may come in (admit) and what happens to a claimed message (judge).

    admit   draft + settings + now  ->  entry: instants, limits, duplicate mark
    judge   message + settings + now ->  DELIVER   hand it to the receiver
                                         EXPIRE    past its retention or deadline: settled as failed
                                         BURY      received too often: to the dead letter queue
                                         SET_ASIDE its checksum fails: kept, counted, never delivered

Nothing here reads a clock; a store knows none of this.
"""

from __future__ import annotations

import dataclasses
import math
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any, NamedTuple, TypeGuard

from penstock import marks
from penstock.errors import BadMessage, BadName, BadSetting
from penstock.message import (
    FOREVER,
    MAX_NUMBER,
    OCTETS,
    SECOND,
    Attribute,
    Certainty,
    Curve,
    Death,
    Draft,
    Entry,
    Message,
    MessageFields,
    Mode,
    Readmission,
    Redrive,
    RetryPolicy,
    Settings,
    Settlement,
    State,
    from_datetime,
    micros,
)

TEXT = "text/plain; charset=utf-8"
MAX_BODY = 1024 * 1024
SEPARATORS = frozenset("/\\:")
MAX_NAME = 128
MAX_NAME_BYTES = 200
MAX_GROUP = 128
MAX_ATTRIBUTES = 64
MAX_MESSAGE = MAX_BODY + 64 * 1024
"""Bytes of a body and its attributes together: a dialect that counts attributes as part of the body has some for its own."""
MAX_LABELS = 200
MAX_LABEL_NAME = 256
MAX_LABELS_BYTES = 64 * 1024
MAX_KEY = 256
MAX_REASON = 4096
NO_NULL = "\ufffd"
"""In the place of a null character in an exception's text: PostgreSQL's text has none."""
MAX_HOLDER = 200
MAX_BATCH = 100_000
MAX_CLAIM = 1_000_000
AS_COUNTED = -1
BACK_OFF = RetryPolicy(None, 1, Curve.EXPONENTIAL, 300, 0)
"""What applies where neither the message nor its queue nor its consumer has a policy."""
CANCELLED = "cancelled"
"""The reason of a message that its sender took back."""
UNFINISHED = "unfinished"
"""The reason of a message that was taken at most once, until its consumer reports the outcome. If that dies, it remains."""
TOKEN_WINDOW = 600
"""Seconds for which a batch that was sent with a token is recognised, if the sender does not ask for more."""
MAX_REMEMBER = 7 * 86400


def check_name(name: object, what: str = "queue name") -> str:
    """A name that every store can keep: no path, no control character, one spelling."""
    if not isinstance(name, str):
        raise BadName(f"a {what} is text, not {type(name).__name__}: {name!r:.200}")
    shown = repr(name if len(name) <= 80 else name[:80] + "…")
    if not name:
        raise BadName(f"{what} {shown}: it must not be empty")
    if len(name) > MAX_NAME:
        raise BadName(f"{what} {shown} has {len(name)} characters, the limit is {MAX_NAME}")
    if not name.isprintable() or not SEPARATORS.isdisjoint(name):
        raise BadName(f"{what} {shown}: no '/', '\\', ':' or control characters")
    if name[0] in ". " or name[-1] == " ":
        raise BadName(f"{what} {shown}: it must not begin with '.' or begin or end with a space")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise BadName(f"{what} {shown} has {len(name.encode())} bytes in UTF-8, the limit is {MAX_NAME_BYTES}")
    if not unicodedata.is_normalized("NFC", name):
        raise BadName(f"{what} {shown}: write it in Unicode's composed form (NFC)")
    return name


def is_name(name: object) -> TypeGuard[str]:
    """Whether a queue can have this name."""
    try:
        check_name(name)
    except BadName:
        return False
    return True


def shown(value: object) -> str:
    """A value as errors show it; Python does not print integers of thousands of digits."""
    try:
        return f"{value!r:.200}"
    except ValueError:
        return f"of thousands of digits ({type(value).__name__})"


def check_seconds(value: object, what: str, least: float = 0, error: type[ValueError] = BadMessage) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise error(f"{what} must be a number of seconds, not {type(value).__name__}: {shown(value)}")
    if not least <= value <= MAX_NUMBER:  # NaN fails this too
        raise error(f"{what} {shown(value)} is not between {least} and {MAX_NUMBER} seconds")
    return value


def check_count(value: object, what: str, least: int, most: int, error: type[ValueError] = BadMessage) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise error(f"{what} must be a whole number, not {type(value).__name__}: {shown(value)}")
    if not least <= value <= most:
        raise error(f"{what} {shown(value)} is not between {least} and {most}")
    return value


def check_share(share: object) -> None:
    match share:
        case (int(place), int(of)) if 0 <= place < of <= MAX_NUMBER:
            return
    raise BadMessage(f"a share is (place, of) with 0 <= place < of, not {shown(share)}")


def check_settings(changes: Mapping[str, Any], base: Settings | None = None) -> Settings:
    """Apply ``changes`` (as a caller writes them) to ``base``; the broker checks that queues exist. Labels that ``changes``
    does not name stay; those that it gives as None are removed."""
    known = {field.name for field in dataclasses.fields(Settings)}
    for name in changes:
        if name not in known:
            raise BadSetting(f"there is no setting {name!r}; there are {', '.join(sorted(known))}")
    if "labels" in changes:
        changes = {**changes, "labels": _check_labels(changes["labels"], base.labels if base else {})}
    settings = dataclasses.replace(base or Settings(), **changes)
    check_seconds(settings.visibility, "visibility", error=BadSetting)
    check_seconds(settings.retention, "retention", 1, error=BadSetting)
    check_seconds(settings.delay, "delay", error=BadSetting)
    check_seconds(settings.history, "history", error=BadSetting)
    for name in ("groups", "paused"):
        if not isinstance(getattr(settings, name), bool):
            raise BadSetting(f"{name} must be True or False, not {shown(getattr(settings, name))}")
    if settings.max_in_flight is not None:
        check_count(settings.max_in_flight, "max_in_flight", 1, MAX_NUMBER, BadSetting)
    if base is not None and settings.groups != base.groups:
        raise BadSetting("groups cannot be changed: it is fixed when the queue is created")
    if not isinstance(settings.deduplicate, bool):
        check_seconds(settings.deduplicate, "deduplicate", 1, error=BadSetting)
    try:
        mode = Mode(settings.mode)
    except ValueError:
        raise BadSetting(f"mode {shown(settings.mode)} is not one of {', '.join(Mode)}") from None
    redrive, retry = _check_redrive(settings.redrive), check_retry(settings.retry, BadSetting)
    return dataclasses.replace(settings, mode=mode, redrive=redrive, retry=retry)


def _check_labels(changes: object, labels: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(changes, Mapping):
        raise BadSetting(f"labels are a mapping of text to text, not {type(changes).__name__}: {shown(changes)}")
    for name, text in changes.items():
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_LABEL_NAME or not name.isprintable():
            raise BadSetting(f"label {shown(name)}: a name has 1 to {MAX_LABEL_NAME} printable characters")
        if text is not None and not isinstance(text, str):
            raise BadSetting(f"label {name!r} must be text, or None to remove it, not {type(text).__name__}: {shown(text)}")
    wanted = {name: text for name, text in {**labels, **changes}.items() if text is not None}
    if len(wanted) > MAX_LABELS:
        raise BadSetting(f"there are {len(wanted)} labels, the limit is {MAX_LABELS}")
    try:
        size = sum(len(name.encode()) + len(text.encode()) for name, text in wanted.items())
    except UnicodeEncodeError as error:
        raise BadSetting(f"a label cannot be written in UTF-8: {shown(error.object)}") from None
    if size > MAX_LABELS_BYTES:
        raise BadSetting(f"the labels have {size} bytes, the limit is {MAX_LABELS_BYTES}")
    return wanted


def _check_redrive(redrive: object) -> Redrive | None:
    if redrive is None:
        return None
    if isinstance(redrive, tuple | list) and len(redrive) == 2:
        redrive = Redrive(*redrive)
    if not isinstance(redrive, Redrive):
        raise BadSetting(f"redrive must be (dead letter queue, max receives), not {shown(redrive)}")
    check_name(redrive.dead_letter_queue, "dead letter queue")
    check_count(redrive.max_receives, "max_receives", 1, MAX_NUMBER, BadSetting)
    return redrive


def check_retry(retry: object, error: type[ValueError] = BadMessage) -> RetryPolicy | None:
    """A policy, or None, as a caller writes it: a mapping of its fields will do."""
    if retry is None:
        return None
    if isinstance(retry, Mapping):
        known = {field.name for field in dataclasses.fields(RetryPolicy)}
        for name in retry:
            if name not in known:
                raise error(f"a retry policy has no {shown(name)}; it has {', '.join(sorted(known))}")
        retry = RetryPolicy(**retry)
    if not isinstance(retry, RetryPolicy):
        raise error(f"retry must be a RetryPolicy, or None, not {shown(retry)}")
    if retry.attempts is not None:
        check_count(retry.attempts, "the attempts of retry", 1, MAX_NUMBER, error)
    check_seconds(retry.delay, "the delay of retry", error=error)
    check_seconds(retry.max_delay, "the max_delay of retry", error=error)
    jitter = retry.jitter
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:  # NaN fails this too
        raise error(f"the jitter of retry must be a number from 0 to 1, not {shown(jitter)}")
    try:
        return dataclasses.replace(retry, curve=Curve(retry.curve))
    except ValueError:
        raise error(f"the curve of retry {shown(retry.curve)} is not one of {', '.join(Curve)}") from None


def admit_all(drafts: Sequence[Draft | bytes], settings: Settings, now: int, content_type: str = OCTETS) -> list[Entry]:
    """Admit a batch; plain bodies (which have this content type) for a plain queue, the common case, take the short way."""
    content_type = OCTETS if content_type == OCTETS else _check_content_type(content_type)
    # As `micros`, without two calls for each send.
    visible_at, expires_at = now + round(settings.delay * SECOND), now + round(settings.retention * SECOND)
    plain = settings.deduplicate is False
    return [
        Entry(draft, content_type, {}, now, visible_at, expires_at, None, None, None, None, 0)
        if plain and type(draft) is bytes and len(draft) <= MAX_BODY
        else _admit(Draft(draft, content_type) if isinstance(draft, bytes) else draft, settings, now, visible_at, expires_at)
        for draft in drafts
    ]


def admit_alike(bodies: Sequence[Draft | bytes], settings: Settings, now: int, content_type: str = OCTETS) -> Entry | None:
    """The entry that all these messages share, except for their bodies; None if they must be admitted one by one."""
    if not set(map(type, bodies)) <= {bytes} or max(map(len, bodies), default=0) > MAX_BODY:  # type: ignore[arg-type]
        return None
    (entry,) = admit_all([b""], settings, now, content_type)
    return entry if entry.mark is None else None


def admit(draft: Draft, settings: Settings, now: int) -> Entry:
    """Check a draft against every limit and turn its durations into instants."""
    return _admit(draft, settings, now, now + micros(settings.delay), now + micros(settings.retention))


def _admit(draft: Draft, settings: Settings, now: int, visible_at: int, expires_at: int) -> Entry:
    """As `admit`, with the instants that follow from the queue's settings, which a batch has in common."""
    if not isinstance(draft, Draft):
        raise BadMessage(f"a message is bytes or a Draft, not {type(draft).__name__}: {draft!r:.200}")
    body = draft.body
    if type(body) is not bytes or len(body) > MAX_BODY:
        body = _check_body(body)
    if draft.delay is not None:
        visible_at = now + micros(check_seconds(draft.delay, "delay"))
    if draft.visibility is not None:
        check_seconds(draft.visibility, "visibility")
    if draft.group is not None:
        _check_group(draft.group)
    key = None if draft.key is None else check_key(draft.key)
    mark, mark_until = (None, 0) if settings.deduplicate is False else _mark(body, key, settings, now)
    if draft.unique is not False:
        mark, mark_until = _mark_unique(draft.unique, key, settings), FOREVER
    return Entry(
        body,
        _check_content_type(draft.content_type),
        _check_attributes(draft.attributes, len(body)) if draft.attributes or type(draft.attributes) is not dict else {},
        now,
        visible_at,
        expires_at,
        None if draft.deadline is None else _deadline_at(draft.deadline, now),
        draft.visibility,
        draft.group,
        mark,
        mark_until,
        None if draft.retry is None else check_retry(draft.retry),
    )


def admit_member(member: str | bytes, settings: Settings, now: int) -> Entry:
    """A set's member: a message that is its own duplicate mark, whatever the queue's setting."""
    mark = member_mark(member)
    body, content_type = (member, OCTETS) if isinstance(member, bytes) else (_utf8(member, "member"), TEXT)
    return admit(Draft(body, content_type), settings, now)._replace(mark=mark, mark_until=FOREVER)


def readmit(message: Message, mark: bytes | None, death: Death | None, old: Settings, new: Settings, now: int) -> Readmission:
    """What happens to a message's mark and deadline when it moves from a queue with the settings ``old`` to one with ``new``.

    A message that dies (``death``) may always enter its dead letter queue: its mark does not count there, but its
    key, and the fact that it is the member of a set, are kept. A redriven one is in its queue as if it had never left: its
    mark counts if the queue refuses equal messages, or if it is a member. A window of deduplication counts from the send, and a
    redrive is not a send. A unique message is so again. A redrive is a new life: a deadline that has passed is dropped.

    A death with `AS_COUNTED` receives gets those of the message."""
    known = mark if mark and (marks.key_of(mark) or _is_member(message, mark, old)) else None
    if death is not None:
        receives = message.receives if death.receives == AS_COUNTED else death.receives
        return Readmission(known, 0, message.deadline_at, dataclasses.replace(death, receives=receives))
    deadline_at = message.deadline_at if message.deadline_at is not None and message.deadline_at > now else None
    if known and marks.is_content(known):
        return Readmission(known, FOREVER, deadline_at)
    if new.deduplicate is True:
        return Readmission(*_mark(message.body, marks.key_of(known), new, now), deadline_at)
    return Readmission(known, FOREVER if marks.is_unique(known) else 0, deadline_at)


def _is_member(message: Message, mark: bytes, settings: Settings) -> bool:
    """In a queue that refuses equal messages, every message without a key has the mark of a member; a dead letter keeps
    its mark."""
    return marks.is_content(mark) and (settings.deduplicate is not True or message.death is not None)


def mark_batch(entries: Sequence[Entry], token: str, now: int, remember: float = TOKEN_WINDOW) -> list[Entry]:
    """Mark each by its place in a batch that may be sent twice, within so many seconds. A unique message keeps its own mark."""
    until = _token_until(token, now, remember)
    placed = zip(entries, marks.of_places(range(len(entries)), token), strict=True)
    return [entry._replace(mark=mark, mark_until=until) if entry.mark is None else entry for entry, mark in placed]


def mark_first(entries: Sequence[Entry], token: str, now: int, remember: float = TOKEN_WINDOW) -> list[Entry]:
    """Mark a batch that may be sent twice by its first message, for a store whose inserts are whole (`marks.FOLLOWS`)."""
    if any(entry.mark is not None for entry in entries):
        return mark_batch(entries, token, now, remember)
    until = _token_until(token, now, remember)
    first = entries[0]._replace(mark=marks.of_batch(len(entries), token), mark_until=until)
    return [first, *(entry._replace(mark_until=marks.FOLLOWS) for entry in entries[1:])]


def _token_until(token: object, now: int, remember: object) -> int:
    if not isinstance(token, str) or not 1 <= len(_utf8(token, "token")) <= MAX_KEY:
        raise BadMessage(f"token {token!r:.80} must be text of 1 to {MAX_KEY} bytes")
    if check_seconds(remember, "remember", 1) > MAX_REMEMBER:
        raise BadMessage(f"remember {shown(remember)} is more than {MAX_REMEMBER} seconds")
    return now + micros(remember)  # type: ignore[arg-type]


def member_mark(member: str | bytes) -> bytes:
    if not isinstance(member, str | bytes):
        raise BadMessage(f"a member is text or bytes, not {type(member).__name__}: {member!r:.200}")
    return marks.of_content(_utf8(member, "member") if isinstance(member, str) else member)


def _mark(body: bytes, key: bytes | None, settings: Settings, now: int) -> tuple[bytes, int]:
    until = FOREVER if settings.deduplicate is True else now + micros(settings.deduplicate)
    if key is not None:
        return marks.of_key(key), until
    return marks.of_content(body, window=until != FOREVER), until


def _mark_unique(unique: object, key: bytes | None, settings: Settings) -> bytes:
    """A queue that refuses equal messages refuses those with an equal key, unique or not."""
    if unique is not True:
        raise BadMessage(f"unique must be True or False, not {shown(unique)}")
    if key is None:
        raise BadMessage("a unique message needs a key")
    return marks.of_key(key) if settings.deduplicate is True else marks.of_unique(key)


def _check_body(body: object) -> bytes:
    if isinstance(body, bytearray | memoryview):
        body = bytes(body)
    if not isinstance(body, bytes):
        raise BadMessage(f"a body is bytes, not {type(body).__name__}: {body!r:.200}")
    if len(body) > MAX_BODY:
        raise BadMessage(f"the body has {len(body)} bytes, the limit is {MAX_BODY}")
    return body


def check_key(key: object) -> bytes:
    if not isinstance(key, str | bytes):
        raise BadMessage(f"a key is text or bytes, not {type(key).__name__}: {key!r:.200}")
    raw = _utf8(key, "key") if isinstance(key, str) else key
    if not 1 <= len(raw) <= MAX_KEY:
        raise BadMessage(f"key {key!r:.80} has {len(raw)} bytes, it must have 1 to {MAX_KEY}")
    return raw


def _check_group(group: object) -> None:
    if not isinstance(group, str):
        raise BadMessage(f"a group is text, not {type(group).__name__}: {group!r:.200}")
    if not 1 <= len(group) <= MAX_GROUP or not group.isprintable():
        raise BadMessage(f"group {group!r:.80} has {len(group)} characters; it must have 1 to {MAX_GROUP}, all printable")


def _check_content_type(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise BadMessage(f"a content type is text such as 'text/plain', not {value!r:.200}")
    if len(value) > 255 or not (value.isascii() and value.isprintable()):
        raise BadMessage(f"content type {value!r:.80} must be at most 255 printable ASCII characters")
    return value


def _check_attributes(attributes: object, body: int) -> Mapping[str, Attribute]:
    """``body``: how many bytes that has."""
    if not isinstance(attributes, Mapping):
        raise BadMessage(f"attributes are a mapping, not {type(attributes).__name__}: {attributes!r:.200}")
    if len(attributes) > MAX_ATTRIBUTES:
        raise BadMessage(f"there are {len(attributes)} attributes, the limit is {MAX_ATTRIBUTES}")
    size = 0
    for name, value in attributes.items():
        if not isinstance(name, str) or not 1 <= len(name) <= 256 or not name.isprintable():
            raise BadMessage(f"attribute name {name!r:.80} must be 1 to 256 printable characters")
        if isinstance(value, bool) or not isinstance(value, str | int | float | bytes):
            raise BadMessage(f"attribute {name!r} must be text, a number or bytes, not {type(value).__name__}")
        if isinstance(value, float) and not math.isfinite(value):
            raise BadMessage(f"attribute {name!r} is {value!r}, which is not a finite number")
        if isinstance(value, int) and abs(value) >= 10**38:
            raise BadMessage(f"attribute {name!r} has more than 38 digits")
        size += len(_utf8(name, "attribute name")) + _size(name, value)
    if size + body > MAX_MESSAGE:
        raise BadMessage(f"the attributes have {size} bytes and the body {body}, the limit of both together is {MAX_MESSAGE}")
    return dict(attributes)


def check_holder(holder: object) -> str | None:
    """The receiver's name, which others see; it need not be unique, but must be safe to print."""
    if holder is None:
        return None
    if not isinstance(holder, str):
        raise BadMessage(f"a holder is text, not {type(holder).__name__}: {shown(holder)}")
    size = len(_utf8(holder, "holder"))
    if not 1 <= size <= MAX_HOLDER:
        raise BadMessage(f"the holder has {size} bytes, it must have 1 to {MAX_HOLDER}: {shown(holder)}")
    if not holder.isprintable():
        raise BadMessage(f"holder {shown(holder)} has control characters or line breaks")
    return holder


def check_reason(reason: object) -> str | None:
    if reason is None:
        return None
    if not isinstance(reason, str):
        raise BadMessage(f"a reason is text, not {type(reason).__name__}: {reason!r:.200}")
    if len(_utf8(reason, "reason")) > MAX_REASON:
        raise BadMessage(f"the reason has {len(reason.encode())} bytes, the limit is {MAX_REASON}")
    if "\0" in reason:
        raise BadMessage(f"reason {shown(reason)} has a null character, which not every store can keep")
    return reason


def check_given_reason(reason: object) -> str:
    if reason is None:
        raise BadMessage("a message is not buried without a reason")
    return str(check_reason(reason))


def cut_reason(text: str) -> str:
    """A text that nobody chose for the purpose, such as an exception's, as a reason."""
    return text.replace("\0", NO_NULL).encode("utf-8", "replace")[:MAX_REASON].decode("utf-8", "ignore")


def _size(name: str, value: Attribute) -> int:
    if isinstance(value, bytes):
        return len(value)
    return len(_utf8(value, f"attribute {name!r}")) if isinstance(value, str) else 8


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadMessage(f"{what} {text!r:.80} cannot be written in UTF-8") from None


def _deadline_at(deadline: object, now: int) -> int:
    if isinstance(deadline, datetime):
        if deadline.tzinfo is None:
            raise BadMessage(f"deadline {deadline.isoformat()} has no time zone")
        return from_datetime(deadline)
    return now + micros(check_seconds(deadline, "deadline"))


class Verdict(Enum):
    DELIVER = auto()
    EXPIRE = auto()
    BURY = auto()
    SET_ASIDE = auto()


def judge(message: Message, settings: Settings, mode: Mode, now: int) -> tuple[Verdict, str]:
    """What happens to a message that was just claimed, and why. Its ``receives`` counts this claim."""
    if not message.intact:
        return Verdict.SET_ASIDE, "checksum"
    if outlived(message, settings, now):
        return Verdict.EXPIRE, "retention"
    if overdue(message, mode, now):
        return Verdict.EXPIRE, "deadline"
    if settings.redrive is not None and message.receives > settings.redrive.max_receives:
        return Verdict.BURY, "max_receives" if message.error is None else cut_reason(f"max_receives: {message.error}")
    return Verdict.DELIVER, ""


def certain(settings: Settings, now: int) -> Certainty:
    """What a store can compare by itself, instead of asking `judge` about each message."""
    most = settings.redrive.max_receives if settings.redrive else FOREVER
    return Certainty(now - micros(settings.retention), most)


def next_attempt(retry: RetryPolicy, failures: int, chance: float) -> float | None:
    """Seconds until a message whose handler has failed so often comes again; None if that was its last attempt.

    ``chance`` is a random number, at least 0 and below 1: the part of the jitter by which the delay is shorter."""
    if retry.attempts is not None and failures >= retry.attempts:
        return None
    match retry.curve:
        case Curve.FIXED:
            grown = retry.delay
        case Curve.LINEAR:
            grown = retry.delay * failures
        case Curve.EXPONENTIAL:
            grown = retry.delay * 2.0 ** min(failures - 1, 60)
    return min(grown, retry.max_delay) * (1 - retry.jitter * chance)


class Failed(NamedTuple):
    """How a handler has failed: with this error. It may ask to be called again ``after`` so many seconds, or never."""

    error: str
    after: float | None = None
    rejects: bool = False


def rejected(error: str) -> str:
    return cut_reason(f"rejected: {error}")


def after_failure(
    message: MessageFields, settings: Settings, retry: RetryPolicy, failed: Failed, now: int, chance: float
) -> tuple[Verdict, str, float]:
    """What happens to a message whose handler has failed, why, and if it is delivered again, after how many seconds.

    Its own policy counts, else its queue's, else ``retry``. The queue's ``max_receives`` counts too: a message that would be
    buried when it comes again is buried now, while its error is known."""
    if failed.rejects:
        return Verdict.BURY, rejected(failed.error), 0
    if message.deadline_at is not None and message.deadline_at <= now:
        return Verdict.EXPIRE, failed.error, 0
    delay = next_attempt(message.retry or settings.retry or retry, message.failures + 1, chance)
    if delay is None:
        return Verdict.BURY, cut_reason(f"attempts: {failed.error}"), 0
    if settings.redrive is not None and message.receives >= settings.redrive.max_receives:
        return Verdict.BURY, cut_reason(f"max_receives: {failed.error}"), 0
    return Verdict.DELIVER, failed.error, delay if failed.after is None else failed.after


def renewal(message: Message, until: int, now: int) -> int | None:
    """Until when a handler may hold a message; None past its deadline, when others may take it (gq). One that was
    received after its deadline was owed that delivery, and is held like any other."""
    deadline = message.deadline_at
    if deadline is None or (message.received_at is not None and message.received_at >= deadline):
        return until
    return min(until, deadline) if deadline > now else None


def overdue(message: Message, mode: Mode, now: int) -> bool:
    """Past its deadline, and not owed a delivery nevertheless."""
    if message.deadline_at is None or message.deadline_at > now or message.death is not None:
        return False
    # At least once, a message whose deadline passed while someone held it is still owed a delivery (gq).
    return not (mode is Mode.AT_LEAST_ONCE and message.lapsed)


def too_late(message: Message, mode: Mode, now: int) -> str | None:
    """Why the handler of a received message must not start any more: its deadline has passed since, or others may
    take it by now."""
    if mode is Mode.AT_MOST_ONCE:
        return "deadline" if overdue(message, mode, now) else None
    return "lease" if message.visible_at <= now else None


def is_free(message: Message, now: int) -> bool:
    """Whether nobody holds a message, so that it can be cancelled. A damaged one is kept for people to see."""
    if not message.intact or message.state is State.DAMAGED:
        return False
    return message.state is State.QUEUED or message.visible_at <= now


def outlived(message: Message, settings: Settings, now: int) -> bool:
    """Past its retention: the one when the message arrived, or the current one."""
    return message.expires_at <= now or came_at(message) + micros(settings.retention) <= now


def came_at(message: Message) -> int:
    """When a message came to the queue that it is in: sent, or moved there."""
    return message.sent_at if message.moved_at is None else message.moved_at


def lease(message: Message, until: int, asked: bool, now: int) -> int:
    """Until when a delivered message is hidden: by the receiver's visibility, else the message's own, else the queue's;
    and not past a deadline that is still to come, when others may take it (gq)."""
    if not asked and message.visibility is not None:
        until = now + micros(message.visibility)
    if message.deadline_at is not None and now < message.deadline_at < until:
        until = message.deadline_at
    return until


def settlement(settings: Settings, state: State, reason: str | None, now: int) -> Settlement:
    """How a message leaves the queue, and for how long the history keeps it."""
    return Settlement(state, now, reason, now + micros(settings.history) if settings.history else None)
