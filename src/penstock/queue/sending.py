"""Sending: messages are admitted by the rules of `penstock.policy` and inserted in one commit.

Duplicates are recognised by a mark: of the content, of a key, or of a sender's token for a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock import policy
from penstock.errors import BadMessage, StoreFull
from penstock.message import Draft, Entry, Sent, Settings
from penstock.queue.opened import OpenQueue


class Batch(NamedTuple):
    """Messages that one sender sends together. With a ``token``, they are recognised when they are sent again, for so many
    seconds."""

    drafts: Sequence[Draft | bytes]
    token: str | None = None
    remember: float = policy.TOKEN_WINDOW


class Added(NamedTuple):
    """The answer to a batch, and how many of its messages are new."""

    sent: list[Sent]
    new: int


class Sending:
    """Sends to one queue."""

    def __init__(self, queue: OpenQueue) -> None:
        self._queue = queue

    def send(self, body: bytes) -> Sent | None:
        """Send one plain message. Returns None, and does nothing, if the settings are not known or have changed."""
        queue = self._queue
        known = queue.known
        if known is None:
            return None
        now = queue.clock()
        try:
            sent = queue.stored.insert(policy.admit_all((body,), known, now), now, known)
        except StoreFull:
            self._queue.tend_for_space(now)
            raise
        if sent is None:
            return None
        self._sent(now)
        return sent[0]

    def send_many(self, batch: Batch, connection: object) -> list[Sent]:
        _check_size(batch.drafts)
        if not batch.drafts:
            return []
        now = self._queue.clock()
        if connection is not None:
            with self._queue.joining(connection) as joined:
                return _insert(joined, [batch], now)[0].sent
        return self._add([batch], now)[0].sent

    def send_batches(self, batches: Sequence[Batch]) -> list[Added]:
        for batch in batches:
            _check_size(batch.drafts)
        return self._add(batches, self._queue.clock())

    def _add(self, batches: Sequence[Batch], now: int) -> list[Added]:
        try:
            added = _insert(self._queue, batches, now)
        except StoreFull:
            self._queue.tend_for_space(now)
            raise
        self._sent(now)
        return added

    def _sent(self, now: int) -> None:
        queue = self._queue
        queue.waiting.notify(queue.name)
        if now >= queue.retention.due_at:
            queue.tend()


def _check_size(batch: Sequence[Draft | bytes]) -> None:
    if len(batch) > policy.MAX_BATCH:
        raise BadMessage(f"there are {len(batch)} messages in one batch, the limit is {policy.MAX_BATCH}")


def _insert(queue: OpenQueue, batches: Sequence[Batch], now: int) -> list[Added]:
    mark = policy.mark_first if queue.store.atomic else policy.mark_batch

    def admit_and_insert(settings: Settings) -> list[Sent] | None:
        entries: list[Entry] = []
        for drafts, token, remember in batches:
            admitted = policy.admit_all(drafts, settings, now)
            entries += admitted if token is None or settings.deduplicate is not False else mark(admitted, token, now, remember)
        return queue.stored.insert(entries, now, settings)

    sent, settings = queue.decide(admit_and_insert)
    if len(batches) == 1:
        return [_added(batches[0], sent, settings)]
    answers: list[Added] = []
    done = 0
    for batch in batches:
        answers.append(_added(batch, sent[done : done + len(batch.drafts)], settings))
        done += len(batch.drafts)
    return answers


def _added(batch: Batch, sent: list[Sent], settings: Settings) -> Added:
    new = len(sent) - sum([one.duplicate for one in sent])
    # A message sent twice with one token is not a duplicate by the queue's own rule.
    marked = batch.token is not None and settings.deduplicate is False
    return Added([Sent(one.id) for one in sent] if marked and new < len(sent) else sent, new)
