"""Filters: which messages of a queue a person means.

    {"state": "in_flight", "ids": [id, …], "reason": "…", "source": "orders", "older_than": 60, "younger_than": 3600,
     "group": "…", "text": "pizza", "field": "items.0.name", "equals": "pizza"}

A message fits if it fits everything that is given; an empty filter fits all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from penstock.errors import BadInput
from penstock.message import SECOND, Message, State
from penstock.policy import came_at, check_seconds

STATES = ("visible", "in_flight", "delayed", "blocked", "damaged")
MOST_IDS = 1000
LONGEST_TEXT = 1000
LONGEST_ID = 300
DEEPEST = 50
"""Lists and objects within each other. Python reads more of them than it can then compare or copy."""
NOTHING = object()


def state_of(message: Message, now: int) -> str:
    """In words, as `Queue.stats` counts it."""
    if message.state is State.DAMAGED:
        return "damaged"
    if message.state is State.CONSUMED and message.visible_at > now:
        return "in_flight"
    if message.blocked:
        return "blocked"
    return "visible" if message.visible_at <= now else "delayed"


@dataclass(frozen=True, slots=True)
class MessageFilter:
    state: str | None = None
    ids: frozenset[str] | None = None
    reason: str | None = None
    """Why it died."""
    source: str | None = None
    """The queue where it died."""
    older_than: float | None = None
    """Seconds since it came to the queue: was sent, or died."""
    younger_than: float | None = None
    group: str | None = None
    text: str | None = None
    """A part of the body."""
    field: str | None = None
    """A value in a body of JSON: keys and positions with dots between them."""
    equals: Any = NOTHING
    """What that value is; without it, the field only has to be there."""

    @property
    def reads_body(self) -> bool:
        return self.text is not None or self.field is not None

    def fits(self, message: Message, now: int) -> bool:
        age = (now - came_at(message)) / SECOND
        death = message.death
        return (
            (self.state is None or state_of(message, now) == self.state)
            and (self.ids is None or message.id in self.ids)
            and (self.reason is None or (death is not None and death.reason == self.reason))
            and (self.source is None or (death is not None and death.queue == self.source))
            and (self.older_than is None or age >= self.older_than)
            and (self.younger_than is None or age < self.younger_than)
            and (self.group is None or message.group == self.group)
            and (self.text is None or self.text.encode() in message.body)
            and (self.field is None or self._has_field(message))
        )

    def _has_field(self, message: Message) -> bool:
        assert self.field is not None
        found = find_field(message.body, self.field)
        return found is not NOTHING and (self.equals is NOTHING or _is_equal(found, self.equals))

    def pack(self) -> dict[str, Any]:
        """As a client gives it."""
        given = {known.name: getattr(self, known.name) for known in fields(self)}
        packed = {name: value for name, value in given.items() if value is not None and name != "equals"}
        if self.ids is not None:
            packed["ids"] = sorted(self.ids)
        return packed if self.equals is NOTHING else {**packed, "equals": self.equals}


EVERYTHING = MessageFilter()


def find_field(body: bytes, path: str) -> Any:
    """The value at a path in a body of JSON; `NOTHING` if there is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return NOTHING
    for step in path.split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isascii() and step.isdecimal() and len(step) < 8 and int(step) < len(value):
            value = value[int(step)]
        else:
            return NOTHING
    return value


def _is_equal(one: Any, other: Any) -> bool:
    """As JSON knows it: true is not 1."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def read_filter(given: Any) -> MessageFilter:
    """A filter from JSON; `BadInput` names what is wrong."""
    if not isinstance(given, dict):
        raise BadInput(f"a filter is an object, not {given!r:.80}")
    known = [each.name for each in fields(MessageFilter)]
    for name in given:
        if name not in known:
            raise BadInput(f"a filter has no {name!r:.80}; there are {', '.join(known)}")
    if "equals" in given and "field" not in given:
        raise BadInput("equals needs field, which says what is compared")
    state = given.get("state")
    if state is not None and state not in STATES:
        raise BadInput(f"state {state!r:.80} is not one of {', '.join(STATES)}")
    texts = {name: _read_text(given, name) for name in ("reason", "source", "group", "text", "field")}
    ages = {name: _read_age(given, name) for name in ("older_than", "younger_than")}
    equals = _read_equals(given["equals"]) if "equals" in given else NOTHING
    return MessageFilter(state=state, ids=_read_ids(given.get("ids")), equals=equals, **texts, **ages)


def _read_equals(equals: Any) -> Any:
    """What is shown to browsers again must be JSON that they can read."""
    level = [equals]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _within(outer)]
    if level:
        raise BadInput(f"equals has more than {DEEPEST} lists and objects within each other")
    try:
        text = json.dumps(equals, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError:
        raise BadInput("equals has a number that is none, or text that cannot be written in UTF-8") from None
    if len(json.dumps(equals)) > LONGEST_TEXT:
        raise BadInput(f"equals has more than {LONGEST_TEXT} characters")
    return equals


def _within(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _read_text(given: Mapping[str, Any], name: str) -> Any:
    text = given.get(name)
    if text is None:
        return None
    if not isinstance(text, str) or not 1 <= len(text) <= LONGEST_TEXT:
        raise BadInput(f"{name} {text!r:.80} must be text of 1 to {LONGEST_TEXT} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{name} {text!r:.80} cannot be written in UTF-8") from None
    return text


def _read_age(given: Mapping[str, Any], name: str) -> Any:
    age = given.get(name)
    return None if age is None else check_seconds(age, name)


def _read_ids(ids: Any) -> frozenset[str] | None:
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(isinstance(id, str) and len(id) <= LONGEST_ID for id in ids):
        raise BadInput(f"ids is a list of ids of messages, of at most {LONGEST_ID} characters each, not {ids!r:.80}")
    if len(ids) > MOST_IDS:
        raise BadInput(f"there are {len(ids)} ids, the limit is {MOST_IDS}")
    return frozenset(ids)
