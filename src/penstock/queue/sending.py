"""Sending: messages are admitted by the rules of `penstock.policy` and inserted in one commit.

Duplicates are recognised by a mark: of the content, of a key, or of a sender's token for a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock import policy
from penstock.errors import BadMessage
from penstock.message import Draft, Entry, Sent, Settings
from penstock.queue.opened import OpenQueue


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
        sent = queue.stored.insert(policy.admit_all((body,), known, now), now, known)
        if sent is None:
            return None
        self._sent(now)
        return sent[0]

    def send_many(self, batch: Sequence[Draft | bytes], token: str | None, connection: object) -> list[Sent]:
        if len(batch) > policy.MAX_BATCH:
            raise BadMessage(f"there are {len(batch)} messages in one batch, the limit is {policy.MAX_BATCH}")
        if not batch:
            return []
        now = self._queue.clock()
        if connection is not None:
            with self._queue.joining(connection) as joined:
                return _insert(joined, batch, token, now)
        sent = _insert(self._queue, batch, token, now)
        self._sent(now)
        return sent

    def send_once(self, drafts: Sequence[Draft | bytes], token: str) -> None:
        queue = self._queue
        settings = queue.known or queue.read_settings()
        if not queue.store.atomic or settings.deduplicate is not False or len(drafts) < 2:
            self.send_many(drafts, token, None)
            return
        now = queue.clock()
        while not self._insert_once(drafts, token, now, settings):
            settings = queue.read_settings()
            if settings.deduplicate is not False:
                self.send_many(drafts, token, None)
                return
        self._sent(now)

    def _insert_once(self, drafts: Sequence[Draft | bytes], token: str, now: int, settings: Settings) -> bool:
        """Returns False, and changes nothing, if these are no longer the queue's settings."""
        entries = policy.admit_all(drafts, settings, now)
        with self._queue.store.batch():
            first = self._queue.stored.insert(policy.mark_batch(entries[:1], token, now), now, settings)
            if first is None:
                return False
            if not first[0].duplicate:
                others = self._queue.stored.insert(entries[1:], now, settings)
                assert others is not None  # after the first insert, nobody else can change the settings
        return True

    def _sent(self, now: int) -> None:
        self._queue.tell()
        if now >= self._queue.retention.due_at:
            self._queue.tend()


def _insert(queue: OpenQueue, batch: Sequence[Draft | bytes], token: str | None, now: int) -> list[Sent]:
    settings = queue.known or queue.read_settings()
    while (sent := queue.stored.insert(_admit(batch, settings, token, now), now, settings)) is None:
        settings = queue.read_settings()  # the settings have changed: retry with the new ones
    # A message sent twice with one token is not a duplicate by the queue's own rule.
    return sent if token is None or settings.deduplicate is not False else [Sent(one.id) for one in sent]


def _admit(batch: Sequence[Draft | bytes], settings: Settings, token: str | None, now: int) -> list[Entry]:
    entries = policy.admit_all(batch, settings, now)
    return entries if token is None or settings.deduplicate is not False else policy.mark_batch(entries, token, now)
