"""Receiving: messages are claimed from the store, and each is delivered or not by the rules of `penstock.policy`.

A receive that finds nothing waits (a long poll, see `penstock.queue.waiting`) until something may have come.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

from penstock import policy
from penstock.errors import QueueNotFound, StoreError
from penstock.message import SECOND, Held, Home, Message, Mode, Receipt, Settings, State, micros
from penstock.policy import Verdict, settlement
from penstock.queue.dead_letters import DeadLetters
from penstock.queue.opened import OpenQueue
from penstock.queue.settling import settle
from penstock.stores.requests import Claiming, Deleting

logger = logging.getLogger("penstock")
EXCHANGE_LATE = SECOND // 10
SHARE_PAUSE = 0.05
"""Seconds to pause when there are messages, but none in the requested share."""


class Terms(NamedTuple):
    """On what terms a caller receives: the arguments of `Queue.receive`."""

    visibility: float | None = None
    mode: Mode | None = None
    share: tuple[int, int] | None = None
    holder: str | None = None
    unfinished: bool = False
    together: bool = False


class Receiving:
    """Receives from one queue. Owns whether the last receive found something."""

    def __init__(self, queue: OpenQueue, dead_letters: DeadLetters, home: Home) -> None:
        """``home``: what a message is given, so that it can be deleted without naming its queue."""
        self._queue = queue
        self._dead_letters = dead_letters
        self._home = home
        self._busy = False

    def receive(self, limit: int, wait: float, terms: Terms) -> list[Message]:
        if not wait:
            return self.take(limit, terms)
        queue = self._queue
        give_up_at = time.monotonic() + wait
        while True:
            events = queue.waiting.events(queue.name)
            messages = self.take(limit, terms)
            if messages or time.monotonic() >= give_up_at:
                return messages
            due = queue.due()
            resume_at = give_up_at
            if due is not None:
                pause = max((due - queue.clock()) / SECOND, 0 if terms.share is None else SHARE_PAUSE)
                resume_at = min(resume_at, time.monotonic() + pause)
            queue.waiting.rest(queue.name, events, resume_at)

    def take(self, limit: int, terms: Terms) -> list[Message]:
        """Claim and judge until ``limit`` messages can be delivered or none are left. Each round is one commit."""
        kept: list[Message] = []
        more = True
        while more and len(kept) < limit:
            try:
                delivered, more = self._round(limit - len(kept), terms)
            except (StoreError, QueueNotFound):
                if not kept:
                    raise
                break  # deliver what we have; the next receive will report the error
            kept += delivered
        self._tend(self._queue.clock())
        return kept

    def _round(self, limit: int, terms: Terms) -> tuple[list[Message], bool]:
        """Up to ``limit`` messages to deliver, and whether to continue."""
        queue = self._queue
        if not self._busy:
            due = queue.due()
            if due is None or due > queue.clock():  # checked without a write lock
                return [], False
        settings = queue.known or queue.read_settings()
        if settings.paused:
            self._busy = False
            return [], not queue.is_paused()
        chosen = terms.mode or settings.mode
        with queue.store.batch(durable=chosen is Mode.AT_MOST_ONCE):
            now = queue.clock()  # read the clock only now: we may have waited for the lock
            delivered, more, others = self.claim(limit, settings, terms, now)
            if chosen is Mode.AT_MOST_ONCE:
                reason = policy.UNFINISHED if terms.unfinished and settings.history else None
                state = State.PROCESSED if reason is None else State.FAILED
                settled = queue.settle(delivered, settings, state, reason, now)
                delivered = [message for message, gone in zip(delivered, settled, strict=True) if gone]
                for message in delivered:
                    message.settled_at, message.reason = now, reason
        if others or settings.groups:
            queue.tell(settings)  # only after the commit they wait for; and a fork takes this lock after the store's
        self._busy = bool(delivered)
        return delivered, more

    def claim(
        self, limit: int, settings: Settings, terms: Terms, now: int, visible_by: int | None = None
    ) -> tuple[list[Message], bool, bool]:
        """Claim up to ``limit`` messages and carry out the verdicts on them. Returns the messages to deliver, whether to
        continue, and whether any claimed messages were moved or settled instead."""
        visibility, mode, share, holder, _, together = terms
        mode = mode or settings.mode
        until = now + micros(settings.visibility if visibility is None else visibility)
        if settings.max_in_flight is not None and mode is Mode.AT_LEAST_ONCE:
            self._queue.store.reserve(self._queue.name)  # others wait with their claims until this one is counted
            limit = min(limit, self._queue.room(settings, now))
            if limit <= 0:
                return [], self._queue.read_settings() != settings, False
        at_once = mode is Mode.AT_MOST_ONCE and not settings.history  # nobody will ever see the claim
        claiming = Claiming(limit, now, None if at_once else until, settings, holder, share, visible_by, together=together)
        answer = self._queue.stored.claim(claiming)
        if answer is None:
            self._queue.known = None  # the settings have changed: retry with the new ones
            return [], True, False
        claimed = answer.messages
        delivered = self._judge(claimed, settings, visibility, mode, now, None if at_once else until)
        # A message with a visibility of 0 is visible again: another round would deliver it twice in one answer.
        others = len(delivered) < len(claimed)
        more = len(claimed) == limit or others
        return delivered, more and all(message.visible_at > now for message in delivered), others

    def exchange(
        self,
        held: Sequence[Held],
        limit: int,
        visibility: float | None,
        share: tuple[int, int] | None,
        holder: str | None,
    ) -> tuple[list[bool], list[Message]]:
        queue = self._queue
        settings = queue.known or queue.read_settings()
        while True:
            if settings.paused or settings.max_in_flight is not None:
                return self._settle_and_take(held, limit, Terms(visibility, Mode.AT_LEAST_ONCE, share, holder))
            now = queue.clock()
            lease = micros(settings.visibility if visibility is None else visibility)
            deleting = Deleting(held, settlement(settings, State.PROCESSED, None, now))
            answer = queue.stored.claim(Claiming(limit, now, now + lease, settings, holder, share, deleting=deleting))
            if answer is not None:
                break
            settings = queue.read_settings()
        claimed, settled = answer
        delivered: list[Message] = []
        came_at = queue.clock()
        late = bool(claimed) and came_at - now > EXCHANGE_LATE
        writes = late or not _are_plain(claimed, settings, visibility, now, now + lease)
        try:
            with queue.store.batch(durable=False) if writes else nullcontext():
                if late:  # we waited for locks: start the leases now
                    now = came_at
                    kept = queue.stored.extend(claimed, now + lease)
                    claimed = [message for message, ours in zip(claimed, kept, strict=True) if ours]
                    for message in claimed:
                        message.visible_at = now + lease
                delivered = self._judge(claimed, settings, visibility, Mode.AT_LEAST_ONCE, now, now + lease)
        except StoreError as error:  # the deletion is done, and claimed messages become visible again by themselves
            logger.warning("the messages claimed from queue %r could not be delivered: %s", queue.name, error)
        self._busy = bool(delivered)
        if settings.groups or len(delivered) < len(claimed):
            queue.tell(settings)
        self._tend(now)
        return settled, delivered

    def _settle_and_take(self, held: Sequence[Held], limit: int, terms: Terms) -> tuple[list[bool], list[Message]]:
        """In two commits, for a queue that does not give its messages to whoever asks."""
        settled = settle(self._queue, held, State.PROCESSED, None)
        try:
            return settled, self.take(limit, terms)
        except (StoreError, QueueNotFound) as error:  # the deletion is done
            logger.warning("no messages could be claimed from queue %r: %s", self._queue.name, error)
            return settled, []

    def _judge(
        self, claimed: list[Message], settings: Settings, visibility: float | None, mode: Mode, now: int, until: int | None
    ) -> list[Message]:
        """Carry out the verdicts on claimed messages. Returns those to deliver."""
        delivered: list[Message] = []
        for message in claimed:
            verdict, reason = policy.judge(message, settings, mode, now)
            if verdict is Verdict.BURY and not self._dead_letters.bury(message, settings, reason, now):
                verdict = Verdict.DELIVER
            if verdict is Verdict.DELIVER:
                if until is not None:
                    hidden_until = policy.lease(message, until, visibility is not None, now)
                    if hidden_until != until:
                        self._queue.stored.extend([message], hidden_until)
                        message.visible_at = hidden_until
                message.home = self._home
                delivered.append(message)
            elif verdict is Verdict.EXPIRE:
                self._queue.settle([message], settings, State.FAILED, reason, now)
            elif verdict is Verdict.SET_ASIDE:
                self.set_aside(message)
        return delivered

    def _tend(self, now: int) -> None:
        if now >= self._queue.retention.due_at:
            self._queue.tend()

    def set_aside(self, message: Message) -> None:
        """Keep a damaged message where no receive finds it."""
        self._queue.stored.set_aside([Receipt(self._queue.name, message.id, None)])
        logger.error("message %s of queue %r is damaged; it was set aside", message.id, self._queue.name)


def _are_plain(claimed: list[Message], settings: Settings, visibility: float | None, now: int, until: int) -> bool:
    """Whether all of these are delivered as they were claimed."""
    return all(
        policy.judge(message, settings, Mode.AT_LEAST_ONCE, now)[0] is Verdict.DELIVER
        and policy.lease(message, until, visibility is not None, now) == until
        for message in claimed
    )
