"""The dialect of MQ-Core: six endpoints at the root.

GET PUT DELETE /{queue}     GET POST /{queue}/messages     DELETE /{queue}/messages/{id}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from penstock.errors import BadInput, PenstockError, QueueNotFound, StoreError
from penstock.message import OCTETS, Draft
from penstock.policy import MAX_BODY
from penstock.server.dialects.base import Dialect, Route, content_type_of
from penstock.server.http.request_response import Refused, Request, Response, Scope


class MqCore(Dialect):
    name = "mq-core"
    reserved: ClassVar[frozenset[str]] = frozenset()
    errors: ClassVar = [(QueueNotFound, 404), (BadInput, 400), (StoreError, 503), (PenstockError, 400)]

    def routes(self) -> Sequence[Route]:
        return [
            Route("GET", "/{queue}", Scope.COUNT, self.show),
            Route("PUT", "/{queue}", Scope.ADMIN, self.create),
            Route("DELETE", "/{queue}", Scope.ADMIN, self.delete_queue),
            Route("GET", "/{queue}/messages", Scope.RECEIVE, self.receive),
            Route("POST", "/{queue}/messages", Scope.SEND, self.send),
            Route("DELETE", "/{queue}/messages/{id}", Scope.RECEIVE, self.delete),
        ]

    def keep(self, request: Request) -> int:
        return MAX_BODY if request.method == "POST" else 0

    async def show(self, request: Request, queue: str) -> Response:
        await self.core.run(lambda: self.broker.queue(queue))
        return Response(200)

    async def create(self, request: Request, queue: str) -> Response:
        def act() -> bool:
            there = queue in self.broker
            self.broker.create(queue, exist_ok=True)
            return there

        return Response(200 if await self.core.create(request, queue, act) else 201)

    async def delete_queue(self, request: Request, queue: str) -> Response:
        await self.core.delete_queue(queue)
        return Response(204)

    async def receive(self, request: Request, queue: str) -> Response:
        for message in await self.core.receive(request, queue, 1):
            headers = {"X-Message-Id": self.uuid(queue, message.id), "Content-Type": content_type_of(message)}
            return Response(200, headers, message.body, self.undo([message]))
        return Response(204)

    async def send(self, request: Request, queue: str) -> Response:
        if request.length > MAX_BODY:
            raise Refused(413, f"the message has {request.length} bytes, the limit is {MAX_BODY}")
        draft = Draft(request.body, request.headers.get("content-type") or OCTETS)
        (sent,) = await self.core.send(request, queue, [draft])
        return Response(201, {"X-Message-Id": self.uuid(queue, sent.id)})

    async def delete(self, request: Request, queue: str, id: str) -> Response:
        if not await self.core.delete(request, queue, id):
            raise Refused(404, f"queue {queue!r} has no message {id!r:.80}")
        return Response(204)
