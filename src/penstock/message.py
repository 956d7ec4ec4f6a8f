"""The values that travel: what a sender hands in, what a receiver gets, and the settings of a queue.

An instant is an integer of microseconds since 1970 and its name ends in ``_at``; a bare noun (visibility, delay, …) is a
duration in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from operator import attrgetter
from typing import NamedTuple, Protocol

from penstock.errors import BadMessage

Attribute = str | int | float | bytes
Attributes = Mapping[str, Attribute]

OCTETS = "application/octet-stream"
SECOND = 1_000_000
FOREVER = 2**62
"""An instant that never comes: what hides a message for good."""
MAX_NUMBER = 2**31 - 1
"""The highest count and the longest duration that every store can keep."""
BLOCKED = FOREVER + 1
"""Added to the instant in the place of a blocked message, which comes after all others."""
PRIVATE = "penstock.private."
"""Labels whose names begin so are for servers of the store only, which show them to nobody."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(seconds: float) -> int:
    return round(seconds * SECOND)


def to_datetime(at: int) -> datetime:
    """An instant as a datetime; OverflowError for one beyond the calendar."""
    return EPOCH + timedelta(microseconds=at)


def from_datetime(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


class State(IntEnum):
    """gq's four statuses, and one for a message whose checksum failed."""

    QUEUED = 0
    CONSUMED = 1
    PROCESSED = 2
    FAILED = 3
    DAMAGED = 4


class Mode(StrEnum):
    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


class Curve(StrEnum):
    """How the delay before an attempt grows: not at all, by itself each time, or twofold each time."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What becomes of a message whose handler has failed; `penstock.policy.check_retry` holds the ranges.

    attempts    how often a handler may fail before the queue gives the message up; None: as often as it does
    delay       seconds before the second attempt
    curve       how the delays after it grow
    max_delay   the longest of them
    jitter      the part of a delay, from 0 to 1, that is random: messages that failed together do not come again together
    """

    attempts: int | None = 5
    delay: float = 1
    curve: Curve = Curve.EXPONENTIAL
    max_delay: float = 3600
    jitter: float = 0.1

    def __str__(self) -> str:
        """As the command line takes it: attempts=5,delay=1,…"""
        return ",".join(f"{name}={'none' if value is None else value}" for name, value in asdict(self).items())


@dataclass(frozen=True, slots=True)
class Redrive:
    """A message received more often than ``max_receives`` goes to ``dead_letter_queue`` instead of being delivered."""

    dead_letter_queue: str
    max_receives: int


class Labels(Mapping[str, str]):
    """A queue's labels: a mapping that cannot change. It is sorted, so that equal labels are stored as the same bytes."""

    __slots__ = ("_texts",)

    def __init__(self, labels: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        self._texts = dict(sorted(dict(labels).items()))

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __eq__(self, other: object) -> bool:
        return self._texts == (other._texts if isinstance(other, Labels) else other)

    def __hash__(self) -> int:
        return hash(tuple(self._texts.items()))

    def __repr__(self) -> str:
        return repr(self._texts)


NO_LABELS = Labels()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a queue promises; `penstock.policy.check_settings` holds the ranges.

    visibility   seconds a received message stays hidden
    retention    seconds an undelivered message is kept
    delay        seconds before a sent message becomes visible
    deduplicate  False; True: refuse an equal message while one is in the queue; a number: within so many seconds of the first
    redrive      where messages go that were received too often
    groups       keep order within a message's group (fixed when the queue is created)
    mode         whether a received message must be deleted, or is settled at once
    history      seconds for which settled messages stay readable; 0: they are deleted at once
    labels       texts by name, which the queue keeps for its users and which no rule reads
    paused       nobody receives from the queue; everything else goes on
    retry        when a message comes again whose handler has failed, and how often; None: as its consumer says
    max_in_flight  how many messages receivers hold together, at most; None: as many as they want
    """

    visibility: float = 30
    retention: float = 4 * 86400
    delay: float = 0
    deduplicate: bool | float = False
    redrive: Redrive | None = None
    groups: bool = False
    mode: Mode = Mode.AT_LEAST_ONCE
    history: float = 0
    labels: Mapping[str, str] = field(default=NO_LABELS, hash=False)  # each send and receive hashes the settings
    paused: bool = False
    retry: RetryPolicy | None = None
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        if self.labels is not NO_LABELS:
            object.__setattr__(self, "labels", Labels(self.labels) if self.labels else NO_LABELS)

    def __eq__(self, other: object) -> bool:
        """``deduplicate=True`` differs from 1, though True == 1."""
        if self is other:
            return True
        if not isinstance(other, Settings):
            return NotImplemented
        return _fields(self) == _fields(other) and (self.deduplicate is True) == (other.deduplicate is True)


_fields = attrgetter(
    *("visibility", "retention", "delay", "deduplicate", "redrive", "groups", "mode", "history", "labels", "paused"),
    *("retry", "max_in_flight"),
)


@dataclass(slots=True)
class Draft:
    """A message as its sender gives it; a field that is None comes from the queue's settings."""

    body: bytes
    content_type: str = OCTETS
    attributes: Attributes = field(default_factory=dict)
    delay: float | None = None
    visibility: float | None = None
    deadline: float | datetime | None = None
    key: str | bytes | None = None
    group: str | None = None
    retry: RetryPolicy | None = None
    unique: bool = False
    """While a unique message with this key is in the queue, another one is its duplicate."""


class Entry(NamedTuple):
    """A draft that was admitted: only instants and bytes remain. (A tuple, because a send makes one for each message.)

    mark         what makes the message a duplicate, or None
    mark_until   the instant until which the mark counts; FOREVER: as long as the message is in the queue
    """

    body: bytes
    content_type: str
    attributes: Attributes
    sent_at: int
    visible_at: int
    expires_at: int
    deadline_at: int | None
    visibility: float | None
    group: str | None
    mark: bytes | None
    mark_until: int
    retry: RetryPolicy | None = None


def weigh(message: Entry | Message) -> int:
    """Bytes of its body and attributes in memory, roughly."""
    return len(message.body) + (sum(map(_weigh, message.attributes.items())) if message.attributes else 0)


def _weigh(attribute: tuple[str, Attribute]) -> int:
    name, value = attribute
    if not isinstance(value, str | bytes):
        return len(name) + 20
    return len(name) + (4 * len(value) if isinstance(value, str) and not value.isascii() else len(value))


class Sent(NamedTuple):
    """The answer to a send: the message's id, and whether it was a duplicate of the message that has this id."""

    id: str
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """The right to settle one delivery: it dies with the next one. ``delivery`` None fits any delivery."""

    queue: str
    id: str
    delivery: int | None


def next_delivery(last: int, now: int) -> int:
    """The number of the delivery after ``last``. It is the instant of the claim, so that it differs from every number that was
    given out before, even if a power cut has made the store forget that one. (SQL stores compute the same.)"""
    return max(last + 1, now)


@dataclass(frozen=True, slots=True)
class Death:
    """Why and where a dead letter died."""

    queue: str
    reason: str
    receives: int
    died_at: int


class Held(Protocol):
    """What names a delivery: a receipt, or the message itself."""

    @property
    def id(self) -> str: ...

    @property
    def delivery(self) -> int | None: ...


class Home(Protocol):
    """The queue that can settle a delivered message."""

    def extend(self, message: Message, visibility: float) -> bool: ...

    def release(self, message: Message, delay: float = 0, error: str | None = None) -> bool: ...

    def delete(self, message: Message) -> bool: ...


@dataclass(slots=True)
class MessageFields:
    """A message as the queue holds it. A value: changing it changes only this copy."""

    id: str
    number: int
    queue: str
    body: bytes
    content_type: str
    attributes: Attributes
    state: State
    receives: int
    """How often it was received in this queue."""
    delivery: int
    """The number of this delivery, unique for the message even across a power cut; 0 if there was none. With queue and
    id, its receipt."""
    sent_at: int
    visible_at: int
    expires_at: int
    deadline_at: int | None = None
    visibility: float | None = None
    group: str | None = None
    key: bytes | None = None
    moved_at: int | None = None
    first_received_at: int | None = None
    received_at: int | None = None
    death: Death | None = None
    settled_at: int | None = None
    """When it left the queue: it is in the history, or was received at most once."""
    reason: str | None = None
    lapsed: bool = False
    """It comes again because its last receiver neither settled nor released it in time."""
    intact: bool = True
    holder: str | None = None
    """The name that its receiver gave; None if nobody holds it, or without a name. In the history, the last holder's."""
    blocked: bool = field(default=False, compare=False)
    """It waits behind another message of its group; only those who look at the queue are told."""
    retry: RetryPolicy | None = None
    """Its own policy, which its sender gave; else the queue's applies."""
    failures: int = 0
    """How often its handler has failed in this queue, after which it was to come again."""
    error: str | None = None
    """What the last of these failures was."""

    @property
    def place(self) -> tuple[int, int]:
        """Its place in the order in which `Queue.peek`, or for a settled message `Queue.settled`, lists messages."""
        at = self.visible_at if self.settled_at is None else self.settled_at
        return at + BLOCKED if self.blocked else at, self.number

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.queue, self.id, self.delivery)

    @property
    def text(self) -> str:
        try:
            return self.body.decode()
        except UnicodeDecodeError as error:
            raise BadMessage(f"the body of message {self.id} is not UTF-8 text: {error}") from None


@dataclass(slots=True)
class Message(MessageFields):
    """A message, and the verbs of its receiver."""

    home: Home | None = field(default=None, repr=False, compare=False)

    def extend(self, visibility: float) -> bool:
        """Hide it for this many seconds from now; False if another consumer may hold it by now."""
        return self._home().extend(self, visibility)

    def release(self, delay: float = 0, error: str | None = None) -> bool:
        """Return it to the queue, visible after ``delay`` seconds; False if another consumer may hold it by now. With an
        ``error``, its handler has failed: the message keeps the error, and counts the failure."""
        return self._home().release(self, delay, error)

    def delete(self) -> bool:
        """Delete it: it was processed. False if another consumer may hold it by now."""
        return self._home().delete(self)

    def _home(self) -> Home:
        if self.home is None:
            raise BadMessage(f"message {self.id} was not received, only looked at: only a receiver can settle it")
        return self.home


class Retried(IntEnum):
    """What became of a message whose handler has failed."""

    STALE = 0
    """Nothing: another receiver may hold it by now."""
    AGAIN = 1
    """It will come again."""
    GIVEN_UP = 2
    """It is in the dead letter queue or, where there is none, settled as failed."""


class Moved(IntEnum):
    """What happened to a message that was to be moved to another queue."""

    STALE = 0
    """Nothing: its receipt is stale."""
    DONE = 1
    DUPLICATE = 2
    """It stays where it is: the other queue, which takes equal messages once, has an equal one."""


class Redriven(int):
    """How many messages a redrive has moved, and how many of the chosen ones have stayed."""

    duplicates: int
    """They stay because their queue takes equal messages once, and has an equal one."""
    homeless: int
    """They stay because the queue where they died is gone, or because they did not die in one."""

    def __new__(cls, moved: int, duplicates: int = 0, homeless: int = 0) -> Redriven:
        self = super().__new__(cls, moved)
        self.duplicates, self.homeless = duplicates, homeless
        return self


class Readmission(NamedTuple):
    """What a message keeps or gets when it is moved to another queue. It begins there without failures.

    mark         what makes it a duplicate, or None
    mark_until   FOREVER: the mark counts as long as the message is in its new queue; 0: it is known, but does not count there
    deadline_at  its deadline, if it still has one
    death        why it was moved to a dead letter queue, or None
    """

    mark: bytes | None
    mark_until: int
    deadline_at: int | None
    death: Death | None = None


class Certainty(NamedTuple):
    """The rules deliver every message within these bounds, unless it is damaged or one of its own instants has passed.

    came_after    it was sent or moved here after this instant
    max_receives  it was received at most so often, the claim that is being made included
    """

    came_after: int
    max_receives: int


class Settlement(NamedTuple):
    """How messages left the queue; ``keep_until`` None means that no history is kept."""

    state: State
    settled_at: int
    reason: str | None = None
    keep_until: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """A queue at one instant. ``blocked`` messages wait behind the first of their group; ``lost`` are those that a store that
    is not durable knows it has lost; ``foreign`` are the names (the first hundred) of files that another program has left where
    messages are, and that cannot be delivered."""

    messages: int
    visible: int
    in_flight: int
    delayed: int
    blocked: int
    damaged: int
    settled: int
    oldest_at: int | None
    lost: int = 0
    foreign: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stats(Counts):
    """What `Queue.stats` returns; ``oldest_age`` is in seconds, None in an empty queue."""

    oldest_age: float | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """A named, durable claim of a reader: the same messages in the same order until it is settled or lapses."""

    reader: str
    epoch: int
    size: int
    confirmed: bool
    lapses_at: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """The time of a queue, and when its first message became, or becomes, visible."""

    at: int
    due_at: int | None
