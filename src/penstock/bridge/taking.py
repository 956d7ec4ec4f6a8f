"""Receiving for several polls in one call: what one claim finds is shared out among them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

from penstock.bridge.commits import Commits
from penstock.bridge.performing import TurnedAway
from penstock.broker import LocalBroker
from penstock.errors import QueueNotFound, StoreError
from penstock.message import Message, Mode, weigh
from penstock.policy import MAX_BODY
from penstock.queue.queue import LocalQueue


class Receiver(Protocol):
    """On whose behalf messages are received."""

    resting: bool
    """It waits until something comes."""
    copies: int
    """How often memory has the bytes of a message that it receives."""
    held: int
    """Bytes of messages that it has received."""


class Room(Protocol):
    """The memory for messages that are received."""

    def make(self, wanted: int, copies: int) -> int:
        """Make room for ``wanted`` messages, of which nothing is known yet, or for fewer. Returns for how many, or raises
        `TurnedAway`."""

    def keep(self, made: int, messages: Sequence[Message], copies: int) -> None:
        """There was room for so many; these have come."""

    def cost(self, messages: Sequence[Message], copies: int) -> int:
        """Bytes that these take."""


class Unbounded:
    """The `Room` of a receiver that bounds by its limits what it holds."""

    def make(self, wanted: int, copies: int) -> int:  # noqa: ARG002
        return wanted

    def keep(self, made: int, messages: Sequence[Message], copies: int) -> None:
        pass

    def cost(self, messages: Sequence[Message], copies: int) -> int:  # noqa: ARG002
        return 0


class How(NamedTuple):
    """What polls must have in common to share a claim."""

    queue: str
    visibility: float | None
    mode: str | None
    holder: str | None
    unfinished: bool
    together: bool = False


class Asked(NamedTuple):
    receiver: Receiver
    limit: int
    waits: bool


class Taken(NamedTuple):
    """The messages for one poll, its queue's last event before they were looked for, and, if there are none for a poll that
    waits, when the next is due."""

    messages: list[Message]
    events: int
    due: int | None


class Taking:
    """Receives in a thread of commits."""

    def __init__(self, broker: LocalBroker, commits: Commits, room: Room, max_bytes: int) -> None:
        self._broker = broker
        self._commits = commits
        self._room = room
        self._max_bytes = max_bytes
        self._step = max(1, max_bytes // MAX_BODY)

    def key(self, how: How, limit: int) -> str | None:
        """Polls with one key share a claim; None: this one takes its messages alone, in several claims."""
        return repr(how) if limit <= self._step else None

    def take(self, how: How, asked: list[Asked]) -> list[Taken | BaseException]:
        """For each poll, in the order in which they came."""
        events = self._broker.waiting.events(how.queue)
        shares = self._receive(how, asked)
        due = None
        if any(poll.waits and not share for poll, share in zip(asked, shares, strict=True)):
            due = self._commits.queue(how.queue).pulse().due_at
        return [share if isinstance(share, BaseException) else Taken(share, events, due) for share in shares]

    def _receive(self, how: How, polls: Sequence[Asked]) -> list[list[Message] | BaseException]:
        """Receive some at a time, until each poll has as many as it wants, or an answer has enough bytes, or none are left.
        Nothing is claimed that there is no room for; a receiver holds the room of its messages until it has them."""
        shares: list[list[Message] | BaseException] = []
        left: deque[Message] = deque()
        wanted = sum(poll.limit for poll in polls)
        copies = max(poll.receiver.copies for poll in polls)
        empty, failure = False, None
        for receiver, limit, _ in polls:
            share = [left.popleft() for _ in range(min(limit, len(left)))]
            while len(share) < limit and not empty:
                most = limit if how.together else wanted  # messages of one group that come together go to one poll
                try:
                    asked, more = self._ask(how, min(most - len(share), self._step), copies, partial(_take, how))
                except (StoreError, QueueNotFound, TurnedAway) as error:
                    if not share and not any(shares):
                        raise
                    empty, failure = True, error  # keep what was already taken: it may be settled
                    break
                again = any(message.visible_at <= (message.received_at or 0) for message in more)  # it would come twice
                empty = len(more) < asked and not again
                missing = limit - len(share)
                share += more[:missing]
                left.extend(more[missing:])
                if again or sum(map(weigh, share)) >= self._max_bytes:
                    break
            wanted -= limit
            receiver.held += self._room.cost(share, copies)
            shares.append(failure if failure is not None and not share else share)
        return shares

    def exchange(self, how: How, receiver: Receiver, held: Sequence[Any], limit: int) -> tuple[list[bool], list[Message]]:
        """Settle messages, and receive others; the first of them in the same commit."""
        settled: list[bool] = []

        def settle_and_receive(asked: int, queue: LocalQueue) -> list[Message]:
            done, messages = queue.exchange(held, asked, visibility=how.visibility, holder=how.holder)
            settled.extend(done)
            return messages

        asked, messages = self._ask(how, min(limit, self._step), receiver.copies, settle_and_receive)
        receiver.held += self._room.cost(messages, receiver.copies)
        if len(messages) == asked < limit:
            with suppress(StoreError, QueueNotFound, TurnedAway):  # the first part is done; the next receive says what is wrong
                (more,) = self._receive(how._replace(mode=Mode.AT_LEAST_ONCE), [Asked(receiver, limit - asked, False)])
                messages += [] if isinstance(more, BaseException) else more
        return settled, messages

    def _ask(
        self, how: How, limit: int, copies: int, act: Callable[[int, LocalQueue], list[Message]]
    ) -> tuple[int, list[Message]]:
        """Claim up to ``limit`` messages, as many as there is room for. Returns for how many there was, and the messages."""
        more: list[Message] = []
        asked = self._room.make(limit, copies)
        try:
            more = act(asked, self._commits.queue(how.queue))
        except QueueNotFound:
            self._commits.forget(how.queue)
            raise
        finally:
            self._room.keep(asked, more, copies)
        return asked, more


def _take(how: How, limit: int, queue: LocalQueue) -> list[Message]:
    _, visibility, mode, holder, unfinished, together = how
    return queue.receive(
        limit, visibility=visibility, mode=mode, holder=holder, unfinished=unfinished is True, together=together
    )
