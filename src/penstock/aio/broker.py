"""`aopen`, and the named queues of one store as tasks use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, Self

from penstock import policy
from penstock.aio.backend import Backend
from penstock.aio.embedded import Embedded
from penstock.aio.queue import AsyncQueue
from penstock.aio.remote import Remote
from penstock.aio.task import AsyncTask
from penstock.broker import REMOTE, Listing, LocalBroker, open_local
from penstock.clock import Clock
from penstock.errors import BadInput, QueueNotFound
from penstock.message import Draft, Settings
from penstock.schedules.schedule import ONCE, Schedule
from penstock.tasks.task import Task

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Traits:
    """What a broker can tell of its store; see `penstock.broker.StoreTraits`."""

    durable: bool
    ordered: bool
    groups: bool


class AsyncBroker:
    """All queues of one store, for the tasks of one event loop. Made by `penstock.aopen`. `penstock.Broker` says what each verb
    does; what is a property or an operator there is a verb here."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what the store has begun, give back what cancelled tasks have taken, and close the store."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._backend.close())
        await asyncio.shield(self._closing)

    async def store(self) -> Traits:
        known = await self._backend.call_broker("describe")
        return Traits(known["durable"], known["ordered"], known["groups"])

    async def create(self, name: str, *, exist_ok: bool = False, **settings: Any) -> AsyncQueue:
        await self._backend.call_broker("create", name, exist_ok=exist_ok, **settings)
        return AsyncQueue(name, self._backend)

    async def queue(self, name: str) -> AsyncQueue:
        """An existing queue."""
        queue = AsyncQueue(policy.check_name(name), self._backend)
        await queue.settings()
        return queue

    async def has(self, name: str) -> bool:
        """Whether there is such a queue."""
        try:
            return policy.is_name(name) and bool(await AsyncQueue(name, self._backend).settings())
        except (QueueNotFound, BadInput):
            return False

    async def __aiter__(self) -> AsyncIterator[AsyncQueue]:
        for name in (await self.queues()).names:
            yield AsyncQueue(name, self._backend)

    async def queues(self, offset: int = 0, limit: int | None = None) -> Listing:
        listing: Listing = await self._backend.call_broker("queues", offset, limit)
        return listing

    async def delete(self, name: str) -> Settings:
        settings: Settings = await self._backend.call_broker("delete", name)
        return settings

    def task(self, task: Task[P, Any]) -> AsyncTask[P]:
        """A task that `penstock.Broker.task` has made, to be sent from here: ``await broker.task(greet).send("ada")``."""
        return AsyncTask(task, self._backend)

    # schedules

    async def schedule(
        self,
        name: str,
        *,
        queue: str,
        body: bytes | Draft,
        cron: str | None = None,
        every: float | None = None,
        zone: str = "UTC",
        missed: str = ONCE,
    ) -> Schedule:
        rule = {"cron": cron, "every": every, "zone": zone, "missed": missed}
        schedule: Schedule = await self._backend.call_broker("schedule", name, queue=queue, body=body, **rule)
        return schedule

    async def schedules(self) -> list[Schedule]:
        return list(await self._backend.call_broker("schedules"))

    async def change_schedule(self, name: str, **changes: Any) -> Schedule:
        schedule: Schedule = await self._backend.call_broker("change_schedule", name, **changes)
        return schedule

    async def remove_schedule(self, name: str) -> Schedule:
        schedule: Schedule = await self._backend.call_broker("remove_schedule", name)
        return schedule

    # publishing exactly once

    async def max_segment(self) -> int:
        return int((await self._backend.call_broker("describe"))["max_segment"])

    async def stage(self, writer: str, batch: int, name: str, segment: bytes) -> None:
        await self._backend.call_broker("stage", writer, batch, name, segment)

    async def unstage(self, writer: str, batch: int, names: Sequence[str]) -> None:
        await self._backend.call_broker("unstage", writer, batch, names)

    async def publish(
        self,
        writer: str,
        batch: int,
        segments: Mapping[str, int],
        *,
        bad_rows: str | None = None,
        once: bool = False,
        digest: str | None = None,
    ) -> int | None:
        how = {"bad_rows": bad_rows, "once": once, "digest": digest}
        published: int | None = await self._backend.call_broker("publish", writer, batch, segments, **how)
        return published


def aopen(url: str, *, clock: Clock | None = None, **options: Any) -> AsyncOpening:
    """`penstock.open` under asyncio: ``async with penstock.aopen(url) as broker:``, or ``broker = await penstock.aopen(url)``.

    On a store in this process, tasks share commits; a server is asked without blocking."""
    return AsyncOpening(url, clock, options)


class AsyncOpening:
    """What `penstock.aopen` returns: for ``async with``, which closes the broker, or for ``await``."""

    def __init__(self, url: str, clock: Clock | None, options: dict[str, Any]) -> None:
        self._url = url
        self._clock = clock
        self._options = options
        self._broker: AsyncBroker | None = None

    def __await__(self) -> Generator[Any, None, AsyncBroker]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncBroker:
        self._broker = await self._open()
        return self._broker

    async def __aexit__(self, *_: object) -> None:
        assert self._broker is not None
        await self._broker.close()

    async def _open(self) -> AsyncBroker:
        loop, url = asyncio.get_running_loop(), self._url
        if isinstance(url, str) and url.partition(":")[0] in REMOTE and ":" in url:
            return AsyncBroker(Remote(url, loop, self._options))
        opening = loop.run_in_executor(None, partial(open_local, url, clock=self._clock, **self._options))
        try:
            return AsyncBroker(Embedded(await asyncio.shield(opening), loop))
        except asyncio.CancelledError:
            opening.add_done_callback(_close)
            raise


def _close(opening: asyncio.Future[LocalBroker]) -> None:
    """Nobody will use the store that was being opened."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
