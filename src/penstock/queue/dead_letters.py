"""Dead letters: messages that were received too often move to another queue, and `redrive` sends them back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from penstock import policy
from penstock.errors import BadInput, QueueNotFound
from penstock.message import Death, Held, Message, Moved, Redriven, Settings, State, micros, weigh
from penstock.queue.bulk import IsWanted
from penstock.queue.opened import OpenQueue
from penstock.stores.ports import START, Store
from penstock.stores.requests import Moving

logger = logging.getLogger("penstock")
REDRIVE_BATCH = 500


class RedrivenPart(NamedTuple):
    """What one part of a redrive has done."""

    moved: int
    gone: list[str | None]
    """The queues where letters that stay have died, and which are gone; None: such a letter did not die in a queue."""
    after: tuple[int, int] | None
    """The place after which the next part begins; None: there was nothing any more."""
    weight: int
    """Bytes of the messages that it has looked at."""
    looked: int
    stayed: int
    """Those that were to be moved and could not: their queue is gone, or it has an equal message and takes such once."""


def check_dead_letter_queue(store: Store, name: str, settings: Settings) -> None:
    """In a batch: raises an error unless the dead letter queue of these settings exists, and will until the batch ends."""
    if settings.redrive is None:
        return
    target = settings.redrive.dead_letter_queue
    if target == name:
        raise BadInput(f"queue {name!r} cannot be its own dead letter queue")
    store.reserve(target)
    if store.load(target) is None:
        raise QueueNotFound(target)


class DeadLetters:
    """Moves messages of one queue to its dead letter queue, and dead letters back to where they died."""

    def __init__(self, queue: OpenQueue) -> None:
        self._queue = queue

    def bury(self, message: Message, settings: Settings, reason: str, now: int) -> bool:
        """Move a message to the dead letter queue. Returns False if that queue does not exist any more."""
        assert settings.redrive is not None
        target = settings.redrive.dead_letter_queue
        beyond = self._queue.store.load(target)
        if beyond is None:
            return False
        death = Death(self._queue.name, reason, message.receives - 1, now)
        self._queue.stored.move([message], Moving(target, now, now + micros(beyond.retention), death, policy.readmit))
        return True

    def give_up(self, held: Held, reason: str) -> bool:
        """Move a message to the dead letter queue or, where there is none, settle it as failed. Returns False if the receipt is
        stale."""
        queue = self._queue
        with queue.store.batch():
            settings, now = queue.read_settings(), queue.clock()
            target = settings.redrive.dead_letter_queue if settings.redrive else None
            beyond = None if target is None else queue.store.load(target)
            if target is None or beyond is None:
                done = queue.settle([held], settings, State.FAILED, reason, now)[0]
            else:
                death = Death(queue.name, reason, policy.AS_COUNTED, now)
                moving = Moving(target, now, now + micros(beyond.retention), death, policy.readmit)
                done = queue.stored.move([held], moving)[0] is Moved.DONE
        queue.tell(settings)
        return done

    def redrive(
        self, limit: int | None, to: str | None, ids: set[str] | None, since_at: int | None, allow: Callable[[str], bool]
    ) -> Redriven:
        self._check_target(to)
        redrive = _Redrive(self._queue, limit, to, ids, allow)
        start = START if since_at is None else (since_at - 1, 0)
        before = -1
        # In a queue with groups, a letter that leaves frees the next of its group, which may come before those already seen.
        while before < redrive.moved and (before < 0 or self._queue.read_settings().groups):
            before = redrive.moved
            redrive.go_through(start)
        return redrive.answer()

    def redrive_part(self, limit: int, to: str | None, came_by: int, after: tuple[int, int], wanted: IsWanted) -> RedrivenPart:
        """Of the first ``limit`` visible messages after a place, redrive those that came by an instant and are wanted."""
        self._check_target(to)
        redrive = _Redrive(self._queue, limit, to, None)
        with self._queue.store.batch():
            page = redrive.visible(after, limit)
            now = self._queue.clock()
            chosen = [message for message in page if policy.came_at(message) <= came_by and wanted(message, now)]
            redrive.move(chosen, limit)
        self._queue.waiting.notify(self._queue.name, *redrive.targets)
        last = page[-1].place if page else None
        return RedrivenPart(redrive.moved, list(redrive.gone), last, sum(map(weigh, page)), len(page), redrive.stayed)

    def _check_target(self, to: str | None) -> None:
        if to is not None and self._queue.store.load(policy.check_name(to)) is None:
            raise QueueNotFound(to)
        if to == self._queue.name:
            raise BadInput(f"queue {to!r} cannot be redriven to itself")


class _Redrive:
    """One call of `DeadLetters.redrive`. Owns what is left to do, and the tally."""

    def __init__(
        self,
        queue: OpenQueue,
        limit: int | None,
        to: str | None,
        ids: set[str] | None,
        allow: Callable[[str], bool] = lambda _queue: True,
    ) -> None:
        """``allow``: whether letters may go back to this queue; the others stay, as those do that name none."""
        self._queue = queue
        self._allow = allow
        self._limit = limit
        self._to = to
        self._left = ids
        self._tally: Counter[Moved] = Counter()
        self.gone: Counter[str | None] = Counter()
        """How many letters stay because their queue, by its name, is gone."""
        self.targets: set[str] = set()
        """The queues to which letters were moved."""
        self._seen: set[str] = set()

    @property
    def moved(self) -> int:
        return self._tally[Moved.DONE]

    @property
    def stayed(self) -> int:
        return self._tally[Moved.DUPLICATE] + sum(self.gone.values())

    def go_through(self, place: tuple[int, int]) -> None:
        """Go once through all visible messages from this position on, and redrive those that were not seen before."""
        queue, left = self._queue, self._left
        while (self._limit is None or self.moved < self._limit) and (left is None or left):
            page = self.visible(place)
            if left is None or not left.isdisjoint(message.id for message in page):  # otherwise the write lock is not needed
                with queue.store.batch():
                    page = self.visible(place)
                    chosen = [message for message in page if self._is_wanted(message)]
                    self.move(chosen, len(chosen) if self._limit is None else self._limit - self.moved)
                if left is not None:
                    left.difference_update(message.id for message in chosen)
                if queue.read_settings().groups:
                    self._seen.update(message.id for message in chosen)
                queue.waiting.notify()
            if not page:
                break
            place = (page[-1].visible_at, page[-1].number)

    def answer(self) -> Redriven:
        name, duplicates = self._queue.name, self._tally[Moved.DUPLICATE]
        for target, count in self.gone.items():
            if target is not None:
                logger.warning("%d dead letters stay in queue %r: queue %r, where they died, is gone", count, name, target)
        if duplicates:
            logger.warning(
                "%d dead letters stay in queue %r: their queue deduplicates and already has an equal message", duplicates, name
            )
        return Redriven(self.moved, duplicates, sum(self.gone.values()))

    def _is_wanted(self, message: Message) -> bool:
        return (self._left is None or message.id in self._left) and message.id not in self._seen

    def visible(self, after: tuple[int, int], limit: int = REDRIVE_BATCH) -> list[Message]:
        return self._queue.stored.browse(limit, now=self._queue.clock(), after=after)

    def move(self, page: list[Message], most: int) -> None:
        """Move up to ``most`` of these messages. One that stays does not count; another is tried instead."""
        now = self._queue.clock()
        beyond: dict[str, Settings | None] = {}
        known: list[tuple[str, Message]] = []
        for message in page:
            target = self._to or (message.death.queue if message.death and self._allow(message.death.queue) else None)
            if target is not None and target not in beyond:
                beyond[target] = self._queue.store.load(target)
            if target is None or beyond[target] is None:
                self.gone[target] += 1
            else:
                known.append((target, message))
        while known and most > 0:
            part, known = known[:most], known[most:]
            for target in sorted({target for target, _ in part}):
                messages = [message for home, message in part if home == target]
                expires_at = now + micros(beyond[target].retention)  # type: ignore[union-attr]
                moving = Moving(target, now, expires_at, None, policy.readmit)
                moved = Counter(self._queue.stored.move(messages, moving))
                self.targets.add(target)
                most -= moved[Moved.DONE]
                self._tally.update(moved)
