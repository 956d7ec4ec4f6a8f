"""What a job is to do, and what is known of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from penstock.errors import BadInput
from penstock.message import Message, Stats
from penstock.server.jobs.filters import MessageFilter, read_filter


class Action(StrEnum):
    DELETE = "delete"
    RELEASE = "release"
    MOVE = "move"
    REDRIVE = "redrive"


RUNNING, COMPLETED, CANCELLING, CANCELLED, FAILED = "running", "completed", "cancelling", "cancelled", "failed"
LOST = "The task was lost: another program has removed it from the queue of tasks."
NO_QUEUE = "A queue to which messages were to go does not exist."
NO_SOURCE = "A message did not die in a queue, so that there is none to which it could go back."
SHOWN = 100
"""Characters of a text, and ids, that are shown of a filter."""


@dataclass(frozen=True, slots=True)
class Plan:
    id: str
    queue: str
    action: str
    filter: dict[str, Any] = field(default_factory=dict)
    to: str | None = None
    """None: each message goes to the queue where it died."""
    rate: int | None = None
    """Messages in a second, at most."""
    by: str = ""
    """The name of the token with which it was started."""

    def pack(self) -> bytes:
        return json.dumps({each.name: getattr(self, each.name) for each in fields(self)}, sort_keys=True).encode()

    @property
    def proof(self) -> str:
        return hashlib.sha256(self.pack()).hexdigest()

    @property
    def wanted(self) -> MessageFilter:
        return read_filter(self.filter)


def read_plan(message: Message) -> Plan | None:
    """What a message in the queue of jobs asks for; None if it is not one of ours."""
    try:
        plan = Plan(**json.loads(message.body))
        Action(plan.action)
        read_filter(plan.filter)
        if not _are(str, plan.id, plan.queue, plan.by, plan.to or "") or (plan.rate is not None and plan.rate < 1):
            return None
    except (ValueError, TypeError, AttributeError, RecursionError, BadInput):
        return None
    return plan


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its queue shows it."""

    id: str
    queue: str
    proof: str
    """Of the plan."""
    action: str
    filter: dict[str, Any]
    """Shortened, for people."""
    to: str | None
    rate: int | None
    by: str
    started_at: int
    """By the store's clock. Messages that came later are not touched."""
    messages: int
    """In the queue when it was started."""
    total: int | None
    """Of these, how many it is to change; None if nobody has counted them."""
    status: str = RUNNING
    done: int = 0
    stayed: int = 0
    """Messages that it could not move."""
    scanned: int = 0
    next: int = 0
    """The number of the message at which it goes on."""
    reason: str = ""

    @property
    def is_active(self) -> bool:
        return self.status in (RUNNING, CANCELLING)

    @property
    def moves_all(self) -> bool:
        """As the move tasks of SQS do."""
        return self.action in (Action.MOVE, Action.REDRIVE) and not self.filter

    def pack(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def read_job(text: str) -> Job | None:
    """A job from its label; None if another program has written it."""
    try:
        job = Job(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = (job.id, job.queue, job.proof, job.action, job.by, job.status, job.reason, job.to or "")
    numbers = (job.started_at, job.messages, job.total or 0, job.rate or 0, job.done, job.stayed, job.scanned, job.next)
    return job if _are(str, *texts) and _are(int, *numbers) and isinstance(job.filter, dict) else None


def _are(kind: type, *values: object) -> bool:
    return all(isinstance(value, kind) for value in values)


def shorten(filter: dict[str, Any]) -> dict[str, Any]:
    """A filter as a label has room for it."""
    shown = dict(filter)
    for name, value in filter.items():
        if isinstance(value, str | list) and len(value) > SHOWN:
            shown[name] = value[:SHOWN]
        elif isinstance(value, dict) and len(json.dumps(value)) > SHOWN:
            shown[name] = json.dumps(value)[:SHOWN]
    return shown


def expect(plan: Plan, stats: Stats) -> int | None:
    """How many messages a plan is about, if that is known without looking at each."""
    wanted = plan.wanted
    if wanted.ids is not None:
        return len(wanted.ids)
    if wanted.pack().keys() - {"state"}:
        return None
    by_state = {"visible": stats.visible, "blocked": stats.blocked, "in_flight": stats.in_flight, "delayed": stats.delayed}
    touched = {
        Action.DELETE: {**by_state, "damaged": stats.damaged},
        Action.RELEASE: {"in_flight": stats.in_flight},
    }.get(Action(plan.action), {"visible": stats.visible, "blocked": stats.blocked})
    return sum(touched.values()) if wanted.state is None else touched.get(wanted.state, 0)
