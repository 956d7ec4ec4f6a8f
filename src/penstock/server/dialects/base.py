"""What a dialect is: routes, an error table, and the first path segments that belong to it."""

from __future__ import annotations

import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar, TypeVar

from penstock.bridge.commits import Commits
from penstock.bridge.polls import Polls
from penstock.bridge.verbs import BridgedVerbs
from penstock.broker import LocalBroker
from penstock.errors import BadInput, PenstockError
from penstock.message import OCTETS, PRIVATE, Draft, Message, Receipt, Redrive, Sent, Settings
from penstock.policy import check_settings
from penstock.queue.sending import Batch
from penstock.server.audit import Audit
from penstock.server.auth import Guard
from penstock.server.budget import Budget
from penstock.server.http.request_response import Grant, Refused, Request, Response, Scope, answer_error
from penstock.server.jobs.book import LABEL
from penstock.server.jobs.runner import JobRunner
from penstock.server.metrics import Metrics
from penstock.server.offload import Offload
from penstock.server.page.activity import Activity
from penstock.server.quotas import MESSAGES, QUEUES, Quotas
from penstock.server.settings import ServerSettings

OWN_LABELS = (PRIVATE, LABEL)
"""How the labels begin that only servers write and read. What a job looks for, and where its messages go, is not for all who
may know the settings of its queue."""
Answer = TypeVar("Answer")
Item = TypeVar("Item")
Places = list[tuple[int, str]]
RETRY_AFTER = "1"
SLICE = 0.005
"""Seconds of one commit for all requests that look at many queues."""
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
NAME = 80
"""Bytes that the name of a queue takes in a list, beside two for each of its characters."""
ARROW = 56 * 1024 * 1024
"""Bytes of the library, once it is loaded."""
DRAFT = 1024
"""Bytes that a message of a batch takes beside its own, until it is stored."""
HIDDEN = ":hidden"
"""In place of the name of a queue that a token may not know. No queue can have this name."""


