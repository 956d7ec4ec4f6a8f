"""The dialect of mqs: /queues and /messages as documented, with the batches and long polls of its later version.

PUT POST DELETE GET /queues/{queue}     GET /queues?offset=&limit=
POST GET /messages/{queue}              DELETE /messages/{id}

X-MQS-MAX-MESSAGES  1 … 999: at most this many; several are multipart/mixed      X-MQS-MAX-WAIT-TIME  seconds of a long poll
X-MQS-MESSAGE-ID, -RECEIVES, -PUBLISHED-AT, -VISIBLE-AT  of a message            X-MQS-TRUNCATED  the length before the cut
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import parse_qsl

from penstock.errors import BadInput, BadMessage, PenstockError, QueueExists, QueueNotFound, StoreBusy, StoreError
from penstock.message import MAX_NUMBER, OCTETS, Draft, Message, Settings, Stats, to_datetime
from penstock.policy import MAX_BODY, check_name
from penstock.server.dialects.base import UUID, Core, Dialect, Route, content_type_of
from penstock.server.dialects.mqs_settings import dead_letters, read_changes, show
from penstock.server.http.multipart import Part, boundary_of, join_parts, split_parts
from penstock.server.http.request_response import Refused, Request, Response, Scope, answer_json

ENCODING = "Content-Encoding"
TOKENS = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,255}")
MOST_MESSAGES = 999
MAX_SETTINGS = 64 * 1024
"""Bytes of a queue's settings as JSON."""
MOST_LISTED = 1000
"""Queues in one listing."""
MOST_HOMES = 10_000
"""Messages whose queues are remembered, which takes about 2 MB."""


