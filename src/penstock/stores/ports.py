"""What a store offers: transitions of messages, and no rules.

    insert ──► queued ──claim──► consumed ──delete──► gone, or settled where history is kept
                 ▲                  │  │
                 └─ extend(release) ┘  ├─ move ──► queued in another queue
                 └─ visible_at passes ─┘  └─ set_aside ──► damaged

One number, ``visible_at``, hides a message: delay, visibility, back-off and give-back are all this one. Every instant is an
argument; a store reads no clock, sleeps and logs nothing. Verbs are plural, and each is atomic; everything inside ``with
store.batch():`` becomes durable together at its exit, or not at all. Who catches an error inside a batch and goes on gives what
may fail a batch of its own, within the other. An unknown queue is `QueueNotFound`.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from penstock.clock import Clock, MachineClock
from penstock.errors import Unsupported
from penstock.message import Claim, Counts, Death, Entry, Held, Message, Moved, Sent, Settings, Settlement, State
from penstock.policy import MAX_NUMBER

START = (-1, 0)
"""Before every message, in the order of (visible_at, number)."""


class Staged(NamedTuple):
    """A segment that waits for its batch to be published."""

    writer: str
    batch: int
    name: str
    staged_at: int


Segment = bytes | memoryview
Step = tuple[str, int, str]
"""A writer, a batch, and a place in it."""


class Roster(ABC):
    """The consumers that share a queue, in the order of their birth."""

    @abstractmethod
    def beat(self, queue: str, consumer: str, now: int) -> None:
        """Note that it lives; one that is not, or no longer, entered is entered as the last born."""

    @abstractmethod
    def strike(self, queue: str, before: int) -> None:
        """Strike off every consumer that has not beaten since."""

    @abstractmethod
    def living(self, queue: str) -> list[str]: ...

    @abstractmethod
    def leave(self, queue: str, consumer: str) -> None: ...


class Staging(ABC):
    """Segments that wait for their batch to be published."""

    @abstractmethod
    def stage(self, writer: str, batch: int, name: str, segment: bytes, now: int) -> None:
        """Keep a segment for its batch; again, the new one instead. If batches are not atomic, it is as safe as a message; else
        it may be lost, since whoever publishes misses it."""

    @abstractmethod
    def staged(self, writer: str | None = None) -> list[Staged]:
        """What waits, of one writer or of all."""

    @abstractmethod
    def fetch(self, writer: str, batch: int, name: str) -> bytes | None: ...

    @contextmanager
    def fetching(self, writer: str, batch: int, names: Sequence[str]) -> Iterator[Iterator[Segment | None]]:
        """Around `Ledger.publishing`, these segments in this order, each when it is asked for. A store may read them ahead, and
        may have removed them when this ends well; else they stay."""
        yield (self.fetch(writer, batch, name) for name in names)

    @abstractmethod
    def unstage(self, writer: str, batch: int, names: Sequence[str] | None = None) -> None:
        """Remove these segments of a batch; with no names, all of this batch and of those before it."""


class Ledger(ABC):
    """The last batch that each writer has published."""

    @abstractmethod
    def publishing(self, writer: str) -> AbstractContextManager[int | None]:
        """Inside, nobody else publishes for this writer: the last batch it published. If batches are atomic, this is one.

        A lock that ends by itself is renewed by each step inside: `StoreBusy` if another process may have it by now."""

    @abstractmethod
    def note(self, writer: str, batch: int, keep_until: int) -> None:
        """Remember, at least until then, that the writer has published all up to this batch."""

    @abstractmethod
    def forget(self, now: int) -> None:
        """Forget the writers that need be remembered no longer."""

    def insert_once(
        self, step: Step, queue: str, entries: Sequence[Entry], now: int, settings: Settings
    ) -> Callable[[], object] | None:
        """Where batches are not atomic: as `Store.insert`; but if one for this step of a batch was begun before, that is
        finished, and nothing else is added. To be called when the progress is noted: it forgets what the step is known by."""
        raise NotImplementedError


class Outbox(NamedTuple):
    """What writers stage and publish."""

    staging: Staging
    ledger: Ledger


class Store(ABC):
    roster: Roster
    outbox: Outbox

    durable: bool
    """A success answer means: on stable storage."""
    ordered: bool
    """Messages are claimed in the order in which they became visible."""
    by_arrival: bool = False
    """Not ordered, and a message that was moved comes last in its new queue, whenever it was sent."""
    groups: bool
    """Queues with ordered groups can be kept."""
    dated: bool = True
    """A claim finds what was visible at an instant of the past. Else `claim` takes it as ``visible_by``."""
    ranges: bool = False
    """A part of a queue by number is found without going through the whole."""
    shares: bool = False
    """A claim can be of a share: `claim` takes ``share``, (place, of), and then only messages whose number % of = place."""
    compares: bool = False
    """To look up a queue's settings costs a round trip: `claim` takes ``settings`` that the caller knows, and answers None, and
    nothing happens, if these are no longer the queue's."""
    exchanges: bool = False
    """A claim waits for the disk as a settlement does, and both can be one commit: `exchange`."""

    atomic: bool = True
    """A batch is done whole or not at all, even by who is killed in the middle of it."""

    on_damage: Callable[[str], object] = staticmethod(lambda _damage: None)
    """Told of records that the store found damaged and has set aside. (A damaged message tells by itself: `Message.intact`.)"""

    @abstractmethod
    def batch(self, *, durable: bool = True) -> AbstractContextManager[None]:
        """One commit for all that is inside. With ``durable=False`` (claims: they are no promise) it may be lost to a power
        cut, whole."""

    def joining(self, connection: object) -> AbstractContextManager[Store]:  # noqa: ARG002
        """A store whose verbs are part of the transaction that the caller has open on a connection of its own."""
        raise Unsupported("this store cannot join a transaction of yours; SQLite, PostgreSQL and MariaDB can")

    # the catalogue

    @abstractmethod
    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        """Create the queue (False if it is there) or change its settings (False if it is not)."""

    @abstractmethod
    def load(self, name: str) -> Settings | None: ...

    @abstractmethod
    def names(self) -> list[str]:
        """All queues, sorted by code point."""

    @abstractmethod
    def drop(self, name: str) -> bool:
        """Remove a queue and all that belongs to it."""

    def reserve(self, name: str) -> None:  # noqa: B027 (a batch keeps all others out of most stores)
        """In a batch: nobody else changes this queue or its named claims before the batch ends."""

    # messages

    @abstractmethod
    def insert(self, queue: str, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        """Add messages that were admitted under ``settings``; None, and nothing happens, if these are no longer the queue's.

        One whose mark is in force is a duplicate: nothing is added and the first one's id is returned. In a queue with groups,
        a message whose group has others is blocked until it is its turn."""

    def insert_bodies(self, queue: str, bodies: Sequence[bytes], like: Entry, settings: Settings) -> bool:
        """As `insert`, of messages that are ``like`` this one, which has no mark, no group and no body, but for their bodies.
        False, and nothing happens, if these are no longer the queue's settings."""
        return self.insert(queue, [like._replace(body=body) for body in bodies], like.sent_at, settings) is not None

    @abstractmethod
    def claim(self, queue: str, limit: int, now: int, until: int | None, *, holder: str | None = None) -> list[Message] | None:
        """Hide the first visible messages until ``until``, count the receive, and note the ``holder``.

        The number of the delivery is `policy.next_delivery`: a claim may be lost to a power cut, and the receipt that was given
        out for it must not fit the next one.

        With None, the caller settles or moves every one of them in this same batch, so that a store need not write down that
        they were claimed; one that the settlement says was not there went to someone else.

        The answer shows them as the claim leaves them, and ``lapsed`` if they were consumed before it."""

    @abstractmethod
    def extend(self, queue: str, receipts: Sequence[Held], until: int, *, release: bool = False) -> list[bool]:
        """Hide held messages until ``until``; ``release`` also makes them queued, nobody's. False for each stale receipt."""

    @abstractmethod
    def delete(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None
    ) -> list[bool] | None:
        """Take messages out, into the history if it is kept. False for each stale receipt.

        With ``settings``, None, and nothing happens, if these are no longer the queue's."""

    @abstractmethod
    def amend(self, queue: str, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        """Change how settled messages ended, as the history tells it. False for each that the history does not have."""

    def exchange(
        self,
        queue: str,
        receipts: Sequence[Held],
        settlement: Settlement,
        settings: Settings,
        limit: int,
        now: int,
        until: int,
        share: tuple[int, int] | None = None,
        holder: str | None = None,
    ) -> tuple[list[bool], list[Message]] | None:
        """`delete` and then `claim` in one commit, if the store ``exchanges``. None, and nothing is done, if these are not
        its settings any more. An error says that nothing was done, as far as that can be known."""
        raise NotImplementedError

    @abstractmethod
    def move(
        self,
        queue: str,
        receipts: Sequence[Held],
        target: str,
        now: int,
        expires_at: int,
        deaths: Sequence[Death | None],
    ) -> list[Moved]:
        """Put messages into another queue: visible at once, with no receives or holder, and with the mark and deadline that
        `policy.readmit` says. One whose mark would count there stays if a message there has it.

        The number of the delivery goes on: a receipt from before the move must not fit one from after it."""

    @abstractmethod
    def set_aside(self, queue: str, receipts: Sequence[Held]) -> list[bool]:
        """Keep damaged messages where no claim finds them. False for each stale receipt."""

    @abstractmethod
    def browse(
        self, queue: str, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        """Look, in the order of delivery, the blocked last: all messages, or those in ``state``.

        With ``now`` only those visible then, and of these only what comes after (visible_at, number)."""

    @abstractmethod
    def settled(self, queue: str, limit: int) -> list[Message]:
        """The history, oldest first."""

    def span(self, queue: str, *, settled: bool = False) -> tuple[int, int, int]:
        """How many messages there are, or are in the history, and their first and last number."""
        numbers = [message.number for message in self._all(queue, settled)]
        return len(numbers), min(numbers, default=0), max(numbers, default=0)

    def scan(self, queue: str, start: int, stop: int, limit: int, *, settled: bool = False) -> list[Message]:
        """Look, by number, from ``start`` up to ``stop``: messages in any state, or the history."""
        found = [message for message in self._all(queue, settled) if start <= message.number < stop]
        found.sort(key=lambda message: message.number)
        last = found[limit - 1].number if len(found) > limit else stop
        return [
            message for message in found if message.number <= last
        ]  # all that have the last one's number, should there be two

    def _all(self, queue: str, settled: bool) -> list[Message]:
        return self.settled(queue, MAX_NUMBER) if settled else self.browse(queue, MAX_NUMBER)

    @abstractmethod
    def marked(self, queue: str, mark: bytes) -> bool:
        """Whether a message in the queue carries this mark."""

    @abstractmethod
    def count_marked(self, queue: str) -> int:
        """How many messages in the queue carry a mark that lasts as long as they do."""

    @abstractmethod
    def count(self, queue: str, now: int) -> Counts: ...

    def foreign(self, queue: str) -> list[str]:  # noqa: ARG002
        """Names that another program has put where messages are, and that cannot be delivered, as far as they were seen."""
        return []

    @abstractmethod
    def due(self, queue: str) -> int | None:
        """When the first message became, or becomes, visible; None if there is nothing to wait for. Takes no write lock."""

    @abstractmethod
    def purge(self, queue: str, limit: int) -> int:
        """Remove up to ``limit`` messages, but none that a named claim holds; how many. Fewer than that: there are no more."""

    @abstractmethod
    def sweep(self, queue: str, now: int) -> bool:
        """Clear away some of what no longer counts: old history and marks, free space; whether there is more."""

    @abstractmethod
    def readers(self, queue: str) -> Readers:
        """The named claims of a queue. To ask for them reads nothing: it is their verbs that find an unknown queue."""

    # ids, for programs that want a UUID

    def uuid_of(self, queue: str, id: str) -> str:  # noqa: ARG002
        """A message's id as a UUID, which most stores' ids are."""
        return id

    def id_of(self, queue: str, given: str) -> str | None:  # noqa: ARG002
        """The id that `uuid_of` made a UUID of; None if it never did for this queue."""
        return given

    # life

    @abstractmethod
    def version(self) -> int:
        """A number that changes when another process has changed the store."""

    def clock(self) -> Clock:
        """The clock of whoever is given none: it must not step when the wall clock of this machine is set, and all processes
        that share the store must agree about it. This one is for a store that lives in one process."""
        return MachineClock()

    @abstractmethod
    def close(self) -> None: ...


class Readers(ABC):
    """The named claims of one queue, each made by a reader for one of its epochs. A batch of the store is around them too."""

    @abstractmethod
    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        """Keep these claimed messages, in this order, under the name (reader, epoch), as a tentative claim."""

    @abstractmethod
    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        """The last epoch that the reader settled, and the claims it has, by epoch."""

    @abstractmethod
    def names(self) -> list[str]:
        """The readers, sorted."""

    @abstractmethod
    def confirm(self, reader: str, epoch: int) -> None:
        """Let the claim last for ever."""

    @abstractmethod
    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        """Part of a claim's messages, in the order in which they were claimed; `KeyError` if there is no such claim."""

    @abstractmethod
    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        """Delete what is held under this and earlier epochs, and remember the epoch."""

    @abstractmethod
    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        """Undo one claim: its messages are visible now. With no epoch: all its claims, and forget the reader."""


class ClaimingReaders(Readers):
    """Named claims of a store that can make one without showing each message to the rules."""

    @abstractmethod
    def hold_visible(
        self, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, settings: Settings
    ) -> int:
        """`Store.claim` and `hold` in one: the first of what has been visible since ``visible_by``, if every one of these
        messages is surely to be delivered; how many. 0, and nothing happens: claim and hold."""


class Ids:
    """Message ids as UUIDs that are computed from a message's number, and back, with no table.

        ssssssss-ssss-8sss-nnnn-nnnnnnnnnnnn     s: 60 random bits of this store; n: 62 bits of the number (RFC 9562, version 8)

    Within a store they sort in the order of sending."""

    def __init__(self, salt: int) -> None:
        digits = f"{salt:015x}"
        self.prefix = f"{digits[:8]}-{digits[8:12]}-8{digits[12:]}-"
        """What all ids of this store begin with."""
        self._usual = f"{self.prefix}8000-"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ids) and self.prefix == other.prefix

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def salt() -> int:
        return secrets.randbits(60)

    def make(self, number: int) -> str:
        if number < 1 << 48:
            return f"{self._usual}{number:012x}"
        return f"{self.prefix}{number >> 48 | 1 << 15:04x}-{number & (1 << 48) - 1:012x}"

    def made_all(self, ids: Sequence[str], numbers: Sequence[int]) -> bool:
        """Whether each is the id of its number: a tenth of the time that making them takes, and no if they are unusual."""
        usual = f"{self._usual}%012x" * len(ids) % tuple(numbers)
        return set(map(len, ids)) == {36} and "".join(ids) == usual

    def number(self, id: str) -> int | None:
        """None for an id that this store never gave out."""
        try:
            low = int(id[24:], 16)
            if id.startswith(self._usual):  # which spares most of the way
                return low if low > 0 and f"{low:012x}" == id[24:] else None
            number = int(id[19:23], 16) - (1 << 15) << 48 | low
        except ValueError:
            return None
        return number if number > 0 and self.make(number) == id else None
