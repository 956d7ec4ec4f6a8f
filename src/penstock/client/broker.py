"""The client: the same Broker and Queue, over HTTP, so that consumer code does not change.

When an answer is lost, the client repeats any request that is safe to repeat: reads, named claims, and sends, which carry a
token that the server recognises. If still no answer comes, a request that changes something raises `OutcomeUnknown`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from penstock import policy
from penstock.broker import Broker, Listing
from penstock.client.calls import Asking, asks
from penstock.client.connections import Line
from penstock.client.queue import ASKED_TWICE, LOOKS, Connected, RemoteQueue
from penstock.clock import Clock
from penstock.errors import BadInput, BadURL, QueueNotFound, Unsupported
from penstock.forking import watch
from penstock.message import MAX_NUMBER, Draft, Settings
from penstock.policy import check_count
from penstock.publishing.publishing import MAX_SEGMENT, check_segment, check_staging
from penstock.schedules.schedule import ONCE, Schedule, as_draft, check_schedule_name
from penstock.schedules.scheduler import Scheduler
from penstock.server_clock import ServerClock
from penstock.stores.roster import LocalRoster
from penstock.urls import shown


def connect(url: str, *, clock: Clock | None = None, **options: Any) -> RemoteBroker:  # noqa: ARG001
    """The options are those of `line_options`. The clock is the server's."""
    return RemoteBroker(Line(url, **line_options(url, options)))


