"""A queue behind HTTP. See `penstock.client.broker` for what happens when an answer is lost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from penstock import policy
from penstock.client.calls import Asking, Calls, Follower, asks
from penstock.clock import system_clock
from penstock.errors import Unsupported
from penstock.message import (
    OCTETS,
    Attributes,
    Claim,
    Draft,
    Message,
    Mode,
    Pulse,
    Receipt,
    Redriven,
    RetryPolicy,
    Sent,
    Settings,
    State,
    Stats,
)
from penstock.policy import check_seconds
from penstock.queue.arguments import as_draft, check_each, check_flag, check_held, check_many, check_one, check_taking
from penstock.queue.protocol import Queue

if TYPE_CHECKING:
    import pyarrow as pa

PLAIN = Settings()
LONGEST_WAIT = 20
"""Seconds of one long poll; a longer wait is several polls."""
MOST_DELIVERY = 2**126
"""A server with tokens adds a proof to the number of a delivery."""
LOOKS = frozenset(
    {"settings", "stats", "peek", "settled", "sismember", "scard", "readers", "settled_epoch", "read", "describe", "names"}
    | {"pulse", "span", "scan", "schedules", "find"}
)
"""Verbs that change nothing."""
ASKED_TWICE = LOOKS | {"send_many", "publish", "unstage"} | {"claim", "confirm", "settle"} | {"schedule", "change_schedule"}
"""Verbs that change something, but have a token or a name by which a repetition is recognised."""


class Connected(Follower, Protocol):
    """The connections to a server, and its calls."""

    calls: Calls


class RemoteQueue(Queue):
    """One queue of a server. Each verb is a request, except those that are made of others."""

    def __init__(self, name: str, line: Connected) -> None:
        self.name = name
        self._line: Follower = line
        self._calls = line.calls
        self._path = f"/penstock/queues/{quote(name, safe='')}/"

    def _ask(self, verb: str, **arguments: Any) -> Asking[Any]:
        return self._calls.call(self._path + verb, arguments, again=verb in ASKED_TWICE, changes=verb not in LOOKS)

    def _own(self, messages: list[Message]) -> list[Message]:
        for message in messages:
            message.home = self
        return messages

    @property
    def settings(self) -> Settings:
        return self._read_settings()

    @asks
    def _read_settings(self) -> Asking[Settings]:
        settings: Settings = yield from self._ask("settings")
        return settings

    def send(
        self,
        body: bytes,
        *,
        content_type: str = OCTETS,
        attributes: Attributes | None = None,
        delay: float | None = None,
        visibility: float | None = None,
        deadline: float | datetime | None = None,
        key: str | bytes | None = None,
        group: str | None = None,
        retry: RetryPolicy | None = None,
        unique: bool = False,
        connection: object = None,
    ) -> Sent:
        draft = as_draft(body, content_type, attributes, delay, visibility, deadline, key, group, retry, unique)
        return self.send_many([draft], connection=connection)[0]

    def _admitted(self, drafts: Iterable[Draft | bytes], verb: str) -> list[Draft | bytes]:
        """Refuse bad input here, with the server's own error text."""
        batch = list(check_many(drafts, verb, "send"))
        policy.admit_all(batch, PLAIN, system_clock())
        return batch

    @asks
    def send_many(
        self, drafts: Iterable[Draft | bytes], *, token: str | None = None, connection: object = None
    ) -> Asking[list[Sent]]:
        _refuse(connection)
        batch = self._admitted(drafts, "send_many")
        if not batch:
            return []
        return list((yield from self._ask("send_many", drafts=batch, token=token or self._calls.new_token())))

    @asks
    def send_once(self, drafts: Sequence[Draft | bytes], token: str, *, remember: float = policy.TOKEN_WINDOW) -> Asking[None]:
        batch = self._admitted(drafts, "send_once")
        if batch:
            yield from self._ask("send_many", drafts=batch, token=token, remember=remember)

    @asks
    def receive(
        self,
        limit: int = 1,
        *,
        wait: float = 0,
        visibility: float | None = None,
        mode: Mode | str | None = None,
        share: tuple[int, int] | None = None,
        holder: str | None = None,
        unfinished: bool = False,
        together: bool = False,
    ) -> Asking[list[Message]]:
        check_taking(limit, visibility, share, holder)  # the share is a hint, which the protocol does not carry
        check_seconds(wait, "wait")
        give_up_at = time.monotonic() + wait
        while True:
            left = max(0.0, min(give_up_at - time.monotonic(), LONGEST_WAIT))
            arguments = {"limit": limit, "wait": left, "visibility": visibility, "mode": mode, "holder": holder}
            arguments |= {"unfinished": unfinished or None, "together": check_flag(together, "together") or None}
            given = {name: value for name, value in arguments.items() if value is not None}
            asking = self._calls.call(f"{self._path}receive", given, again=False, changes=True, wait=left)
            messages = self._own((yield from asking))
            if messages or time.monotonic() >= give_up_at:
                return messages

    def delete(self, message: Message | Receipt | str, *, connection: object = None) -> bool:
        return self.delete_many([message], connection=connection)[0]

    @asks
    def delete_many(self, messages: Sequence[Message | Receipt | str], *, connection: object = None) -> Asking[list[bool]]:
        _refuse(connection)
        held = _receipts(self.name, check_many(messages, "delete_many", "delete"))
        return list((yield from self._ask("delete_many", messages=held))) if held else []

    @asks
    def exchange(
        self,
        messages: Sequence[Message | Receipt | str],
        limit: int = 1,
        *,
        visibility: float | None = None,
        share: tuple[int, int] | None = None,
        holder: str | None = None,
    ) -> Asking[tuple[list[bool], list[Message]]]:
        check_taking(limit, visibility, share, holder)
        held = _receipts(self.name, check_many(messages, "exchange", "delete"))
        given = {"messages": held, "limit": limit, "visibility": visibility, "holder": holder}
        settled, taken = yield from self._ask("exchange", **{name: value for name, value in given.items() if value is not None})
        return settled, self._own(taken)

    @asks
    def fail(self, message: Message | Receipt | str, reason: str | None = None) -> Asking[bool]:
        return bool((yield from self._ask("fail", message=self._one(message), reason=policy.check_reason(reason))))

    @asks
    def finish(self, messages: Sequence[Message | Receipt | str], failed: str | None = None) -> Asking[list[bool]]:
        held = _receipts(self.name, check_many(messages, "finish", "finish([…])"))
        return list((yield from self._ask("finish", messages=held, failed=policy.check_reason(failed)))) if held else []

    @asks
    def extend(self, message: Message | Receipt | str, visibility: float) -> Asking[bool]:
        check_seconds(visibility, "visibility")
        return bool((yield from self._ask("extend", message=self._one(message), visibility=visibility)))

    @asks
    def extend_many(
        self, messages: Sequence[Message | Receipt | str], visibility: float | Sequence[float]
    ) -> Asking[list[bool]]:
        held = _receipts(self.name, check_many(messages, "extend_many", "extend"))
        each = check_each(visibility, len(held))
        return list((yield from self._ask("extend_many", messages=held, visibility=list(each)))) if held else []

    @asks
    def release(self, message: Message | Receipt | str, delay: float = 0, error: str | None = None) -> Asking[bool]:
        check_seconds(delay, "delay")
        noted = {} if policy.check_reason(error) is None else {"error": error}
        return bool((yield from self._ask("release", message=self._one(message), delay=delay, **noted)))

    @asks
    def bury(self, message: Message | Receipt | str, reason: str) -> Asking[bool]:
        reason = policy.check_given_reason(reason)
        return bool((yield from self._ask("bury", message=self._one(message), reason=reason)))

    @asks
    def cancel(self, id: str | None = None, *, key: str | bytes | None = None) -> Asking[bool]:
        check_one("cancel", id, key)
        return bool((yield from self._ask("cancel", **({"id": id} if key is None else {"key": key}))))

    def _one(self, message: Message | Receipt | str) -> Receipt:
        return _receipts(self.name, [message])[0]

    def _look(self, verb: str, **arguments: Any) -> Asking[list[Message]]:
        """Messages in as many answers as they take, each of them once."""
        found: dict[tuple[int, str], Message] = {}
        for part in (yield from self._parts(verb, arguments, None)):
            found |= {(message.number, message.id): message for message in part if (message.number, message.id) not in found}
        return list(found.values())

    def _parts(self, verb: str, arguments: dict[str, Any], accept: str | None) -> Asking[list[Any]]:
        parts: list[Any] = []
        more: dict[str, Any] | None = {}
        while more is not None:
            arguments = {**arguments, **more}
            part, more = yield from self._calls.look(self._path + verb, arguments, accept=accept)
            parts.append(part)
        return parts

    @asks
    def peek(
        self, limit: int = 1, *, state: State | str | None = None, after: tuple[int, int] | None = None
    ) -> Asking[list[Message]]:
        return (yield from self._look("peek", limit=limit, state=state, after=after))

    @asks
    def find(self, id: str | None = None, *, key: str | bytes | None = None) -> Asking[Message | None]:
        check_one("find", id, key)
        found: Message | None = yield from self._ask("find", **({"id": id} if key is None else {"key": key}))
        return found

    @asks
    def settled(self, limit: int = 100, *, after: tuple[int, int] | None = None) -> Asking[list[Message]]:
        return (yield from self._look("settled", limit=limit, after=after))

    @asks
    def span(self, *, settled: bool = False) -> Asking[tuple[int, int, int]]:
        count, first, last = yield from self._ask("span", settled=settled)
        return count, first, last

    @asks
    def scan(
        self, start: int = 0, stop: int = 2**62, limit: int = policy.MAX_BATCH, *, settled: bool = False
    ) -> Asking[list[Message]]:
        return (yield from self._look("scan", start=start, stop=stop, limit=limit, settled=settled))

    @asks
    def arrow(self, /, verb: str, schema: pa.Schema, **arguments: Any) -> Asking[pa.RecordBatch]:
        """The answer of `read` or `scan` as one Arrow batch with the columns of ``schema``."""
        from penstock import arrow

        given = {**arguments, "columns": schema.names}
        return arrow.unpack((yield from self._parts(verb, given, arrow.CONTENT_TYPE)), schema)

    @asks
    def stats(self) -> Asking[Stats]:
        stats: Stats = yield from self._ask("stats")
        return stats

    @asks
    def update(self, /, **changes: Any) -> Asking[Settings]:
        settings: Settings = yield from self._ask("update", **changes)
        return settings

    @asks
    def purge(self) -> Asking[int]:
        return int((yield from self._ask("purge")))

    @asks
    def redrive(
        self,
        limit: int | None = None,
        *,
        to: str | None = None,
        ids: Iterable[str] | None = None,
        since_at: int | None = None,
    ) -> Asking[Redriven]:
        chosen: dict[str, Any] = {"limit": limit, "to": to, "since_at": since_at}
        if ids is not None:
            chosen["ids"] = [held.id for held in check_held(self.name, check_many(ids, "redrive", "redrive(ids=[…])"))]
        redriven: Redriven = yield from self._ask("redrive", **chosen)
        return redriven

    @asks
    def sadd(self, member: str | bytes) -> Asking[bool]:
        policy.member_mark(member)
        return bool((yield from self._ask("sadd", member=member)))

    @asks
    def spop(self) -> Asking[str | bytes | None]:
        member: str | bytes | None = yield from self._ask("spop")
        return member

    @asks
    def sismember(self, member: str | bytes) -> Asking[bool]:
        policy.member_mark(member)
        return bool((yield from self._ask("sismember", member=member)))

    @asks
    def scard(self) -> Asking[int]:
        return int((yield from self._ask("scard")))

    @asks
    def pulse(self) -> Asking[Pulse]:
        pulse: Pulse = yield from self._ask("pulse")
        return pulse

    @asks
    def claim(
        self,
        reader: str,
        epoch: int,
        limit: int,
        *,
        ttl: float = 60,
        max_bytes: int | None = None,
        visible_by: int | None = None,
    ) -> Asking[Claim]:
        limits = {name: value for name, value in (("max_bytes", max_bytes), ("visible_by", visible_by)) if value is not None}
        claim: Claim = yield from self._ask("claim", reader=reader, epoch=epoch, limit=limit, ttl=ttl, **limits)
        return claim

    @asks
    def confirm(self, reader: str, epoch: int) -> Asking[Claim]:
        claim: Claim = yield from self._ask("confirm", reader=reader, epoch=epoch)
        return claim

    @asks
    def read(
        self, reader: str, epoch: int, start: int = 0, stop: int | None = None, *, damaged: bool = False
    ) -> Asking[list[Message]]:
        only = {"damaged": True} if damaged else {}
        return (yield from self._look("read", reader=reader, epoch=epoch, start=start, stop=stop, **only))

    @asks
    def settle(self, reader: str, epoch: int) -> Asking[int]:
        return int((yield from self._ask("settle", reader=reader, epoch=epoch)))

    @asks
    def give_up(self, reader: str) -> Asking[int]:
        return int((yield from self._ask("give_up", reader=reader)))

    @asks
    def readers(self) -> Asking[dict[str, list[Claim]]]:
        return dict((yield from self._ask("readers")))

    @asks
    def settled_epoch(self, reader: str) -> Asking[int | None]:
        epoch: int | None = yield from self._ask("settled_epoch", reader=reader)
        return epoch


def _receipts(queue: str, messages: Sequence[Message | Receipt | str]) -> list[Receipt]:
    return [Receipt(queue, each.id, each.delivery) for each in check_held(queue, messages, MOST_DELIVERY)]


def _refuse(connection: object) -> None:
    if connection is not None:
        raise Unsupported("a server cannot join a transaction of yours; SQLite, PostgreSQL and MariaDB can")
