"""The dialect: which requests are SQS's, the table of handlers, and the way of a request through them."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, ClassVar

from penstock.errors import PenstockError
from penstock.server.auth import Guard
from penstock.server.dialects.base import RETRY_AFTER, Core, Dialect, Route
from penstock.server.dialects.native_values import weigh_json
from penstock.server.dialects.sqs import json_protocol, query_protocol
from penstock.server.dialects.sqs.call import Call
from penstock.server.dialects.sqs.errors import SqsError, denied, missing, of_refusal, translate
from penstock.server.dialects.sqs.move_tasks import MoveOperations
from penstock.server.dialects.sqs.names import Names
from penstock.server.dialects.sqs.queues import QueueOperations
from penstock.server.dialects.sqs.receiving import ReceiveOperations
from penstock.server.dialects.sqs.sending import SendOperations
from penstock.server.dialects.sqs.settling import SettleOperations
from penstock.server.dialects.sqs.shapes import OperationShape
from penstock.server.http.request_response import JSON, Grant, Refused, Request, Response, Scope
from penstock.server.offload import SMALL

Handle = Callable[[Call], Awaitable[dict[str, Any]]]
FORM = "application/x-www-form-urlencoded"
AMAZON_JSON = "application/x-amz-json"
NONE: list[Any] = []
AUDITED = frozenset({"CreateQueue", "StartMessageMoveTask", "CancelMessageMoveTask"})
"""What changes something, beside the operations that need the scope admin."""
UNWEIGHED = 4096
"""Up to so many bytes, what a request is read into is little more than what any request costs."""


def is_account(segment: str) -> bool:
    return len(segment) == 12 and segment.isascii() and segment.isdecimal()


class Sqs(Dialect):
    name = "sqs"
    reserved: ClassVar[frozenset[str]] = frozenset()
    errors: ClassVar = []

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.names = Names(core.settings)
        self._moves = MoveOperations(core)
        self._handlers = self._bind()
        self._ids = map((str(uuid.uuid4())[:24] + "{:012x}").format, count(1))

    def _bind(self) -> dict[str, tuple[Handle, Scope | None]]:
        """The handler of each operation, and the scope that its caller needs for the queue."""
        queues, sending, receiving, settling = (
            QueueOperations(self.core),
            SendOperations(self.core),
            ReceiveOperations(self.core),
            SettleOperations(self.core),
        )
        return {
            "CreateQueue": (queues.create_queue, None),
            "DeleteQueue": (queues.delete_queue, Scope.ADMIN),
            "GetQueueUrl": (queues.get_queue_url, None),
            "ListQueues": (queues.list_queues, None),
            "GetQueueAttributes": (queues.get_queue_attributes, Scope.COUNT),
            "SetQueueAttributes": (queues.set_queue_attributes, Scope.ADMIN),
            "PurgeQueue": (queues.purge_queue, Scope.ADMIN),
            "ListDeadLetterSourceQueues": (queues.list_dead_letter_source_queues, Scope.COUNT),
            "TagQueue": (queues.tag_queue, Scope.ADMIN),
            "UntagQueue": (queues.untag_queue, Scope.ADMIN),
            "ListQueueTags": (queues.list_queue_tags, Scope.COUNT),
            "AddPermission": (queues.add_permission, Scope.ADMIN),
            "RemovePermission": (queues.remove_permission, Scope.ADMIN),
            "SendMessage": (sending.send_message, Scope.SEND),
            "SendMessageBatch": (sending.send_message_batch, Scope.SEND),
            "ReceiveMessage": (receiving.receive_message, Scope.RECEIVE),
            "DeleteMessage": (settling.delete_message, Scope.RECEIVE),
            "DeleteMessageBatch": (settling.delete_message_batch, Scope.RECEIVE),
            "ChangeMessageVisibility": (settling.change_message_visibility, Scope.RECEIVE),
            "ChangeMessageVisibilityBatch": (settling.change_message_visibility_batch, Scope.RECEIVE),
            "StartMessageMoveTask": (self._moves.start_message_move_task, None),
            "ListMessageMoveTasks": (self._moves.list_message_move_tasks, None),
            "CancelMessageMoveTask": (self._moves.cancel_message_move_task, None),
        }

    @staticmethod
    def claims(request: Request) -> bool:
        """Whether a request is SQS's, by its head. Of the paths that MQ-Core has too, only what that has no use for."""
        headers, segments = request.headers, request.segments
        if "x-amz-target" in headers:
            return True
        if len(segments) == 1:
            return not segments[0] and (request.method == "POST" or "Action=" in request.query)
        if len(segments) != 2 or not is_account(segments[0]):
            return False
        return segments[1] != "messages" or "Action=" in request.query or headers.get("content-type", "").startswith(FORM)

    def routes(self) -> Sequence[Route]:
        return [
            Route("POST", "/", None, self.serve),
            Route("GET", "/", None, self.serve),
            Route("POST", "/{account}/{queue}", None, self.serve),
            Route("GET", "/{account}/{queue}", None, self.serve),
        ]

    def authorize(self, guard: Guard, request: Request) -> Grant:
        return guard.grant_signed(request)

    def keep(self, request: Request) -> int:
        """A message of 1 MiB has up to 6 MiB in JSON, where each character may be escaped, and 3 MiB in a form."""
        return self.settings.max_body if request.method == "POST" else 0

    async def serve(self, request: Request, account: str = "", queue: str = "") -> Response:
        size = len(request.body)
        if size > UNWEIGHED:
            weight = weigh_json(request.body) if is_json(request) else query_protocol.weigh(request.body)
            self.core.budget.hold(request, weight)
        if is_json(request):
            operation = json_protocol.find_operation(request)
            if size <= SMALL:  # the common case, without a coroutine of its own
                given = json_protocol.read(operation, request.body)
            else:
                given = await self.core.offload.run(size, lambda: json_protocol.read(operation, request.body))
        else:
            tree = await self.core.offload.run(size, lambda: query_protocol.parse(request))
            operation = query_protocol.find_operation(tree, on_queue=bool(queue))
            given = query_protocol.read(operation, tree)
        return await self._perform(request, operation, given, f"/{account}/{queue}" if queue else "")

    async def _perform(self, request: Request, operation: OperationShape, given: dict[str, Any], path: str) -> Response:
        account, region = self.names.caller(request)
        found = self._handlers.get(operation.name)
        if found is None:
            raise SqsError("UnsupportedOperation", f"This server does not have the operation {operation.name}.")
        handler, scope = found
        name = None
        if "QueueUrl" in operation.input.members:
            url = given.get("QueueUrl") or path
            if not url:
                raise missing("QueueUrl")
            request.queue = name = self.names.queue_of_url(url, account, region)
            if scope is not None and not request.grant.allows(scope, name):
                raise denied(request.grant, account, operation.name, self.names.arn(name))
        request.copies = json_protocol.COPIES if is_json(request) else query_protocol.COPIES
        if scope is Scope.ADMIN or operation.name in AUDITED:
            request.deed = operation.name
        call = Call(request, operation.name, given, account, region, name, self.names.base(request, region))
        output = await handler(call)
        messages: list[Any] = output.get("Messages", NONE)
        size = sum([len(message["Body"]) for message in messages]) if messages else 0
        if size > SMALL and not wants_json(request):
            write_messages = json_protocol.write_messages if is_json(request) else query_protocol.write_messages
            response = await self.core.offload.run(size, lambda: write_messages(messages, next(self._ids)))
        elif is_json(request):
            response = json_protocol.write(output, next(self._ids))
        else:
            response = query_protocol.write(operation, output, next(self._ids), as_json=wants_json(request))
        response.undo = call.undo
        return response

    # errors

    def _answer_error(self, request: Request, error: SqsError) -> Response:
        if is_json(request):
            return json_protocol.write_error(error, next(self._ids))
        return query_protocol.write_error(error, next(self._ids), as_json=wants_json(request))

    def refuse(self, request: Request, error: PenstockError) -> Response:
        response = self._answer_error(request, translate(error))
        if response.status == 503:
            response.headers["Retry-After"] = RETRY_AFTER
        return response

    def answer_refused(self, request: Request, refusal: Refused) -> Response:
        response = self._answer_error(request, of_refusal(refusal))
        response.headers |= refusal.headers
        return response

    def refuse_path(self, request: Request, allowed: str) -> Refused:
        if allowed:
            return Refused(405, f"{request.method:.20} is not allowed here, only {allowed}", {"Allow": allowed})
        return Refused(404, "The address of a queue is /ACCOUNT/NAME.")


def is_json(request: Request) -> bool:
    headers = request.headers
    return "x-amz-target" in headers or headers.get("content-type", "").startswith(AMAZON_JSON)


def wants_json(request: Request) -> bool:
    """A client that speaks the Query protocol and reads JSON."""
    return request.headers.get("accept", "").startswith(JSON)
