"""The interface of a store: state transitions of messages, and no rules.

    insert ──► queued ──claim──► consumed ──delete──► gone, or settled where history is kept
                 ▲                  │  │
                 └─ extend(release) ┘  ├─ move ──► queued in another queue
                 └─ visible_at passes ─┘  └─ set_aside ──► damaged

A single number, ``visible_at``, hides a message; delay, visibility, back-off and give-back all set it. Every instant is an
argument: a store does not read the clock, sleep or log. Each verb takes many messages and is atomic. Everything inside ``with
store.batch():`` becomes durable together when the block ends, or not at all. A caller that wants to catch an error inside a
batch and continue must wrap the failing step in a nested batch. An unknown queue raises `QueueNotFound`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from penstock.clock import Clock, MachineClock
from penstock.errors import Unsupported
from penstock.message import Certainty, Claim, Counts, Entry, Held, Message, Moved, Sent, Settings, Settlement, State
from penstock.stores.ids import Uuids
from penstock.stores.requests import Claimed, Claiming, HeldAtOnce, Marked, Moving, Swept

START = (-1, 0)
"""Before every message, in the order of `Message.place`."""


class Staged(NamedTuple):
    """A segment that waits for its batch to be published."""

    writer: str
    batch: int
    name: str
    staged_at: int


class Published(NamedTuple):
    """A batch that a writer has published. The digest, if the writer gave one, tells its messages from others."""

    batch: int
    digest: str | None = None


Segment = bytes | memoryview
Step = tuple[str, int, str]
"""A writer, a batch, and a position in it."""


class Roster(ABC):
    """The consumers that share a queue, in the order in which they registered."""

    @abstractmethod
    def beat(self, queue: str, consumer: str, now: int) -> None:
        """Record that a consumer is alive. One that is not on the roster, or no longer, is added at its end."""

    @abstractmethod
    def strike(self, queue: str, before: int) -> None:
        """Remove every consumer without a heartbeat since then."""

    @abstractmethod
    def living(self, queue: str) -> list[str]: ...

    @abstractmethod
    def leave(self, queue: str, consumer: str) -> None: ...


class Staging(ABC):
    """Segments that wait for their batch to be published."""

    @abstractmethod
    def stage(self, writer: str, batch: int, name: str, segment: bytes, now: int) -> None:
        """Store a segment for its batch, replacing one of the same name. If batches are not atomic, it is as safe as a message.
        Otherwise it may be lost: the publisher notices that it is missing."""

    @abstractmethod
    def staged(self, writer: str | None = None) -> list[Staged]:
        """The segments that are staged, by one writer or by all."""

    @abstractmethod
    def fetch(self, writer: str, batch: int, name: str) -> bytes | None: ...

    @contextmanager
    def fetching(self, writer: str, batch: int, names: Sequence[str]) -> Iterator[Iterator[Segment | None]]:
        """A context around `Ledger.publishing`: yields these segments in this order, each when it is asked for. A store may
        read ahead. It may also remove the segments when the block succeeds; otherwise they stay."""
        yield (self.fetch(writer, batch, name) for name in names)

    @abstractmethod
    def unstage(self, writer: str, batch: int, names: Sequence[str] | None = None) -> None:
        """Remove these segments of a batch; without names, all segments of this batch and of earlier ones."""


class Ledger(ABC):
    """The last batch that each writer has published."""

    @abstractmethod
    def publishing(self, writer: str) -> AbstractContextManager[Published | None]:
        """Lock this writer for publishing; yields the last batch it published. If batches are atomic, this is one.

        If the lock expires by itself, each step inside renews it. Raises `StoreBusy` if another process may have it by now."""

    @abstractmethod
    def note(self, writer: str, published: Published, keep_until: int) -> None:
        """Remember, at least until ``keep_until``, that the writer has published everything up to this batch."""

    @abstractmethod
    def forget(self, now: int) -> None:
        """Forget writers that no longer need to be remembered."""

    def insert_once(
        self, step: Step, queue: str, entries: Sequence[Entry], now: int, settings: Settings
    ) -> Callable[[], object] | None:
        """If batches are not atomic: like `StoredQueue.insert`, but if an insert for this step was begun before, finish that
        one and add nothing else. Call the result once the progress is recorded: it forgets how the step is recognised."""
        raise NotImplementedError


class Outbox(NamedTuple):
    """What writers stage and publish."""

    staging: Staging
    ledger: Ledger


class Store(ABC):
    """The queues of one database, folder or server. Its verbs are about whole queues; for messages, see `StoredQueue`."""

    roster: Roster
    outbox: Outbox
    uuids = Uuids()

    durable: bool
    """When a verb returns, its changes are on stable storage."""
    ordered: bool
    """Messages are claimed in the order in which they became visible."""
    groups: bool
    """Supports queues with ordered groups."""
    atomic: bool = True
    """A batch is applied whole or not at all, even if the process is killed in the middle of it. An insert then gives its
    messages numbers in a row, and knows `marks.FOLLOWS`: messages that are sent with a token have one mark. In other stores,
    each of them has one."""

    writers: int = 1
    """How many batches of one process make progress at the same time."""

    on_damage: Callable[[str], object] = staticmethod(lambda _damage: None)
    """Called with records that the store found damaged and has set aside. (For a damaged message, see `Message.intact`.)"""

    @abstractmethod
    def batch(self, *, durable: bool = True) -> AbstractContextManager[None]:
        """One commit for everything inside. With ``durable=False`` (for claims: no promise), a power cut may undo all of it."""

    def joining(self, connection: object) -> AbstractContextManager[Store]:  # noqa: ARG002
        """A store whose verbs take part in the caller's open transaction, on the caller's own connection."""
        raise Unsupported("this store cannot join a transaction of yours; SQLite, PostgreSQL and MariaDB can")

    @abstractmethod
    def save(self, name: str, settings: Settings, *, create: bool) -> bool:
        """Create the queue (False if it exists) or change its settings (False if it does not)."""

    @abstractmethod
    def load(self, name: str) -> Settings | None: ...

    def reserve(self, name: str) -> None:  # noqa: B027 (a batch keeps all others out of most stores)
        """In a batch: keep everybody else from changing this queue or its named claims until the batch ends."""

    @abstractmethod
    def names(self) -> list[str]:
        """All queues, sorted by code point."""

    @abstractmethod
    def drop(self, name: str) -> bool:
        """Remove a queue and everything that belongs to it."""

    @abstractmethod
    def queue(self, name: str) -> StoredQueue:
        """The messages of a queue. This reads nothing; only the verbs of the answer raise `QueueNotFound`."""

    @abstractmethod
    def version(self) -> int:
        """A number that changes when another process has changed the store."""

    def traces(self, queues: Sequence[str]) -> list[str]:  # noqa: ARG002
        """The files and folders that change when another process changes one of these queues. A receiver that waits watches
        them, and then asks for the version. Without any, it asks again and again."""
        return []

    def listen(self, bell: Callable[[], None]) -> None:  # noqa: B027 (most stores hear nothing)
        """Ring this bell, in any thread, when the version has changed, if the store hears of that by itself."""

    def clock(self) -> Clock:
        """The default clock. It must not step when this machine's wall clock is set, and all processes that share the store
        must agree on it. This one is for a store that lives in one process."""
        return MachineClock()

    @abstractmethod
    def close(self) -> None: ...


class StoredQueue(ABC):
    """The messages of one queue. A batch of its store includes these verbs."""

    readers: Readers
    history: History

    @abstractmethod
    def insert(self, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        """Add messages that were admitted under ``settings``. If these are no longer the queue's, change nothing and return
        None.

        A message whose mark is in force is a duplicate: it is not added, and the first message's id is returned. In a queue
        with groups, a message is blocked while others of its group are ahead of it. For entries that are `Alike`, the answer
        may leave the ids out."""

    @abstractmethod
    def claim(self, claiming: Claiming) -> Claimed | None:
        """Hide the first visible messages, count the receive, and note the holder. If the settings have changed, do nothing and
        return None.

        The delivery number is `message.next_delivery`: a power cut may undo a claim, and its receipt must not match the next
        claim. An error means that nothing was deleted, as far as that can be known."""

    @abstractmethod
    def extend(self, receipts: Sequence[Held], until: int, *, release: bool = False, error: str | None = None) -> list[bool]:
        """Hide held messages until ``until``; ``release`` also queues them, without a holder. False for each stale receipt.

        With an ``error``, a release also notes it, and counts one failure more (`Message.failures`, `Message.error`)."""

    @abstractmethod
    def delete(self, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None) -> list[bool] | None:
        """Delete messages, into the history if it is kept. False for each stale receipt.

        If ``settings`` are given and are no longer the queue's, change nothing and return None."""

    @abstractmethod
    def move(self, receipts: Sequence[Held], moving: Moving) -> list[Moved]:
        """Move messages to another queue: visible at once, with no receives or holder, and with the mark and deadline from
        ``moving.readmit``. A message stays if its mark would count there and another message there already has it.

        The delivery number continues: a receipt from before the move must not match after it."""

    @abstractmethod
    def set_aside(self, receipts: Sequence[Held]) -> list[bool]:
        """Keep damaged messages where no claim finds them. False for each stale receipt."""

    @abstractmethod
    def browse(
        self, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        """List all messages, or those in ``state``, in the order of delivery, blocked ones last, that come ``after`` a place
        (`Message.place`); with ``now``, only those visible then."""

    @abstractmethod
    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        """List messages in any state by number, from ``start`` up to ``stop``. (If two have the number at which ``limit`` is
        reached, both are listed.)"""

    @abstractmethod
    def span(self) -> tuple[int, int, int]:
        """How many messages there are, and their first and last number."""

    @abstractmethod
    def marked(self, mark: bytes | None = None) -> Marked:
        """How many messages carry this mark, or any, for as long as they are in the queue; and whose it is."""

    @abstractmethod
    def count(self, now: int) -> Counts: ...

    @abstractmethod
    def due(self) -> int | None:
        """When the first message became, or becomes, visible; None if there is nothing to wait for. Takes no write lock."""

    @abstractmethod
    def purge(self, limit: int) -> int:
        """Remove up to ``limit`` messages not in named claims. Returns how many; fewer than ``limit`` means none are left.

        In a queue with groups, also forget the marks that count for a window of time: no message is a duplicate of one that was
        purged."""

    @abstractmethod
    def sweep(self, now: int) -> Swept:
        """Clear a part of the old history and marks, and of the free space."""


class History(ABC):
    """The settled messages of one queue, as long as it keeps them."""

    @abstractmethod
    def browse(self, limit: int, *, after: tuple[int, int] = START) -> list[Message]:
        """The oldest first, from after a place."""

    @abstractmethod
    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        """As `StoredQueue.scan`."""

    @abstractmethod
    def span(self) -> tuple[int, int, int]:
        """As `StoredQueue.span`."""

    @abstractmethod
    def amend(self, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        """Change the recorded outcome of messages. False for each message that is not in the history."""


class Readers(ABC):
    """The named claims of one queue; each belongs to a reader and an epoch. A batch of the store includes these verbs."""

    @abstractmethod
    def hold(self, reader: str, epoch: int, receipts: Sequence[Held], lapses_at: int) -> None:
        """Keep these claimed messages, in this order, as a tentative claim of (reader, epoch). `ClaimingReaders` can add to one
        that was begun."""

    @abstractmethod
    def held(self, reader: str) -> tuple[int | None, list[Claim]]:
        """The last epoch that the reader settled, and its claims by epoch."""

    @abstractmethod
    def names(self) -> list[str]:
        """The readers, sorted."""

    @abstractmethod
    def confirm(self, reader: str, epoch: int) -> None:
        """Make the claim last until it is settled or given back."""

    @abstractmethod
    def read(self, reader: str, epoch: int, start: int, stop: int) -> list[Message]:
        """A slice of a claim's messages, in the order of claiming. Raises `KeyError` if there is no such claim."""

    @abstractmethod
    def settle(self, reader: str, epoch: int, settlement: Settlement) -> int:
        """Delete the messages held under this and earlier epochs, and record the epoch."""

    @abstractmethod
    def give_back(self, reader: str, epoch: int | None, now: int) -> int:
        """Undo one claim: its messages are visible now. Without an epoch, undo all claims and forget the reader."""


class ClaimingReaders(Readers):
    """Named claims of a store that can make one without passing each message through the caller."""

    @abstractmethod
    def hold_visible(
        self, reader: str, epoch: int, limit: int, now: int, visible_by: int, lapses_at: int, certainty: Certainty
    ) -> HeldAtOnce:
        """`StoredQueue.claim` and `hold` in one step: begin or continue the claim with the first messages visible since
        ``visible_by``, up to the first that is not within the bounds of ``certainty``. A store may also refuse all of them."""