class Mqs(Dialect):
    name = "mqs"
    reserved = frozenset({"queues", "messages"})
    errors: ClassVar = [
        (QueueNotFound, 404),
        (QueueExists, 409),
        (BadInput, 400),
        (StoreBusy, 503),
        (StoreError, 500),
        (PenstockError, 400),
    ]

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._homes: dict[str, str] = {}

    def routes(self) -> Sequence[Route]:
        return [
            Route("PUT", "/queues/{queue}", Scope.ADMIN, self.create),
            Route("POST", "/queues/{queue}", Scope.ADMIN, self.update),
            Route("DELETE", "/queues/{queue}", Scope.ADMIN, self.delete_queue),
            Route("GET", "/queues/{queue}", Scope.COUNT, self.describe),
            Route("GET", "/queues", None, self.list_queues),
            Route("POST", "/messages/{queue}", Scope.SEND, self.send),
            Route("GET", "/messages/{queue}", Scope.RECEIVE, self.receive),
            Route("DELETE", "/messages/{id}", None, self.delete),
        ]

    def keep(self, request: Request) -> int:
        if request.method not in ("PUT", "POST"):
            return 0
        if request.segments[0] == "queues":
            return MAX_SETTINGS
        many = boundary_of(request.headers.get("content-type", "")) is not None
        return self.settings.max_body if many else MAX_BODY

    # queues

    async def create(self, request: Request, queue: str) -> Response:
        _check_size(request)

        def act() -> Settings:
            check_name(queue)
            if queue in self.broker:
                raise QueueExists(queue)
            changes = read_changes(request.body, queue, None)
            self.check_redrive(request, changes["redrive"])
            with dead_letters():
                return self.broker.create(queue, **changes).settings

        return answer_json(201, self._shown(request, queue, await self.core.create(request, queue, act)))

    async def update(self, request: Request, queue: str) -> Response:
        _check_size(request)

        def act() -> Settings:
            home = self.broker.queue(queue)
            settings = home.settings
            changes = read_changes(request.body, queue, settings)
            # An update carries all settings, so an unchanged policy needs no right, be it as it is or as the sender sees it.
            if changes["redrive"] in (settings.redrive, self.seen(request, settings).redrive):
                changes["redrive"] = settings.redrive
            else:
                self.check_redrive(request, changes["redrive"])
            with dead_letters():
                return home.update(**changes)

        return answer_json(200, self._shown(request, queue, await self.core.run(act)))

    async def delete_queue(self, request: Request, queue: str) -> Response:
        return answer_json(200, self._shown(request, queue, await self.core.delete_queue(queue)))

    async def describe(self, request: Request, queue: str) -> Response:
        def act() -> tuple[Settings, Stats]:
            home = self.broker.queue(queue)
            return home.settings, home.stats()

        settings, stats = await self.core.look(f"at {queue}", act)
        status = {
            "messages": stats.messages,
            "visible_messages": stats.visible,
            "oldest_message_age": int(stats.oldest_age or 0),
        }
        return answer_json(200, {**self._shown(request, queue, settings), "status": status})

    async def list_queues(self, request: Request) -> Response:
        numbers = {"offset": 0, "limit": MAX_NUMBER}
        try:
            for name, value in parse_qsl(request.query, keep_blank_values=True, errors="strict", max_num_fields=100):
                if name in numbers:
                    numbers[name] = _whole(value, name, 0, MAX_NUMBER)
        except ValueError as error:
            raise BadInput(str(error)) from None
        names = await self.core.names(request, Scope.COUNT)
        part = names[numbers["offset"] :][: min(numbers["limit"], MOST_LISTED)]
        queues = await self.core.each(part, lambda queue: self._show(request, queue))
        return answer_json(200, {"total": len(names), "queues": [queue for queue in queues if queue is not None]})

    def _show(self, request: Request, queue: str) -> dict[str, Any] | None:
        """None if it was deleted meanwhile."""
        settings = self.broker.store.load(queue)
        return None if settings is None else self._shown(request, queue, settings)

    def _shown(self, request: Request, queue: str, settings: Settings) -> dict[str, Any]:
        return show(queue, self.seen(request, settings))

    # messages

    async def send(self, request: Request, queue: str) -> Response:
        content_type = request.headers.get("content-type") or OCTETS
        boundary = boundary_of(content_type)
        if boundary is None:
            draft = self._draft(content_type, request.headers.get("content-encoding"), request.body, request.length)
            (sent,) = await self.core.send(request, queue, [draft])
            headers = {"X-MQS-MESSAGE-ID": self.uuid(queue, sent.id)}
            if request.length > MAX_BODY:
                headers |= _truncated(request.length)
            return Response(200 if sent.duplicate else 201, headers)
        return await self._send_parts(request, queue, boundary)

    async def _send_parts(self, request: Request, queue: str, boundary: bytes) -> Response:
        def read() -> tuple[list[Draft], int]:
            parts = split_parts(request.body, boundary, MOST_MESSAGES)
            longest = max(len(part.body) for part in parts)
            return [self._draft_of(part) for part in parts], longest

        size = len(request.body)
        self.core.budget.hold(request, size)  # the parts are copies
        drafts, longest = await self.core.offload.run(size, read)
        sent = await self.core.send(request, queue, drafts)
        listed = [{"id": self.uuid(queue, one.id), "duplicate": one.duplicate} for one in sent]
        status = 200 if all(one.duplicate for one in sent) else 201
        return answer_json(status, {"messages": listed}, _truncated(longest))

    def _draft_of(self, part: Part) -> Draft:
        content_type, encoding = part.headers.get("content-type", OCTETS), part.headers.get("content-encoding")
        return self._draft(content_type, encoding, part.body, len(part.body))

    def _draft(self, content_type: str, encoding: str | None, body: bytes, length: int) -> Draft:
        if length > MAX_BODY and self.settings.oversize == "refuse":
            raise Refused(413, f"the message has {length} bytes, the limit is {MAX_BODY}")
        if encoding is not None and not TOKENS.fullmatch(encoding):
            raise BadMessage(f"content encoding {encoding!r:.80} is not a list of names")
        return Draft(body[:MAX_BODY], content_type, {} if encoding is None else {ENCODING: encoding})

    async def receive(self, request: Request, queue: str) -> Response:
        limit = _header(request, "x-mqs-max-messages", 1, MOST_MESSAGES, 1)
        wait = _header(request, "x-mqs-max-wait-time", 0, self.settings.max_wait, 0)
        request.copies = 1 if limit == 1 else 2
        messages = await self.core.receive(request, queue, limit, wait, holder=_holder(request))
        if not messages:
            return Response(204)
        undo = self.undo(messages)
        self._remember(messages)
        # In an answer to a client that asked for several, a message that looks like several messages would be taken for them.
        if len(messages) == 1 and (limit == 1 or not messages[0].content_type.lower().startswith("multipart")):
            return Response(200, self._headers(messages[0]), messages[0].body, undo)
        size = sum(len(message.body) for message in messages)
        content_type, body = await self.core.offload.run(
            size, lambda: join_parts([(self._headers(message), message.body) for message in messages])
        )
        return Response(200, {"Content-Type": content_type}, body, undo)

    async def delete(self, request: Request, id: str) -> Response:
        if not UUID.fullmatch(id):
            raise BadMessage(f"message id {id!r:.80} is not a UUID")
        uuid = id.lower()

        known = self._homes.pop(uuid, None)
        if known is not None and request.grant.allows(Scope.RECEIVE, known):
            with suppress(QueueNotFound):  # it was deleted meanwhile
                if await self.core.delete(request, known, uuid):
                    return Response(204)

        def delete_from(name: str) -> str | None:
            try:
                return name if request.grant.allows(Scope.RECEIVE, name) and self.delete_by_uuid(name, uuid) else None
            except QueueNotFound:  # it was deleted meanwhile
                return None

        def look() -> tuple[str | None, bool]:
            """The queue that it was in, and whether the store can tell."""
            homes = self.broker.store.uuids.homes(uuid)
            return next(filter(None, map(delete_from, homes or ())), None), homes is not None

        queue, known_here = await self.core.run(look)
        if not known_here:
            names = await self.core.names(request, Scope.RECEIVE)
            queue = next(filter(None, await self.core.each(names, delete_from, until=bool, promise=True)), None)
        if queue is None:
            raise Refused(404, f"there is no message {uuid}")
        self.core.count_deleted(request, queue, 1)
        return Response(204)

    def _headers(self, message: Message) -> dict[str, str]:
        return message_headers(message, self.uuid(message.queue, message.id))

    def _remember(self, messages: list[Message]) -> None:
        for message in messages:
            self._homes[self.uuid(message.queue, message.id)] = message.queue
            if len(self._homes) > MOST_HOMES:
                del self._homes[next(iter(self._homes))]


