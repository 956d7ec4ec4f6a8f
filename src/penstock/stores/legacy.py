"""The verbs of a store that take the queue's name, for stores that are not yet made of `StoredQueue`s."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from penstock.errors import StoreError
from penstock.message import Counts, Death, Entry, Held, Message, Moved, Sent, Settings, Settlement, State
from penstock.policy import MAX_NUMBER
from penstock.stores.ports import (
    START,
    Alike,
    Claimed,
    Claiming,
    History,
    Readers,
    Store,
    StoredQueue,
    Swept,
    scan_of,
    span_of,
)


class LegacyStore(Store):
    by_arrival: bool = False
    """Not ordered, and a message that was moved comes last in its new queue, whenever it was sent."""
    ranges: bool = False
    """Can find a range of numbers in a queue without reading the whole queue."""
    exchanges: bool = False
    """A claim waits for the disk as a settlement does, and `exchange` can do both in one commit."""

    # messages

    @abstractmethod
    def insert(self, queue: str, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        """Add messages that were admitted under ``settings``. If these are no longer the queue's, change nothing and return
        None.

        A message whose mark is in force is a duplicate: it is not added, and the first message's id is returned. In a queue
        with groups, a message is blocked while others of its group are ahead of it."""

    def insert_bodies(self, queue: str, bodies: Sequence[bytes], like: Entry, settings: Settings) -> bool:
        """Like `insert`, for messages that differ from ``like`` only in their bodies; ``like`` has no mark, no group and no
        body. If these are no longer the queue's settings, change nothing and return False."""
        return self.insert(queue, [like._replace(body=body) for body in bodies], like.sent_at, settings) is not None

    @abstractmethod
    def claim(self, queue: str, claiming: Claiming) -> list[Message] | None:
        """Hide the first visible messages, count the receive, and note the holder. Returns the messages as they are after the
        claim; ``lapsed`` marks those that were consumed before it. If the settings have changed, does nothing and returns None.

        The delivery number is `policy.next_delivery`: a power cut may undo a claim, and its receipt must not match the next
        claim."""

    @abstractmethod
    def extend(self, queue: str, receipts: Sequence[Held], until: int, *, release: bool = False) -> list[bool]:
        """Hide held messages until ``until``; ``release`` also queues them, without a holder. False for each stale receipt."""

    @abstractmethod
    def delete(
        self, queue: str, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None
    ) -> list[bool] | None:
        """Delete messages, into the history if it is kept. False for each stale receipt.

        If ``settings`` are given and are no longer the queue's, change nothing and return None."""

    @abstractmethod
    def amend(self, queue: str, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        """Change the recorded outcome of settled messages. False for each message that is not in the history."""

    def exchange(
        self,
        queue: str,
        receipts: Sequence[Held],
        settlement: Settlement,
        settings: Settings,
        claiming: Claiming,
    ) -> tuple[list[bool], list[Message]] | None:
        """`delete` and then `claim` in one commit, if the store ``exchanges``. If these are no longer the queue's settings,
        change nothing and return None. An error means that nothing was done, as far as that can be known."""
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
        """Move messages to another queue: visible at once, with no receives or holder, and with the mark and deadline from
        `policy.readmit`. A message stays if its mark would count there and another message there already has it.

        The delivery number continues: a receipt from before the move must not match after it."""

    @abstractmethod
    def set_aside(self, queue: str, receipts: Sequence[Held]) -> list[bool]:
        """Keep damaged messages where no claim finds them. False for each stale receipt."""

    @abstractmethod
    def browse(
        self, queue: str, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        """List all messages, or those in ``state``, in the order of delivery, blocked ones last.

        With ``now``, only those visible then, and only those after the position (visible_at, number)."""

    @abstractmethod
    def settled(self, queue: str, limit: int) -> list[Message]:
        """The history, oldest first."""

    def span(self, queue: str, *, settled: bool = False) -> tuple[int, int, int]:
        return span_of(self._all(queue, settled))

    def scan(self, queue: str, start: int, stop: int, limit: int, *, settled: bool = False) -> list[Message]:
        return scan_of(self._all(queue, settled), start, stop, limit)

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
        """Names that another program has put among the messages and that cannot be delivered, as far as they were seen."""
        return []

    @abstractmethod
    def due(self, queue: str) -> int | None:
        """When the first message became, or becomes, visible; None if there is nothing to wait for. Takes no write lock."""

    @abstractmethod
    def purge(self, queue: str, limit: int) -> int:
        """Remove up to ``limit`` messages not in named claims. Returns how many; fewer than ``limit`` means none are left."""

    @abstractmethod
    def sweep(self, queue: str, now: int) -> bool:
        """Clean up some old history, marks and free space. Returns whether there is more."""

    @abstractmethod
    def readers(self, queue: str) -> Readers:
        """The named claims of a queue. This reads nothing; only its verbs raise `QueueNotFound`."""

    def queue(self, name: str) -> StoredQueue:
        return LegacyQueue(self, name)


class LegacyQueue(StoredQueue):
    def __init__(self, store: LegacyStore, name: str) -> None:
        self._store = store
        self._name = name
        self.history = LegacyHistory(store, name)

    @property
    def readers(self) -> Readers:  # type: ignore[override]
        return self._store.readers(self._name)

    def insert(self, entries: Sequence[Entry], now: int, settings: Settings) -> list[Sent] | None:
        if isinstance(entries, Alike):
            return [] if self._store.insert_bodies(self._name, entries.bodies, entries.like, settings) else None
        return self._store.insert(self._name, entries, now, settings)

    def claim(self, claiming: Claiming) -> Claimed | None:
        if claiming.deleting is None:
            claimed = self._store.claim(self._name, claiming)
            return None if claimed is None else Claimed(claimed)
        receipts, settlement = claiming.deleting
        assert claiming.known is not None
        if self._store.exchanges:
            answer = self._store.exchange(self._name, receipts, settlement, claiming.known, claiming._replace(deleting=None))
            return None if answer is None else Claimed(answer[1], answer[0])
        deleted = self._store.delete(self._name, receipts, settlement, claiming.known)
        if deleted is None:
            return None
        try:
            with self._store.batch(durable=False):
                return Claimed(self._store.claim(self._name, claiming._replace(deleting=None)) or [], deleted)
        except StoreError:
            return Claimed([], deleted)  # the deletion is done; the next claim will report the error

    def extend(self, receipts: Sequence[Held], until: int, *, release: bool = False) -> list[bool]:
        return self._store.extend(self._name, receipts, until, release=release)

    def delete(self, receipts: Sequence[Held], settlement: Settlement, settings: Settings | None = None) -> list[bool] | None:
        return self._store.delete(self._name, receipts, settlement, settings)

    def move(
        self, receipts: Sequence[Held], target: str, now: int, expires_at: int, deaths: Sequence[Death | None]
    ) -> list[Moved]:
        return self._store.move(self._name, receipts, target, now, expires_at, deaths)

    def set_aside(self, receipts: Sequence[Held]) -> list[bool]:
        return self._store.set_aside(self._name, receipts)

    def browse(
        self, limit: int, *, state: State | None = None, now: int | None = None, after: tuple[int, int] = START
    ) -> list[Message]:
        return self._store.browse(self._name, limit, state=state, now=now, after=after)

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        return self._store.scan(self._name, start, stop, limit)

    def span(self) -> tuple[int, int, int]:
        return self._store.span(self._name)

    def marked(self, mark: bytes | None = None) -> int:
        return self._store.count_marked(self._name) if mark is None else int(self._store.marked(self._name, mark))

    def count(self, now: int) -> Counts:
        return self._store.count(self._name, now)

    def due(self) -> int | None:
        return self._store.due(self._name)

    def purge(self, limit: int) -> int:
        return self._store.purge(self._name, limit)

    def sweep(self, now: int) -> Swept:
        more = self._store.sweep(self._name, now)
        return Swept(more, self._store.foreign(self._name))


class LegacyHistory(History):
    def __init__(self, store: LegacyStore, name: str) -> None:
        self._store = store
        self._name = name

    def browse(self, limit: int) -> list[Message]:
        return self._store.settled(self._name, limit)

    def scan(self, start: int, stop: int, limit: int) -> list[Message]:
        return self._store.scan(self._name, start, stop, limit, settled=True)

    def span(self) -> tuple[int, int, int]:
        return self._store.span(self._name, settled=True)

    def amend(self, receipts: Sequence[Held], state: State, reason: str | None) -> list[bool]:
        return self._store.amend(self._name, receipts, state, reason)
