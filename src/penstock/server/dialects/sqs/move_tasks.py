"""Move tasks: start, list and cancel them. They are jobs that move all messages of a queue, and `server.jobs` does them."""

from __future__ import annotations

import json
import uuid
from base64 import b64decode, b64encode
from typing import Any

from penstock.message import Settings
from penstock.server.dialects.base import Core
from penstock.server.dialects.sqs.call import Call
from penstock.server.dialects.sqs.errors import SqsError, denied, no_queue
from penstock.server.dialects.sqs.names import Names
from penstock.server.http.request_response import Scope
from penstock.server.jobs.book import KEPT
from penstock.server.jobs.plan import NO_QUEUE, NO_SOURCE, RUNNING, Action, Job, Plan

FASTEST = 500
"""Messages in a second, at most."""
LONGEST_HANDLE = 4096
MILLISECOND = 1000
REASONS = {NO_QUEUE: no_queue().code, NO_SOURCE: "CouldNotDetermineMessageSource"}
"""Why a task has failed, in AWS's words. The second is for a message that was sent to the dead letter queue."""


class MoveOperations:
    def __init__(self, core: Core) -> None:
        self.core = core
        self.broker = core.broker
        self.names = Names(core.settings)
        self._jobs = core.jobs

    async def start_message_move_task(self, call: Call) -> dict[str, Any]:
        given = call.given
        source = await self._source(call, given["SourceArn"], Scope.ADMIN)
        if not await self._is_dead_letter_queue(source):
            raise _invalid("Source queue must be configured as a Dead Letter Queue.")
        to = await self._destination(call, source)
        rate = given.get("MaxNumberOfMessagesPerSecond")
        _check_range("MaxNumberOfMessagesPerSecond", rate, FASTEST)
        action = Action.REDRIVE if to is None else Action.MOVE
        plan = Plan(str(uuid.uuid4()), source, action, to=to, rate=rate, by=call.request.grant.name)
        task = await self.core.run(lambda: self._jobs.book.begin(plan, beside=lambda other: not other.moves_all))
        if task is None:
            text = "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
            raise _invalid(text)
        self._jobs.ring()
        return {"TaskHandle": self._handle(task)}

    async def list_message_move_tasks(self, call: Call) -> dict[str, Any]:
        most = call.given.get("MaxResults")
        source = await self._source(call, call.given["SourceArn"], Scope.COUNT)
        _check_range("MaxResults", most, KEPT)
        jobs = await self.core.run(lambda: self._jobs.book.jobs(source))
        tasks = [job for job in jobs if job.moves_all]
        return {"Results": [self._show(call, task) for task in tasks[: 1 if most is None else most]]}

    async def cancel_message_move_task(self, call: Call) -> dict[str, Any]:
        id, arn = _read_handle(call.given["TaskHandle"])
        source = await self._source(call, arn, Scope.ADMIN)
        task = await self.core.run(lambda: self._jobs.book.cancel(source, id))
        if task is None:
            raise SqsError("ResourceNotFoundException", "Task does not exist.")
        if task.status != RUNNING:
            raise _invalid("Only active tasks can be cancelled.")
        self._jobs.ring()
        return {"ApproximateNumberOfMessagesMoved": task.done}

    # the queues of a task

    async def _source(self, call: Call, arn: str, scope: Scope) -> str:
        queue = call.request.queue = self._queue("SourceArn", arn)
        if not call.request.grant.allows(scope, queue):
            raise denied(call.request.grant, call.account, call.operation, arn)
        if await self._load(queue) is None:
            raise _not_found("SourceArn")
        return queue

    async def _destination(self, call: Call, source: str) -> str | None:
        """Each letter names the queue where it died, so a caller must name the destination unless it may change all queues."""
        arn, grant = call.given.get("DestinationArn"), call.request.grant
        if arn is None:
            if not grant.allows_all(Scope.ADMIN):
                raise denied(grant, call.account, call.operation, "*")
            return None
        to = self._queue("DestinationArn", arn)
        if to == source:
            raise _invalid("Source queue arn and destination queue arn cannot be the same.")
        if not grant.allows(Scope.ADMIN, to):
            raise denied(grant, call.account, call.operation, arn)
        settings, own = await self._load(to), await self._load(source)
        if settings is None:
            raise _not_found("DestinationArn")
        if own is not None and own.groups != settings.groups:
            raise _invalid("The source queue and destination queue must be of the same queue type.")
        return to

    def _queue(self, parameter: str, arn: str) -> str:
        queue = self.names.queue_of_arn(arn)
        if queue is not None:
            return queue
        if arn.startswith("arn:") and arn.count(":") == 5:
            raise _not_found(parameter)
        rule = "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        raise _invalid(f"You must use this format to specify the {parameter}: {rule}")

    async def _load(self, queue: str) -> Settings | None:
        return await self.core.look(f"whether there is {queue}", lambda: self.broker.store.load(queue))

    async def _is_dead_letter_queue(self, queue: str) -> bool:
        def points(name: str) -> bool:
            settings = self.broker.store.load(name)
            return settings is not None and settings.redrive is not None and settings.redrive.dead_letter_queue == queue

        names = await self.core.look("all", lambda: self.broker.queues().names)
        return any(await self.core.each(names, points, until=bool))

    # what callers see

    def _handle(self, task: Job) -> str:
        named = {"taskId": task.id, "sourceArn": self.names.arn(task.queue)}
        return b64encode(json.dumps(named).encode()).decode()

    def _show(self, call: Call, task: Job) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "Status": task.status.upper(),
            "SourceArn": self.names.arn(task.queue),
            "ApproximateNumberOfMessagesMoved": task.done,
            "ApproximateNumberOfMessagesToMove": task.total or 0,
            "StartedTimestamp": task.started_at // MILLISECOND,
        }
        if task.status == RUNNING:
            shown["TaskHandle"] = self._handle(task)
        if task.to is not None and call.request.grant.knows(task.to):
            shown["DestinationArn"] = self.names.arn(task.to)
        if task.rate is not None:
            shown["MaxNumberOfMessagesPerSecond"] = task.rate
        if task.reason:
            shown["FailureReason"] = REASONS.get(task.reason, task.reason)
        return shown


def _read_handle(handle: str) -> tuple[str, str]:
    """The id of a task, and the ARN of its source."""
    try:
        named = json.loads(b64decode(handle, validate=True)) if len(handle) <= LONGEST_HANDLE else None
    except (ValueError, RecursionError):
        named = None
    match named:
        case {"taskId": str(id), "sourceArn": str(arn)}:
            return id, arn
    raise _invalid("Value for parameter TaskHandle is invalid.")


def _check_range(parameter: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise _invalid(
            f"Value for parameter {parameter} is invalid. Reason: You must enter a number that's between 1 and {most}."
        )


def _invalid(text: str) -> SqsError:
    return SqsError("InvalidParameterValueException", text)


def _not_found(parameter: str) -> SqsError:
    return SqsError(
        "ResourceNotFoundException", f"The resource that you specified for the {parameter} parameter doesn't exist."
    )
