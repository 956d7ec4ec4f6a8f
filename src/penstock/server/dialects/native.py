"""Penstock's own dialect, which `penstock.open("http://…")` speaks: the verbs of `Queue` and `Broker`, with the values of
`penstock.client.wire`, in JSON or in the format described there.

POST /penstock/queues/{queue}/{verb}     {"arguments": {name: value}}  ->  {"answer": value}
POST /penstock/broker/{verb}
POST /penstock/staged/{writer}/{batch}/{name}     a segment, as it is

The answers of read and scan are Arrow if the request accepts that and names its ``columns``. An answer of a verb that looks at
messages may be a part: it then has {"answer": […], "more": arguments}, or a header Penstock-More.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from typing import Any, ClassVar

import penstock
from penstock.client.wire import pack_error
from penstock.errors import (
    BadInput,
    ClaimError,
    PenstockError,
    QueueExists,
    QueueNotFound,
    ScheduleNotFound,
    StoreBusy,
    StoreError,
    Unsupported,
    WriterSetBack,
)
from penstock.message import Message, Settings
from penstock.policy import TOKEN_WINDOW, check_count, check_name, check_seconds
from penstock.server.auth import Guard
from penstock.server.budget import room_for
from penstock.server.dialects.base import RETRY_AFTER, Core, Dialect, Route, check_labels
from penstock.server.dialects.looking import HEAD, LOOKS, look
from penstock.server.dialects.native_jobs import Jobs
from penstock.server.dialects.native_schedules import VERBS as SCHEDULING
from penstock.server.dialects.native_schedules import Schedules
from penstock.server.dialects.native_values import answer, answer_messages, copies, read_arguments, weigh
from penstock.server.http.request_response import Grant, Refused, Request, Response, Scope, answer_json
from penstock.server.offload import SMALL
from penstock.server.page.data import PageData
from penstock.server.page.messages import Messages
from penstock.server.quotas import MESSAGES
from penstock.server.receipts import seal, unseal

VERBS: dict[str, Scope] = {
    "send_many": Scope.SEND,
    "sadd": Scope.SEND,
    "receive": Scope.RECEIVE,
    "exchange": Scope.RECEIVE,
    "spop": Scope.RECEIVE,
    "delete_many": Scope.RECEIVE,
    "fail": Scope.RECEIVE,
    "finish": Scope.RECEIVE,
    "extend": Scope.RECEIVE,
    "extend_many": Scope.RECEIVE,
    "release": Scope.RECEIVE,
    "bury": Scope.RECEIVE,
    "cancel": Scope.RECEIVE,
    "claim": Scope.RECEIVE,
    "confirm": Scope.RECEIVE,
    "read": Scope.RECEIVE,
    "settle": Scope.RECEIVE,
    "give_up": Scope.RECEIVE,
    "settings": Scope.COUNT,
    "stats": Scope.COUNT,
    "pulse": Scope.COUNT,
    "peek": Scope.READ,
    "find": Scope.READ,
    "settled": Scope.READ,
    "span": Scope.COUNT,
    "scan": Scope.READ,
    "sismember": Scope.READ,
    "scard": Scope.COUNT,
    "readers": Scope.READ,
    "settled_epoch": Scope.READ,
    "update": Scope.ADMIN,
    "purge": Scope.ADMIN,
    "redrive": Scope.ADMIN,
}
BROKER_VERBS = ("create", "delete", "describe", "names", "publish", "unstage", *SCHEDULING)
PUBLISHED = 24 * 1024 * 1024
"""Bytes that a publication takes: a segment at a time, its columns, and the messages of its next rows."""
SETTLING = {"delete_many", "exchange", "fail", "finish", "extend", "extend_many", "release", "bury"}
LONG = {"redrive"}
"""Done in parts, so that other operations get a turn in between."""


ARROW = "application/vnd.apache.arrow.stream"
ARROW_VERBS = {"read", "scan"}
ARROW_COPIES = 6
"""See `Request.copies`: in the columns and in the stream, whose buffers grow by doubling, and in the answer."""


class Native(Dialect):
    name = "penstock"
    reserved = frozenset({"penstock"})
    errors: ClassVar = [
        (QueueNotFound, 404),
        (ScheduleNotFound, 404),
        (QueueExists, 409),
        (ClaimError, 409),
        (WriterSetBack, 409),
        (StoreBusy, 503),
        (StoreError, 503),
        (Unsupported, 400),
        (BadInput, 400),
        (PenstockError, 400),
    ]

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._data = PageData(core)
        self._schedules = Schedules(core)

    def routes(self) -> Sequence[Route]:
        return [
            *Messages(self.core).routes(),
            *Jobs(self.core).routes(),
            *self._data.routes(),
            Route("POST", "/penstock/queues/{queue}/{verb}", None, self.call_queue),
            Route("POST", "/penstock/broker/{verb}", None, self.call_broker),
            Route("POST", "/penstock/staged/{writer}/{batch}/{name}", None, self.stage),
        ]

    def start(self) -> None:
        self._data.start()

    async def stop(self) -> None:
        await self._data.stop()

    def authorize(self, guard: Guard, request: Request) -> Grant:
        return guard.grant_own(request)

    def keep(self, request: Request) -> int:
        """The body of a request that will be refused whatever it says is not kept."""
        try:
            self._admit(request)
        except Refused:
            return 0
        return self.settings.max_body

    def _admit(self, request: Request) -> None:
        """What the head of a request tells: is there such a verb, and may its sender call it?"""
        match request.segments:
            case (_, "queues", queue, "select"):
                request.grant.check(Scope.READ, queue)
            case (_, "queues", queue, verb):
                scope = VERBS.get(verb)
                if scope is None:
                    raise Refused(404, f"a queue has no verb {verb!r:.80}; there are {', '.join(VERBS)}")
                request.grant.check(scope, queue)
            case (_, "broker", verb):
                if verb not in BROKER_VERBS:
                    raise Refused(404, f"the broker has no verb {verb!r:.80}; there are {', '.join(BROKER_VERBS)}")
                if verb in ("publish", "unstage"):
                    _check_sender(request)
            case (_, "staged", *_):
                _check_sender(request)

    def refuse(self, request: Request, error: PenstockError) -> Response:
        answer = super().refuse(request, error)
        headers = {"Retry-After": RETRY_AFTER} if answer.status == 503 else None
        return answer_json(answer.status, pack_error(error), headers)

    async def _call(self, request: Request, act: Callable[[dict[str, Any]], Awaitable[Response]]) -> Response:
        """Read the arguments, which the budget counts until there is an answer."""
        self._admit(request)
        if request.queue and len(request.body) > SMALL:
            await self.core.run(lambda: self.broker.queue(request.queue))  # look before reading megabytes in vain
        weight = weigh(request)
        self.core.budget.hold(request, weight)
        request.copies = copies(request)
        return await act(await self.core.offload.run(len(request.body), lambda: read_arguments(request)))

    async def call_queue(self, request: Request, queue: str, verb: str) -> Response:
        return await self._call(request, lambda given: self._call_verb(request, queue, verb, given))

    async def _call_verb(self, request: Request, queue: str, verb: str, given: dict[str, Any]) -> Response:
        if VERBS[verb] is Scope.ADMIN or verb == "cancel":
            request.deed = verb
        if verb in SETTLING:
            request.deed, request.facts = _by_id(verb, given)
            given |= {name: unseal(request.grant, queue, given[name]) for name in ("message", "messages") if name in given}
        if verb == "receive":
            return await self._receive(request, queue, given)
        if verb == "exchange":
            return await self._exchange(request, queue, given)
        if verb in LOOKS:
            return await self._look(request, queue, verb, given)
        drafts = given.get("drafts")
        if verb == "send_many" and drafts and isinstance(drafts, list) and given.keys() <= {"drafts", "token", "remember"}:
            how = given.get("token"), given.get("remember", TOKEN_WINDOW)
            return answer(request, await self.core.send(request, queue, drafts, *how))
        if verb == "delete_many":
            if given.keys() != {"messages"}:
                raise BadInput(f"delete_many has one argument, messages, not {', '.join(given) or 'none'!r:.80}")
            return answer(request, await self.core.delete_many(request, queue, given["messages"]))
        if verb == "purge" and not given:
            return answer(request, await self.core.purge(queue))
        if verb == "redrive" and given.get("to") is not None:
            request.grant.check(Scope.ADMIN, str(given["to"]))
        if verb == "update":
            self.check_redrive(request, given.get("redrive"))
            check_labels(given.get("labels"))

        def act() -> Any:
            home = self.broker.queue(queue)
            if verb == "settings":
                return home.settings
            return _call(redrive if verb == "redrive" else getattr(home, verb), given)

        def redrive(**how: Any) -> Any:
            """Each letter names the queue where it died. A token's letters go back to queues that it may change."""
            return self.broker.queue(queue).redrive(**how, allow=lambda name: request.grant.allows(Scope.ADMIN, name))

        if verb == "find":
            self.core.budget.hold(request, room_for(1))  # nobody knows how large it is
        if verb == "claim" and isinstance(given.get("limit"), int):
            given["limit"] = await self.core.quotas.cap(request.grant, given["limit"])
        async with self.core.quotas.adding(request.grant, MESSAGES, _added(verb, given)):
            done = await self.core.commits.run(act, alone=verb in LONG, promise=verb != "find")
        if verb == "claim":
            self.core.quotas.received(request.grant, done.size)
        if isinstance(done, Settings):
            done = self.seen(request, done)
        return answer(request, done)

    async def _look(self, request: Request, queue: str, verb: str, given: dict[str, Any]) -> Response:
        columns = given.pop("columns", None) if verb in ARROW_VERBS and request.headers.get("accept") == ARROW else None
        if columns is not None:
            self.core.use_arrow()
            request.copies = ARROW_COPIES
        messages, size, more = await look(self.core, request, queue, verb, given, _call)
        if columns is None:
            return await self.core.offload.run(size, lambda: answer_messages(request, messages, more))
        packed = await self.core.offload.run(size, lambda: pack_arrow(messages, columns))
        return Response(200, {"Content-Type": ARROW, **({} if more is None else {"Penstock-More": json.dumps(more)})}, packed)

    async def _receive(self, request: Request, queue: str, given: dict[str, Any]) -> Response:
        unknown = given.keys() - {"limit", "wait", "visibility", "mode", "holder", "unfinished", "together"}
        if unknown:
            raise BadInput(f"receive has no argument {min(unknown)!r:.80}")
        wait = given.pop("wait", 0)
        limit = given.pop("limit", 1)
        check_count(limit, "limit", 1, self.settings.max_receive)
        check_seconds(wait, "wait")
        messages = await self.core.receive(request, queue, limit, min(wait, self.settings.max_wait), **given)
        return await self._answer_claim(request, seal(request.grant, messages), messages)

    async def _exchange(self, request: Request, queue: str, given: dict[str, Any]) -> Response:
        """Settle and receive in one commit. The answer is bounded as that of a receive."""
        unknown = given.keys() - {"messages", "limit", "visibility", "holder"}
        if unknown or "messages" not in given:
            raise BadInput(f"exchange has no argument {min(unknown)!r:.80}" if unknown else "exchange needs messages")
        held, limit = given.pop("messages"), given.pop("limit", 1)
        check_count(limit, "limit", 1, self.settings.max_receive)
        limit = await self.core.quotas.cap(request.grant, limit, settling=len(held) if isinstance(held, list) else 0)
        settled, messages = await self.core.polls.exchange(request, queue, held, limit, **given)
        self.core.quotas.received(request.grant, len(messages))
        self.core.count_deleted(request, queue, sum(settled))
        self.core.count_received(queue, messages)
        return await self._answer_claim(request, [settled, seal(request.grant, messages)], messages)

    async def _answer_claim(self, request: Request, value: Any, messages: list[Message]) -> Response:
        size = sum(len(message.body) for message in messages) + len(messages) * HEAD
        if size <= SMALL:
            response = answer(request, value)
        else:
            response = await self.core.offload.run(size, lambda: answer_messages(request, value))
        if not messages or messages[0].settled_at is None:
            response.undo = self.undo(messages)
        return response

    async def call_broker(self, request: Request, verb: str) -> Response:
        return await self._call(request, lambda given: self._call_broker_verb(request, verb, given))

    async def _call_broker_verb(self, request: Request, verb: str, given: dict[str, Any]) -> Response:
        if verb == "describe":
            store = self.broker.store
            more = {"max_body": self.settings.max_body, "at": self.broker.clock(), "version": penstock.__version__}
            return answer(request, {"durable": store.durable, "ordered": store.ordered, "groups": store.groups, **more})
        if verb == "names":
            names = await self.core.names(request, Scope.COUNT)
            wide = (
                4 if all(map(str.isascii, names)) else 20
            )  # the text is there three times, and JSON escapes what is not ASCII
            self.core.budget.hold(request, sum(map(len, names)) * wide + len(names) * 16)
            return answer(request, names)
        if verb in ("publish", "unstage"):
            return await self._publish(request, verb, given)
        if verb in SCHEDULING:
            value = await self._schedules.call(request, verb, given)
            return await self.core.offload.run(request.held, lambda: answer(request, value))
        request.queue, request.deed = str(given.get("name", "")), verb
        request.grant.check(Scope.ADMIN, request.queue)
        if verb == "delete":
            if given.keys() != {"name"}:
                raise BadInput(f"delete has one argument, name, not {', '.join(given) or 'none'!r:.80}")
            return answer(request, self.seen(request, await self.core.delete_queue(given["name"])))
        self.check_redrive(request, given.get("redrive"))
        check_labels(given.get("labels"))
        name = str(given.get("name", ""))
        return answer(request, (await self.core.create(request, name, lambda: _call(self.broker.create, given))).name)

    async def stage(self, request: Request, writer: str, batch: str, name: str) -> Response:
        self._admit(request)
        if not (batch.isascii() and batch.isdecimal() and len(batch) < 20):
            raise BadInput(f"batch {batch!r:.80} is not a number")
        writer = _own_writer(request, writer)
        segment = request.body
        await self.core.commits.run(lambda: self.broker.stage(writer, int(batch), name, segment), promise=False, alone=True)
        return answer(request, None)

    async def _publish(self, request: Request, verb: str, given: dict[str, Any]) -> Response:
        if "writer" in given:
            given["writer"] = _own_writer(request, given["writer"])
        if verb == "unstage":
            return answer(request, await self.core.commits.run(lambda: _call(self.broker.unstage, given), alone=True))

        def publish(writer: str, batch: int, segments: dict[str, int], **how: Any) -> int | None:
            return self.broker.publish(
                writer, batch, segments, **how, allow=lambda queue: request.grant.check(Scope.SEND, queue)
            )

        self.core.use_arrow()
        self.core.budget.hold(request, PUBLISHED)
        async with self.core.quotas.adding(request.grant, MESSAGES, _added(verb, given)):
            return answer(request, await self.core.commits.run(lambda: _call(publish, given), alone=True))


