"""Move tasks as the store keeps them.

    label sqs.move.ID of the source    what ListMessageMoveTasks shows: status, counts, and what the task is to do
    message in the queue `MOVES`       the right to work on the task; a server that works on it hides it

Both say what the task is to do, and only a task for which they agree is done: the label shows that its writer may change the
source, the message that this server, or another one of this store, has checked the rights of the caller.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.broker import LocalBroker
from penstock.message import MAX_NUMBER, Message, Settings
from penstock.queue.queue import LocalQueue

MOVES = "penstock.moves"
"""No queue of SQS can have this name."""
LABEL = "sqs.move."
LEASE = 5.0
"""Seconds for which a server has a task. If it dies, another one goes on when they are over."""
KEPT = 10
"""Tasks that a source keeps, with the one that runs."""
MOST_ACTIVE = 10_000
RUNNING, COMPLETED, CANCELLING, CANCELLED, FAILED = "RUNNING", "COMPLETED", "CANCELLING", "CANCELLED", "FAILED"
LOST = "The task was lost: another program has removed it from the queue of tasks."


@dataclass(frozen=True, slots=True)
class Plan:
    """What a task is to do."""

    id: str
    source: str
    to: str | None
    """None: each message goes to the queue where it died."""
    rate: int | None
    """Messages in a second, at most."""

    def pack(self) -> bytes:
        return json.dumps(asdict(self)).encode()


@dataclass(frozen=True, slots=True)
class MoveTask:
    plan: Plan
    started_at: int
    """By the store's clock. Messages that came later are not moved."""
    total: int
    status: str = RUNNING
    moved: int = 0
    reason: str = ""

    @property
    def is_active(self) -> bool:
        return self.status in (RUNNING, CANCELLING)

    def pack(self) -> str:
        return json.dumps(asdict(self))


def read_plan(message: Message) -> Plan | None:
    """What a message in `MOVES` asks for; None if it is not one of ours."""
    try:
        return Plan(**json.loads(message.body))
    except (ValueError, TypeError, RecursionError):
        return None


def read_task(text: str) -> MoveTask | None:
    """A task from its label; None if another program has written it."""
    try:
        given = json.loads(text)
        return MoveTask(**{**given, "plan": Plan(**given["plan"])})
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def tasks_of(settings: Settings) -> list[MoveTask]:
    """The tasks of a source, the last one first."""
    texts = (text for name, text in settings.labels.items() if name.startswith(LABEL))
    found = [task for task in map(read_task, texts) if task is not None]
    return sorted(found, key=lambda task: task.started_at, reverse=True)


class MoveBook:
    """Reads and writes the tasks of a store. Its methods are called where the store may be used."""

    def __init__(self, broker: LocalBroker) -> None:
        self._broker = broker

    def begin(self, source: str, to: str | None, rate: int | None) -> MoveTask | None:
        """A new task; None if another one is active."""
        broker = self._broker
        moves = self._open()
        with broker.waiting.told(), broker.store.batch():
            broker.store.reserve(source)
            home = broker.queue(source)
            tasks = tasks_of(home.settings)
            if any(task.is_active and not self._is_lost(task) for task in tasks):
                return None
            stats = home.stats()
            plan = Plan(str(uuid.uuid4()), source, to, rate)
            started_at = max([broker.clock(), *(task.started_at + 1 for task in tasks)])  # a later task comes first in lists
            task = MoveTask(plan, started_at, stats.visible + stats.blocked)
            # First the label: where a batch is no transaction, a server would drop a message without one.
            old: dict[str, str | None] = {LABEL + old.plan.id: None for old in tasks[KEPT - 1 :]}
            lost: dict[str, str | None] = {LABEL + old.plan.id: _lose(old).pack() for old in tasks if old.is_active}
            home.update(labels={**lost, **old, LABEL + plan.id: task.pack()})
            moves.send(plan.pack())
        return task

    def _open(self) -> LocalQueue:
        if self._broker.store.load(MOVES) is None:
            return self._broker.create(MOVES, exist_ok=True, visibility=LEASE, retention=MAX_NUMBER)
        return self._broker.queue(MOVES)

    def tasks(self, source: str) -> list[MoveTask]:
        tasks = tasks_of(self._broker.queue(source).settings)
        return [_lose(task) if task.is_active and self._is_lost(task) else task for task in tasks]

    def find(self, plan: Plan) -> MoveTask | None:
        """The task that is to do this; None if it is gone, or to do something else."""
        settings = self._broker.store.load(plan.source)
        text = None if settings is None else settings.labels.get(LABEL + plan.id)
        task = None if text is None else read_task(text)
        return task if task is not None and task.plan == plan else None

    def cancel(self, source: str, id: str) -> MoveTask | None:
        """Have a task end before its next part. Returns the task as it was; None if there is none."""
        store = self._broker.store
        with store.batch():
            store.reserve(source)
            task = next((task for task in self.tasks(source) if task.plan.id == id), None)
            if task is not None and task.status == RUNNING:
                self._write(replace(task, status=CANCELLING))
        return task

    def note(self, plan: Plan, **changes: Any) -> None:
        """Change what is shown of a task that is active. Whether it is to be cancelled, others decide: a server that notes its
        progress must not undo that."""
        store = self._broker.store
        with store.batch():
            store.reserve(plan.source)
            task = self.find(plan)
            if task is not None and task.is_active:
                self._write(replace(task, **changes))

    def _write(self, task: MoveTask) -> None:
        self._broker.queue(task.plan.source).update(labels={LABEL + task.plan.id: task.pack()})

    def _is_lost(self, task: MoveTask) -> bool:
        """Whether nobody can work on an active task any more: a program has deleted its message, or its server was killed
        before it had sent it."""
        if self._broker.store.load(MOVES) is None:
            return True
        return all(read_plan(message) != task.plan for message in self._broker.queue(MOVES).peek(MOST_ACTIVE))


def _lose(task: MoveTask) -> MoveTask:
    return replace(task, status=FAILED, reason=LOST)
