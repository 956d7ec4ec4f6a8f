"""What the verbs of a store do to one message, for stores that keep messages as values; and what such a store counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.marks import key_of
from penstock.message import FOREVER, Counts, Entry, Message, Readmission, Settlement, State, next_delivery
from penstock.stores.requests import Claiming, Moving


def inserted(entry: Entry, queue: str, number: int, id: str) -> Message:
    return Message(
        id=id,
        number=number,
        queue=queue,
        body=entry.body,
        content_type=entry.content_type,
        attributes=entry.attributes,
        state=State.QUEUED,
        receives=0,
        delivery=0,
        sent_at=entry.sent_at,
        visible_at=entry.visible_at,
        expires_at=entry.expires_at,
        deadline_at=entry.deadline_at,
        visibility=entry.visibility,
        group=entry.group,
        key=key_of(entry.mark),
        retry=entry.retry,
    )


def claimed(message: Message, claiming: Claiming) -> Message:
    return replace(
        message,
        state=State.CONSUMED,
        receives=message.receives + 1,
        delivery=next_delivery(message.delivery, claiming.at),
        holder=claiming.holder,
        visible_at=FOREVER if claiming.until is None else claiming.until,
        received_at=claiming.at,
        first_received_at=message.first_received_at or claiming.at,
    )


def answered(message: Message, before: Message) -> Message:
    """What a claim answers: `claimed`, as a copy that the caller may change."""
    return replace(message, attributes=dict(message.attributes), lapsed=before.state is State.CONSUMED)


def extended(message: Message, until: int, *, release: bool, error: str | None = None) -> Message:
    state, holder = (State.QUEUED, None) if release else (message.state, message.holder)
    failures, error = (message.failures, message.error) if error is None else (message.failures + 1, error)
    return replace(message, visible_at=until, state=state, holder=holder, failures=failures, error=error)


def settled(message: Message, settlement: Settlement) -> Message:
    return replace(message, state=settlement.state, settled_at=settlement.settled_at, reason=settlement.reason)


def moved(message: Message, moving: Moving, new: Readmission) -> Message:
    return replace(
        message,
        queue=moving.target,
        state=State.QUEUED,
        receives=0,
        visible_at=moving.now,
        moved_at=moving.now,
        expires_at=moving.expires_at,
        deadline_at=new.deadline_at,
        key=key_of(new.mark),
        death=new.death,
        holder=None,
        failures=0,
        error=None,
    )


def set_aside(message: Message) -> Message:
    return replace(message, state=State.DAMAGED, visible_at=FOREVER, holder=None)


def copied(message: Message) -> Message:
    """A copy that the caller may change."""
    return replace(message, attributes=dict(message.attributes))


def counts_of(rows: Iterable[tuple[Message, bool]], now: int, in_history: int) -> Counts:
    """`StoredQueue.count`, for messages and whether each is blocked."""
    visible = in_flight = delayed = blocked = damaged = 0
    oldest: Message | None = None
    for message, is_blocked in rows:
        if message.state is State.DAMAGED:
            damaged += 1
        elif message.state is State.CONSUMED and message.visible_at > now:
            in_flight += 1
        elif is_blocked:
            blocked += 1
        elif message.visible_at <= now:
            visible += 1
        else:
            delayed += 1
        if oldest is None or message.number < oldest.number:
            oldest = message
    messages = visible + in_flight + delayed + blocked + damaged
    oldest_at = None if oldest is None else oldest.sent_at
    return Counts(messages, visible, in_flight, delayed, blocked, damaged, in_history, oldest_at)
