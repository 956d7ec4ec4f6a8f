"""A queue in this process. Each part of the work is in a module of its own in this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from penstock import policy
from penstock.clock import Clock
from penstock.message import (
    MAX_NUMBER,
    OCTETS,
    SECOND,
    Attributes,
    Claim,
    Draft,
    Message,
    Mode,
    Pulse,
    Receipt,
    Redriven,
    RetryPolicy,
    Sent,
    Settings,
    State,
    Stats,
)
from penstock.policy import check_count, check_seconds
from penstock.queue.arguments import (
    NOTHING,
    as_draft,
    check_each,
    check_flag,
    check_held,
    check_many,
    check_mode,
    check_one,
    check_place,
    check_state,
    check_taking,
)
from penstock.queue.bulk import Bulk, ChangedPart, IsWanted
from penstock.queue.cancelling import cancel
from penstock.queue.dead_letters import DeadLetters, RedrivenPart, check_dead_letter_queue
from penstock.queue.finding import find
from penstock.queue.named_claims import NamedClaims
from penstock.queue.opened import OpenQueue
from penstock.queue.protocol import Queue
from penstock.queue.receiving import Receiving, Terms
from penstock.queue.retention import Tender, purge
from penstock.queue.sending import Added, Batch, Sending
from penstock.queue.sets import Sets
from penstock.queue.settling import Settling
from penstock.queue.waiting import Waiting
from penstock.stores.ports import START, Store


class LocalQueue(Queue):
    """One named queue of a store that this process has open. `Queue` says what each method does."""

    def __init__(
        self, name: str, store: Store, waiting: Waiting, clock: Clock, tender: Tender, known: Settings | None = None
    ) -> None:
        self.name = name
        self._opened = opened = OpenQueue(name, store, waiting, clock, tender, known)
        self._sending = Sending(opened)
        self._dead_letters = DeadLetters(opened)
        self._receiving = Receiving(opened, self._dead_letters, self)
        self._settling = Settling(opened)
        self._claims = NamedClaims(opened, self._receiving)
        self._sets = Sets(opened, self._receiving)

    @property
    def settings(self) -> Settings:
        return self._opened.read_settings()

    @property
    def known(self) -> Settings | None:
        """The settings as last read, without a question to the store. Another process may have changed them since."""
        return self._opened.known

    @known.setter
    def known(self, settings: Settings) -> None:
        self._opened.known = settings

    # sending

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
        if content_type is OCTETS and (attributes, delay, visibility, deadline, key, group, retry, unique) == NOTHING:
            sent = self._sending.send(body) if connection is None else None  # the common case, kept as short as possible
            return sent or self.send_many([body], connection=connection)[0]
        draft = as_draft(body, content_type, attributes, delay, visibility, deadline, key, group, retry, unique)
        return self.send_many([draft], connection=connection)[0]

    def send_many(self, drafts: Iterable[Draft | bytes], *, token: str | None = None, connection: object = None) -> list[Sent]:
        return self._sending.send_many(Batch(check_many(drafts, "send_many", "send"), token), connection)

    def send_batches(self, batches: Sequence[Batch]) -> list[Added]:
        """`send_many` for several senders, in one commit; if one of them is refused, nothing is sent. The server uses it."""
        return self._sending.send_batches(batches)

    def send_once(self, drafts: Sequence[Draft | bytes], token: str, *, remember: float = policy.TOKEN_WINDOW) -> None:
        self._sending.send_many(Batch(check_many(drafts, "send_once", "send"), token, remember), None)

    # receiving

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
        check_taking(limit, visibility, share, holder)
        check_seconds(wait, "wait")
        terms = Terms(visibility, check_mode(mode), share, holder, unfinished, check_flag(together, "together"))
        return self._receiving.receive(limit, wait, terms)

    def exchange(
        self,
        messages: Sequence[Message | Receipt | str],
        limit: int = 1,
        *,
        visibility: float | None = None,
        share: tuple[int, int] | None = None,
        holder: str | None = None,
    ) -> tuple[list[bool], list[Message]]:
        check_taking(limit, visibility, share, holder)
        held = check_held(self.name, check_many(messages, "exchange", "delete"))
        return self._receiving.exchange(held, limit, visibility, share, holder)

    # settling

    def delete(self, message: Message | Receipt | str, *, connection: object = None) -> bool:
        if type(message) is Message and message.queue == self.name and connection is None:  # the common case
            settled = self._settling.delete(message)
            if settled is not None:
                return settled
        return self.delete_many([message], connection=connection)[0]

    def delete_many(self, messages: Sequence[Message | Receipt | str], *, connection: object = None) -> list[bool]:
        held = check_held(self.name, check_many(messages, "delete_many", "delete"))
        return self._settling.settle(held, State.PROCESSED, None, connection)

    def fail(self, message: Message | Receipt | str, reason: str | None = None) -> bool:
        policy.check_reason(reason)
        return self._settling.settle(check_held(self.name, [message]), State.FAILED, reason)[0]

    def finish(self, messages: Sequence[Message | Receipt | str], failed: str | None = None) -> list[bool]:
        held = check_held(self.name, check_many(messages, "finish", "finish([…])"))
        state = State.PROCESSED if policy.check_reason(failed) is None else State.FAILED
        return self._opened.stored.history.amend(held, state, failed) if held else []

    def extend(self, message: Message | Receipt | str, visibility: float) -> bool:
        return self.extend_many([message], visibility)[0]

    def extend_many(self, messages: Sequence[Message | Receipt | str], visibility: float | Sequence[float]) -> list[bool]:
        held = check_held(self.name, check_many(messages, "extend_many", "extend"))
        return self._settling.extend(held, check_each(visibility, len(held))) if held else []

    def release(self, message: Message | Receipt | str, delay: float = 0, error: str | None = None) -> bool:
        check_seconds(delay, "delay")
        return self._settling.release(check_held(self.name, [message]), delay, policy.check_reason(error))[0]

    def bury(self, message: Message | Receipt | str, reason: str) -> bool:
        return self._dead_letters.give_up(check_held(self.name, [message])[0], policy.check_given_reason(reason))

    def cancel(self, id: str | None = None, *, key: str | bytes | None = None) -> bool:
        return cancel(self._opened, id, check_one("cancel", id, key))

    # looking

    def peek(self, limit: int = 1, *, state: State | str | None = None, after: tuple[int, int] | None = None) -> list[Message]:
        check_count(limit, "limit", 1, policy.MAX_BATCH)
        known = None if state is None else check_state(state)
        return self._let_lapse(self._opened.stored.browse(limit, state=known, after=check_place(after)))

    def find(self, id: str | None = None, *, key: str | bytes | None = None) -> Message | None:
        found = find(self._opened, id, check_one("find", id, key))
        return None if found is None else self._let_lapse([found])[0]

    def _let_lapse(self, messages: list[Message]) -> list[Message]:
        """Stores read no clock and name the last holder until the next claim: clear holders whose lease has ended."""
        held = [message for message in messages if message.holder is not None]
        now = self._opened.clock() if held else 0
        for message in held:
            if message.visible_at <= now:
                message.holder = None
        return messages

    def settled(self, limit: int = 100, *, after: tuple[int, int] | None = None) -> list[Message]:
        check_count(limit, "limit", 1, policy.MAX_BATCH)
        return self._opened.stored.history.browse(limit, after=check_place(after))

    def span(self, *, settled: bool = False) -> tuple[int, int, int]:
        stored = self._opened.stored
        return (stored.history if settled else stored).span()

    def scan(self, start: int = 0, stop: int = 2**62, limit: int = policy.MAX_BATCH, *, settled: bool = False) -> list[Message]:
        check_count(start, "start", 0, 2**62)
        check_count(stop, "stop", 0, 2**62)
        check_count(limit, "limit", 1, policy.MAX_BATCH)
        stored = self._opened.stored
        return stored.history.scan(start, stop, limit) if settled else self._let_lapse(stored.scan(start, stop, limit))

    def pulse(self) -> Pulse:
        due_at = self._opened.due()
        return Pulse(self._opened.clock(), due_at)

    def stats(self) -> Stats:
        opened = self._opened
        now = opened.clock()
        if opened.retention.expire(now):
            opened.tend()  # the rest, beside this caller
        counts = opened.stored.count(now)
        opened.retention.tell_foreign(counts.foreign)
        age = None if counts.oldest_at is None else max(0, now - counts.oldest_at) / SECOND
        return Stats(**asdict(counts), oldest_age=age)

    # the whole queue

    def update(self, **changes: Any) -> Settings:
        opened = self._opened
        with opened.store.batch():
            opened.store.reserve(self.name)
            settings = policy.check_settings(changes, self.settings)
            check_dead_letter_queue(opened.store, self.name, settings)
            opened.store.save(self.name, settings, create=False)
        opened.known = settings
        opened.tell()
        return settings

    def purge(self) -> int:
        return purge(self._opened.stored)

    def redrive(
        self,
        limit: int | None = None,
        *,
        to: str | None = None,
        ids: Iterable[str] | None = None,
        since_at: int | None = None,
        allow: Callable[[str], bool] = lambda _queue: True,
    ) -> Redriven:
        """``allow``: whether letters may go back to a queue, if ``to`` does not say where. The server uses it."""
        if limit is not None:
            check_count(limit, "limit", 1, MAX_NUMBER)
        if since_at is not None:
            check_count(since_at, "since_at", 0, 2**62)
        chosen = (
            None if ids is None else {held.id for held in check_held(self.name, check_many(ids, "redrive", "redrive(ids=[…])"))}
        )
        return self._dead_letters.redrive(limit, to, chosen, since_at, allow)

    # parts of long work, each a commit; the server uses them

    def redrive_part(
        self, limit: int, *, to: str | None, came_by: int, wanted: IsWanted, after: tuple[int, int] = START
    ) -> RedrivenPart:
        """Of the first ``limit`` visible messages after a place, redrive those that were here at the instant ``came_by`` and
        are wanted."""
        return self._dead_letters.redrive_part(limit, to, came_by, after, wanted)

    def delete_part(self, limit: int, *, start: int, came_by: int, wanted: IsWanted) -> ChangedPart:
        """Of the first ``limit`` messages from a number on, delete those that were here at the instant ``came_by`` and are
        wanted, whoever holds them."""
        return Bulk(self._opened, self._settling).delete_part(limit, start, came_by, wanted)

    def release_part(self, limit: int, *, start: int, came_by: int, wanted: IsWanted) -> ChangedPart:
        """The same, and give those back to the queue that a receiver holds."""
        return Bulk(self._opened, self._settling).release_part(limit, start, came_by, wanted)

    # named claims, for batch systems that replay their batches

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
        return self._claims.claim(reader, epoch, limit, ttl=ttl, max_bytes=max_bytes, visible_by=visible_by)

    def confirm(self, reader: str, epoch: int) -> Claim:
        return self._claims.confirm(reader, epoch)

    def read(self, reader: str, epoch: int, start: int = 0, stop: int | None = None, *, damaged: bool = False) -> list[Message]:
        return self._claims.read(reader, epoch, start, stop, damaged=damaged)

    def settle(self, reader: str, epoch: int) -> int:
        return self._claims.settle(reader, epoch)

    def give_up(self, reader: str) -> int:
        return self._claims.give_up(reader)

    def readers(self) -> dict[str, list[Claim]]:
        return self._claims.readers()

    def settled_epoch(self, reader: str) -> int | None:
        return self._claims.settled_epoch(reader)

    # the queue as a set

    def sadd(self, member: str | bytes) -> bool:
        return self._sets.add(member)

    def spop(self) -> str | bytes | None:
        return self._sets.pop()

    def sismember(self, member: str | bytes) -> bool:
        return self._sets.has(member)

    def scard(self) -> int:
        return self._sets.size()
