"""What the settings of a queue say about its messages.

What the core has no word for is in the queue's labels. A sender or a receiver does not ask the store for them: like the core,
it acts on the settings as last read, which another server may have changed a moment ago.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from penstock.errors import QueueNotFound
from penstock.message import Settings, micros
from penstock.server.dialects.base import Core

LONGEST_MESSAGE = 1024 * 1024
WINDOW = 300
"""Seconds for which a FIFO queue knows a deduplication id."""
SCOPE = "sqs.DeduplicationScope"
SCOPE_BEFORE = "sqs.DeduplicationScope.before"
"""The scope before the last change, and the instant until which it counts."""
BY_QUEUE, BY_GROUP = "queue", "messageGroup"
MOST_KNOWN = 10_000


class Rules(NamedTuple):
    fifo: bool = False
    deduplicates: bool = False
    by_content: bool = False
    longest: int = LONGEST_MESSAGE
    wait: int = 0
    """Seconds that a receiver waits if it does not say."""
    scope: str = BY_QUEUE
    scope_before: str = BY_QUEUE
    scope_since: int = 0

    def key(self, group: str, deduplication: str, now: int) -> tuple[bytes, bool]:
        """What makes messages equal to the core, and whether it tells the deduplication id."""
        scope = self.scope if now >= self.scope_since else self.scope_before
        if scope == BY_QUEUE:
            return deduplication.encode(), True
        return b"\0" + hashlib.sha256(f"{group}\0{deduplication}".encode()).digest(), False


def read_rules(settings: Settings) -> Rules:
    labels = settings.labels
    before, _, since = labels.get(SCOPE_BEFORE, "").partition(" ")
    return Rules(
        fifo=settings.groups,
        deduplicates=settings.groups and settings.deduplicate is not False,
        by_content=labels.get("sqs.ContentBasedDeduplication") == "true",
        longest=min(_whole(labels, "sqs.MaximumMessageSize", LONGEST_MESSAGE), LONGEST_MESSAGE),
        wait=_whole(labels, "sqs.ReceiveMessageWaitTimeSeconds", 0),
        scope=labels.get(SCOPE, BY_QUEUE),
        scope_before=before or BY_QUEUE,
        scope_since=int(since) if since.isascii() and since.isdecimal() else 0,
    )


def _whole(labels: Mapping[str, str], name: str, default: int) -> int:
    text = labels.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else default


def change_scope(settings: Settings, scope: str, now: int) -> dict[str, str]:
    """The labels of a queue whose DeduplicationScope changes. As at AWS, ids that were sent under the old scope still count:
    until they are forgotten, the old scope does."""
    old = settings.labels.get(SCOPE, BY_QUEUE)
    if old == scope:
        return {SCOPE: scope}
    rules = read_rules(settings)
    before = old if now >= rules.scope_since else rules.scope_before
    return {SCOPE: scope, SCOPE_BEFORE: f"{before} {now + micros(WINDOW)}"}


class Rulebook:
    """The rules of each queue, without a question to the store. Owns them as last read."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._read: dict[str, tuple[Settings, Rules]] = {}

    def known(self, queue: str) -> Rules | None:
        """The rules of a queue, if its settings were read before."""
        settings = self._core.commits.known(queue)
        return None if settings is None else self._read_once(queue, settings)

    async def load(self, queue: str) -> Rules:
        """The rules of a queue that is not known."""
        settings = await self._core.look(f"settings of {queue}", lambda: self._load(queue))
        return self._read_once(queue, settings)

    def _read_once(self, queue: str, settings: Settings) -> Rules:
        found = self._read.get(queue)
        if found is not None and found[0] is settings:
            return found[1]
        if len(self._read) >= MOST_KNOWN:
            self._read.clear()
        rules = read_rules(settings)
        self._read[queue] = settings, rules
        return rules

    def _load(self, queue: str) -> Settings:
        try:
            return self._core.commits.queue(queue).settings
        except QueueNotFound:
            self._core.commits.forget(queue)
            raise
