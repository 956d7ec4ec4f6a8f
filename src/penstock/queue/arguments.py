"""Checks of the arguments of a queue's methods. The local queue and the client make the same ones, so that bad input is refused
with the same words on both sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from penstock import policy
from penstock.errors import BadInput, BadMessage
from penstock.message import FOREVER, OCTETS, Attributes, Draft, Held, Message, Mode, Receipt, RetryPolicy, State
from penstock.policy import check_count, check_seconds, shown
from penstock.stores.ports import START

Item = TypeVar("Item")
NOTHING = (*(None,) * 7, False)


def check_mode(mode: Mode | str | None) -> Mode | None:
    if mode is None or type(mode) is Mode:
        return mode
    try:
        return Mode(mode)
    except ValueError:
        raise BadInput(f"mode {mode!r:.200} is not one of {', '.join(Mode)}") from None


def check_state(state: object) -> State:
    for known in (State.QUEUED, State.CONSUMED, State.DAMAGED):
        if state is known or (isinstance(state, str) and state.upper() == known.name):
            return known
    raise BadInput(f"state {state!r:.200} is not one of queued, consumed, damaged; what is settled is in settled()")


def check_place(after: object) -> tuple[int, int]:
    """A place in the order of a queue, such as `Message.place`; None: before all messages."""
    if after is None:
        return START
    if not isinstance(after, tuple | list) or len(after) != 2:
        raise BadInput(f"after is the place of a message, two numbers, not {after!r:.200}")
    at, number = after
    return check_count(at, "after", -1, 2**63 - 1, BadInput), check_count(number, "after", 0, 2**62, BadInput)


def check_taking(limit: int, visibility: float | None, share: tuple[int, int] | None, holder: str | None) -> None:
    check_count(limit, "limit", 1, policy.MAX_BATCH)
    if visibility is not None:
        check_seconds(visibility, "visibility")
    if share is not None:
        policy.check_share(share)
    policy.check_holder(holder)


def check_flag(value: bool, what: str) -> bool:
    if not isinstance(value, bool):
        raise BadInput(f"{what} must be True or False, not {shown(value)}")
    return value


def check_each(visibility: float | Sequence[float], count: int) -> Sequence[float]:
    """One visibility for each of ``count`` messages."""
    if isinstance(visibility, str | bytes) or not isinstance(visibility, Sequence):
        return [check_seconds(visibility, "visibility")] * count
    if len(visibility) != count:
        raise BadMessage(f"there are {len(visibility)} visibilities for {count} messages")
    return [check_seconds(seconds, "visibility") for seconds in visibility]


def check_many(items: Iterable[Item], verb: str, single: str) -> Sequence[Item]:
    if type(items) is list:
        return items
    if isinstance(items, bytes | str) or not isinstance(items, Iterable):
        raise BadMessage(f"{verb} takes a list of messages, not {items!r:.80}; for one, use {single}")
    return items if isinstance(items, Sequence) else list(items)


def as_draft(
    body: bytes,
    content_type: str,
    attributes: Attributes | None,
    delay: float | None,
    visibility: float | None,
    deadline: float | datetime | None,
    key: str | bytes | None,
    group: str | None,
    retry: RetryPolicy | None,
    unique: bool,
) -> Draft | bytes:
    """The arguments of `Queue.send` as a draft; most are only a body, which costs less."""
    if (
        (attributes, delay, visibility, deadline, key, group, retry, unique) == NOTHING
        and content_type is OCTETS
        and type(body) is bytes
    ):
        return body
    attributes = {} if attributes is None else attributes
    return Draft(body, content_type, attributes, delay, visibility, deadline, key, group, retry, unique)


def check_one(verb: str, id: str | None, key: str | bytes | None) -> bytes | None:
    """Which message a caller means. Returns the key, as bytes."""
    if (id is None) == (key is None):
        raise BadMessage(f"{verb} takes the id of a message, or its key")
    if id is not None and not isinstance(id, str):
        raise BadMessage(f"an id is text, not {type(id).__name__}: {shown(id)}")
    return None if key is None else policy.check_key(key)


def check_held(queue: str, messages: Sequence[Message | Receipt | str], most: int = FOREVER) -> list[Held]:
    """What a caller of this queue wants to settle: messages, receipts, or ids, which stand for whoever holds the message.
    ``most`` is the highest number of a delivery."""
    held: list[Held] = []
    for message in messages:
        if not isinstance(message, Message):
            if isinstance(message, str):
                message = Receipt(queue, message, None)
            elif not isinstance(message, Receipt):
                raise BadMessage(f"not a message, a receipt or an id: {message!r:.200}")
            if not isinstance(message.id, str):
                raise BadMessage(f"an id is text, not {type(message.id).__name__}: {message.id!r:.200}")
            if message.delivery is not None:
                check_count(message.delivery, "delivery", 0, most)
        if message.queue != queue:
            raise BadMessage(f"message {message.id} is of queue {message.queue!r}, not of {queue!r}")
        held.append(message)
    return held