class Core:
    """What dialects use: the queue's verbs, called through the bridge and counted."""

    def __init__(
        self,
        broker: LocalBroker,
        commits: Commits,
        polls: Polls,
        metrics: Metrics,
        settings: ServerSettings,
        budget: Budget,
        offload: Offload,
        quotas: Quotas,
        activity: Activity,
        audit: Audit,
        jobs: JobRunner,
    ) -> None:
        self.broker = broker
        self.commits = commits
        self._verbs = BridgedVerbs(broker, commits)
        self.polls = polls
        self.metrics = metrics
        self.settings = settings
        self.budget = budget
        """Take from it before you hold or decode what a client sent, and give it back afterwards."""
        self.offload = offload
        self.quotas = quotas
        self.activity = activity
        self.audit = audit
        self.jobs = jobs
        self._arrow = False

    async def run(self, act: Callable[[], Answer]) -> Answer:
        return await self.commits.run(act)

    async def look(self, what: str, act: Callable[[], Answer]) -> Answer:
        """As `run`, for what many may want to know at the same time, as ``what`` says: in one commit, they share one call."""
        answer: Answer = await self.commits.share(f"look {what}", lambda asked: [act()] * len(asked), None, promise=False)
        return answer

    async def names(self, request: Request, scope: Scope) -> list[str]:
        """The queues for which the sender of a request has this scope."""
        names = await self.look("all", lambda: self.broker.queues().names)
        size = sum(map(len, names))
        self.budget.hold(request, len(names) * NAME + size * 2)
        grant = request.grant
        if grant.allows_all(scope):
            return names
        return await self.offload.run(size, lambda: [name for name in names if grant.allows(scope, name)])

    def use_arrow(self) -> None:
        """What the library itself takes is counted from its first use on, for ever."""
        if not self._arrow and "pyarrow" not in sys.modules:
            self.budget.take(ARROW)
        self._arrow = True

    async def each(
        self,
        items: Sequence[Item],
        act: Callable[[Item], Answer],
        *,
        until: Callable[[Answer], bool] = lambda _: False,
        promise: bool = False,
    ) -> list[Answer]:
        """Call ``act`` with each item, up to the first answer that satisfies ``until``: in as many commits as it takes. All
        requests that do so have a few milliseconds of each commit together, so that others need not wait for the rest.
        ``promise``: it changes something."""
        answers: list[Answer] = []
        while len(answers) < len(items) and not (answers and until(answers[-1])):
            left = partial(_slice, islice(items, len(answers), None), act, until)
            answers += await self.commits.share(f"slices {promise}", slices, left, promise=promise)
        return answers

    async def purge(self, queue: str) -> int:
        return await self._verbs.purge(queue)

    async def delete_queue(self, queue: str) -> Settings:
        try:
            return await self._verbs.delete_queue(queue)
        finally:
            self.activity.catalogue += 1

    async def create(self, request: Request, queue: str, act: Callable[[], Answer]) -> Answer:
        async with self.quotas.adding(request.grant, QUEUES, 1, queue):
            created = await self.commits.run(act)
        self.activity.catalogue += 1
        return created

    async def send(self, request: Request, queue: str, drafts: Sequence[Draft | bytes], *how: Any) -> list[Sent]:
        """``how``: the token, and for how long to remember it."""
        if len(drafts) > 1:
            self.budget.hold(request, len(drafts) * DRAFT)
        if request.grant.limits.max_messages is None:
            added = await self.commits.send(queue, Batch(drafts, *how))
        else:
            async with self.quotas.adding(request.grant, MESSAGES, len(drafts)):
                added = await self.commits.send(queue, Batch(drafts, *how))
        self.count_messages("sent", queue, added.new)
        return added.sent

    async def delete(self, request: Request, queue: str, given: str) -> bool:
        """Delete the message with this UUID, even if a receiver holds it."""
        gone: bool = await self.commits.share(f"delete {queue}", partial(self._delete, queue), given.lower())
        self.count_deleted(request, queue, gone)
        return gone

    async def delete_many(self, request: Request, queue: str, held: Any) -> list[bool]:
        """Delete messages by receipts and ids, as the client gave them."""
        gone = await self._verbs.delete_many(queue, held)
        self.count_deleted(request, queue, sum(gone))
        if isinstance(held, list):
            done = [one for one, was in zip(held, gone, strict=True) if was and type(one) is Receipt]
            self.activity.settled(queue, [one.delivery for one in done], self.broker.clock())
        return gone

    def count_deleted(self, request: Request, queue: str, count: int) -> None:
        self.count_messages("deleted", queue, count)
        self.quotas.deleted(request.grant, count)

    def _delete(self, queue: str, given: list[str]) -> list[bool]:
        """In a thread of commits: if two want to delete one message, the first has done it."""
        home = self.broker.queue(queue)  # first, because the store trusts the name
        found = {uuid: self.broker.store.uuids.id_of(queue, uuid) for uuid in given if UUID.fullmatch(uuid)}
        ids = {uuid: own for uuid, own in found.items() if own is not None}
        gone = dict(zip(ids, home.delete_many(list(ids.values())), strict=True))
        return [gone.pop(uuid, False) for uuid in given]

    async def receive(self, request: Request, queue: str, limit: int, wait: float = 0, **how: Any) -> list[Message]:
        limit = await self.quotas.cap(request.grant, limit)
        self.activity.receives(queue, request.client, how.get("holder"))
        messages = await self.polls.receive(request, queue, limit, wait, **how)
        self.quotas.received(request.grant, len(messages))
        self.count_received(queue, messages)
        return messages

    def count_received(self, queue: str, messages: Sequence[Message]) -> None:
        self.metrics.count_messages("received", queue, len(messages))
        self.activity.received(queue, messages)

    def count_messages(self, deed: str, queue: str, number: int) -> None:
        self.metrics.count_messages(deed, queue, number)
        self.activity.count(deed, queue, number)


def slices(asked: list[Callable[[float], list[Any]]]) -> list[list[Any] | BaseException]:
    """In a thread of commits: let each of them work, in the order in which they came, until the time is over. The first gets
    something done in any case."""
    end = time.monotonic() + SLICE
    done: list[list[Any] | BaseException] = []
    for work in asked:
        try:
            done.append([] if done and time.monotonic() >= end else work(end))
        except PenstockError as error:
            done.append(error)
    return done


def _slice(items: Iterator[Item], act: Callable[[Item], Answer], until: Callable[[Answer], bool], end: float) -> list[Answer]:
    answers: list[Answer] = []
    for item in items:
        answers.append(act(item))
        if until(answers[-1]) or time.monotonic() >= end:
            break
    return answers


@dataclass(frozen=True, slots=True)
class Route:
    """A method on a path such as /queues/{queue}. If it has a scope, the sender needs that scope for the queue."""

    method: str
    path: str
    scope: Scope | None
    handle: Callable[..., Awaitable[Response]]


