"""A schedule: what is sent, where and when, and what a program may say of it; and the message that keeps it.

The message has the body, the content type and the attributes that the schedule sends. All the rest is in one more attribute,
`DEFINITION`, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

from penstock import policy
from penstock.errors import BadInput, BadMessage, BadName
from penstock.message import SECOND, Draft, Message
from penstock.schedules.times import Times, check_times, find_times

SKIP, ONCE, ALL = "skip", "once", "all"
MISSED = (SKIP, ONCE, ALL)
MOST_MISSED = 1000
"""Messages that are sent for what was missed, at most: for the last instants."""
LATE = 60
"""Seconds after which an instant is missed, for a schedule that skips those."""
SET_BACK = 3 * 3600
"""Seconds by which a clock may be set back so that nothing is sent until it shows the old time again. (Debian's cron, too.)"""
LONGEST_NAME = 100
LARGEST_DRAFT = 64 * 1024
"""Bytes of the body and the attributes that a schedule sends."""
OWN = "penstock."
"""How the names of our own attributes begin."""
DEFINITION, NAME, DUE_AT = f"{OWN}definition", f"{OWN}schedule", f"{OWN}due_at"
WHOLE = ("body", "content_type", "attributes")
"""The fields of a draft that the message has as its own."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Sends a message to a queue, again and again.

    draft      what is sent
    cron       when: five fields, by the clock of the time ``zone``
    every      or: every so many seconds
    missed     what happens when nobody could send it at its time: skip, once (one message for all that was missed) or all
    paused     nothing is sent
    next_at    when it is sent next; None: never
    last_at    the last instant for which it was sent
    runs       how many messages it has sent
    """

    name: str
    queue: str
    draft: Draft
    cron: str | None = None
    every: float | None = None
    zone: str = "UTC"
    missed: str = ONCE
    paused: bool = False
    next_at: int | None = None
    last_at: int | None = None
    runs: int = 0


CHANGEABLE = tuple(each.name for each in fields(Schedule) if each.name not in ("name", "draft", "next_at", "last_at", "runs"))
RULE = ("cron", "every", "zone", "paused")
"""What decides when a schedule is due. If it changes, what was due before does not count."""


def check_schedule_name(name: object) -> str:
    checked = policy.check_name(name, "schedule name")
    if len(checked) > LONGEST_NAME:
        raise BadName(f"schedule name {checked[:80] + '…'!r} has {len(checked)} characters, the limit is {LONGEST_NAME}")
    return checked


def check_schedule(schedule: Schedule) -> Schedule:
    """Everything that can be checked without looking at the queue."""
    check_schedule_name(schedule.name)
    policy.check_name(schedule.queue)
    check_times(schedule.cron, schedule.every, schedule.zone)
    if schedule.missed not in MISSED:
        raise BadInput(f"missed {schedule.missed!r:.80} is not one of {', '.join(MISSED)}")
    if not isinstance(schedule.paused, bool):
        raise BadInput(f"paused must be True or False, not {policy.shown(schedule.paused)}")
    draft = schedule.draft
    if isinstance(draft.deadline, datetime):
        raise BadMessage("the deadline of a schedule's messages is in seconds from when each is sent, not an instant")
    if isinstance(draft.key, bytes):
        raise BadMessage("the key of a schedule's messages is text, not bytes")
    if measure(draft) > LARGEST_DRAFT:
        raise BadMessage(
            f"the body and the attributes have {measure(draft)} bytes together, the limit for a schedule is {LARGEST_DRAFT}"
        )
    for name in draft.attributes if isinstance(draft.attributes, Mapping) else ():
        if isinstance(name, str) and name.startswith(OWN):
            raise BadMessage(f"attribute {name!r:.80}: names that begin with {OWN!r} are for what a schedule adds itself")
    return schedule


def measure(draft: Draft) -> int:
    """Bytes of its body and its attributes, also before these are checked."""
    pairs = draft.attributes.items() if isinstance(draft.attributes, Mapping) else ()
    texts = [text.encode(errors="replace") if isinstance(text, str) else text for pair in pairs for text in pair]
    return sum(len(text) for text in (draft.body, *texts) if isinstance(text, bytes))


def change(schedule: Schedule, changes: Mapping[str, Any]) -> Schedule:
    """Apply changes as a caller writes them. A new ``cron`` takes the place of ``every``, and the other way round."""
    for name in changes:
        if name not in (*CHANGEABLE, "body"):
            raise BadInput(
                f"a schedule has no {name!r:.80} that could be changed; there are {', '.join((*CHANGEABLE, 'body'))}"
            )
    changed = {name: value for name, value in changes.items() if name != "body"}
    for name, other in (("cron", "every"), ("every", "cron")):
        if changed.get(name) is not None:
            changed.setdefault(other, None)
    if "body" in changes:
        changed["draft"] = as_draft(changes["body"])
    return check_schedule(replace(schedule, **changed))


def as_draft(body: object) -> Draft:
    return body if isinstance(body, Draft) else Draft(body)  # type: ignore[arg-type]  # what it is, `policy.admit` checks


@dataclass(frozen=True, slots=True)
class KeptSchedule:
    """A schedule as its message has it."""

    schedule: Schedule
    since: int
    """When this rule was made. Seconds are counted from here."""
    revision: str
    """Names this version of it: the ledger says which one counts."""

    @property
    def times(self) -> Times:
        schedule = self.schedule
        return find_times(schedule.cron, schedule.every, schedule.zone, self.since)

    def pack(self, delay: float) -> Draft:
        schedule = self.schedule
        draft = schedule.draft
        told = {name: getattr(schedule, name) for name in ("name", *CHANGEABLE)}
        told |= {"since": self.since, "revision": self.revision, "options": _options(draft)}
        attributes = {**draft.attributes, DEFINITION: json.dumps(told, ensure_ascii=False)}
        return Draft(draft.body, draft.content_type, attributes, delay=delay)


def _options(draft: Draft) -> dict[str, Any]:
    """The fields of a draft that are set, and that a message has not as its own."""
    found = {}
    for each in fields(Draft):
        default = each.default if each.default is not MISSING else None
        if each.name not in WHOLE and getattr(draft, each.name) != default:
            found[each.name] = getattr(draft, each.name)
    retry = policy.check_retry(draft.retry)
    if retry is not None:
        found["retry"] = asdict(retry)
    return found


def read_kept(message: Message) -> KeptSchedule | None:
    """The schedule that a message keeps; None if another program has written it, or a newer Penstock."""
    attributes = dict(message.attributes)
    try:
        told = json.loads(attributes.pop(DEFINITION))  # type: ignore[arg-type]
        options, since, revision = told.pop("options"), told.pop("since"), told.pop("revision")
        if "retry" in options:
            options["retry"] = policy.check_retry(options["retry"])
        draft = Draft(message.body, message.content_type, attributes, **options)
        schedule = Schedule(draft=draft, **told)
        texts = (schedule.name, schedule.queue, schedule.zone, schedule.cron or "", revision)
        fits = all(isinstance(text, str) for text in texts) and isinstance(schedule.every, int | float | None)
        if not fits or type(since) is not int or schedule.missed not in MISSED or type(schedule.paused) is not bool:
            return None
        check_schedule_name(schedule.name)
        policy.check_name(schedule.queue)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    return KeptSchedule(schedule, since, revision)


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """What the ledger knows of a schedule. It survives changes of the schedule."""

    revision: str | None = None
    """The version that counts; empty: it was removed. None: nothing is known, and any version counts."""
    after: int | None = None
    """Instants after this one are due."""
    last_at: int | None = None
    runs: int = 0

    def pack(self) -> tuple[int, str]:
        return self.runs, " ".join("" if value is None else str(value) for value in (self.after, self.last_at, self.revision))


def read_record(noted: tuple[int, str | None] | None) -> ScheduleRecord:
    if noted is None:
        return ScheduleRecord()
    runs, text = noted
    try:
        after, last, revision = (text or "").split(" ")
        return ScheduleRecord(revision, int(after) if after else None, int(last) if last else None, runs)
    except ValueError:
        return ScheduleRecord()


def find_after(record: ScheduleRecord, since: int, now: int) -> int:
    """The instant after which a schedule is due. ``since``: from when on it is one."""
    if record.after is None:  # the store has lost the record: what was due long ago was sent, most likely
        return max(min(since, now), now - LATE * SECOND)
    # Nothing is sent twice after the clock was set back; but if it was far ahead before, all that counts is the time now.
    return record.after if record.after <= now + SET_BACK * SECOND else now


def choose(times: Times, missed: str, after: int, now: int) -> tuple[list[int], int]:
    """The instants for which a message is to be sent, and the instant after which others are due then."""
    due = times.last(after, now, MOST_MISSED if missed == ALL else 1)
    if not due:
        return [], after
    late = missed == SKIP and due[-1] < now - LATE * SECOND
    return [] if late else due, due[-1]