def line_options(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """``token``: the bearer token, default $PENSTOCK_TOKEN; ``timeout``: seconds to wait for an answer; ``cafile``:
    certificates to trust; ``certfile``, ``keyfile``: a certificate to show, and its key if that is in another file;
    ``connections``: how many idle ones to keep, so that as many threads need not connect again."""
    known = {"token": os.environ.get("PENSTOCK_TOKEN"), "timeout": 30.0, "connections": 128}
    known |= {"cafile": None, "certfile": None, "keyfile": None}
    for name in options:
        if name not in known:
            raise BadURL(f"URL {shown(url)}: there is no option {name!r}; there are {', '.join(sorted(known))}")
    return {**known, **options}


@dataclass(frozen=True, slots=True)
class RemoteStore:
    """What the client knows about the store behind the server."""

    durable: bool
    ordered: bool
    groups: bool


class BrokerCalls:
    """The verbs of a broker that are requests."""

    def __init__(self, line: Connected) -> None:
        self._line = line
        self._calls = line.calls

    @asks
    def describe(self) -> Asking[dict[str, Any]]:
        described: dict[str, Any] = yield from self._ask("describe")
        return described

    @asks
    def create(self, /, name: str, *, exist_ok: bool = False, **settings: Any) -> Asking[None]:
        redrive = settings.get("redrive")
        if isinstance(redrive, tuple):
            settings["redrive"] = list(redrive)
        policy.check_settings(settings)
        yield from self._ask("create", name=policy.check_name(name), exist_ok=exist_ok, **settings)

    @asks
    def queues(self, offset: int = 0, limit: int | None = None) -> Asking[Listing]:
        check_count(offset, "offset", 0, MAX_NUMBER, BadInput)
        if limit is not None:
            check_count(limit, "limit", 0, MAX_NUMBER, BadInput)
        names = list((yield from self._ask("names")))
        return Listing(len(names), names[offset : None if limit is None else offset + limit])

    @asks
    def delete(self, name: str) -> Asking[Settings]:
        settings: Settings = yield from self._ask("delete", name=policy.check_name(name))
        return settings

    @asks
    def schedule(
        self,
        name: str,
        *,
        queue: str,
        body: bytes | Draft,
        cron: str | None = None,
        every: float | None = None,
        zone: str = "UTC",
        missed: str = ONCE,
    ) -> Asking[Schedule]:
        draft, check = as_draft(body), check_schedule_name(name)
        rule = {"cron": cron, "every": every, "zone": zone, "missed": missed}
        schedule: Schedule = yield from self._ask("schedule", name=check, queue=queue, body=draft, **rule)
        return schedule

    @asks
    def schedules(self) -> Asking[list[Schedule]]:
        return list((yield from self._ask("schedules")))

    @asks
    def change_schedule(self, /, name: str, **changes: Any) -> Asking[Schedule]:
        schedule: Schedule = yield from self._ask("change_schedule", name=check_schedule_name(name), **changes)
        return schedule

    @asks
    def remove_schedule(self, name: str) -> Asking[Schedule]:
        schedule: Schedule = yield from self._ask("remove_schedule", name=check_schedule_name(name))
        return schedule

    @asks
    def stage(self, writer: str, batch: int, name: str, segment: bytes) -> Asking[None]:
        check_staging(writer, batch, [name])
        path = f"/penstock/staged/{quote(writer, safe='')}/{batch}/{quote(name, safe='')}"
        yield from self._calls.put(path, check_segment(segment))

    @asks
    def unstage(self, writer: str, batch: int, names: Sequence[str]) -> Asking[None]:
        check_staging(writer, batch, names)
        yield from self._ask("unstage", writer=writer, batch=batch, names=list(names))

    @asks
    def publish(
        self,
        /,
        writer: str,
        batch: int,
        segments: Mapping[str, int],
        *,
        bad_rows: str | None = None,
        once: bool = False,
        digest: str | None = None,
        **how: Any,
    ) -> Asking[int | None]:
        check_staging(writer, batch, list(segments))
        counts = {"writer": writer, "batch": batch, "segments": dict(segments)}
        done: int | None = yield from self._ask("publish", **counts, bad_rows=bad_rows, once=once, digest=digest, **how)
        return done

    @asks
    def report(self, /, pipeline: str, **figures: Any) -> Asking[None]:
        path = f"/penstock/pipelines/{quote(pipeline, safe='')}"
        yield from self._calls.call(path, figures, again=True, changes=False)

    def _ask(self, verb: str, **arguments: Any) -> Asking[Any]:
        path = f"/penstock/broker/{verb}"
        return self._calls.call(path, arguments, again=verb in ASKED_TWICE, changes=verb not in LOOKS)


class RemoteBroker(Broker):
    """All queues of a server. Owns the connections to it."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._calls = BrokerCalls(line)
        self.clock = ServerClock(lambda: int(self._calls.describe()["at"]))  # leases and deadlines follow the server's clock
        watch(self.clock)
        self._remote: dict[str, RemoteQueue] = {}
        self._roster = LocalRoster()  # only this process knows its own consumers of a queue

    @property
    def store(self) -> RemoteStore:
        known = self._calls.describe()
        return RemoteStore(known["durable"], known["ordered"], known["groups"])

    def close(self) -> None:
        self._line.close()

    def create(self, name: str, *, exist_ok: bool = False, **settings: Any) -> RemoteQueue:
        self._calls.create(name, exist_ok=exist_ok, **settings)
        return self._queue(name)

    def queue(self, name: str) -> RemoteQueue:
        queue = self._queue(policy.check_name(name))
        _ = queue.settings
        return queue

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self._queue(name).settings)
        except (QueueNotFound, BadInput):
            return False

    def __iter__(self) -> Iterator[RemoteQueue]:
        return (self._queue(name) for name in self.queues().names)

    def queues(self, offset: int = 0, limit: int | None = None) -> Listing:
        return self._calls.queues(offset, limit)

    def delete(self, name: str) -> Settings:
        settings = self._calls.delete(name)
        self._remote.pop(name, None)
        return settings

    def schedule(
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
        return self._calls.schedule(name, queue=queue, body=body, cron=cron, every=every, zone=zone, missed=missed)

    def schedules(self) -> list[Schedule]:
        return self._calls.schedules()

    def change_schedule(self, name: str, **changes: Any) -> Schedule:
        return self._calls.change_schedule(name, **changes)

    def remove_schedule(self, name: str) -> Schedule:
        return self._calls.remove_schedule(name)

    def scheduler(self) -> Scheduler:
        raise Unsupported("the server runs its schedules itself")

    @property
    def max_segment(self) -> int:
        """A segment is one request, so at most half of what a server accepts."""
        return min(MAX_SEGMENT, int(self._calls.describe()["max_body"]) // 2)

    def stage(self, writer: str, batch: int, name: str, segment: bytes) -> None:
        self._calls.stage(writer, batch, name, segment)

    def unstage(self, writer: str, batch: int, names: Sequence[str]) -> None:
        self._calls.unstage(writer, batch, names)

    def publish(
        self,
        writer: str,
        batch: int,
        segments: Mapping[str, int],
        *,
        bad_rows: str | None = None,
        once: bool = False,
        digest: str | None = None,
        **how: Any,
    ) -> int | None:
        """If the first answer was lost, the repeated request also answers None."""
        return self._calls.publish(writer, batch, segments, bad_rows=bad_rows, once=once, digest=digest, **how)

    def report(self, pipeline: str, **figures: Any) -> None:
        """Tell the server how a pipeline gets on (see `penstock.pipeline_reports`)."""
        self._calls.report(pipeline, **figures)

    def _queue(self, name: str) -> RemoteQueue:
        return self._remote.setdefault(name, RemoteQueue(name, self._line))
