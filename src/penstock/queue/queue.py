"""A queue: the only place where the rules of `penstock.policy` meet a store."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeVar

from penstock import policy
from penstock.clock import Clock
from penstock.errors import BadInput, BadMessage, QueueNotFound, StoreError
from penstock.guarded import guarded
from penstock.message import (
    OCTETS,
    Attributes,
    Death,
    Draft,
    Entry,
    Held,
    Message,
    Mode,
    Moved,
    Receipt,
    Redriven,
    Sent,
    Settings,
    State,
    Stats,
)
from penstock.policy import Verdict, check_count, check_seconds, micros, settlement
from penstock.queue.arguments import check_each, check_held, check_many, check_mode, check_state, check_taking
from penstock.queue.named_claims import NamedClaims
from penstock.queue.protocol import Queue
from penstock.queue.retention import Retention, Tender
from penstock.queue.sets import Sets
from penstock.queue.waiting import Waiting
from penstock.stores.ports import START, Claiming, Deleting, Store, StoredQueue

logger = logging.getLogger("penstock")

Answer = TypeVar("Answer")
REDRIVE_BATCH = 500
PURGE_BATCH = 10_000
EXCHANGE_LATE = policy.SECOND // 10
NOTHING = (None,) * 6
SHARE_PAUSE = 0.05
"""Seconds to pause when there are messages, but none in the requested share."""


class LocalQueue(Sets, NamedClaims, Queue):
    """One named queue of a store; made by a `Broker`. Safe to share between threads."""

    _known: Settings | None = None
    """The settings as last read."""

    def __init__(self, name: str, store: Store, waiting: Waiting, clock: Clock, tender: Tender) -> None:
        self.name = name
        self._store = store
        self._stored = store.queue(name)
        self._waiting = waiting
        self._clock = clock
        self._tender = tender
        self._retention = Retention(name, store, waiting, clock)
        self._busy = False

    @property
    def settings(self) -> Settings:
        settings = self._known = self._store.load(self.name)
        if settings is None:
            raise QueueNotFound(self.name)
        return settings

    def _decide(self, act: Callable[[Settings], Answer | None]) -> Answer:
        """Act on the settings we know, and retry if the store says that they have changed."""
        answer = act(self._known or self.settings)
        while answer is None:
            answer = act(self.settings)
        return answer

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
        connection: object = None,
    ) -> Sent:
        """Send a message. When this returns, the message is safe.

        ``deadline`` is in seconds from now, or an instant with a time zone; ``key`` identifies duplicates instead of the
        content; ``delay`` and ``visibility`` override the queue's settings. With your own ``connection`` to the same database,
        the message is sent when you commit, together with your other writes (SQLite, PostgreSQL, MariaDB)."""
        draft: Draft | bytes = body
        extras: tuple[object, ...] = (attributes, delay, visibility, deadline, key, group)
        if content_type is OCTETS and extras == NOTHING:
            known = self._known
            if known is not None and connection is None:  # the common case, kept as short as possible
                now = self._clock()
                sent = self._stored.insert(policy.admit_all((body,), known, now), now, known)
                if sent is not None:
                    self._sent(now)
                    return sent[0]
        else:
            draft = Draft(body, content_type, {} if attributes is None else attributes, delay, visibility, deadline, key, group)
        return self.send_many([draft], connection=connection)[0]

    def send_many(self, drafts: Iterable[Draft | bytes], *, token: str | None = None, connection: object = None) -> list[Sent]:
        """Send all messages in one commit or, if one is refused, none.

        With a ``token``, a caller whose answer was lost can send the same batch again: the queue ignores messages that it took
        from this batch within the last ten minutes. (A queue that deduplicates applies its own rule instead.)"""
        batch = check_many(drafts, "send_many", "send")
        if len(batch) > policy.MAX_BATCH:
            raise BadMessage(f"there are {len(batch)} messages in one batch, the limit is {policy.MAX_BATCH}")
        if not batch:
            return []
        now = self._clock()
        if connection is not None:
            with self._joining(connection) as joined:
                return joined._insert(batch, token, now)
        sent = self._insert(batch, token, now)
        self._sent(now)
        return sent

    def send_once(self, drafts: Sequence[Draft | bytes], token: str) -> None:
        """`send_many` with a token, without returning ids. If the store's batches are atomic, one mark stands for the whole
        batch, which costs a fraction of a mark per message."""
        settings = self._known or self.settings
        if not self._store.atomic or settings.deduplicate is not False or len(drafts) < 2:
            self.send_many(drafts, token=token)
            return
        now = self._clock()
        while not self._insert_once(drafts, token, now, settings):
            settings = self.settings  # the settings have changed: retry with the new ones
            if settings.deduplicate is not False:
                self.send_many(drafts, token=token)
                return
        self._sent(now)

    def _insert_once(self, drafts: Sequence[Draft | bytes], token: str, now: int, settings: Settings) -> bool:
        """Returns False, and changes nothing, if these are no longer the queue's settings."""
        entries = policy.admit_all(drafts, settings, now)
        with self._store.batch():
            first = self._stored.insert(policy.mark_batch(entries[:1], token, now), now, settings)
            if first is None:
                return False
            if not first[0].duplicate:
                others = self._stored.insert(entries[1:], now, settings)
                assert others is not None  # after the first insert, nobody else can change the settings
        return True

    def _sent(self, now: int) -> None:
        self._waiting.notify()
        self._tend(now)

    def _insert(self, batch: Sequence[Draft | bytes], token: str | None, now: int) -> list[Sent]:
        settings = self._known or self.settings
        while (sent := self._stored.insert(self._admit(batch, settings, token, now), now, settings)) is None:
            settings = self.settings  # the settings have changed: retry with the new ones
        # A message sent twice with one token is not a duplicate by the queue's own rule.
        return sent if token is None or settings.deduplicate is not False else [Sent(one.id) for one in sent]

    @staticmethod
    def _admit(batch: Sequence[Draft | bytes], settings: Settings, token: str | None, now: int) -> list[Entry]:
        entries = policy.admit_all(batch, settings, now)
        return entries if token is None or settings.deduplicate is not False else policy.mark_batch(entries, token, now)

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
    ) -> list[Message]:
        """Receive up to ``limit`` messages. If there are none, wait up to ``wait`` seconds for one.

        They are hidden from other receivers for ``visibility`` seconds; delete, extend or release them within that time. In the
        mode at_most_once they are already settled. ``share`` is (place, of): receive only this consumer's share among ``of``
        consumers, if the store supports that. ``holder`` is the receiver's name, which `peek` shows while it holds the
        messages.

        At most once, the history records them as processed. With ``unfinished``, it records them as failed until `finish`
        reports the outcome."""
        check_taking(limit, visibility, share, holder)
        check_seconds(wait, "wait")
        chosen = check_mode(mode)
        give_up_at = time.monotonic() + wait
        while True:
            events = self._waiting.events()
            messages = self._take(limit, visibility, chosen, share, holder, unfinished)
            if messages or time.monotonic() >= give_up_at:
                return messages
            due = self._stored.due()
            resume_at = give_up_at
            if due is not None:
                pause = max((due - self._clock()) / policy.SECOND, 0 if share is None else SHARE_PAUSE)
                resume_at = min(resume_at, time.monotonic() + pause)
            self._waiting.rest(events, resume_at)

    def _take(
        self,
        limit: int,
        visibility: float | None,
        mode: Mode | None,
        share: tuple[int, int] | None = None,
        holder: str | None = None,
        unfinished: bool = False,
    ) -> list[Message]:
        """Claim and judge until ``limit`` messages can be delivered or none are left. Each round is one commit."""
        kept: list[Message] = []
        more = True
        while more and len(kept) < limit:
            try:
                delivered, more = self._round(limit - len(kept), visibility, mode, share, holder, unfinished)
            except (StoreError, QueueNotFound):
                if not kept:
                    raise
                break  # deliver what we have; the next receive will report the error
            kept += delivered
        self._tend(self._clock())
        return kept

    def _round(
        self,
        limit: int,
        visibility: float | None,
        mode: Mode | None,
        share: tuple[int, int] | None,
        holder: str | None,
        unfinished: bool,
    ) -> tuple[list[Message], bool]:
        """Up to ``limit`` messages to deliver, and whether to continue."""
        if not self._busy:
            due = self._stored.due()
            if due is None or due > self._clock():  # checked without a write lock
                return [], False
        settings = self._known or self.settings
        chosen = mode or settings.mode
        with self._store.batch(durable=chosen is Mode.AT_MOST_ONCE):
            now = self._clock()  # read the clock only now: we may have waited for the lock
            delivered, more, others = self._claim(limit, settings, visibility, chosen, now, share, holder=holder)
            if chosen is Mode.AT_MOST_ONCE:
                reason = policy.UNFINISHED if unfinished and settings.history else None
                state = State.PROCESSED if reason is None else State.FAILED
                settled = self._settle(delivered, settings, state, reason, now)
                delivered = [message for message, gone in zip(delivered, settled, strict=True) if gone]
                for message in delivered:
                    message.reason = reason
        if others or settings.groups:
            self._waiting.notify()  # only after the commit they wait for; and a fork takes this lock after the store's
        self._busy = bool(delivered)
        return delivered, more

    def _claim(
        self,
        limit: int,
        settings: Settings,
        visibility: float | None,
        mode: Mode,
        now: int,
        share: tuple[int, int] | None = None,
        *,
        visible_by: int | None = None,
        holder: str | None = None,
    ) -> tuple[list[Message], bool, bool]:
        """Claim up to ``limit`` messages and carry out the verdicts on them. Returns the messages to deliver, whether to
        continue, and whether any claimed messages were moved or settled instead."""
        until = now + micros(settings.visibility if visibility is None else visibility)
        at_once = mode is Mode.AT_MOST_ONCE and not settings.history  # nobody will ever see the claim
        claiming = Claiming(limit, now, None if at_once else until, settings, holder, share, visible_by)
        answer = self._stored.claim(claiming)
        if answer is None:
            self._known = None  # the settings have changed: retry with the new ones
            return [], True, False
        claimed = answer.messages
        delivered = self._judge(claimed, settings, visibility, mode, now, None if at_once else until)
        # A message with a visibility of 0 is visible again: another round would deliver it twice in one answer.
        others = len(delivered) < len(claimed)
        more = len(claimed) == limit or others
        return delivered, more and all(message.visible_at > now for message in delivered), others

    def _judge(
        self, claimed: list[Message], settings: Settings, visibility: float | None, mode: Mode, now: int, until: int | None
    ) -> list[Message]:
        """Carry out the verdicts on claimed messages. Returns those to deliver."""
        delivered: list[Message] = []
        for message in claimed:
            verdict, reason = policy.judge(message, settings, mode, now)
            if verdict is Verdict.BURY and not self._bury(message, settings, reason, now):
                verdict = Verdict.DELIVER
            if verdict is Verdict.DELIVER:
                if until is not None:
                    hidden_until = policy.lease(message, until, visibility is not None, now)
                    if hidden_until != until:
                        self._stored.extend([message], hidden_until)
                        message.visible_at = hidden_until
                message.home = self
                delivered.append(message)
            elif verdict is Verdict.EXPIRE:
                self._settle([message], settings, State.FAILED, reason, now)
            elif verdict is Verdict.SET_ASIDE:
                self._set_aside(message)
        return delivered

    def _set_aside(self, message: Message) -> None:
        self._stored.set_aside([Receipt(self.name, message.id, None)])
        logger.error("message %s of queue %r is damaged; it was set aside", message.id, self.name)

    def _bury(self, message: Message, settings: Settings, reason: str, now: int) -> bool:
        """Move a message to the dead letter queue. Returns False if that queue does not exist any more."""
        assert settings.redrive is not None
        target = settings.redrive.dead_letter_queue
        beyond = self._store.load(target)
        if beyond is None:
            return False
        death = Death(self.name, reason, message.receives - 1, now)
        self._stored.move([message], target, now, now + micros(beyond.retention), [death])
        return True

    # settling

    def delete(self, message: Message | Receipt | str, *, connection: object = None) -> bool:
        """Settle a message as processed. Returns False, and changes nothing, if the receiver no longer holds it.

        Given an id instead of a message, this deletes it no matter who holds it. ``connection`` works as for `send`."""
        known = self._known
        ours = type(message) is Message and message.queue == self.name and connection is None
        if ours and known is not None and not known.groups:  # the common case, kept as short as possible
            how = settlement(known, State.PROCESSED, None, self._clock())
            settled = self._stored.delete((message,), how, known)  # type: ignore[arg-type]
            if settled is not None:
                return settled[0]
        return self.delete_many([message], connection=connection)[0]

    def delete_many(self, messages: Sequence[Message | Receipt | str], *, connection: object = None) -> list[bool]:
        held = self._held(check_many(messages, "delete_many", "delete"))
        if connection is None:
            return self._settle_held(held, State.PROCESSED, None)
        with self._joining(connection) as joined:
            return joined._settle_held(held, State.PROCESSED, None)

    @guarded
    def _joining(self, connection: object) -> Generator[LocalQueue]:
        """This queue, inside the caller's open transaction."""
        with self._store.joining(connection) as store:
            yield LocalQueue(self.name, store, self._waiting, self._clock, self._tender)

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
        check_taking(limit, visibility, share, holder)
        held = self._held(check_many(messages, "exchange", "delete"))
        settings = self._known or self.settings
        while True:
            now = self._clock()
            lease = micros(settings.visibility if visibility is None else visibility)
            deleting = Deleting(held, settlement(settings, State.PROCESSED, None, now))
            answer = self._stored.claim(Claiming(limit, now, now + lease, settings, holder, share, deleting=deleting))
            if answer is not None:
                break
            settings = self.settings
        claimed, settled = answer
        delivered: list[Message] = []
        came_at = self._clock()
        late = bool(claimed) and came_at - now > EXCHANGE_LATE
        writes = late or not _are_plain(claimed, settings, visibility, now, now + lease)
        try:
            with self._store.batch(durable=False) if writes else nullcontext():
                if late:  # we waited for locks: start the leases now
                    now = came_at
                    kept = self._stored.extend(claimed, now + lease)
                    claimed = [message for message, ours in zip(claimed, kept, strict=True) if ours]
                    for message in claimed:
                        message.visible_at = now + lease
                delivered = self._judge(claimed, settings, visibility, Mode.AT_LEAST_ONCE, now, now + lease)
        except StoreError as error:  # the deletion is done, and claimed messages become visible again by themselves
            logger.warning("what was taken from queue %r could not be delivered: %s", self.name, error)
        self._busy = bool(delivered)
        if settings.groups or len(delivered) < len(claimed):
            self._waiting.notify()
        self._tend(now)
        return settled, delivered

    def fail(self, message: Message | Receipt | str, reason: str | None = None) -> bool:
        """Settle a message as failed: it is not delivered again, and the history, if kept, records the reason."""
        policy.check_reason(reason)
        return self._settle_held(self._held([message]), State.FAILED, reason)[0]

    def finish(self, messages: Sequence[Message | Receipt | str], failed: str | None = None) -> list[bool]:
        """Report the outcome of messages that were received at most once as ``unfinished``: processed, or ``failed`` for this
        reason. This changes only the history. Returns False for each message that the history does not have."""
        held = self._held(check_many(messages, "finish", "finish([…])"))
        state = State.PROCESSED if policy.check_reason(failed) is None else State.FAILED
        return self._stored.history.amend(held, state, failed) if held else []

    def extend(self, message: Message | Receipt | str, visibility: float) -> bool:
        """Keep a received message hidden for this many seconds from now. Returns False if the receiver no longer holds it."""
        return self.extend_many([message], visibility)[0]

    def extend_many(self, messages: Sequence[Message | Receipt | str], visibility: float | Sequence[float]) -> list[bool]:
        """`extend` all of these messages in one commit, by the same time or each by its own."""
        held = self._held(check_many(messages, "extend_many", "extend"))
        if not held:
            return []
        until: dict[int, list[Held]] = {}
        now = self._clock()
        for message, seconds in zip(held, check_each(visibility, len(held)), strict=True):
            until.setdefault(now + micros(seconds), []).append(message)
        if len(until) == 1:
            extended = self._stored.extend(held, *until)
        else:
            ours: dict[int, bool] = {}
            with self._store.batch():
                for hidden_until, group in until.items():
                    ours.update(zip(map(id, group), self._stored.extend(group, hidden_until), strict=True))
            extended = [ours[id(message)] for message in held]
        self._waiting.notify()
        return extended

    def release(self, message: Message | Receipt | str, delay: float = 0) -> bool:
        """Give a received message back, visible after ``delay`` seconds. Returns False if the receiver no longer holds it."""
        until = self._clock() + micros(check_seconds(delay, "delay"))
        released = self._stored.extend(self._held([message]), until, release=True)[0]
        self._waiting.notify()
        return released

    def _settle_held(self, held: list[Held], state: State, reason: str | None) -> list[bool]:
        if not held:
            return []
        now = self._clock()
        settings = self._known or self.settings
        while (settled := self._stored.delete(held, settlement(settings, state, reason, now), settings)) is None:
            settings = self.settings  # the settings have changed: retry with the new ones
        if settings.groups:
            self._waiting.notify()  # the next message of a group may be available now
        return settled

    def _settle(self, held: Sequence[Held], settings: Settings, state: State, reason: str | None, now: int) -> list[bool]:
        """`_settle_held` inside a batch, where the settings cannot change."""
        gone = self._stored.delete(held, settlement(settings, state, reason, now))
        assert gone is not None
        return gone

    def _held(self, messages: Sequence[Message | Receipt | str]) -> list[Held]:
        return check_held(self.name, messages)

    # looking

    def peek(self, limit: int = 1, *, state: State | str | None = None) -> list[Message]:
        """The next messages, or those in ``state`` (queued, consumed, damaged), without receiving them."""
        check_count(limit, "limit", 1, policy.MAX_BATCH)
        return self._let_lapse(self._stored.browse(limit, state=None if state is None else check_state(state)))

    def _let_lapse(self, messages: list[Message]) -> list[Message]:
        """Stores read no clock and name the last holder until the next claim: clear holders whose lease has ended."""
        held = [message for message in messages if message.holder is not None]
        now = self._clock() if held else 0
        for message in held:
            if message.visible_at <= now:
                message.holder = None
        return messages

    def settled(self, limit: int = 100) -> list[Message]:
        """The processed and failed messages that the queue's ``history`` setting still keeps, oldest first."""
        check_count(limit, "limit", 1, policy.MAX_BATCH)
        return self._stored.history.browse(limit)

    def span(self, *, settled: bool = False) -> tuple[int, int, int]:
        """How many messages there are, or are in the history, and their first and last `Message.number`."""
        return (self._stored.history if settled else self._stored).span()

    def scan(self, start: int = 0, stop: int = 2**62, limit: int = policy.MAX_BATCH, *, settled: bool = False) -> list[Message]:
        """Messages in any state, or the history, in the order of their numbers: those from ``start`` up to ``stop``."""
        check_count(start, "start", 0, 2**62)
        check_count(stop, "stop", 0, 2**62)
        check_count(limit, "limit", 1, policy.MAX_BATCH)
        if settled:
            return self._stored.history.scan(start, stop, limit)
        return self._let_lapse(self._stored.scan(start, stop, limit))

    def stats(self) -> Stats:
        now = self._clock()
        self._retention.expire(now)
        counts = self._stored.count(now)
        self._retention.tell_foreign(counts.foreign)
        age = None if counts.oldest_at is None else max(0, now - counts.oldest_at) / policy.SECOND
        return Stats(**asdict(counts), oldest_age=age)

    # the whole queue

    def update(self, **changes: Any) -> Settings:
        """Change settings. Messages already in the queue are affected when they are next received."""
        with self._store.batch():
            self._store.reserve(self.name)
            settings = policy.check_settings(changes, self.settings)
            check_dead_letter_queue(self._store, self.name, settings)
            self._store.save(self.name, settings, create=False)
        self._waiting.notify()
        return settings

    def purge(self) -> int:
        """Remove all messages, received or not, except those of named claims. Returns how many."""
        return purge(self._stored)

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
        if limit is not None:
            check_count(limit, "limit", 1, policy.MAX_NUMBER)
        if since_at is not None:
            check_count(since_at, "since_at", 0, 2**62)
        if to is not None and self._store.load(policy.check_name(to)) is None:
            raise QueueNotFound(to)
        if to == self.name:
            raise BadInput(f"queue {to!r} cannot be redriven to itself")
        left = None if ids is None else {held.id for held in self._held(check_many(ids, "redrive", "redrive(ids=[…])"))}
        start = START if since_at is None else (since_at - 1, 0)
        tally: Counter[Moved] = Counter()
        gone: Counter[str | None] = Counter()
        seen: set[str] = set()
        before = -1
        # In a queue with groups, a letter that leaves frees the next of its group, which may come before those already seen.
        while before < tally[Moved.DONE] and (before < 0 or self.settings.groups):
            before = tally[Moved.DONE]
            self._redrive_from(start, to, limit, left, tally, gone, seen)
        self._warn_of_stays(tally, gone)
        return Redriven(tally[Moved.DONE], tally[Moved.DUPLICATE], sum(gone.values()))

    def _redrive_from(
        self,
        place: tuple[int, int],
        to: str | None,
        limit: int | None,
        left: set[str] | None,
        tally: Counter[Moved],
        gone: Counter[str | None],
        seen: set[str],
    ) -> None:
        """Go once through all visible messages, and redrive those not in ``seen``."""
        while (limit is None or tally[Moved.DONE] < limit) and (left is None or left):
            page = self._visible(place)
            if left is None or not left.isdisjoint(message.id for message in page):  # otherwise the write lock is not needed
                with self._store.batch():
                    page = self._visible(place)
                    chosen = [message for message in page if (left is None or message.id in left) and message.id not in seen]
                    self._redrive(chosen, to, len(chosen) if limit is None else limit - tally[Moved.DONE], tally, gone)
                if left is not None:
                    left.difference_update(message.id for message in chosen)
                if self.settings.groups:
                    seen.update(message.id for message in chosen)
                self._waiting.notify()
            if not page:
                break
            place = (page[-1].visible_at, page[-1].number)

    def _visible(self, after: tuple[int, int]) -> list[Message]:
        return self._stored.browse(REDRIVE_BATCH, now=self._clock(), after=after)

    def _redrive(
        self, page: list[Message], to: str | None, most: int, tally: Counter[Moved], gone: Counter[str | None]
    ) -> None:
        """Move up to ``most`` of these messages. One that stays does not count; another is tried instead."""
        now = self._clock()
        beyond: dict[str, Settings | None] = {}
        known: list[tuple[str, Message]] = []
        for message in page:
            target = to or (message.death.queue if message.death else None)
            if target is not None and target not in beyond:
                beyond[target] = self._store.load(target)
            if target is None or beyond[target] is None:
                gone[target] += 1
            else:
                known.append((target, message))
        while known and most > 0:
            part, known = known[:most], known[most:]
            for target in sorted({target for target, _ in part}):
                messages = [message for home, message in part if home == target]
                expires_at = now + micros(beyond[target].retention)  # type: ignore[union-attr]
                moved = Counter(self._stored.move(messages, target, now, expires_at, [None] * len(messages)))
                most -= moved[Moved.DONE]
                tally.update(moved)

    def _warn_of_stays(self, tally: Counter[Moved], gone: Counter[str | None]) -> None:
        for target, count in gone.items():
            if target is not None:
                logger.warning("%d dead letters stay in queue %r: queue %r, where they died, is gone", count, self.name, target)
        if tally[Moved.DUPLICATE]:
            logger.warning(
                "%d dead letters stay in queue %r: where they belong is an equal message, and such messages are taken once",
                tally[Moved.DUPLICATE],
                self.name,
            )

    def _tend(self, now: int) -> None:
        if now >= self._retention.due_at:
            self._tender.ask(self._retention, now)


def _are_plain(claimed: list[Message], settings: Settings, visibility: float | None, now: int, until: int) -> bool:
    """Whether all of these are delivered as they were claimed."""
    return all(
        policy.judge(message, settings, Mode.AT_LEAST_ONCE, now)[0] is Verdict.DELIVER
        and policy.lease(message, until, visibility is not None, now) == until
        for message in claimed
    )


def purge(stored: StoredQueue) -> int:
    """Purge in batches, so that others can write in between."""
    purged = part = stored.purge(PURGE_BATCH)
    while part == PURGE_BATCH:
        part = stored.purge(PURGE_BATCH)
        purged += part
    return purged


def check_dead_letter_queue(store: Store, name: str, settings: Settings) -> None:
    if settings.redrive is None:
        return
    target = settings.redrive.dead_letter_queue
    if target == name:
        raise BadInput(f"queue {name!r} cannot be its own dead letter queue")
    store.reserve(target)
    if store.load(target) is None:
        raise QueueNotFound(target)
