"""The schedules of a store.

    message in the queue `SCHEDULES`   the schedule; it is hidden until it is due (or for years, if it is paused)
    ledger: writer "schedule:NAME"     which version of it counts, up to which instant it has sent, how many messages

A process that finds a visible message claims it, for `LEASE` seconds, and then takes the lock that the ledger has for each
writer. What it does there is a publication: the messages that are due, and the record that they were sent. So each is sent
once, by the same means as a batch of Spark, whoever is killed meanwhile (see `penstock.publishing`). If a process dies, the
claim lapses, and another one does what the record says is left.

Changes take the same lock. A change sends the new version, names it in the record, and then deletes the old one. What a process
that was killed in between has left behind is a version that does not count: whoever claims it deletes it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from threading import Event
from typing import Any

from penstock import policy
from penstock.clock import STEP, Clock, MachineClock
from penstock.errors import BadInput, MissingExtra, QueueNotFound, ScheduleNotFound, Unsupported
from penstock.message import FOREVER, MAX_NUMBER, SECOND, Draft, Message, Settings, State, micros
from penstock.queue.queue import LocalQueue
from penstock.queue.waiting import Waiting
from penstock.schedules.schedule import (
    DUE_AT,
    NAME,
    RULE,
    KeptSchedule,
    Schedule,
    ScheduleRecord,
    change,
    check_schedule,
    check_schedule_name,
    choose,
    find_after,
    read_kept,
    read_record,
)
from penstock.stores.ports import Published, Store

logger = logging.getLogger("penstock")

SCHEDULES = "penstock.schedules"
LEASE = 5.0
"""Seconds for which a process has a schedule. If it dies, another one goes on when they are over."""
MOST = 1000
"""Schedules of a store."""
PART = 16
"""Messages that are read at once."""
PIECE = 100
"""Messages that a schedule sends at a time. If more were missed, others get their turns in between."""
AGAIN = 3600.0
"""Seconds until a schedule is tried again that this process does not understand."""
REMEMBERED = 7 * 86400
"""Seconds for which a schedule that was removed has a record, for what a killed process may have left of it."""
NEAR = SECOND
"""Microseconds by which a schedule may be late because the clock was set."""

Allow = Callable[[Schedule | None, Schedule | None], object]
"""Raises an error if this schedule may not become that one."""
SETTINGS = Settings(visibility=LEASE, retention=MAX_NUMBER)


def anything(_before: Schedule | None, _after: Schedule | None) -> None:
    """May be done."""


class ScheduleBook:
    """Reads, changes and runs the schedules of a store, which keeps all that is known of them."""

    def __init__(self, store: Store, waiting: Waiting, clock: Clock, queue: Callable[[str], LocalQueue]) -> None:
        """``queue`` finds a queue of this store, which exists."""
        self._store = store
        self._ledger = store.outbox.ledger
        self._waiting = waiting
        self._clock = clock
        self._queue = queue
        self.begun = Event()
        """Set when this process makes the first schedule of the store."""
        self.sent: Callable[[str, int], object] = lambda _queue, _count: None
        """Called with how many messages were sent to a queue."""

    @property
    def exists(self) -> bool:
        return self._store.load(SCHEDULES) is not None

    def ahead(self) -> int:
        """How many microseconds the wall clock is ahead of the store's clock. Cron means the wall clock, and seconds are those
        of the store's clock, which does not step. (A database server's clock is its wall clock.)"""
        found = self._clock.difference() if isinstance(self._clock, MachineClock) else 0
        return found if abs(found) > STEP else 0

    def now(self, schedule: Schedule) -> int:
        """On the clock that its rule means."""
        return self._clock() + (0 if schedule.cron is None else self.ahead())

    # what users do

    def put(self, schedule: Schedule, allow: Allow = anything) -> Schedule:
        """Make a schedule, or change it to this. One that is the same stays as it is, and one that is paused stays so."""
        check_schedule(schedule)
        if not self.exists:
            self._store.save(SCHEDULES, SETTINGS, create=True)  # False: another process was first
            self.begun.set()
        return self._put(schedule.name, lambda known: replace(schedule, paused=known is not None and known.paused), allow)

    def change(self, name: str, changes: Mapping[str, Any], allow: Allow = anything) -> Schedule:
        def changed(known: Schedule | None) -> Schedule:
            if known is None:
                raise ScheduleNotFound(name)
            return change(known, changes)

        check_schedule_name(name)
        if not self.exists:
            raise ScheduleNotFound(name)
        return self._put(name, changed, allow)

    def _put(self, name: str, make: Callable[[Schedule | None], Schedule], allow: Allow) -> Schedule:
        with self._waiting.told(), self._ledger.publishing(writer_of(name)) as noted:
            record, versions = read_record(noted), self._versions(name)
            known = _counting(versions, record)
            before = None if known is None else known.schedule
            wanted = make(before)
            allow(before, wanted)
            schedule = self._admit(wanted)
            now = self.now(schedule)
            if known is not None and schedule == known.schedule:
                return self._show(known, record)
            if known is None and self._store.queue(SCHEDULES).span()[0] >= MOST:
                raise BadInput(f"there are {MOST} schedules already, the limit")
            if known is not None and all(getattr(schedule, part) == getattr(known.schedule, part) for part in RULE):
                since, after = known.since, find_after(record, known.since, now)
            else:
                since = after = now
            if known is None:
                record = ScheduleRecord()
            kept = KeptSchedule(schedule, since, secrets.token_hex(8))
            record = replace(record, revision=kept.revision, after=after)
            self._write(kept, record)
            self._note(name, record)
            self._queue(SCHEDULES).delete_many([message.id for message, _ in versions])
            return self._show(kept, record)

    def _admit(self, schedule: Schedule) -> Schedule:
        """Whether its queue would take its message now."""
        check_schedule(schedule)
        settings, draft = self._queue(schedule.queue).settings, schedule.draft
        (entry,) = policy.admit_all([draft], settings, self._clock())
        plain = replace(draft, body=entry.body, content_type=entry.content_type, attributes=dict(entry.attributes))
        return replace(schedule, draft=plain)

    def _write(self, kept: KeptSchedule, record: ScheduleRecord) -> None:
        """Send the message that keeps it, hidden until it is due."""
        now = self.now(kept.schedule)
        next_at = self._next_at(kept, record, now)
        delay = MAX_NUMBER if next_at is None else min(MAX_NUMBER, max(0, next_at - now) / SECOND)
        self._queue(SCHEDULES).send_many([kept.pack(delay)])

    def _next_at(self, kept: KeptSchedule, record: ScheduleRecord, now: int) -> int | None:
        if kept.schedule.paused:
            return None
        return next(kept.times.after(find_after(record, kept.since, now)), None)

    def _note(self, name: str, record: ScheduleRecord, keep_until: int = FOREVER) -> None:
        self._ledger.note(writer_of(name), Published(*record.pack()), keep_until)

    def remove(self, name: str, allow: Allow = anything) -> Schedule:
        check_schedule_name(name)
        if not self.exists:
            raise ScheduleNotFound(name)
        with self._waiting.told(), self._ledger.publishing(writer_of(name)) as noted:
            record, versions = read_record(noted), self._versions(name)
            known = _counting(versions, record)
            if known is None:
                raise ScheduleNotFound(name)
            allow(known.schedule, None)
            self._queue(SCHEDULES).delete_many([message.id for message, _ in versions])
            self._note(name, replace(record, revision=""), self._clock() + micros(REMEMBERED))
        self._ledger.forget(self._clock())
        return self._show(known, record)

    def schedules(self) -> list[Schedule]:
        """All of them, by name."""
        if not self.exists:
            return []
        found: dict[str, list[tuple[Message, KeptSchedule]]] = {}
        for message, kept in self._all():
            found.setdefault(kept.schedule.name, []).append((message, kept))
        shown: list[Schedule] = []
        for name in sorted(found):
            with self._ledger.publishing(writer_of(name)) as noted:
                record = read_record(noted)
                known = _counting(found[name], record) or _counting(self._versions(name), record)
                if known is not None:
                    shown.append(self._show(known, record))
        return shown

    def _show(self, kept: KeptSchedule, record: ScheduleRecord) -> Schedule:
        try:
            next_at = self._next_at(kept, record, self.now(kept.schedule))
        except (BadInput, MissingExtra):  # it was made by a process that has more time zones, or the library
            next_at = None
        return replace(kept.schedule, next_at=next_at, last_at=record.last_at, runs=record.runs)

    def _versions(self, name: str) -> list[tuple[Message, KeptSchedule]]:
        return [(message, kept) for message, kept in self._all() if kept.schedule.name == name]

    def _all(self) -> Iterator[tuple[Message, KeptSchedule]]:
        stored, start = self._store.queue(SCHEDULES), 0
        while part := stored.scan(start, FOREVER, PART):
            for message in part:
                kept = read_kept(message) if message.intact else None
                if kept is not None:
                    yield message, kept
            start = part[-1].number + 1

    # what schedulers do

    def due_at(self) -> int | None:
        """When, on the store's clock, the first schedule is due."""
        return self._store.queue(SCHEDULES).due()

    def claim(self) -> list[Message]:
        """Some that are due, for `LEASE` seconds: `run` each."""
        return self._queue(SCHEDULES).receive(PART)

    def run(self, message: Message) -> None:
        """Send what is due, and hide the schedule until it is due again."""
        kept = read_kept(message)
        if kept is None:
            self._leave(message, "another program or a newer Penstock has written it")
            return
        name = kept.schedule.name
        with self._waiting.told(), self._ledger.publishing(writer_of(name)) as noted:
            record = read_record(noted)
            if record.revision not in (None, kept.revision):  # it was changed or removed
                self._queue(SCHEDULES).delete(message)
                return
            try:
                until, after = self._send_due(kept, record)
            except (BadInput, MissingExtra) as error:
                self._leave(message, str(error))
                return
            self._store.queue(SCHEDULES).extend([message], until, release=True)
        if after.runs > record.runs:
            self.sent(kept.schedule.queue, after.runs - record.runs)

    def _leave(self, message: Message, why: str) -> None:
        logger.warning("schedule %s cannot be run by this process, which tries again in an hour: %s", message.id, why)
        self._queue(SCHEDULES).release(message, AGAIN)

    def _send_due(self, kept: KeptSchedule, record: ScheduleRecord) -> tuple[int, ScheduleRecord]:
        """Returns until when to hide the schedule, and what is known of it now."""
        schedule, clock = kept.schedule, self._clock()
        hidden = clock + micros(MAX_NUMBER)
        if schedule.paused:
            return hidden, record
        ahead = 0 if schedule.cron is None else self.ahead()
        now = clock + ahead
        due, after = choose(kept.times, schedule.missed, find_after(record, kept.since, now), now)
        for at in due[:PIECE]:
            record = self._send(kept, record, at)
        if len(due) > PIECE:
            return clock, record
        if (record.after, record.revision) != (after, kept.revision):
            record = replace(record, after=after, revision=kept.revision)
            self._note(schedule.name, record)
        next_at = next(kept.times.after(after), None)
        return hidden if next_at is None else min(hidden, next_at - ahead), record

    def _send(self, kept: KeptSchedule, record: ScheduleRecord, at: int) -> ScheduleRecord:
        """Send the message for one instant, and record that."""
        schedule = kept.schedule
        name, queue = schedule.name, schedule.queue
        told = {**schedule.draft.attributes, NAME: name, DUE_AT: at}
        step = (writer_of(name), record.runs, str(at))
        sent = replace(record, revision=kept.revision, after=at, last_at=at, runs=record.runs + 1)
        forget: Callable[[], object] = _do_nothing
        try:
            forget = self._insert(step, queue, replace(schedule.draft, attributes=told))
        except (BadInput, QueueNotFound, Unsupported) as error:
            logger.warning("schedule %r could not send its message: %s", name, error)
            sent = replace(record, revision=kept.revision, after=at)
        self._note(name, sent)
        forget()
        if not self._store.atomic:
            self._store.outbox.staging.unstage(*step[:2])
        if sent.runs > record.runs:
            self._waiting.notify(queue)
        return sent

    def _insert(self, step: tuple[str, int, str], queue: str, draft: Draft) -> Callable[[], object]:
        """Send a message once for this step. Call what this returns when that is recorded."""
        while True:
            settings, now = self._queue(queue).settings, self._clock()
            entries = policy.admit_all([draft], settings, now)
            if self._store.atomic:
                with self._store.batch():  # of its own: the caller goes on after an error
                    sent = self._store.queue(queue).insert(entries, now, settings)
                if sent is not None:
                    return _do_nothing
            else:
                forget = self._ledger.insert_once(step, queue, entries, now, settings)
                if forget is not None:
                    return forget

    def rearrange(self) -> None:
        """Bring forward those that are hidden for too long, because the wall clock was set, or the hours of a time zone."""
        for message, kept in self._all():
            if message.state is State.QUEUED and not kept.schedule.paused:
                with suppress(BadInput, MissingExtra), self._ledger.publishing(writer_of(kept.schedule.name)) as noted:
                    self._bring_forward(message, kept, read_record(noted))

    def _bring_forward(self, message: Message, kept: KeptSchedule, record: ScheduleRecord) -> None:
        now = self.now(kept.schedule)
        next_at = self._next_at(kept, record, now)
        if next_at is None or message.visible_at - self._clock() <= next_at - now + NEAR:
            return
        if record.revision in (None, kept.revision):
            self._write(kept, record)
            self._queue(SCHEDULES).delete_many([message.receipt])  # if it was just claimed, there are two for a while


def writer_of(name: str) -> str:
    """In the ledger. No writer of batches can have this name."""
    return f"schedule:{name}"


def _do_nothing() -> None:
    """There is nothing that a store has to forget."""


def _counting(versions: list[tuple[Message, KeptSchedule]], record: ScheduleRecord) -> KeptSchedule | None:
    """Of the versions of a schedule, the one that counts."""
    return next((kept for _, kept in reversed(versions) if record.revision in (None, kept.revision)), None)