class Router:
    """Finds the route of a path by its method, its length and its fixed segments."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes: dict[tuple[str, int], list[tuple[Route, Places, Places]]] = {}
        self._methods = sorted({route.method for route in routes})
        for route in routes:
            names = route.path[1:].split("/")
            fixed = [(place, name) for place, name in enumerate(names) if not name.startswith("{")]
            variable = [(place, name[1:-1]) for place, name in enumerate(names) if name.startswith("{")]
            self._routes.setdefault((route.method, len(names)), []).append((route, fixed, variable))

    def find(self, method: str, segments: tuple[str, ...]) -> tuple[Route, dict[str, str]] | None:
        """The route and the variables of its path."""
        for route, fixed, variable in self._routes.get((method, len(segments)), ()):
            for place, name in fixed:
                if segments[place] != name:
                    break
            else:
                return route, {name: segments[place] for place, name in variable}
        return None

    def methods(self, segments: tuple[str, ...]) -> list[str]:
        """The methods of a path; empty if there is no such path."""
        return [method for method in self._methods if self.find(method, segments)]


def content_type_of(message: Message) -> str:
    """For a header. The library refuses what could forge one, but other programs write to stores too."""
    given = message.content_type
    return given if given.isascii() and given.isprintable() else OCTETS


def check_labels(labels: object) -> None:
    """Whoever writes the label of a job says that the job was allowed; whoever writes the key of the sessions knows it."""
    for name in labels if isinstance(labels, Mapping) else ():
        if isinstance(name, str) and name.startswith(OWN_LABELS):
            raise BadInput(f"label {name!r:.80}: servers keep labels with such names for themselves")


def seen_by(grant: Grant, settings: Settings) -> Settings:
    """The settings as a client may see them: without what servers keep for themselves, and without the name of a dead letter
    queue that it may not know."""
    if any(name.startswith(OWN_LABELS) for name in settings.labels):
        shown = {name: text for name, text in settings.labels.items() if not name.startswith(OWN_LABELS)}
        settings = replace(settings, labels=shown)
    if settings.redrive is None or grant.knows(settings.redrive.dead_letter_queue):
        return settings
    return replace(settings, redrive=Redrive(HIDDEN, settings.redrive.max_receives))


class Dialect(ABC):
    name: ClassVar[str]
    reserved: ClassVar[frozenset[str]]
    """First segments of paths that no other dialect gets."""
    errors: ClassVar[Sequence[tuple[type[PenstockError], int]]]
    """The status of each kind of error; the first that fits counts."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.broker = core.broker
        self.settings = core.settings

    @abstractmethod
    def routes(self) -> Sequence[Route]: ...

    def start(self) -> None:  # noqa: B027 (most have no work besides requests)
        """Begin what is no request; the server listens."""

    async def stop(self) -> None:  # noqa: B027
        """End that. The store is still there."""

    def keep(self, request: Request) -> int:
        """How many bytes of the body to keep. `Request.length` says how many there were."""
        return 0

    def refuse_path(self, request: Request, allowed: str) -> Refused:
        """The answer to a path that is no route, or that exists only with the ``allowed`` methods."""
        of = f"; paths that begin with /{request.segments[0]} belong to the dialect {self.name}, not to a queue of another"
        of = of if self.reserved else ""
        if allowed:
            text = f"{request.method:.20} is not allowed at {request.path!r:.200}, only {allowed}{of}"
            return Refused(405, text, {"Allow": allowed})
        return Refused(404, f"there is nothing at {request.path!r:.200}{of}")

    def authorize(self, guard: Guard, request: Request) -> Grant:
        """What the sender of a request may do, by its head; `NOBODY` if `Request.prove` tells it later."""
        return guard.grant(request.headers)

    def answer_refused(self, request: Request, refusal: Refused) -> Response:
        return answer_error(refusal.status, str(refusal), refusal.headers)

    def refuse(self, request: Request, error: PenstockError) -> Response:
        status = next(status for kind, status in self.errors if isinstance(error, kind))
        return answer_error(status, str(error), {"Retry-After": RETRY_AFTER} if status == 503 else None)

    def check_redrive(self, request: Request, redrive: object) -> None:
        """Naming a dead letter queue needs the same right as redriving to it, because messages then move there."""
        checked = check_settings({"redrive": redrive}).redrive
        if checked is not None:
            request.grant.check(Scope.ADMIN, checked.dead_letter_queue)

    def seen(self, request: Request, settings: Settings) -> Settings:
        return seen_by(request.grant, settings)

    def uuid(self, queue: str, id: str) -> str:
        return self.broker.store.uuids.of(queue, id)

    def delete_by_uuid(self, queue: str, given: str) -> bool:
        """Delete it, even if a receiver holds it."""
        if not UUID.fullmatch(given):
            return False
        own = self.broker.store.uuids.id_of(queue, given.lower())
        return own is not None and self.broker.queue(queue).delete(own)

    def undo(self, messages: list[Any]) -> Callable[[], None]:
        return lambda: self.core.polls.give_back(messages)
