"""What a caller asks of a stored queue, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, overload

from penstock.message import Death, Entry, Held, Message, Readmission, Settings, Settlement


class Deleting(NamedTuple):
    """Messages that a claim deletes before it claims others."""

    receipts: Sequence[Held]
    settlement: Settlement


class Claiming(NamedTuple):
    """What a caller wants to claim."""

    limit: int
    now: int
    until: int | None
    """How long to hide the messages. With None the caller settles or moves every one of them in this same batch, and a store
    need not write down that they were claimed. A message that the settlement does not find went to another receiver."""
    known: Settings | None = None
    """The settings by which the caller decided; None if it holds a lock that keeps others from changing them."""
    holder: str | None = None
    share: tuple[int, int] | None = None
    """(place, of): only messages whose number % of = place. It is a hint: a store that cannot tell ignores it."""
    visible_by: int | None = None
    """Only messages that have been visible since this instant."""
    deleting: Deleting | None = None
    """Delete these first, in the same commit if the store is atomic. Such a claim is durable, and has ``known``."""
    together: bool = False
    """In a queue with groups: after the first message of a group, also take those behind it, in the order of sending, until one
    is hidden. They stay blocked behind the first, so that the group stays locked, and are held like any claimed message."""

    @property
    def at(self) -> int:
        """The instant of the claim, for a store that finds what was visible at an instant of the past."""
        return self.now if self.visible_by is None else min(self.now, self.visible_by)


class Claimed(NamedTuple):
    messages: list[Message]
    """As they are after the claim; ``lapsed`` marks those that were consumed before it."""
    deleted: list[bool] = []  # noqa: RUF012 (nobody changes it)
    """For each message that the claim was to delete: False if its receipt is stale."""


class HeldAtOnce(NamedTuple):
    """What `ClaimingReaders.hold_visible` has done."""

    size: int
    """How many messages it has added to the claim."""
    more: bool
    """Whether there may be more messages that can be added, if each is judged by the rules."""


Readmit = Callable[[Message, bytes | None, Death | None, Settings, Settings, int], Readmission]


class Moving(NamedTuple):
    """Where a caller wants to move messages."""

    target: str
    now: int
    expires_at: int
    death: Death | None
    """Why they go to a dead letter queue; None for a redrive."""
    readmit: Readmit
    """The rule. A store asks it about each message: its mark, the death, the settings here and there, and the instant."""


class Alike(Sequence[Entry]):
    """Entries that differ only in their bodies, and have no mark and no group."""

    def __init__(self, like: Entry, bodies: Sequence[bytes]) -> None:
        self.like = like
        self.bodies = bodies

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(index, slice):
            return Alike(self.like, self.bodies[index])
        return self.like._replace(body=self.bodies[index])


class Marked(NamedTuple):
    """Messages with a mark."""

    lasting: int
    """How many carry it for as long as they are in the queue."""
    id: str | None = None
    """Of one mark: the message in the queue that has it. The mark may count no longer."""


class Swept(NamedTuple):
    more: bool = False
    """Whether there is more to clear."""
    foreign: list[str] = []  # noqa: RUF012 (nobody changes it)
    """Names that another program has put among the messages and that cannot be delivered, as far as they were seen."""
