"""Named, durable claims of a queue, for batch systems that replay their batches.

claim ──► tentative ──confirm──► confirmed ──settle──► deleted; the epoch is recorded
              │                      │
              └── its time passes ───┴── give_up ──► visible to all again
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from penstock import policy
from penstock.errors import ClaimLapsed, ReaderSetBack
from penstock.message import Claim, Message, Mode, State, micros, weigh
from penstock.policy import check_count, check_seconds, settlement
from penstock.queue.opened import OpenQueue
from penstock.queue.receiving import Receiving, Terms
from penstock.stores.ports import ClaimingReaders
from penstock.stores.requests import HeldAtOnce

AT_LEAST = 1000
"""How many messages are judged at a time, at first; then twice as many, each time the store can claim none of the next at
once."""


class NewClaim(NamedTuple):
    """A claim that is being made."""

    reader: str
    epoch: int
    ttl: float
    max_bytes: int | None
    now: int
    visible_by: int | None

    @property
    def lapses_at(self) -> int:
        return self.now + micros(self.ttl)


class NamedClaims:
    """The named claims of one queue. `Queue` says what each method does."""

    def __init__(self, queue: OpenQueue, receiving: Receiving) -> None:
        self._queue = queue
        self._receiving = receiving
        self._readers = queue.stored.readers

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
        policy.check_name(reader, "reader name")
        check_count(epoch, "epoch", 0, 2**62)
        check_count(limit, "limit", 1, policy.MAX_CLAIM)
        check_seconds(ttl, "ttl")
        if max_bytes is not None:
            check_count(max_bytes, "max_bytes", 1, 2**62)
        if visible_by is not None:
            check_count(visible_by, "visible_by", 0, 2**62)
        found = self._unlapsed(reader, epoch, self._queue.clock())
        if found is not None and _binding(found):
            return found
        with self._queue.waiting.told(), self._queue.store.batch():
            self._queue.store.reserve(self._queue.name)
            self._queue.tell(self._queue.read_settings())
            now = self._queue.clock()
            found = self._unlapsed(reader, epoch, now)
            if found is not None and _binding(found):
                return found
            _, claims = self._readers.held(reader)
            for claim in claims:
                if claim.epoch == epoch:
                    self._readers.give_back(reader, epoch, min(now, claim.lapses_at))
            wanted = NewClaim(reader, epoch, ttl, max_bytes, now, visible_by)
            size = 0 if self._queue.read_settings().paused else self._take(wanted, limit)
            if not size:
                self._readers.hold(reader, epoch, [], wanted.lapses_at)
            return Claim(reader, epoch, size, False, wanted.lapses_at)

    def _take(self, wanted: NewClaim, limit: int) -> int:
        """Claim the first messages and hold them: at once, as far as the store can, and what it leaves to the rules some
        at a time."""
        readers, size, judged, part = self._readers, 0, 0, AT_LEAST
        at_once = wanted.max_bytes is None and isinstance(readers, ClaimingReaders)
        more = True
        while more and size < limit and judged < policy.MAX_BATCH:
            if at_once:
                held = self._hold_visible(wanted, limit - size)
                size, more = size + held.size, held.more
                part = AT_LEAST if held.size else part
            else:
                part = limit
            if more and size < limit:
                messages, more = self._judge(wanted, min(part, limit - size, policy.MAX_BATCH - judged))
                size, judged, part = size + len(messages), judged + len(messages), 2 * part
                more = more and at_once
        return size

    def _hold_visible(self, wanted: NewClaim, limit: int) -> HeldAtOnce:
        assert isinstance(self._readers, ClaimingReaders)
        now, since = wanted.now, wanted.now if wanted.visible_by is None else min(wanted.now, wanted.visible_by)
        settings = self._queue.read_settings()
        most, certainty = min(limit, self._queue.room(settings, now)), policy.certain(settings, now)
        if most <= 0:
            return HeldAtOnce(0, more=False)
        return self._readers.hold_visible(wanted.reader, wanted.epoch, most, now, since, wanted.lapses_at, certainty)

    def _judge(self, wanted: NewClaim, limit: int) -> tuple[list[Message], bool]:
        """Claim up to ``limit`` messages, each judged by the rules, and hold them. Returns them, and whether there may be
        more."""
        messages: list[Message] = []
        terms, max_bytes = Terms(wanted.ttl, Mode.AT_LEAST_ONCE, holder=wanted.reader), wanted.max_bytes
        more, part = True, limit if max_bytes is None else 1
        while more and part:
            settings = self._queue.read_settings()
            delivered, more, _ = self._receiving.claim(part, settings, terms, wanted.now, wanted.visible_by)
            messages += delivered
            part = limit - len(messages)
            if max_bytes is not None:
                part = min(part, _further(messages, max_bytes) if messages else 1)
        if messages:
            # A message may have its own visibility; a claim has one for all its messages.
            self._queue.stored.extend([each for each in messages if each.visible_at != wanted.lapses_at], wanted.lapses_at)
            self._readers.hold(wanted.reader, wanted.epoch, messages, wanted.lapses_at)
        return messages, more

    def confirm(self, reader: str, epoch: int) -> Claim:
        with self._queue.store.batch():
            self._queue.store.reserve(self._queue.name)
            claim = self._claimed(reader, epoch)
            if not claim.confirmed:
                self._readers.confirm(reader, epoch)
            return self._claimed(reader, epoch)

    def read(self, reader: str, epoch: int, start: int = 0, stop: int | None = None, *, damaged: bool = False) -> list[Message]:
        claim = self._claimed(reader, epoch)
        check_count(start, "start", 0, policy.MAX_CLAIM)
        stop = claim.size if stop is None else check_count(stop, "stop", 0, policy.MAX_CLAIM)
        try:
            messages = self._readers.read(reader, epoch, start, stop)
        except KeyError:  # given up, settled or lapsed in the meantime
            raise ClaimLapsed(f"reader {reader!r} has no claim for epoch {epoch} any more") from None
        if all(message.intact for message in messages):
            return messages
        for message in messages:
            if not message.intact and message.state is not State.DAMAGED:
                self._receiving.set_aside(message)
        return [message if message.intact else _told(message) for message in messages if message.intact or damaged]

    def settle(self, reader: str, epoch: int) -> int:
        policy.check_name(reader, "reader name")
        check_count(epoch, "epoch", 0, 2**62)
        settled, claims = self._readers.held(reader)
        if settled is not None and settled >= epoch and not any(claim.epoch <= epoch for claim in claims):
            return 0
        with self._queue.store.batch():
            self._queue.store.reserve(self._queue.name)
            now = self._queue.clock()
            for claim in self._readers.held(reader)[1]:
                if claim.epoch == epoch and claim.lapses_at <= now:
                    raise ClaimLapsed(f"claim {epoch} of reader {reader!r} lapsed before it was confirmed")
                if claim.epoch < epoch and claim.lapses_at <= now:
                    # Make them visible from when the claim lapsed, not from now, so that a reader with ``visible_by`` still
                    # finds them.
                    self._readers.give_back(reader, claim.epoch, claim.lapses_at)
            gone = self._readers.settle(reader, epoch, settlement(self._queue.read_settings(), State.PROCESSED, None, now))
        self._queue.tell()
        self._queue.tend_after_settling()
        return gone

    def give_up(self, reader: str) -> int:
        policy.check_name(reader, "reader name")
        with self._queue.store.batch():
            self._queue.store.reserve(self._queue.name)
            given = self._readers.give_back(reader, None, self._queue.clock())
        self._queue.tell()
        return given

    def readers(self) -> dict[str, list[Claim]]:
        return {reader: self._readers.held(reader)[1] for reader in self._readers.names()}

    def settled_epoch(self, reader: str) -> int | None:
        return self._readers.held(policy.check_name(reader, "reader name"))[0]

    def _unlapsed(self, reader: str, epoch: int, now: int) -> Claim | None:
        """The claim if it is in force, None if there is none or it has lapsed; an error if the epoch is settled."""
        settled, claims = self._readers.held(reader)
        if settled is not None and epoch <= settled:
            raise ReaderSetBack(f"reader {reader!r} asks for epoch {epoch}, but has settled all up to {settled}")
        for claim in claims:
            if claim.epoch == epoch and claim.lapses_at > now:
                return claim
        return None

    def _claimed(self, reader: str, epoch: int) -> Claim:
        policy.check_name(reader, "reader name")
        check_count(epoch, "epoch", 0, 2**62)
        claim = self._unlapsed(reader, epoch, self._queue.clock())
        if claim is None:
            raise ClaimLapsed(f"reader {reader!r} has no claim for epoch {epoch}: it was never made, or has lapsed")
        return claim


def _told(message: Message) -> Message:
    """What is still known of a damaged message."""
    return replace(
        message, body=b"", state=State.DAMAGED, deadline_at=None, moved_at=None, first_received_at=None, received_at=None
    )


def _binding(claim: Claim) -> bool:
    """An empty tentative claim promises nothing: a second attempt may claim messages that have arrived since."""
    return claim.size > 0 or claim.confirmed


def _further(messages: list[Message], max_bytes: int) -> int:
    """How many more messages are likely to fit, by the average size so far. Never many at a time, as the next may be larger."""
    taken = sum(map(weigh, messages))
    return min(max(0, max_bytes - taken) * len(messages) // max(1, taken), len(messages), 1000) if taken < max_bytes else 0
