"""What every queue offers, in this process (`penstock.queue.queue`) or behind a server (`penstock.client.queue`).

Consumers, producers, the command line and Spark are written against this class, so that they work with both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from random import random
from typing import Any

from penstock import policy
from penstock.message import (
    OCTETS,
    Attributes,
    Claim,
    Draft,
    Message,
    Mode,
    Pulse,
    Receipt,
    Redriven,
    Retried,
    RetryPolicy,
    Sent,
    Settings,
    State,
    Stats,
)
from penstock.retries import plan_retry


class Queue(ABC):
    """One named queue; made by a `Broker`. Safe to share between threads."""

    name: str

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    @property
    @abstractmethod
    def settings(self) -> Settings: ...

    # sending

    @abstractmethod
    def send(
        self,
        body: bytes,
        *,
        content_type: str = OCTETS,
        attributes: Attributes | None = None,
        delay: float | None = None,
        visibility: float | None = None,
        deadline: float | datetime | None = None,
        key: str | bytes | None = None,
        group: str | None = None,
        retry: RetryPolicy | None = None,
        unique: bool = False,
        connection: object = None,
    ) -> Sent:
        """Send a message. When this returns, the message is safe.

        ``deadline`` is in seconds from now, or an instant with a time zone; ``key`` identifies duplicates instead of the
        content, and with ``unique`` there is one message with it in the queue, received or not; ``delay``, ``visibility`` and
        ``retry`` override the queue's settings. With your own ``connection`` to the same database, the message is sent when you
        commit, together with your other writes (SQLite, PostgreSQL, MariaDB)."""

    @abstractmethod
    def send_many(self, drafts: Iterable[Draft | bytes], *, token: str | None = None, connection: object = None) -> list[Sent]:
        """Send all messages in one commit or, if one is refused, none.

        With a ``token``, a caller whose answer was lost can send the same batch again: the queue ignores messages that it took
        from this batch within the last ten minutes. (A queue that deduplicates applies its own rule instead.)"""

    @abstractmethod
    def send_once(self, drafts: Sequence[Draft | bytes], token: str, *, remember: float = policy.TOKEN_WINDOW) -> None:
        """`send_many` with a token that the queue remembers for so many seconds, at most a week, without returning ids."""

    # receiving

    @abstractmethod
    def receive(
        self,
        limit: int = 1,
        *,
        wait: float = 0,
        visibility: float | None = None,
        mode: Mode | str | None = None,
        share: tuple[int, int] | None = None,
        holder: str | None = None,
        unfinished: bool = False,
        together: bool = False,
    ) -> list[Message]:
        """Receive up to ``limit`` messages. If there are none, wait up to ``wait`` seconds for one.

        They are hidden from other receivers for ``visibility`` seconds; delete, extend or release them within that time. In the
        mode at_most_once they are already settled. ``share`` is (place, of): receive only this consumer's share among ``of``
        consumers, if the store supports that. ``holder`` is the receiver's name, which `peek` shows while it holds the
        messages.

        In a queue with groups, this receives one message of each group, the first. With ``together``, the receiver also gets
        those behind it, in the order of sending. Until they have left the queue or are visible again, nobody receives others of
        that group.

        At most once, the history records them as processed. With ``unfinished``, it records them as failed until `finish`
        reports the outcome."""

    @abstractmethod
    def exchange(
        self,
        messages: Sequence[Message | Receipt | str],
        limit: int = 1,
        *,
        visibility: float | None = None,
        share: tuple[int, int] | None = None,
        holder: str | None = None,
    ) -> tuple[list[bool], list[Message]]:
        """`delete_many`, then `receive` at least once without waiting; returns both answers. Where a store is
        atomic, this is one commit. Consumers use it to go from one batch to the next."""

    # settling

    @abstractmethod
    def delete(self, message: Message | Receipt | str, *, connection: object = None) -> bool:
        """Settle a message as processed. Returns False, and changes nothing, if the receiver no longer holds it.

        Given an id instead of a message, this deletes it no matter who holds it. ``connection`` works as for `send`."""

    @abstractmethod
    def delete_many(self, messages: Sequence[Message | Receipt | str], *, connection: object = None) -> list[bool]:
        """`delete` all of these messages in one commit."""

    @abstractmethod
    def fail(self, message: Message | Receipt | str, reason: str | None = None) -> bool:
        """Settle a message as failed: it is not delivered again, and the history, if kept, records the reason."""

    @abstractmethod
    def finish(self, messages: Sequence[Message | Receipt | str], failed: str | None = None) -> list[bool]:
        """Report the outcome of messages that were received at most once as ``unfinished``: processed, or ``failed`` for this
        reason. This changes only the history. Returns False for each message that the history does not have."""

    @abstractmethod
    def extend(self, message: Message | Receipt | str, visibility: float) -> bool:
        """Keep a received message hidden for this many seconds from now. Returns False if the receiver no longer holds it."""

    @abstractmethod
    def extend_many(self, messages: Sequence[Message | Receipt | str], visibility: float | Sequence[float]) -> list[bool]:
        """`extend` all of these messages in one commit, by the same time or each by its own."""

    @abstractmethod
    def release(self, message: Message | Receipt | str, delay: float = 0, error: str | None = None) -> bool:
        """Give a received message back, visible after ``delay`` seconds. Returns False if the receiver no longer holds it.

        With an ``error``, its handler has failed: the message keeps the error, and counts the failure (`Message.failures`)."""

    @abstractmethod
    def bury(self, message: Message | Receipt | str, reason: str) -> bool:
        """Give a received message up: it goes to the dead letter queue of the queue's ``redrive`` setting with this reason. If
        there is none, it is settled as failed. Returns False if the receiver no longer holds it."""

    def retry(
        self,
        message: Message,
        error: BaseException | policy.Failed | str,
        *,
        otherwise: RetryPolicy = policy.BACK_OFF,
        chance: Callable[[], float] = random,
    ) -> Retried:
        """Say that the handler of a received message has failed, as a consumer does: by the message's retry policy, else its
        queue's, else ``otherwise``, it comes again after a while, or is given up. A `Retry` or `Reject` as the ``error`` has
        its meaning. ``chance`` gives the random number for the jitter."""
        now = 0 if message.deadline_at is None else self.pulse().at
        verb, given, becomes = plan_retry(message, self.settings, otherwise, error, now, chance())
        return becomes if getattr(self, verb)(message, *given) else Retried.STALE

    @abstractmethod
    def cancel(self, id: str | None = None, *, key: str | bytes | None = None) -> bool:
        """Remove a message that nobody holds: the one with this id, or with this key, as long as the key makes other messages
        duplicates. Returns False, and changes nothing, if somebody holds it or it is gone. The history, if kept, records it
        as failed, with the reason ``cancelled``."""

    # looking

    @abstractmethod
    def peek(self, limit: int = 1, *, state: State | str | None = None, after: tuple[int, int] | None = None) -> list[Message]:
        """The next messages, or those in ``state`` (queued, consumed, damaged), without receiving them; with ``after``, those
        that come after the `place` of a message."""

    @abstractmethod
    def find(self, id: str | None = None, *, key: str | bytes | None = None) -> Message | None:
        """The message with this id, or with this key, as long as the key makes other messages duplicates, without receiving it.
        None if it is not in the queue, or no longer."""

    @abstractmethod
    def settled(self, limit: int = 100, *, after: tuple[int, int] | None = None) -> list[Message]:
        """The processed and failed messages that the queue's ``history`` setting still keeps, oldest first; with ``after``,
        those that come after the `place` of a message."""

    @abstractmethod
    def span(self, *, settled: bool = False) -> tuple[int, int, int]:
        """How many messages there are, or are in the history, and their first and last `Message.number`."""

    @abstractmethod
    def scan(self, start: int = 0, stop: int = 2**62, limit: int = policy.MAX_BATCH, *, settled: bool = False) -> list[Message]:
        """Messages in any state, or the history, in the order of their numbers: those from ``start`` up to ``stop``."""

    @abstractmethod
    def stats(self) -> Stats: ...

    # the whole queue

    @abstractmethod
    def update(self, **changes: Any) -> Settings:
        """Change settings. Messages already in the queue are affected when they are next received."""

    def pause(self) -> Settings:
        """Let nobody receive: receivers wait as in an empty queue, wherever they are. Messages can be sent, and those that are
        held extended and settled; a named claim can be read and settled, but a new one is empty."""
        return self.update(paused=True)

    def resume(self) -> Settings:
        """Let receivers have messages again; those that wait have them at once."""
        return self.update(paused=False)

    @abstractmethod
    def purge(self) -> int:
        """Remove all messages, received or not, except those of named claims. Returns how many. A queue with groups also
        forgets which messages it would take for duplicates."""

    @abstractmethod
    def redrive(
        self,
        limit: int | None = None,
        *,
        to: str | None = None,
        ids: Iterable[str] | None = None,
        since_at: int | None = None,
    ) -> Redriven:
        """Send visible dead letters back to the queues they died in, or all messages to the queue ``to``. Returns how many.

        With ``ids``, only these messages are sent, unless someone holds them. ``since_at`` skips messages that became visible
        before that instant. A letter stays if its queue is gone, or if that queue deduplicates and has an equal message; the
        answer counts these too."""

    # a queue as a set

    @abstractmethod
    def sadd(self, member: str | bytes) -> bool:
        """Add a member. Returns False if it is already in the set."""

    @abstractmethod
    def spop(self) -> str | bytes | None:
        """Remove and return a member: text if it was added as text, None if the set is empty."""

    @abstractmethod
    def sismember(self, member: str | bytes) -> bool: ...

    @abstractmethod
    def scard(self) -> int:
        """The number of members."""

    # named claims

    @abstractmethod
    def pulse(self) -> Pulse:
        """The current time of this queue's clock, and when its first message became, or becomes, visible. Takes no lock."""

    @abstractmethod
    def claim(
        self,
        reader: str,
        epoch: int,
        limit: int,
        *,
        ttl: float = 60,
        max_bytes: int | None = None,
        visible_by: int | None = None,
    ) -> Claim:
        """Claim up to ``limit`` messages under a name that survives crashes: the same name gives the same messages again.

        The claim is tentative: unless confirmed, it is given back after ``ttl`` seconds. ``max_bytes`` limits, roughly, the
        total size of the bodies; ``visible_by`` limits the claim to messages that became visible by that instant."""

    @abstractmethod
    def confirm(self, reader: str, epoch: int) -> Claim:
        """Make a claim last until it is settled or given up. Raises `ClaimLapsed` if it has lapsed already."""

    @abstractmethod
    def read(self, reader: str, epoch: int, start: int = 0, stop: int | None = None, *, damaged: bool = False) -> list[Message]:
        """The messages of a claim, or the slice from ``start`` up to ``stop``, always in the same order.

        Damaged messages are set aside and left out; with ``damaged``, they keep their place, in that state and without a body.
        """

    @abstractmethod
    def settle(self, reader: str, epoch: int) -> int:
        """Delete all messages claimed under this and earlier epochs, and record the epoch as settled. Returns how many."""

    @abstractmethod
    def give_up(self, reader: str) -> int:
        """Forget a reader and give back all messages it has claimed. Returns how many."""

    @abstractmethod
    def readers(self) -> dict[str, list[Claim]]:
        """All readers with named claims on this queue, and their claims."""

    @abstractmethod
    def settled_epoch(self, reader: str) -> int | None:
        """The last epoch that a reader has settled."""