def _by_id(verb: str, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """For the audit: a caller that names messages by their ids changes them whoever holds them."""
    named = given.get("messages", given.get("message"))
    ids = [each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)]
    return (verb, {"messages": len(ids)}) if ids else ("", {})


def _added(verb: str, given: dict[str, Any]) -> int:
    """How many messages a verb adds at most."""
    match verb, given.get("drafts"), given.get("segments"):
        case "send_many", list(drafts), _:
            return len(drafts)
        case "publish", _, dict(segments):
            return sum(count for count in segments.values() if isinstance(count, int) and count > 0)
    return int(verb == "sadd")


def _check_sender(request: Request) -> None:
    """A segment's queues are checked when it is published. A token that may not send to any queue cannot stage."""
    if Scope.SEND not in request.grant.scopes:
        raise Refused(403, "this token may not send")


def _own_writer(request: Request, writer: object) -> str:
    """A batch is identified by its writer's name and its number, so another client that publishes under that name could make
    the writer's later batches look published. A token for some queues therefore has its own writers; they stay the same when
    its secret is renewed."""
    name, grant = check_name(writer, "writer name"), request.grant
    if grant.allows_all(Scope.SEND):
        return name
    owner = json.dumps([grant.name, *grant.queues]).encode()
    return f"{hashlib.sha256(owner).hexdigest()[:16]}-{name}"


def _call(verb: Any, given: dict[str, Any]) -> Any:
    try:
        return verb(**given)
    except TypeError as error:
        # The core reports values of a wrong type itself; what remains is a wrong set of arguments.
        raise BadInput(f"{verb.__name__}: {error}") from None


def pack_arrow(messages: list[Message], columns: Any) -> bytes:
    arrow = import_module("penstock.arrow")
    if not isinstance(columns, list):
        raise BadInput(f"columns must be a list of names, not {columns!r:.80}")
    packed: bytes = arrow.pack(arrow.to_batch(messages, arrow.schema_of(columns)))
    return packed