def message_headers(message: Message, id: str) -> dict[str, str]:
    headers = {
        "Content-Type": content_type_of(message),
        "X-MQS-MESSAGE-ID": id,
        "X-MQS-MESSAGE-RECEIVES": str(message.receives),
        "X-MQS-MESSAGE-PUBLISHED-AT": _time(message.sent_at),
        "X-MQS-MESSAGE-VISIBLE-AT": _time(message.visible_at),
    }
    if message.holder is not None:
        headers["X-MQS-MESSAGE-HOLDER"] = message.holder.encode().decode("latin-1")  # the server encodes headers as latin-1
    encoding = message.attributes.get(ENCODING)
    if isinstance(encoding, str) and TOKENS.fullmatch(encoding):
        headers[ENCODING] = encoding
    return headers


def _time(at: int) -> str:
    try:
        moment = to_datetime(at)
    except OverflowError:
        moment = datetime.max.replace(tzinfo=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _check_size(request: Request) -> None:
    if request.length > MAX_SETTINGS:
        raise Refused(413, f"the settings have {request.length} bytes, the limit is {MAX_SETTINGS}")


def _truncated(length: int) -> dict[str, str]:
    return {"X-MQS-TRUNCATED": str(length)} if length > MAX_BODY else {}


def _holder(request: Request) -> str | None:
    given = request.headers.get("x-mqs-holder")
    try:
        return None if given is None else given.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise BadInput(f"X-MQS-HOLDER {given!r:.80} is not UTF-8 text") from None


def _header(request: Request, name: str, least: int, most: int, default: int) -> int:
    given = request.headers.get(name)
    return default if given is None else _whole(given, name.upper(), least, most)


def _whole(text: str, what: str, least: int, most: int) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else -1
    if not least <= number <= most:
        raise BadInput(f"{what} {text!r:.80} is not a whole number between {least} and {most}")
    return number
